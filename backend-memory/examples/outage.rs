//! A unit test of how a program handles an outage of the store and the loss of a lock, by a scripted store under tokio's
//! paused clock.

use std::{future::Future, sync::Arc, time::Duration};

use lockcore::{AnyLockDao, LockError, LockingError, LockingService};
use lockcore_memory::SimulatedLockDao;

/// What became of an import.
#[derive(PartialEq, Eq, Debug)]
enum Import {
    Done,
    /// Another import may have written at the same time: the result has to be checked.
    Suspect,
    /// Nothing was written, and it can be tried again.
    TryAgain,
}

/// The code under test.
async fn import(locks: &LockingService, write: impl Future<Output = ()>) -> Result<Import, LockError> {
    match locks.run_locked(["import"], || write).await {
        Ok(()) => Ok(Import::Done),
        Err(LockingError::Lost { .. }) => Ok(Import::Suspect),
        Err(error) if error.is_retryable() => Ok(Import::TryAgain),
        Err(error) => Err(error),
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let locks = LockingService::new(AnyLockDao::new(Arc::new(SimulatedLockDao::new())));
    let ended = import(&locks, tokio::time::sleep(Duration::from_millis(1))).await?;
    println!("{ended:?}; the tests: cargo test -p lockcore-memory --test memory outage");
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockcore::{BackendErrorKind, Target};
    use lockcore_memory::{Fault, Step};
    use tokio::time::sleep;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// The store that a test scripts, and the service over it.
    fn store() -> (Arc<SimulatedLockDao>, LockingService) {
        let store = Arc::new(SimulatedLockDao::new());
        (store.clone(), LockingService::new(AnyLockDao::new(store)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_outage_is_survived() {
        let (store, locks) = store();
        let write = async {
            store.pause(Duration::from_secs(10));
            sleep(HOUR).await;
        };
        assert_eq!(import(&locks, write).await.expect("it runs"), Import::Done);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_past_the_lease_makes_it_suspect() {
        let (store, locks) = store();
        let write = async {
            store.pause(Duration::from_secs(40));
            sleep(HOUR).await;
        };
        assert_eq!(import(&locks, write).await.expect("it runs"), Import::Suspect);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_vanishes_makes_it_suspect() {
        let (store, locks) = store();
        let write = async {
            sleep(Duration::from_secs(300)).await;
            store.lose(&Target::Id("import".to_owned()));
            sleep(HOUR).await;
        };
        assert_eq!(import(&locks, write).await.expect("it runs"), Import::Suspect);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_is_tried_again() {
        let (store, locks) = store();
        store.script(Step::Acquire, [Fault::Fails(BackendErrorKind::Unavailable)]);
        assert_eq!(import(&locks, async {}).await.expect("it can be tried again"), Import::TryAgain);
        assert_eq!(import(&locks, async {}).await.expect("it works again"), Import::Done);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_leaves_nothing_locked() {
        let (store, locks) = store();
        store.script(Step::Acquire, [Fault::LosesAnswer]);
        assert_eq!(import(&locks, async {}).await.expect("it can be tried again"), Import::TryAgain);
        assert_eq!(locks.shutdown(HOUR).await, 0);
        assert!(store.memory().is_empty(), "the request was withdrawn");
        assert_eq!(store.steps(Step::Withdraw), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn late_answers_to_renewals_do_no_harm() {
        let (store, locks) = store();
        store.script(Step::Renew, [Fault::AnswersAfter(Duration::from_secs(8)); 3]);
        assert_eq!(import(&locks, sleep(HOUR)).await.expect("it runs"), Import::Done);
    }
}

//! A candidate that leads again and again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lockcore::{
    AnyLockDao, BackendErrorKind, BreakMode, LockingError, LockingService, Target, election::Election,
};
use tokio::time::{Instant, sleep};

use super::rigged::{Fault, Rigged, Step};

const SECOND: Duration = Duration::from_secs(1);

/// Notes that it is dropped.
struct Dropped<'a>(&'a AtomicUsize);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_ends_the_callback_and_another_term_follows() {
    let dao = Rigged::new();
    let locks = dao.service();
    let election = Election::new(&locks, "leader");
    let (dropped, mut terms) = (AtomicUsize::new(0), Vec::new());
    let value = election
        .lead("me", |held| {
            terms.push(held.fence("leader"));
            let (is_last, term, locks, dropped) =
                (terms.len() == 3, terms[terms.len() - 1], &locks, &dropped);
            async move {
                if is_last {
                    return "led";
                }
                let _noted = Dropped(dropped);
                let target = Target::Id("leader".to_owned());
                locks.admin().break_lock(&target, term, BreakMode::Now).await.unwrap();
                std::future::pending().await
            }
        })
        .await
        .unwrap();
    assert_eq!((value, dropped.load(SeqCst)), ("led", 2));
    assert!(terms.is_sorted_by(|former, later| former < later), "{terms:?}");
    assert!(dao.memory.is_empty(), "it resigned");
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_the_term_and_not_the_candidacy() {
    for dao in [Rigged::new(), Rigged::without_queue()] {
        let locks = dao.service();
        let election = Election::new(&locks, "leader").lease(5 * SECOND);
        let (began, terms) = (Instant::now(), AtomicUsize::new(0));
        let lead = election.lead("me", async |_held| {
            if terms.fetch_add(1, SeqCst) == 0 {
                for step in [Step::Acquire, Step::Renew, Step::Release, Step::Withdraw] {
                    dao.always(step, Fault::Fails(BackendErrorKind::Unavailable));
                }
                std::future::pending::<()>().await;
            }
        });
        let outage = async {
            sleep(60 * SECOND).await;
            dao.heal();
        };
        let (led, ()) = tokio::join!(lead, outage);
        led.unwrap();
        assert_eq!(terms.load(SeqCst), 2);
        assert!(began.elapsed() < 70 * SECOND, "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_ends_it() {
    let dao = Rigged::new();
    let locks = dao.service();
    let election = Election::new(&locks, "leader");
    dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
    dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Denied));
    let error = election.lead("me", async |_held| {}).await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert_eq!(dao.count(Step::Acquire), 2);
    let long = Election::new(&locks, "leader").lease(Duration::ZERO);
    assert!(matches!(long.lead("me", async |_held| {}).await, Err(LockingError::BadRequest(_))));
}

#[tokio::test(start_paused = true)]
async fn dropping_it_leaves_the_election() {
    for leads in [true, false] {
        let dao = Rigged::new();
        let locks = dao.service();
        let other = if leads { None } else { Some(locks.lock(["leader"]).await.unwrap()) };
        let election = Election::new(&locks, "leader");
        let began = AtomicBool::new(false);
        let lead = election.lead("me", async |_held| {
            began.store(true, SeqCst);
            std::future::pending::<()>().await
        });
        assert!(tokio::time::timeout(SECOND, lead).await.is_err());
        assert_eq!(began.load(SeqCst), leads);
        if let Some(other) = other {
            other.release().await.unwrap();
        }
        assert_eq!(locks.shutdown(10 * SECOND).await, 0);
        assert!(dao.memory.is_empty(), "it leads: {leads}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_has_the_lease_of_its_election_and_is_known_to_calls_inside() {
    let dao = Rigged::new();
    let locks = dao.service();
    let election = Election::new(&locks, "leader").lease(5 * SECOND);
    let leadership = election.campaign("me").await.unwrap();
    assert_eq!(leadership.held().grant().lease, Some(5 * SECOND));
    leadership.resign().await.unwrap();
    election
        .lead("me", async |held| {
            assert_eq!(held.grant().lease, Some(5 * SECOND));
            assert_eq!(election.leader().await.unwrap().unwrap().term, held.fence("leader"));
            let again = locks.lock(["leader"]).await;
            assert!(matches!(again, Err(LockingError::SelfDeadlock { .. })), "{again:?}");
        })
        .await
        .unwrap();
}

/// As a service uses it: in a task, with what the task owns.
#[tokio::test]
async fn it_runs_in_a_task() {
    let locks = LockingService::new(AnyLockDao::new(Rigged::new()));
    let count = Arc::new(AtomicUsize::new(0));
    let (candidate, counted) = (locks.clone(), count.clone());
    let task = tokio::spawn(async move {
        let election = Election::new(&candidate, "leader");
        election
            .lead("me", async |held| {
                tokio::task::yield_now().await;
                counted.fetch_add(held.locks().len(), SeqCst)
            })
            .await
    });
    task.await.unwrap().unwrap();
    assert_eq!(count.load(SeqCst), 1);
}

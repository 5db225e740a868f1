//! The thread by itself, without a DAO.

use lockcore::{BackendErrorKind, Mode, Owner};

use super::*;
use crate::{
    SqliteLockDao,
    sqlite::{
        admin::{freeze, inspect},
        handoff::OFFER,
        release::{Hold, release},
        row::{Text, Wanted},
    },
};

async fn database() -> Database {
    let settings = SqliteLockDao::<String>::builder().path(":memory:").into_settings();
    Database::open(settings).await.expect("a database in memory")
}

#[tokio::test]
async fn a_thread_that_has_ended_is_an_error_and_no_hang() {
    let database = database().await;
    database.commands.send(Command::End).expect("it runs");
    let error = database.call(|worker, _| worker.migrate()).await.expect_err("nobody answers");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
}

#[tokio::test]
async fn a_panic_is_an_error_in_doubt_and_the_thread_goes_on() {
    let database = database().await;
    let panicking = |worker: &mut Worker<'_>, deadline| {
        worker.write_and_tell(deadline, |step| -> Result<(), StoreError> {
            freeze(step, &Key::from(&b"a"[..]), true)?;
            panic!("a test")
        })
    };
    let error = database.call(panicking).await.expect_err("it panics");
    assert!(error.in_doubt());
    let went_on =
        database.call(|worker, deadline| worker.write_and_tell(deadline, |step| step.next_number()));
    went_on.await.expect("the transaction of the one that panicked is closed");
    let look = |worker: &mut Worker<'_>, deadline| {
        worker.read(deadline, |step| inspect(step, &Key::from(&b"a"[..])))
    };
    assert!(!database.call(look).await.expect("an answer").frozen, "what it had done is undone");
}

#[tokio::test]
async fn an_operation_takes_place_though_its_future_is_dropped() {
    let database = database().await;
    let (done, seen) = oneshot::channel();
    let mut call = Box::pin(database.call(move |_, _| {
        let _ = done.send(());
        Ok(())
    }));
    let waker = std::task::Waker::noop();
    let _ = call.as_mut().poll(&mut std::task::Context::from_waker(waker));
    drop(call);
    seen.await.expect("it took place");
}

#[tokio::test]
async fn what_is_left_of_an_offer_counts_from_the_step_that_made_it() {
    const SLOW: Duration = Duration::from_millis(600);
    let database = database().await;
    let ask = |context: &str| Ask {
        context: Text(context.into()),
        attempt: 1,
        claims: [Wanted { id: Key::from(&b"a"[..]), mode: Mode::Exclusive }].into_iter().collect(),
        lease: clock::micros(Duration::from_secs(60)),
        owner: Owner::default(),
        queue: true,
        nested: false,
        detached: false,
    };
    let (holder, waiter) = (ask("holder"), ask("waiter"));
    let held = database.call(|worker, deadline| worker.acquire(holder, deadline)).await.expect("an answer");
    let Verdict::Granted(granted) = held.0 else { panic!("it is free: {held:?}") };
    let queued = database.call(|worker, deadline| worker.acquire(waiter, deadline)).await.expect("an answer");
    let mut wakeup = queued.1.expect("it has to wait");
    let hold = Hold {
        context: "holder".into(),
        locks: [(Key::from(&b"a"[..]), granted[0].fence as i64)].into_iter().collect(),
        lease: 0,
    };
    // As if the process were stopped in the step, or the disk were slow.
    let slowly = database.call(move |worker, deadline| {
        worker.write_and_tell(deadline, |step| {
            let lost = release(step, &hold);
            thread::sleep(SLOW);
            lost
        })
    });
    assert_eq!(slowly.await.expect("an answer"), []);
    let Wake::Offer(offer) = wakeup.recv().await else { panic!("its turn has come") };
    let whole = clock::duration(OFFER);
    assert!(offer.remaining.is_some_and(|left| left <= whole - SLOW), "{:?} of {whole:?}", offer.remaining);
}

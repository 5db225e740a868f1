//! Locks within locks: section 3.5, and contexts in use, 3.4.

use lockcore::{Claim, FreshContext, LockingError, Wait};
use uuid::Uuid;

use super::{Oops, Rig, never_runs};
use crate::{Backend, Store, store::id};

/// 3.5, seed case: a process that learns further ids only after its first lock takes them nested.
pub async fn further_ids_are_taken_nested<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let outer = rig.locks.with_locks(["a"], || async {
        let inner = rig.locks.with_locks(["b", "c"], || async {
            assert_eq!(store.caller().refused(["a", "b", "c"]).await.len(), 3);
            let innermost = rig.locks.with_locks(["d"], || async { Ok::<_, Oops>(1) }).await;
            Ok::<_, Oops>(innermost.expect("it is free") + 1)
        });
        let inner = inner.await.expect("they are free");
        assert!(store.is_free(&["b", "c", "d"]).await);
        store.caller().refused(["a"]).await;
        Ok::<_, Oops>(inner + 1)
    });
    assert_eq!(outer.await.expect("it is free"), 3);
    assert!(store.is_free(&["a"]).await);
}

/// 3.5, seed case: asking for an id that an enclosing call holds is refused at once, whatever the wait; the outer
/// locks stay, and the other ids of the set are free.
pub async fn the_same_id_nested_is_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let outer = rig.locks.with_locks(["a", "b"], || async {
        for wait in [Wait::never(), Wait::forever(), Wait::retries(3, |_| std::time::Duration::ZERO)] {
            for set in [vec!["a"], vec!["c", "b"], vec!["a", "b"]] {
                let nested = rig.locks.wait(wait.clone()).with_locks(set, never_runs);
                match nested.await {
                    Err(LockingError::SelfDeadlock { target }) => {
                        assert!(target == id("a") || target == id("b"))
                    }
                    other => panic!("not refused: {other:?}"),
                }
                assert!(store.is_free(&["c"]).await);
                assert_eq!(store.caller().refused(["a", "b"]).await.len(), 2);
            }
        }
        // Two levels up, and through plain code.
        let inner = rig.locks.with_locks(["d"], || async {
            let again = rig.locks.lock(["a"]).await.expect_err("it is held two levels up");
            assert!(matches!(again, LockingError::SelfDeadlock { .. }), "{again:?}");
            Ok::<_, Oops>(())
        });
        inner.await.expect("it is free");
        Ok::<_, Oops>(())
    });
    outer.await.expect("they are free");
    assert!(store.is_free(&["a", "b", "c", "d"]).await);
}

/// 3.5: a nested call is refused what the modes of the enclosing calls exclude, and granted what they do not, as siblings of a
/// subtree share its top.
pub async fn what_an_enclosing_call_does_not_keep_out_is_granted<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (shared, slots) = (store.capabilities().shared, store.capabilities().slots);
    let one_of_two = || Claim::slots("a".to_owned(), 2);
    let subtree = |path| Claim::subtree("s/", path).expect("it lies below");
    let cases = [
        (shared, subtree("s/x/"), subtree("s/y/"), true),
        (shared, subtree("s/x/"), subtree("s/x/z"), false),
        (shared, subtree("s/x/z"), subtree("s/x/"), false),
        (shared, vec![Claim::shared("a".to_owned())], vec![Claim::exclusive("a".to_owned())], false),
        // Two calls with a permit each, which wait for another, would wait for each other.
        (slots, vec![one_of_two()], vec![one_of_two()], false),
        (shared && slots, vec![Claim::shared("a".to_owned())], vec![one_of_two()], true),
    ];
    for (_, outer, inner, granted) in cases.into_iter().filter(|(declared, ..)| *declared) {
        let call = rig.locks.run_locked(&outer, async || {
            let nested = rig.locks.wait(Wait::forever()).run_locked(&inner, async || ()).await;
            match nested {
                Ok(()) => assert!(granted, "{inner:?} in {outer:?}"),
                Err(LockingError::SelfDeadlock { .. }) => assert!(!granted, "{inner:?} in {outer:?}"),
                Err(other) => panic!("{inner:?} in {outer:?}: {other}"),
            }
        });
        call.await.expect("they are free");
    }
    assert!(store.is_free(&["a", "s/", "s/x/", "s/y/"]).await);
}

/// 3.5: a nested call that another's lock refuses leaves the outer locks as they were.
pub async fn a_refused_nested_call_leaves_the_outer<B: Backend>(store: Store<B>) {
    let rig = &Rig::new(&store);
    let holder = store.caller();
    let held = holder.take(["c"]).await;
    let outer = rig.locks.with_held_locks(["a"], |outer| async move {
        let refused = rig.locks.with_locks(["b", "c"], never_runs).await;
        assert!(refused.expect_err("one is held").is_contention());
        outer.check().expect("the outer lock is still held");
        store.caller().refused(["a"]).await;
        assert!(store.is_free(&["b"]).await);
        holder.free(&held).await;
        Ok::<_, Oops>(store)
    });
    let store = outer.await.expect("it is free");
    assert!(store.is_free(&["a", "b", "c"]).await);
}

/// 3.5: what one task holds is no matter of another: there it is contention.
pub async fn another_task_is_not_nested<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let outer = rig.locks.with_locks(["a"], || async {
        let locks = rig.locks.clone();
        let other =
            tokio::spawn(async move { locks.with_locks(["a"], || async { Ok::<_, Oops>(()) }).await });
        assert!(other.await.expect("no panic").expect_err("it is held").is_contention());
        Ok::<_, Oops>(())
    });
    outer.await.expect("it is free");
}

/// 3.7: a nested call obeys holders but no queue, else it would wait for a waiter who waits for it.
pub async fn nested_calls_pass_the_queue<B: Backend>(store: Store<B>) {
    if !store.capabilities().fifo {
        return;
    }
    let rig = Rig::new(&store);
    let waiter = store.caller();
    let outer = rig.locks.with_locks(["a"], || async {
        let place = waiter.queue(["a", "b"]).await;
        let inner = rig.locks.with_locks(["b"], || async { Ok::<_, Oops>(()) }).await;
        inner.expect("it is free");
        Ok::<_, Oops>(place)
    });
    let mut place = outer.await.expect("it is free");
    waiter.free(&place.granted().await).await;
}

/// 3.4: a context that is in use by the same service is refused, and can be used again afterwards.
pub async fn a_context_in_use_is_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let context = Uuid::fresh();
    let guard = rig.locks.context(context).lock(["a"]).await.expect("it is free");
    assert_eq!(*guard.context(), context);
    let refused = rig.locks.context(context).with_locks(["b"], never_runs).await;
    match refused {
        Err(LockingError::ContextInUse { context: in_use }) => assert_eq!(in_use, context),
        other => panic!("not refused: {other:?}"),
    }
    store.caller().refused(["a"]).await;
    guard.release().await.expect("it is held");
    rig.locks.context(context).with_locks(["a"], || async { Ok::<_, Oops>(()) }).await.expect("it is free");
    assert!(store.is_free(&["a", "b"]).await);
}

//! What is declared works, what is not is refused: section 2.10.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind, BreakMode, LockDao, Page};

use crate::{Backend, Store, store::id};

/// 2.10: the declaration agrees with itself and never changes.
pub async fn the_declaration_is_sound<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    assert!(!declared.backend.is_empty());
    assert!(declared.fifo || !declared.push, "push needs fifo");
    assert!(
        declared.default_lease.is_some() || declared.permanent,
        "the default lease needs permanent locks"
    );
    assert!(declared.default_lease.is_none_or(|lease| lease >= declared.min_lease));
    assert!(declared.min_lease > Duration::ZERO && declared.max_ids >= 100);
    assert!(declared.shared_store || !declared.dead_holders, "a holder's death matters to other processes");
    let grant = store.caller().take(["a"]).await;
    assert!(grant.locks[0].granted.permits.is_empty(), "only slots have permits");
    assert_eq!(store.capabilities(), declared);
    if let Some(other) = store.reopen().await {
        assert_eq!(other.capabilities(), declared);
    }
}

/// 2.10: what is declared outlives and is seen by other processes: locks, waiters, marks.
pub async fn a_shared_store_is_shared<B: Backend>(store: Store<B>) {
    let Some(other) = store.reopen().await else { return };
    let (here, there) = (store.caller(), other.caller());
    let held = here.take(["a"]).await;
    there.refused(["a"]).await;
    let same = here.through(other.dao());
    same.keep(&held).await;
    same.free(&held).await;
    let late = here.request(["a"]);
    same.withdraw(&late, lockcore::backend::Withdraw::Undo).await;
    here.refused_as_withdrawn(&late).await;
    let held = there.take(["a"]).await;
    if store.capabilities().fifo {
        let mut place = here.queue(["a"]).await;
        there.free(&held).await;
        let granted = place.granted().await;
        there.refused(["a"]).await;
        here.free(&granted).await;
    } else {
        here.refused(["a"]).await;
    }
}

/// 2.10: locks outlive the one who has the store open, where they are declared to be shared.
pub async fn locks_outlive_the_dao<B: Backend>(store: Store<B>) {
    let Some(other) = store.reopen().await else { return };
    let holder = other.caller();
    let held = holder.take(["a"]).await;
    let context = holder.context;
    drop((holder, other));
    store.caller().refused(["a"]).await;
    let mut heir = store.caller();
    heir.context = context;
    heir.keep(&held).await;
    heir.free(&held).await;
    store.caller().take(["a"]).await;
}

/// 2.10: every ability that is not declared is refused as such.
pub async fn undeclared_abilities_are_refused<B: Backend>(store: Store<B>) {
    let (declared, dao, a) = (store.capabilities(), store.dao(), id("a"));
    let context = store.caller().context;
    if !declared.listing {
        refuses(dao.list(&Page::default())).await;
        refuses(dao.inspect(&a)).await;
        refuses(dao.release_context(&context)).await;
    }
    if !declared.breaking {
        refuses(dao.break_lock(&a, 1, BreakMode::Now, "")).await;
        refuses(dao.break_lock(&a, 1, BreakMode::AfterLease, "")).await;
        refuses(dao.freeze(&a, true)).await;
        refuses(dao.freeze(&a, false)).await;
    }
    if !declared.sweeping {
        refuses(dao.sweep(1, None)).await;
    }
}

/// The call has to be refused because its ability is not declared.
pub(super) async fn refuses<T>(call: impl Future<Output = Result<T, BackendError>>) {
    match call.await {
        Ok(_) => panic!("done, though the ability is not declared"),
        Err(error) => {
            assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error:?}");
            assert!(!error.in_doubt() && !error.is_retryable(), "{error:?}");
        }
    }
}

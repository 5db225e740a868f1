//! Bad requests and undeclared abilities are refused before anything is sent: sections 7 and 2.10.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BadRequest, BreakMode, Claim, LockError, LockingError, MAX_ID_BYTES, MAX_OWNER_BYTES, Page, Wait,
};
use uuid::Uuid;

use super::Rig;
use crate::{
    Backend, Store,
    fault::Operation,
    store::{exclusive, id, shared, slot},
};

/// 7: ids that are empty or too long, or too many, are refused by name and value.
pub async fn bad_ids_are_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (locks, declared) = (&rig.locks, store.capabilities());
    let long = "\u{e9}".repeat(MAX_ID_BYTES / 2 + 1);
    assert_eq!(bad(locks.lock(["a", ""]).await), BadRequest::EmptyId);
    match bad(locks.lock([&long]).await) {
        error @ BadRequest::IdTooLong { bytes, .. } => {
            assert_eq!(bytes, long.len());
            assert!(error.to_string().starts_with("id: has 1026 bytes, at most 1024"), "{error}");
        }
        other => panic!("another reason: {other:?}"),
    }
    // A backend without a bound cannot be given too many.
    if let Some(count) = declared.max_ids.checked_add(1).filter(|&count| count <= 10_000) {
        let many: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let backend = declared.backend;
        let error = bad(locks.lock(&many).await);
        assert_eq!(error, BadRequest::TooManyIds { count, max: declared.max_ids, backend });
        assert!(error.to_string().contains(&format!("{count} in one set")), "{error}");
        locks
            .lock(&many[1..])
            .await
            .expect("as many as are declared")
            .release()
            .await
            .expect("they are held");
    }
    assert!(rig.faults.calls(Operation::Acquire) <= 1, "nothing is sent");
}

/// 4 and 7: a limit of zero, zero permits, more permits than the limit, and contradicting claims are refused.
pub async fn bad_slots_are_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let locks = &rig.locks;
    let a = || "a".to_owned();
    assert_eq!(bad(locks.lock([slot("a", 0)]).await), BadRequest::ZeroLimit { id: a() });
    assert_eq!(bad(locks.slots(0).lock(["a"]).await), BadRequest::ZeroLimit { id: a() });
    assert_eq!(bad(locks.lock([slot("a", 3).permits(0)]).await), BadRequest::ZeroPermits { id: a() });
    let over = BadRequest::PermitsOverLimit { id: a(), permits: 4, limit: 3 };
    assert_eq!(over.to_string(), "permits: 4 for id \"a\", more than its limit of 3");
    assert_eq!(bad(locks.lock([slot("a", 3).permits(4)]).await), over);
    let twice = [slot("a", 3), slot("a", 4)];
    assert_eq!(bad(locks.lock(twice).await), BadRequest::ContradictingSlots { id: a() });
    assert_eq!(bad(locks.lock([Claim::buckets("a", 0, 3)]).await), BadRequest::ZeroLimit { id: a() });
    assert_eq!(rig.faults.calls(Operation::Acquire), 0, "nothing is sent");
}

/// 7: leases of zero, under what the backend can keep, or without end in sight, long labels and a `max_hold` of
/// zero are refused.
pub async fn bad_settings_are_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (locks, declared) = (&rig.locks, store.capabilities());
    let (min, backend) = (declared.min_lease, declared.backend);
    for lease in [Duration::ZERO, min / 2, min - Duration::from_nanos(1)] {
        let error = bad(locks.lease(lease).lock(["a"]).await);
        assert_eq!(error, BadRequest::LeaseTooShort { lease, min, backend });
        assert!(
            error.to_string().starts_with(&format!("lease: {lease:?}, the {backend} backend")),
            "{error}"
        );
    }
    let lease = Duration::MAX;
    assert!(matches!(bad(locks.lease(lease).lock(["a"]).await), BadRequest::LeaseTooLong { .. }));
    let long = "l".repeat(MAX_OWNER_BYTES + 1);
    assert_eq!(
        bad(locks.owner(long).lock(["a"]).await),
        BadRequest::OwnerTooLong { bytes: MAX_OWNER_BYTES + 1 }
    );
    let error = bad(locks.max_hold(Duration::ZERO).lock(["a"]).await);
    assert!(matches!(error, BadRequest::OutOfBounds { field: "max_hold", .. }), "{error:?}");
    assert_eq!(rig.faults.calls(Operation::Acquire), 0, "nothing is sent");
    drop(locks.lease(min).lock(["a"]).await.expect("the least lease is possible"));
}

/// 7, seed case: a service's own options are checked when it is built, and its hook at the start runs once.
pub async fn options_are_checked_when_a_service_is_built<B: Backend>(store: Store<B>) {
    let builder = || lockcore::LockingService::<String, Uuid, _>::builder(store.dao().clone());
    let out_of_bounds = |field: &'static str, built: Result<_, BadRequest>| match built {
        Err(BadRequest::OutOfBounds { field: told, .. }) => assert_eq!(told, field),
        Err(other) => panic!("another reason: {other:?}"),
        Ok(_) => panic!("not refused: {field}"),
    };
    out_of_bounds("margin", builder().margin(0.0).build());
    out_of_bounds("margin", builder().margin(0.5).build());
    out_of_bounds("sweep.batch", builder().sweep(Some(Duration::from_secs(1)), 0).build());
    out_of_bounds("sweep.every", builder().sweep(Some(Duration::ZERO), 1).build());
    out_of_bounds("max_hold", builder().max_hold(Duration::ZERO).build());
    assert!(matches!(builder().lease(Duration::ZERO).build(), Err(BadRequest::LeaseTooShort { .. })));
    let started = Arc::new(AtomicUsize::new(0));
    let runs = started.clone();
    let count = move |_: &_| {
        runs.fetch_add(1, Ordering::SeqCst);
    };
    let locks = builder().on_start(count).build().expect("the options are valid");
    for _ in 0..2 {
        locks.clone().run_locked(["a"], || async {}).await.expect("it is free");
    }
    assert_eq!(started.load(Ordering::SeqCst), 1);
}

/// 2.10: claims and leases that are not declared are refused as such, and those that are work.
pub async fn undeclared_claims_are_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (locks, declared) = (&rig.locks, store.capabilities());
    either(declared.shared, locks.lock([exclusive("x"), shared("a")]).await.map(drop));
    either(declared.shared, locks.shared().lock(["b"]).await.map(drop));
    either(declared.slots, locks.lock([exclusive("y"), slot("c", 2)]).await.map(drop));
    either(declared.slots, locks.slots(2).lock(["d"]).await.map(drop));
    either(declared.permanent, locks.permanent().lock(["e"]).await.map(drop));
    // Waiting works everywhere: where there is no queue, by asking again.
    let guard = locks.lock(["f"]).await.expect("it is free");
    let waits = locks.wait(Wait::forever()).run_locked(["f"], || async {});
    let (waited, released) = tokio::join!(waits, guard.release());
    waited.expect("its turn comes");
    released.expect("it is held");
}

/// 2.10 and 6: administration that is not declared is refused before it is sent, and what is declared works.
pub async fn undeclared_administration_is_refused<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let (admin, declared) = (rig.locks.admin(), store.capabilities());
    let held = store.caller().take(["a"]).await;
    let (a, fence) = (id("a"), held.locks[0].granted.fence);
    either(declared.listing, admin.list(&Page::default()).await.map(drop));
    either(declared.listing, admin.inspect(&a).await.map(drop));
    either(declared.breaking, admin.freeze(&a, true).await);
    either(declared.breaking, admin.freeze(&a, false).await);
    either(declared.breaking, admin.break_lock(&a, fence, BreakMode::Now).await.map(drop));
    either(declared.listing, admin.release_context(&held.context).await.map(drop));
    either(declared.sweeping, admin.sweep(10).await.map(drop));
    admin.doctor().await.expect("it can be looked at everywhere");
    assert!(matches!(admin.list(&Page { after: None, limit: 0 }).await, Err(LockingError::BadRequest(_))));
    assert!(matches!(admin.sweep(0).await, Err(LockingError::BadRequest(_))));
}

fn bad<T: std::fmt::Debug>(answer: Result<T, LockError<String, Uuid>>) -> BadRequest {
    match answer {
        Err(LockingError::BadRequest(bad)) => bad,
        other => panic!("not refused as a bad request: {other:?}"),
    }
}

fn either(declared: bool, answer: Result<(), LockError<String, Uuid>>) {
    match (declared, answer) {
        (true, Ok(())) | (false, Err(LockingError::BadRequest(BadRequest::Unsupported { .. }))) => {}
        (declared, answer) => panic!("declared: {declared}, and the answer is {answer:?}"),
    }
}

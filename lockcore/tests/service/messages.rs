//! What people read: every bad request names its field and its value, every outcome says what happened.

use std::{error::Error, time::Duration};

use lockcore::{
    BackendErrorKind, BadRequest, Claim, LockError, LockingError, LockingService, LossReason, LostLock,
    MAX_ID_BYTES, Mode, Page, Target, TimedOut, Wait, blocking,
};
use lockcore_memory::MemoryLockDao;
use uuid::Uuid;

use super::rigged::{Fault, Rigged, Step};

type Locks = blocking::LockingService<String, Uuid, std::sync::Arc<Rigged>>;

fn refusal<T: std::fmt::Debug>(result: Result<T, LockError<String, Uuid>>) -> String {
    let error = result.unwrap_err();
    assert!(!error.is_retryable() && !error.is_contention());
    assert_eq!(std::io::Error::from(error.clone()).kind(), std::io::ErrorKind::InvalidInput);
    let LockingError::BadRequest(bad) = &error else { panic!("{error:?}") };
    assert!(error.source().is_none(), "its message has it already");
    assert_eq!(error.to_string(), format!("bad request: {bad}"));
    bad.to_string()
}

#[test]
fn bad_requests_name_the_field_and_the_value_and_send_nothing() {
    let dao = Rigged::with(0, |capabilities| {
        capabilities.max_ids = 100;
        capabilities.min_lease = Duration::from_millis(100);
    });
    let locks = Locks::from(dao.service());
    let claim = |claim: Claim<&'static str>| refusal(locks.lock([claim]));
    assert_eq!(refusal(locks.lock(["a", ""])), "id: is empty, it must have 1 to 1024 bytes");
    let long = "ä".repeat(MAX_ID_BYTES / 2) + "x";
    let start = "ä".repeat(32);
    assert_eq!(
        refusal(locks.lock([&long])),
        format!("id: has 1025 bytes, at most 1024 are possible: {start:?}...")
    );
    locks.lock(["x".repeat(MAX_ID_BYTES)]).unwrap().release().unwrap();
    assert_eq!(claim(Claim::slots("db", 0)), "limit: 0 for id \"db\", it must be at least 1");
    assert_eq!(claim(Claim::slots("db", 3).permits(0)), "permits: 0 for id \"db\", it must be at least 1");
    assert_eq!(claim(Claim::slots("db", 3).permits(4)), "permits: 4 for id \"db\", more than its limit of 3");
    assert_eq!(
        claim(Claim::slots("db", u32::MAX).permits(65_537)),
        "permits: 65537 for id \"db\" is not possible, at most 65536 can be taken by one claim"
    );
    assert_eq!(
        refusal(locks.lock([Claim::slots("db", 3), Claim::slots("db", 4)])),
        "ids: two different slot claims for id \"db\" in one set"
    );
    let ids = |count: u32| (0..count).map(|n| n.to_string());
    assert_eq!(
        refusal(locks.lock(ids(101))),
        "ids: 101 in one set, the rigged backend can take at most 100 in one step"
    );
    locks.lock(ids(100).chain(ids(100))).unwrap().release().unwrap();
    let lease = |lease| refusal(locks.lease(lease).lock(["a"]));
    assert_eq!(lease(Duration::ZERO), "lease: 0ns, the rigged backend needs at least 100ms");
    assert_eq!(lease(Duration::from_millis(99)), "lease: 99ms, the rigged backend needs at least 100ms");
    let (max, century) = (Duration::from_secs(31_536_000), Duration::from_secs(3_153_600_000));
    assert_eq!(lease(century), format!("lease: {century:?}, at most {max:?} are possible"));
    assert_eq!(
        refusal(locks.owner("x".repeat(1281)).lock(["a"])),
        "owner: has 1281 bytes, at most 1280 are possible"
    );
    assert_eq!(
        refusal(locks.max_hold(Duration::ZERO).lock(["a"])),
        "max_hold: 0s is not possible, it must be more than zero"
    );
    assert_eq!(dao.count(Step::Acquire), 2, "nothing that is refused is sent");
    assert_eq!(locks.shutdown(Duration::ZERO), 0);
}

#[test]
fn an_owner_label_cannot_disturb_a_terminal() {
    let owner = lockcore::Owner::from("night\nshift \u{202e}\u{1b}[31m");
    assert_eq!(owner.to_string(), r"night\nshift \u{202e}\u{1b}[31m");
    assert_eq!(&*owner, "night\nshift \u{202e}\u{1b}[31m", "but it is stored as it is");
}

#[test]
fn what_a_backend_does_not_declare_is_refused_by_name() {
    let dao = Rigged::with(0, |it| {
        (it.permanent, it.slots, it.shared) = (false, false, false);
        (it.listing, it.breaking, it.sweeping) = (false, false, false);
    });
    let (locks, lacks) = (Locks::from(dao.service()), ": the rigged backend has no such ability");
    assert_eq!(refusal(locks.permanent().lock(["a"])), format!("lease: none (a permanent lock){lacks}"));
    assert_eq!(refusal(locks.slots(3).lock(["a"])), format!("a slot claim{lacks}"));
    assert_eq!(refusal(locks.shared().lock(["a"])), format!("a shared claim{lacks}"));
    let admin = locks.as_async().admin();
    let target = Target::Id("a".to_owned());
    assert_eq!(refusal(pollster::block_on(admin.list(&Page::default()))), format!("list{lacks}"));
    assert_eq!(refusal(pollster::block_on(admin.inspect(&target))), format!("inspect{lacks}"));
    assert_eq!(refusal(pollster::block_on(admin.freeze(&target, true))), format!("freeze{lacks}"));
    assert_eq!(refusal(pollster::block_on(admin.sweep(1))), format!("sweep{lacks}"));
}

#[test]
fn bad_settings_of_a_service_are_refused_when_it_is_built() {
    let build = |change: fn(lockcore::Builder<String, Uuid, _>) -> lockcore::Builder<String, Uuid, _>| {
        change(LockingService::builder(Rigged::new())).build().unwrap_err().to_string()
    };
    assert_eq!(build(|it| it.margin(0.5)), "margin: 0.5 is not possible, it must be over 0 and under 0.5");
    assert_eq!(
        build(|it| it.margin(f64::NAN)),
        "margin: NaN is not possible, it must be over 0 and under 0.5"
    );
    assert_eq!(build(|it| it.lease(Duration::ZERO)), "lease: 0ns, the rigged backend needs at least 1ms");
    let millisecond = Duration::from_millis(1);
    let _: Duration = millisecond;
    assert_eq!(
        build(|it| it.sweep(Some(Duration::from_millis(1)), 100)),
        "sweep.every: 1ms is not possible, it must be from 10ms to 365 days"
    );
    assert_eq!(
        build(|it| it.sweep(Some(Duration::MAX), 100)),
        format!("sweep.every: {:?} is not possible, it must be from 10ms to 365 days", Duration::MAX)
    );
    assert_eq!(
        build(|it| it.sweep(Some(Duration::from_secs(1)), 0)),
        "sweep.batch: 0 is not possible, it must be at least 1"
    );
    let contexts = blocking::LockingService::from(
        LockingService::builder_with_contexts(
            lockcore_memory::MemoryLockDao::<String, String>::new(),
            || "c".repeat(256),
        )
        .build()
        .unwrap(),
    );
    let error = contexts.lock(["a"]).unwrap_err();
    assert!(matches!(error, LockingError::BadRequest(BadRequest::ContextLength { .. })));
    assert!(error.to_string().ends_with("has 256 bytes, it must have 1 to 255"), "{error}");
    let error = contexts.context(String::new()).lock(["a"]).unwrap_err();
    assert_eq!(error.to_string(), "bad request: context: \"\" has 0 bytes, it must have 1 to 255");
}

#[test]
fn outcomes_say_what_happened() {
    let dao = Rigged::new();
    let locks = Locks::from(dao.service());
    let holder = locks.owner("night shift on host 7").lock(["a"]).unwrap();
    let context = *holder.context();
    let message = |error: LockError<String, Uuid>| error.to_string();
    let refused = message(locks.lock(["a", "b"]).unwrap_err());
    let held =
        format!("\"a\" is held by {context} (night shift on host 7) exclusive for 30.0s more, 1 in use");
    assert_eq!(refused, format!("not locked: {held}"));
    let error = locks.wait(Wait::up_to(Duration::from_millis(10))).lock(["a"]).unwrap_err();
    let LockingError::NotLocked { timed_out: Some(TimedOut { after, .. }), .. } = &error else {
        panic!("{error}")
    };
    let expected =
        format!("not locked after {after:.1?} of waiting for others to release: \"a\" is held by {context}");
    assert!(error.to_string().starts_with(&expected), "{error}");
    holder.release().unwrap();
    dao.once(Step::Acquire, Fault::Fails(BackendErrorKind::Unavailable));
    let error = locks.lock(["a"]).unwrap_err();
    assert!(error.source().is_none(), "its message has it already");
    assert_eq!(message(error), "not locked: the backend is unavailable, try again: rigged to fail");
    dao.once(Step::Acquire, Fault::Hangs);
    let error = message(locks.wait(Wait::up_to(Duration::from_millis(10))).lock(["a"]).unwrap_err());
    assert!(
        error.ends_with(" of waiting for the store to answer: the backend failed: no answer in time"),
        "{error}"
    );
    let frozen = Target::Id("f".to_owned());
    pollster::block_on(locks.as_async().admin().freeze(&frozen, true)).unwrap_err();
}

#[test]
fn losses_and_refusals_of_the_service_say_what_happened() {
    type Any = LockingError<String, Uuid, std::io::Error>;
    let target = || Target::Id("a".to_owned());
    let lost = |reason| vec![LostLock { target: target(), fence: 1, reason }];
    let message = |error: Any| error.to_string();
    let stopped = |reason| message(Any::Lost { lost: lost(reason), callback: None });
    assert_eq!(stopped(LossReason::Expired), "stopped because locks were lost: \"a\": its lease ended");
    assert_eq!(
        stopped(LossReason::Unreachable),
        "stopped because locks were lost: \"a\": it could not be renewed until its lease ended"
    );
    let done = Any::Lost { lost: lost(LossReason::Broken), callback: Some(Ok(())) };
    assert_eq!(
        message(done),
        "done, but locks were lost meanwhile: \"a\": it was broken by an administrator"
    );
    let failed =
        Any::Lost { lost: lost(LossReason::Vanished), callback: Some(Err(std::io::Error::other("mine"))) };
    assert_eq!(failed.source().unwrap().to_string(), "mine");
    assert_eq!(message(failed), "failed, and locks were lost meanwhile: \"a\": it vanished from the store");
    let too_long = Any::HeldTooLong { max_hold: Duration::from_secs(60) };
    assert_eq!(message(too_long), "stopped because the locks were held for longer than 60s");
    let own = Any::SelfDeadlock { target: target() };
    let enclosing = "an enclosing call of the same task, or by the lockctl that runs this program";
    assert_eq!(message(own), format!("\"a\" is held by {enclosing}"));
    assert_eq!(
        message(Any::SelfDeadlock { target: Target::Global }),
        format!("the global lock is held by {enclosing}")
    );
    let context = Uuid::nil();
    assert_eq!(
        message(Any::ContextInUse { context }),
        "the context 00000000-0000-0000-0000-000000000000 is in use by another call"
    );
    assert_eq!(message(Any::ShutDown), "the locking service is shutting down");
    let own = Any::Callback { error: std::io::Error::other("mine") };
    assert_eq!(own.flatten().to_string(), "mine");
    assert_eq!(Mode::Slots { permits: 2, limit: 3 }.to_string(), "2 of 3 slots");
}

#[tokio::test]
async fn what_another_wrote_as_its_context_is_no_command_to_a_terminal() {
    let dao = std::sync::Arc::new(MemoryLockDao::<String, String>::new());
    let evil = LockingService::builder_with_contexts(dao.clone(), || "\x1b[2J".to_owned()).build().unwrap();
    let locks = LockingService::builder_with_contexts(dao, || "good".to_owned()).build().unwrap();
    let _held = evil.lock(["a"]).await.unwrap();
    let error: LockError<String, String> = locks.lock(["a"]).await.unwrap_err();
    assert!(!error.to_string().contains('\x1b'), "{:?}", error.to_string());
}

#[tokio::test]
async fn contexts_that_are_made_are_checked_as_those_that_are_given() {
    let dao = MemoryLockDao::<String, String>::new();
    let locks = LockingService::builder_with_contexts(dao, || "x".repeat(300)).build().unwrap();
    let error = locks.lock(["a"]).await.unwrap_err();
    assert!(matches!(error, LockingError::BadRequest(BadRequest::ContextLength { .. })), "{error:?}");
}

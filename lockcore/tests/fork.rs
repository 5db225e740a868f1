//! A process that is forked after the library was used. In a process of its own, so that no other test's thread holds a
//! mutex at the fork.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::{PipeWriter, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use lockcore::{BadRequest, FreshContext, LockingError, LockingService};
use lockcore_conformance::{
    fault::{Faults, FaultyDao, Operation},
    own_process,
};
use lockcore_memory::MemoryLockDao;
use nix::{
    sys::{
        signal::{Signal, raise},
        wait::waitpid,
    },
    unistd::{ForkResult, fork},
};
use pollster::block_on;
use uuid::Uuid;

type Service = LockingService<String, Uuid, FaultyDao<MemoryLockDao<String>>>;

const LEASE: Duration = Duration::from_secs(3);

fn service() -> (Service, Faults) {
    let (dao, faults) = FaultyDao::new(Arc::new(MemoryLockDao::new()));
    (LockingService::new(dao), faults)
}

/// What a child writes.
fn in_a_child(code: impl FnOnce(&mut PipeWriter)) -> String {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    #[expect(
        unsafe_code,
        reason = "it is what is tested; the other threads of the process hold no lock that the child needs"
    )]
    let forked = unsafe { fork() };
    match forked.unwrap() {
        ForkResult::Child => {
            // Nothing of the harness may go on in the child.
            let _ = catch_unwind(AssertUnwindSafe(|| code(&mut writer)));
            raise(Signal::SIGKILL).unwrap();
            unreachable!("it was killed")
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut told = String::new();
            reader.read_to_string(&mut told).unwrap();
            waitpid(child, None).unwrap();
            told
        }
    }
}

#[test]
fn a_forked_process_starts_over_and_leaves_its_parents_locks_alone() {
    if !own_process::is_own() {
        return;
    }
    let (locks, faults) = service();
    let guard = block_on(locks.lease(LEASE).lock(["a"])).unwrap();
    let parent = Uuid::fresh();
    let other = block_on(locks.lease(LEASE).lock(["c"])).unwrap();
    let mut copy = Some((guard, other));

    let mut children = [(); 2].map(|()| {
        in_a_child(|out| {
            let (guard, other) = copy.take().unwrap();
            assert!(guard.check().is_err() && other.held().lost().now_or_never().is_some());
            assert!(matches!(
                locks.admin().doctor().now_or_never(),
                Some(Err(LockingError::BadRequest(BadRequest::Forked)))
            ));
            for lost in [guard, other].map(|guard| block_on(guard.release()).unwrap_err()) {
                assert!(lost.to_string().contains("held by the process that forked this one"), "{lost}");
            }
            let refused = block_on(locks.lease(LEASE).lock(["b"])).unwrap_err();
            let released = faults.calls(Operation::Release);
            let (own, calls) = service();
            let held = block_on(own.lease(LEASE).lock(["a"])).unwrap();
            let began = Instant::now();
            while calls.calls(Operation::Renew) < 2 && began.elapsed() < 10 * LEASE {
                std::thread::sleep(Duration::from_millis(10));
            }
            let renewed = calls.calls(Operation::Renew) >= 2 && held.check().is_ok();
            write!(out, "{};{refused};{released};{renewed}", held.context()).unwrap();
        })
    });

    children.sort();
    let contexts = children.each_ref().map(|told| {
        let [context, refused, released, renewed] = told.split(';').collect::<Vec<_>>()[..] else {
            panic!("the child did not get to its end: {told:?}")
        };
        assert!(refused.contains("fork"), "{refused}");
        assert_eq!((released, renewed), ("0", "true"), "{told}");
        context.parse::<Uuid>().unwrap()
    });
    assert_ne!(contexts[0], contexts[1]);
    assert!(!contexts.contains(&Uuid::fresh()) && !contexts.contains(&parent));
    let (guard, other) = copy.expect("only the children dropped theirs");
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
    block_on(other.release()).unwrap();
}

//! A forked child reaches nothing of the store that its parent opened, and holds nothing of what its parent holds.

use std::{
    fmt::Debug,
    io::{PipeWriter, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use lockcore::{
    BadRequest, BreakMode, LockError, LockingError, LockingService, LossReason, LostLock, Page, Wait,
    blocking, election::Election,
};
use nix::{
    sys::{
        signal::{Signal, raise},
        wait::waitpid,
    },
    unistd::{ForkResult, alarm, fork},
};
use uuid::Uuid;

use super::TestResult;
use crate::{Backend, Store, store::id};

/// After so many seconds a child that hangs is ended.
const PATIENCE: u32 = 60;

type Answer<T> = Option<Result<T, LockError<String, Uuid>>>;

/// Every way to the store, in a child. Each is closed at once: nothing is sent on the parent's connection, where its answer
/// would be taken for one to the parent.
pub(super) async fn a_child_reaches_nothing<B: Backend>(store: Store<B>) -> TestResult {
    const EVERY: Duration = Duration::from_secs(1);
    let locks = LockingService::<String, Uuid, _>::new(store.dao().clone());
    let election = Election::new(&locks, "election");
    let (guard, leadership) = (locks.lock(["a"]).await?, election.campaign("the parent").await?);
    let mut copy = Some((guard, leadership));

    let told = in_a_child(|out| {
        let (guard, leadership) = copy.take().expect("the parent's is another");
        let (admin, a, page) = (locks.admin(), id("a"), Page::default());
        let (grant, context) = (guard.held().grant().clone(), *guard.held().context());
        let sync = blocking::LockingService::from(locks.clone());
        let wait = locks.wait(Wait::up_to(EVERY));
        let nothing = async || {};
        let mut door = Door(out);
        door.is_closed("lock", locks.lock(["b"]).now_or_never());
        door.is_closed("lock with a wait", wait.lock(["a"]).now_or_never());
        door.is_closed("run_locked", locks.run_locked(["b"], nothing).now_or_never());
        door.is_closed("blocking lock", Some(sync.lock(["b"])));
        door.is_closed("list", admin.list(&page).now_or_never());
        door.is_closed("inspect", admin.inspect(&a).now_or_never());
        door.is_closed("watch", pin!(admin.watch(&a, EVERY)).next().now_or_never().flatten());
        door.is_closed("until_free", admin.until_free(["a"], EVERY).now_or_never());
        door.is_closed("break_lock", admin.break_lock(&a, 1, BreakMode::Now).now_or_never());
        door.is_closed("freeze", admin.freeze(&a, true).now_or_never());
        door.is_closed("release_context", admin.release_context(&context).now_or_never());
        door.is_closed("release", admin.release(&grant).now_or_never());
        door.is_closed("renew", admin.renew(&grant).now_or_never());
        door.is_closed("check", admin.check(&grant).now_or_never());
        door.is_closed("held_by", admin.held_by(&context).now_or_never());
        door.is_closed("sweep", admin.sweep(1).now_or_never());
        door.is_closed("doctor", admin.doctor().now_or_never());
        door.is_closed("leader", election.leader().now_or_never());
        door.is_closed("observe", pin!(election.observe(EVERY)).next().now_or_never().flatten());
        door.is_closed("campaign", election.campaign("the child").now_or_never());
        door.says("check", guard.check().expect_err("it is the parent's").lost);
        door.says("confirmed", guard.confirmed().now_or_never().map_or(Vec::new(), is_lost));
        door.says("lost", guard.lost().now_or_never().unwrap_or_default());
        door.says("a term", leadership.lost().now_or_never().unwrap_or_default());
        assert_eq!(guard.time_left(), Some(Duration::ZERO));
        assert_eq!(guard.exclusive_fence("a"), None);
        door.says("release of a guard", lost_by(guard.release().now_or_never()));
        door.says("resign", lost_by(leadership.resign().now_or_never()));
        write!(door.0, "the end").expect("the parent reads");
    });
    assert_eq!(told, "the end", "in the child");

    let (guard, leadership) = copy.expect("only the child has taken its own");
    guard.check()?;
    assert_eq!(locks.admin().inspect(&id("a")).await?.holders.len(), 1, "the child has released nothing");
    guard.release().await?;
    leadership.resign().await?;
    Ok(())
}

/// Writes down what is not as it should be.
struct Door<'w>(&'w mut PipeWriter);

impl Door<'_> {
    fn is_closed<T: Debug>(&mut self, name: &str, answer: Answer<T>) {
        match answer {
            Some(Err(LockingError::BadRequest(BadRequest::Forked | BadRequest::Unsupported { .. }))) => {}
            other => writeln!(self.0, "{name}: {other:?}").expect("the parent reads"),
        }
    }

    fn says(&mut self, name: &str, lost: Vec<LostLock<String>>) {
        match &lost[..] {
            [lost] if lost.reason == LossReason::Forked => {}
            _ => writeln!(self.0, "{name}: lost are {lost:?}").expect("the parent reads"),
        }
    }
}

fn is_lost(confirmed: Result<(), lockcore::LockLost<String>>) -> Vec<LostLock<String>> {
    confirmed.map_or_else(|lost| lost.lost, |()| Vec::new())
}

fn lost_by(answer: Answer<()>) -> Vec<LostLock<String>> {
    match answer {
        Some(Err(LockingError::Lost { lost, .. })) => lost,
        _ => Vec::new(),
    }
}

/// Returns what the code writes in a forked child. The calling test is to be in a process of its own.
///
/// # Panics
/// If there can be no child.
pub fn in_a_child(code: impl FnOnce(&mut PipeWriter)) -> String {
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    #[expect(
        unsafe_code,
        reason = "it is what is tested; the other threads of the process hold no lock that the child needs"
    )]
    let forked = unsafe { fork() };
    match forked.expect("the system allows one more process") {
        ForkResult::Child => {
            alarm::set(PATIENCE);
            // Nothing of the harness may go on in the child.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| code(&mut writer))) {
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                let _ = writer.write_all(text.as_bytes());
            }
            raise(Signal::SIGKILL).expect("a signal can be sent to oneself");
            unreachable!("it was killed")
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut told = String::new();
            reader.read_to_string(&mut told).expect("the child writes text");
            waitpid(child, None).expect("it is a child");
            told
        }
    }
}

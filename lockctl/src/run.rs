//! `lockctl run`: a command under locks, and its end before they can be lost.

use std::{
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use lockcore::{
    AnyLockDao, Held, LockDao, LockError, LockGuard, LockingError, LockingService, LossReason, LostLock,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    args::{Global, Locking, Run},
    child::{Change, Child},
    exit::{Code, Failure},
    output::say,
    session::{self, GRACE, MARGIN},
    signals::{Signals, code_of},
    waiting,
};

type Guard = LockGuard<String, Uuid, AnyLockDao>;
type Lost = Vec<LostLock<String>>;

/// Set for commands; tells a `lockctl` inside one that its caller holds locks.
const CONTEXT: &str = "LOCKCORE_CONTEXT";

/// How often somebody sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// What a signal that came before the locks left to do.
pub(crate) enum Locked {
    /// The locks are held.
    Held(LockingService, Guard),
    /// A signal came first: nothing is held, and no place is kept.
    Interrupted(u8),
}

/// Holds the locks while the command runs; gives the exit code.
pub(crate) async fn run(global: &Global, args: Run) -> Result<u8, Failure> {
    let mut signals = listen()?;
    let (locks, guard) = match lock(global, &args.locking, std::process::id(), &mut signals).await? {
        Locked::Held(locks, guard) => (locks, guard),
        Locked::Interrupted(code) => return Ok(code),
    };
    let started = Child::start(&args.command, |command| describe(command, &guard));
    let ended = match started {
        Ok(child) => Ok(supervise(child, guard.held(), &mut signals).await),
        Err(failure) => Err(failure),
    };
    let released = guard.release().await;
    settle(&locks).await;
    let Ended { code, lost } = ended?;
    match (lost, released) {
        (Some(lost), _) => Err(Failure::new(
            Code::Lost,
            format!("{}, CMD was stopped", LockError::<_, Uuid>::Lost { lost, callback: None }),
        )),
        (None, Err(LockingError::Lost { lost, .. })) => Err(Failure::new(
            Code::Lost,
            format!("CMD ended with {code}, but {}", lockcore::LockLost { lost }),
        )),
        (None, Err(other)) => Err(other.into()),
        (None, Ok(())) => Ok(code),
    }
}

/// Starts to listen to signals.
pub(crate) fn listen() -> Result<Signals, Failure> {
    Signals::listen().map_err(|error| Failure::other(format!("cannot listen to signals: {error}")))
}

/// Takes the locks, unless a signal comes first.
///
/// They are detached: the command may outlive this process, and only the lease tells when it must have ended.
pub(crate) async fn lock(
    global: &Global,
    locking: &Locking,
    pid: u32,
    signals: &mut Signals,
) -> Result<Locked, Failure> {
    let locks = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Locked::Interrupted(code_of(signal))),
        locks = session::open(global, locking.wait, locking.lease, pid) => locks?,
    };
    let claims = locking.claims();
    let mut call = locks.call().detached();
    if std::env::var_os(CONTEXT).is_some() {
        call = call.nested();
    }
    let locked = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        locked = call.lock(&claims) => Ok(locked),
        never = waiting::show(&locks, &claims) => match never {},
    };
    match locked {
        Ok(Ok(guard)) => Ok(Locked::Held(locks, guard)),
        Ok(Err(error)) => {
            settle(&locks).await;
            Err(error.into())
        }
        Err(signal) => {
            // The call was dropped, and withdraws its request in the background.
            settle(&locks).await;
            Ok(Locked::Interrupted(code_of(signal)))
        }
    }
}

/// Waits for what is still under way in the background, but not for long.
///
/// Now and then it sweeps, if nobody did for long: where all locks are taken by short processes nobody else does.
pub(crate) async fn settle(locks: &LockingService) {
    if std::process::id().is_multiple_of(32) && locks.dao().capabilities().sweeping {
        let mut unless_within = Some(SWEEP_EVERY);
        while locks.dao().sweep(100, unless_within).await.is_ok_and(|swept| swept.more) {
            unless_within = None;
        }
    }
    if locks.shutdown(GRACE).await > 0 {
        say("the store does not answer: what is still locked ends with its lease");
    }
}

/// Puts what is held into the command's environment.
fn describe(command: &mut Command, guard: &Guard) {
    let mut fences = Map::new();
    let mut permits = Map::new();
    for lock in guard.locks() {
        let id = lock.target.stored().into_owned();
        if !lock.granted.permits.is_empty() {
            permits.insert(id.clone(), json!(lock.granted.permits.as_slice()));
        }
        fences.insert(id, json!(lock.granted.fence));
    }
    command.env(CONTEXT, guard.context().to_string());
    // What an enclosing lockctl said of its own locks does not hold for ours.
    match guard.locks() {
        [only] => command.env("LOCKCORE_FENCE", only.granted.fence.to_string()),
        _ => command.env_remove("LOCKCORE_FENCE"),
    };
    match permits.is_empty() {
        true => command.env_remove("LOCKCORE_PERMITS"),
        false => command.env("LOCKCORE_PERMITS", Value::Object(permits).to_string()),
    };
    command.env("LOCKCORE_FENCES", Value::Object(fences).to_string());
}

/// How the command ended.
struct Ended {
    code: u8,
    /// What was lost, if that ended it.
    lost: Option<Lost>,
}

/// Waits for the command, passes signals on, and ends it when locks are lost.
async fn supervise(mut child: Child, held: &Held<String, Uuid>, signals: &mut Signals) -> Ended {
    let mut lease = LeaseEnd::of(held);
    let lost = loop {
        tokio::select! {
            biased;
            lost = held.lost() => break lost,
            change = child.changed() => match change {
                Change::Ended(code) => return Ended { code, lost: None },
                Change::Stopped(signal) => {
                    child.stop_too(signal);
                    // It may have been a long time: nothing goes on under locks that are gone.
                    if held.check().is_ok() {
                        child.go_on();
                    }
                }
            },
            signal = signals.next() => child.signal(signal),
            () = tokio::time::sleep(lease.pause()) => lease.look(held),
        }
    };
    let ended = stop(child, lease.left(&lost), signals).await;
    Ended { code: ended, lost: Some(lost) }
}

/// TERM to the whole process group now, and KILL when `left` is over.
async fn stop(mut child: Child, left: Duration, signals: &mut Signals) -> u8 {
    child.terminate();
    let deadline = tokio::time::Instant::now() + left;
    loop {
        tokio::select! {
            biased;
            () = child.gone() => break,
            () = tokio::time::sleep_until(deadline) => {
                child.signal(nix::sys::signal::Signal::SIGKILL);
                break;
            }
            signal = signals.next() => child.signal(signal),
        }
    }
    child.code().await
}

/// When the lease ends if nothing renews it, most of the margin included: until then the command may take to stop.
///
/// A handle tells only the time until the margin, and after a loss nothing; so it is asked now and then.
struct LeaseEnd {
    looked: Instant,
    looked_by_calendar: SystemTime,
    /// What was certainly left then.
    left: Option<Duration>,
    margin: Duration,
}

impl LeaseEnd {
    fn of(held: &Held<String, Uuid>) -> Self {
        let mut end = LeaseEnd {
            looked: Instant::now(),
            looked_by_calendar: SystemTime::now(),
            left: None,
            margin: Duration::ZERO,
        };
        end.look(held);
        end
    }

    fn look(&mut self, held: &Held<String, Uuid>) {
        match held.time_left() {
            Some(left) if left.is_zero() => {}
            left => {
                self.left = left;
                (self.looked, self.looked_by_calendar) = (Instant::now(), SystemTime::now());
                // A lease only becomes longer: one that was handed over is short until it is confirmed.
                let margin = left.unwrap_or_default().mul_f64(MARGIN / (1.0 - MARGIN));
                self.margin = self.margin.max(margin);
            }
        }
    }

    /// Often enough to see what the last renewal brought.
    fn pause(&self) -> Duration {
        self.margin.max(Duration::from_millis(5))
    }

    /// How long the command may take to stop, so that nothing of it is left when somebody else can hold what was lost.
    fn left(&self, lost: &Lost) -> Duration {
        if lost.iter().any(|lock| lock.reason == LossReason::Vanished) {
            return Duration::ZERO;
        }
        // The calendar goes on while the machine is suspended.
        let by_calendar = self.looked_by_calendar.elapsed().unwrap_or_default();
        let elapsed = self.looked.elapsed().max(by_calendar);
        (self.left.unwrap_or_default() + self.margin.mul_f64(0.75)).saturating_sub(elapsed)
    }
}

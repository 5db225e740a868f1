//! `lockctl run`: a command under locks, and its end before they can be lost.

use std::{pin::pin, time::Duration};

use lockcore::{Claim, Held, LockDao, LockError, LockingError, LockingService, LostLock, Once, OnceGuard};
use lockcore_any::Waiting;
use nix::sys::signal::Signal;
use uuid::Uuid;

use crate::{
    args::{Global, Locking, Run},
    child::{Change, Child},
    clock::{self, LONGEST_SLEEP},
    environment::{self, Guard, describe},
    exit::{Code, Failure},
    lease::LeaseEnd,
    once::{Elsewhere, Fire, Job},
    output::{Output, say},
    session::{self, GRACE},
    signals::{Signals, code_of},
    waiting,
    watchdog::{Order, Watchdog},
};

type Lost = Vec<LostLock<String>>;

/// The interval at which the store is swept, by one of many processes.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// The longest time for which the locks of a command that has ended are released, while the store is unavailable and
/// their lease lasts.
const LONGEST_RELEASE: Duration = Duration::from_secs(60);

/// The outcome of waiting for the locks, which a signal may cut short.
pub(crate) enum Locked<G = Guard> {
    /// The locks are held.
    Held(LockingService, G),
    /// A signal came first: nothing is held, and no place is kept.
    Interrupted(u8),
}

impl<G> Locked<G> {
    fn map<H>(self, map: impl FnOnce(G) -> H) -> Locked<H> {
        match self {
            Locked::Held(locks, guard) => Locked::Held(locks, map(guard)),
            Locked::Interrupted(code) => Locked::Interrupted(code),
        }
    }
}

/// Holds the locks while the command runs; gives the exit code.
pub(crate) async fn run(global: &Global, args: Run, output: Output) -> Result<u8, Failure> {
    let fire = Fire::of(&args)?;
    environment::check_room(&fire.as_ref().map_or_else(|| args.locking.claims(), |fire| Ok(fire.claims()))?)?;
    let mut signals = listen()?;
    let locked = match &fire {
        None => {
            let locked = lock(global, &args.locking, args.keep_for, std::process::id(), &mut signals).await;
            locked.map(|locked| locked.map(Job::Set))
        }
        Some(fire) => match lock_fire(global, &args.locking, fire, &mut signals).await {
            Ok(Locked::Held(locks, Once::Here(guard))) => Ok(Locked::Held(locks, Job::Fire(guard))),
            Ok(Locked::Held(locks, Once::Running(by))) => {
                return elsewhere(&locks, fire, &args, output, &Elsewhere::Running(by)).await;
            }
            Ok(Locked::Held(locks, Once::RanBefore(by))) => {
                return elsewhere(&locks, fire, &args, output, &Elsewhere::Ran(by)).await;
            }
            Ok(Locked::Interrupted(code)) => Ok(Locked::Interrupted(code)),
            Err(failure) => Err(failure),
        },
    };
    let (locks, job) = match (locked, args.conflict_exit_code) {
        (Ok(Locked::Held(locks, job)), _) => (locks, job),
        (Ok(Locked::Interrupted(code)), _) => return Ok(code),
        (Err(Failure { code: Code::NotAcquired | Code::TimedOut, .. }), Some(code)) => return Ok(code),
        (Err(failure), _) => return Err(failure),
    };
    let ended = Supervised::run(global, &locks, &job, &args, &mut signals).await;
    let lasts = job.held().time_left().unwrap_or(GRACE).clamp(GRACE, LONGEST_RELEASE);
    let mut confirmed = true;
    let released = match job {
        Job::Set(guard) if ended.is_ok() => guard.release().await,
        // A job that did not take place keeps no other host from it.
        Job::Set(guard) => guard.release_now().await,
        Job::Fire(guard) if matches!(ended, Ok(Ended { code: 0, lost: None })) => {
            let kept = tokio::select! {
                biased;
                kept = guard.keep() => kept,
                _ = signals.next() => Ok(false),
            };
            kept.map(|kept| confirmed = kept)
        }
        Job::Fire(guard) => guard.release().await,
    };
    tokio::select! {
        biased;
        () = settle(&locks, lasts) => {}
        _ = signals.next() => settle(&locks, GRACE).await,
    }
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
        (None, Ok(())) => {
            if !confirmed {
                say("CMD succeeded, but the store did not confirm that: another host may run it again");
            }
            Ok(code)
        }
    }
}

/// Ends without having run the command, as that runs or ran elsewhere.
async fn elsewhere(
    locks: &LockingService,
    fire: &Fire,
    args: &Run,
    output: Output,
    by: &Elsewhere,
) -> Result<u8, Failure> {
    settle(locks, GRACE).await;
    if let Some(code) = args.conflict_exit_code {
        return Ok(code);
    }
    fire.elsewhere(output, by).map(|()| 0)
}

/// Starts to listen to signals.
pub(crate) fn listen() -> Result<Signals, Failure> {
    Signals::listen().map_err(|error| Failure::other(format!("cannot listen to signals: {error}")))
}

/// Takes the locks, unless a signal comes first.
///
/// They are detached: the command may outlive this process, and only the lease says when it must have ended.
pub(crate) async fn lock(
    global: &Global,
    locking: &Locking,
    keep_for: Option<Duration>,
    pid: u32,
    signals: &mut Signals,
) -> Result<Locked, Failure> {
    let claims = locking.claims()?;
    let take = async |locks: &_, wait| lock_confirmed(locks, wait, &claims, keep_for).await;
    lock_by(global, locking, pid, signals, &claims, take).await
}

/// Takes the locks of a fire, unless it runs or ran elsewhere, or a signal comes first.
async fn lock_fire(
    global: &Global,
    locking: &Locking,
    fire: &Fire,
    signals: &mut Signals,
) -> Result<Locked<Once<OnceGuard>>, Failure> {
    let take = async |locks: &_, wait| fire.lock(locks, wait).await;
    lock_by(global, locking, std::process::id(), signals, &fire.claims(), take).await
}

async fn lock_by<G>(
    global: &Global,
    locking: &Locking,
    pid: u32,
    signals: &mut Signals,
    claims: &[Claim<String>],
    take: impl AsyncFnOnce(&LockingService, Waiting) -> Result<G, LockError<String, Uuid>>,
) -> Result<Locked<G>, Failure> {
    let (locks, wait) = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Locked::Interrupted(code_of(signal))),
        locks = session::open(global, locking.wait, locking.lease, pid) => locks?,
    };
    let locked = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        locked = take(&locks, wait) => Ok(locked),
        never = waiting::show(&locks, claims) => match never {},
    };
    match locked {
        Ok(Ok(guard)) => Ok(Locked::Held(locks, guard)),
        Ok(Err(error)) => {
            settle(&locks, GRACE).await;
            Err(error.into())
        }
        Err(signal) => {
            // The call was dropped, and withdraws its request in the background.
            settle(&locks, GRACE).await;
            Ok(Locked::Interrupted(code_of(signal)))
        }
    }
}

/// Takes the locks for their whole lease.
///
/// A lock that is handed over lasts for a moment only, and is lost if the store does not answer in that time. Such a loss
/// stops nothing yet: the request is sent again, and waits as long again.
async fn lock_confirmed(
    locks: &LockingService,
    wait: Waiting,
    claims: &[Claim<String>],
    keep_for: Option<Duration>,
) -> Result<Guard, LockError<String, Uuid>> {
    loop {
        let guard = environment::lock(locks, wait, claims, keep_for).await?;
        match guard.held().confirmed().await {
            Ok(()) => return Ok(guard),
            Err(lost) => say(&format!("{lost}, before it was used: requesting again")),
        }
    }
}

/// Waits for what is still under way in the background, but not for longer than `grace`.
///
/// Now and then it sweeps, if that was not done for long: where all locks are taken by short processes no other process does.
pub(crate) async fn settle(locks: &LockingService, grace: Duration) {
    if std::process::id().is_multiple_of(32) && locks.dao().capabilities().sweeping {
        let mut unless_within = Some(SWEEP_EVERY);
        while locks.dao().sweep(100, unless_within).await.is_ok_and(|swept| swept.more) {
            unless_within = None;
        }
    }
    if locks.shutdown(grace).await > 0 {
        say("the store is unavailable: what is still locked ends with its lease");
    }
}

/// The end of the command.
struct Ended {
    code: u8,
    /// The locks that were lost, if that ended it.
    lost: Option<Lost>,
}

/// A command under locks.
struct Supervised<'a> {
    locks: &'a LockingService,
    held: &'a Held<String, Uuid>,
    lease: LeaseEnd,
    watchdog: Watchdog,
}

impl<'a> Supervised<'a> {
    /// Runs the command until it ends, also if that is because locks are lost.
    async fn run(
        global: &Global,
        locks: &'a LockingService,
        job: &'a Job,
        args: &Run,
        signals: &mut Signals,
    ) -> Result<Ended, Failure> {
        let held = job.held();
        let mut supervised =
            Supervised { locks, held, lease: LeaseEnd::of(held), watchdog: Watchdog::start(held.context())? };
        // It has the time before it has the group: this process may be stopped in between.
        supervised.watchdog.order(supervised.lease.order(None));
        if let Err(lost) = held.check() {
            return Err(Failure::new(Code::Lost, format!("CMD was not started: {lost}")));
        }
        let store = environment::store(global)?;
        let child = Child::start(&args.command, |command| {
            let is_kept = args.keep_for.is_some() || matches!(job, Job::Fire(_));
            describe(command, held, job.fence(), is_kept);
            command.envs(store);
        })?;
        supervised.watchdog.order(supervised.lease.order(Some(child.group())));
        Ok(supervised.wait(child, signals).await)
    }

    /// Waits for the command, passes signals on, and ends it when locks are lost.
    async fn wait(mut self, mut child: Child, signals: &mut Signals) -> Ended {
        let lost = loop {
            tokio::select! {
                biased;
                lost = self.held.lost() => break lost,
                change = child.changed() => match change {
                    Change::Ended(code) => {
                        // While this process was stopped, its watchdog may have ended the command.
                        let lost = self.held.check().err().filter(|_| code > 128).map(|error| error.lost);
                        return Ended { code, lost };
                    }
                    Change::Stopped(signal) => {
                        child.stop_too(signal);
                        // It may have been a long time: nothing goes on under locks that are gone.
                        if self.held.check().is_ok() {
                            child.go_on();
                        }
                    }
                },
                signal = signals.next() => child.signal(signal),
                () = tokio::time::sleep(self.lease.pause()) => {
                    self.lease.look(self.held);
                    self.watchdog.order(self.lease.order(Some(child.group())));
                }
            }
        };
        let code = self.stop(child, &lost, signals).await;
        Ended { code, lost: Some(lost) }
    }

    /// TERM to the whole process group now, and KILL when nothing may be left of it.
    async fn stop(mut self, mut child: Child, lost: &Lost, signals: &mut Signals) -> u8 {
        child.terminate();
        let kill = self.lease.kill();
        self.watchdog.order(Order { group: Some(child.group()), term: None, kill });
        let mut at_once = pin!(self.lease.others_may_hold(self.locks, self.held, lost));
        loop {
            let left = kill.map_or(LONGEST_SLEEP, |kill| kill.saturating_sub(clock::now()));
            tokio::select! {
                biased;
                () = child.gone() => break,
                () = &mut at_once => {
                    child.signal(Signal::SIGKILL);
                    break;
                }
                () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => if left.is_zero() {
                    child.signal(Signal::SIGKILL);
                    break;
                },
                signal = signals.next() => child.signal(signal),
            }
        }
        child.code().await
    }
}

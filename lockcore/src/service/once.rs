//! Jobs that run once in a fleet: [`Call::once`] and [`Call::once_per`].
//!
//! The set of a fire is two ids, which are locked in one step. While the job runs both are held. After a success the first alone lasts
//! on, detached from any process, for the time that the fire is kept. So a refusal tells whether it runs or ran, by whom and since when,
//! and no store needs to know of fires.

use std::{fmt, future::poll_fn, ops::Deref, pin::pin, time::Duration};

use super::{
    Call, CallbackResult, ErrOf, Held, LockGuard, LockingService, OkOf,
    call::take,
    hold::{Hold, ServiceRef},
    lease::Lease,
    run::{self, CallbackLimits, End},
    settings::MAX_LEASE,
};
use crate::{
    AnyLockDao, BadRequest, Claim, ClaimSet, Conflict, ConflictReason, ContextId, Failure, Holder, LockDao,
    LockError, LockingError, LostLock, Mode, Target, Uuid, protocol::DEFAULT_LEASE,
};

/// The time for which a fire with a name is kept: twice the period of a nightly job.
const KEEP: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// The name of the one fire of [`Call::once_per`].
const LATEST: &str = "latest";

/// The end of the id that is locked while a job runs.
const RUNNING: &str = "running";

/// The answer to a job that is to run once among many hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "it says whether the job ran here"]
pub enum Once<T, C = Uuid> {
    /// It was this call's turn: how the job [`Ran`], or the guard to run it under.
    Here(T),
    /// It is running elsewhere: by this [owner](Holder::owner), [since](Holder::since).
    Running(Holder<C>),
    /// It ran before: by this [owner](Holder::owner), which was granted it [then](Holder::since). It is kept for so long as
    /// [`remaining`](Holder::remaining) says.
    RanBefore(Holder<C>),
}

impl<T, C> Once<T, C> {
    /// Returns what it was this call's turn for, if it was.
    pub fn here(self) -> Option<T> {
        match self {
            Once::Here(here) => Some(here),
            Once::Running(_) | Once::RanBefore(_) => None,
        }
    }
}

/// A job that ran here, and succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran<T> {
    /// Its value.
    pub value: T,
    /// Set if the store confirmed that the fire is kept. If not, it did not answer until the lease ended: then another host may run the
    /// job again.
    pub confirmed: bool,
}

/// The time from which a fire is kept, and for how long.
#[derive(Clone, Copy, Debug)]
enum Keep {
    FromSuccess(Duration),
    FromGrant(Duration),
}

impl Keep {
    fn lasts(self) -> Duration {
        match self {
            Keep::FromSuccess(lasts) | Keep::FromGrant(lasts) => lasts,
        }
    }

    /// Returns how much of it is left after a success now.
    fn left(self, lease: Option<&Lease>) -> Duration {
        match (self, lease) {
            // A lease at least, so that those who wait for it see that it ran.
            (Keep::FromGrant(lasts), Some(lease)) => lease.since.left_of(lasts).max(lease.length),
            _ => self.lasts(),
        }
    }
}

/// A job that is to run once among many hosts; made by [`LockingService::once`] and [`LockingService::once_per`].
#[must_use = "it does nothing until it is given a job"]
pub struct OnceCall<'a, C: ContextId = Uuid, D: LockDao<String, C> = AnyLockDao<String, C>> {
    call: Call<'a, String, C, D>,
    name: String,
    /// `None`: the latest one.
    fire: Option<String>,
    keep: Keep,
}

impl<'a, C: ContextId, D: LockDao<String, C>> Call<'a, String, C, D> {
    /// Runs a job once for each fire among all processes that use the store and its namespace; `fire` names the fire, such as the day.
    ///
    /// - While it runs its locks are renewed. If its process dies, another may run it after a lease.
    /// - A job that fails, panics, is dropped, or is stopped, as by [`max_hold`](Self::max_hold), frees the fire at once: another
    ///   process may run it.
    /// - A job that succeeds keeps the fire for two days, or for as long as [`keep`](OnceCall::keep) says. The request for that is tried
    ///   as renewals are, until the lease ends; [`Ran::confirmed`] says whether the store answered.
    ///
    /// Every host has to give a fire the same name, whatever its clock says: derive it from the time for which the job was *scheduled*.
    /// A name that is made of the time at which a host starts differs where clocks do.
    ///
    /// A call that [waits](Self::wait) does so while the job runs elsewhere, and runs it if it failed there; it ends as soon as it ran. It
    /// takes no place in a queue, and asks each second. The locks have a lease, of 30 s if neither the call nor the store has one, and are
    /// [detached](Self::detached). A [context](Self::context) or [`keep_for`](Self::keep_for) cannot be given.
    ///
    /// The ids are `NAME@FIRE`, and while it runs `NAME@FIRE@running`. To have a fire run again, release or break `NAME@FIRE`.
    ///
    /// ```
    /// use lockcore::{LockingService, Once};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// # async fn report() -> std::io::Result<u64> { Ok(42) }
    /// for _host in ["one", "two"] {
    ///     match locks.once("nightly", "2026-11-29").run(report).await? {
    ///         Once::Here(ran) if ran.confirmed => println!("{} lines", ran.value),
    ///         Once::Here(_) => println!("done, but the store is away: another host may run it again"),
    ///         Once::Running(by) => println!("running by {}", by.owner),
    ///         Once::RanBefore(by) => println!("ran by {}, {:?}", by.owner, by.since()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn once(self, name: impl Into<String>, fire: impl Into<String>) -> OnceCall<'a, C, D> {
        self.fire(name.into(), Some(fire.into()), Keep::FromSuccess(KEEP))
    }

    /// Runs a job once per period among all processes, as [`once`](Self::once), without a name for each fire: from half a period after
    /// it began the job may begin again. No host's clock plays a part, so that clocks may differ.
    ///
    /// That is right for jobs that all hosts start regularly, each period, if
    /// - hosts start the same fire less than half a period apart, clocks that differ and late hosts included, and
    /// - the first of them that succeeds begins it less than half a period after its time. One that begins later, as after an outage,
    ///   may keep the next fire from running, and the fire after that runs.
    ///
    /// It does not catch up fires that no host started. A period is at least twice the lease.
    pub fn once_per(self, name: impl Into<String>, period: Duration) -> OnceCall<'a, C, D> {
        self.fire(name.into(), None, Keep::FromGrant(period / 2))
    }

    fn fire(mut self, name: String, fire: Option<String>, keep: Keep) -> OnceCall<'a, C, D> {
        let settings = self.settings();
        (settings.once, settings.detached) = (true, true);
        settings.lease.get_or_insert(DEFAULT_LEASE);
        OnceCall { call: self, name, fire, keep }
    }
}

impl<C: ContextId, D: LockDao<String, C>> LockingService<String, C, D> {
    /// Runs a job once for each fire among all processes, with the service's defaults; see [`Call::once`].
    pub fn once(&self, name: impl Into<String>, fire: impl Into<String>) -> OnceCall<'_, C, D> {
        self.call().once(name, fire)
    }

    /// Runs a job once per period among all processes, with the service's defaults; see [`Call::once_per`].
    pub fn once_per(&self, name: impl Into<String>, period: Duration) -> OnceCall<'_, C, D> {
        self.call().once_per(name, period)
    }
}

impl<'a, C: ContextId, D: LockDao<String, C>> OnceCall<'a, C, D> {
    /// Sets for how long the fire is kept after the job succeeded, up to 365 days: longer than any host may be late, and the store has an
    /// entry for it all the time. Unless set it is two days for a fire with a name. For [`Call::once_per`] it replaces what is left of half
    /// a period.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Keep::FromSuccess(keep);
        self
    }

    /// Runs the job, unless it runs or ran elsewhere.
    ///
    /// # Errors
    /// As [`Call::with_locks`]; but that the job runs or ran elsewhere is no error. Another host may run the job after any of them.
    ///
    /// # Cancel safety
    /// Safe: a job whose future is dropped counts as failed, and the fire is released in the background. Dropped after the success, while
    /// the store has not answered, the fire is kept if the request arrives, and otherwise free when the lease ends.
    ///
    /// # Panics
    /// If the job does, after the release.
    pub async fn run<F, Fut>(
        self,
        job: F,
    ) -> Result<Once<Ran<OkOf<Fut>>, C>, LockingError<String, C, ErrOf<Fut>>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        self.run_held(move |_| job()).await
    }

    /// Does the same as [`run`](Self::run), and passes the job a handle to what is held: fences, losses.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_held<F, Fut>(
        self,
        job: F,
    ) -> Result<Once<Ran<OkOf<Fut>>, C>, LockingError<String, C, ErrOf<Fut>>>
    where
        F: FnOnce(Held<String, C>) -> Fut,
        Fut: Future<Output: CallbackResult>,
    {
        let mut hold = match self.take(ServiceRef::Borrowed(self.call.service.inner())).await {
            Ok(Once::Here(hold)) => hold,
            Ok(Once::Running(by)) => return Ok(Once::Running(by)),
            Ok(Once::RanBefore(by)) => return Ok(Once::RanBefore(by)),
            Err(error) => return Err(error.widen()),
        };
        let end = {
            let settings = self.call.effective();
            let mut limits = CallbackLimits::new(settings.tell_when_lost, settings.max_hold);
            let mut make = Some(|core: &_| job(Held(std::sync::Arc::clone(core))));
            let mut future = pin!(None);
            poll_fn(|cx| run::poll(&hold, &mut limits, &mut make, future.as_mut(), cx)).await
        };
        let end = end.map(CallbackResult::into_result);
        let settled = self.settle(&mut hold, end.is_success()).await;
        conclude(end, settled).map(Once::Here)
    }

    /// Locks the fire and returns it as a guard, unless it runs or ran elsewhere; for control flow that does not fit into a callback.
    ///
    /// # Errors
    /// As [`run`](Self::run), without the job's own.
    ///
    /// # Cancel safety
    /// As [`Call::lock`].
    pub async fn lock(self) -> Result<Once<OnceGuard<C, D>, C>, LockError<String, C>> {
        let service = ServiceRef::Owned(self.call.service.inner().clone());
        Ok(match self.take(service).await? {
            Once::Here(hold) => Once::Here(OnceGuard { guard: LockGuard::new(hold), keep: self.keep }),
            Once::Running(by) => Once::Running(by),
            Once::RanBefore(by) => Once::RanBefore(by),
        })
    }

    /// Locks the fire, for a caller that runs the job on its own thread, and then [settles](Self::settle) it.
    pub(crate) async fn hold(&self) -> Result<Once<Hold<'a, String, C, D>, C>, LockError<String, C>> {
        self.take(ServiceRef::Borrowed(self.call.service.inner())).await
    }

    /// Keeps the fire if the job succeeded, and otherwise releases it; for [`conclude`].
    pub(crate) async fn settle(&self, hold: &mut Hold<'_, String, C, D>, succeeded: bool) -> Settled {
        if !succeeded {
            return Err(hold.release().await);
        }
        hold.keep_first(self.keep.left(hold.core.lease.as_deref())).await
    }

    async fn take<'s>(
        &self,
        service: ServiceRef<'s, String, C, D>,
    ) -> Result<Once<Hold<'s, String, C, D>, C>, LockError<String, C>> {
        let [first, running] = self.ids()?;
        let claims =
            ClaimSet::new([&first, &running].map(|id| Claim::exclusive(id.clone())), Mode::Exclusive);
        match take(service, self.call.effective(), claims).await {
            Ok(hold) => Ok(Once::Here(hold)),
            Err(LockingError::NotLocked { failures, timed_out }) => {
                let holder = |id| failures.iter().find_map(|failure| holder_of(failure, id));
                // One that is frozen may run.
                let may_run = || failures.iter().any(|failure| is_about(failure, &running));
                match (holder(&running), holder(&first)) {
                    (Some(by), _) => Ok(Once::Running(by.clone())),
                    (None, Some(by)) if !may_run() => Ok(Once::RanBefore(by.clone())),
                    _ => Err(LockingError::NotLocked { failures, timed_out }),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the ids of the fire: the one that is kept, and the one that is locked only while the job runs. No two fires have the same:
    /// the name of a fire has no `@` and is not `running`, so that the kinds differ, and each can be read back.
    fn ids(&self) -> Result<[String; 2], BadRequest> {
        let bad = |field, value: String, expected| Err(BadRequest::out_of_bounds(field, value, expected));
        if self.name.is_empty() {
            return bad("name", format!("{:?}", self.name), "it must not be empty");
        }
        if let Some(fire) = &self.fire
            && (fire.is_empty() || fire.contains('@') || [LATEST, RUNNING].contains(&&**fire))
        {
            let expected = "it must not be empty, `latest` or `running`, nor have a `@` in it";
            return bad("fire", format!("{fire:?}"), expected);
        }
        let lease = self.call.effective().lease.unwrap_or(DEFAULT_LEASE);
        match self.keep {
            Keep::FromSuccess(keep) if keep.is_zero() || keep > MAX_LEASE => {
                return bad("keep", format!("{keep:?}"), "it must be more than zero, and at most 365 days");
            }
            Keep::FromGrant(half) if half < lease || half > MAX_LEASE => {
                let expected = "it must be at least twice the lease, and at most 730 days";
                return bad("period", format!("{:?}", half * 2), expected);
            }
            _ => {}
        }
        let id = format!("{}@{}", self.name, self.fire.as_deref().unwrap_or(LATEST));
        Ok([id.clone(), format!("{id}@{RUNNING}")])
    }
}

impl<C: ContextId, D: LockDao<String, C>> fmt::Debug for OnceCall<'_, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnceCall { name, fire, keep, .. } = self;
        f.debug_struct("OnceCall")
            .field("name", name)
            .field("fire", fire)
            .field("keep", keep)
            .finish_non_exhaustive()
    }
}

fn is_about<C>(failure: &Failure<String, C>, id: &String) -> bool {
    matches!(failure, Failure::Conflict(Conflict { target: Target::Id(target), .. }) if target == id)
}

fn holder_of<'f, C>(failure: &'f Failure<String, C>, id: &String) -> Option<&'f Holder<C>> {
    match failure {
        Failure::Conflict(Conflict {
            target: Target::Id(target),
            reason: ConflictReason::Held { holders, .. },
        }) if target == id => holders.first(),
        _ => None,
    }
}

/// The end of a fire: whether the store confirmed that it is kept, or of one that was released what was lost.
type Settled = Result<bool, Vec<LostLock<String>>>;

/// The outcome of a job that ended so, and whose fire is settled, or its panic.
pub(crate) fn conclude<C, T, E>(
    end: End<Result<T, E>>,
    settled: Settled,
) -> Result<Ran<T>, LockingError<String, C, E>> {
    let (confirmed, lost) = match settled {
        Ok(confirmed) => (confirmed, Vec::new()),
        Err(lost) => (false, lost),
    };
    let value = run::conclude(end, lost).map_err(LockError::widen)?.into_result()?;
    Ok(Ran { value, confirmed })
}

/// A fire that is this process's to run. Dropping it counts as a failure of the job: the fire is released in the background.
///
/// Derefs to [`Held`]. As with a [`LockGuard`], nothing stops what is done under it when its locks are lost.
#[must_use = "dropping the guard releases the fire"]
pub struct OnceGuard<C: ContextId = Uuid, D: LockDao<String, C> = AnyLockDao<String, C>> {
    guard: LockGuard<String, C, D>,
    keep: Keep,
}

impl<C: ContextId, D: LockDao<String, C>> OnceGuard<C, D> {
    /// Returns what is held, as a handle that can be cloned and sent. Its first lock is that of the fire.
    pub fn held(&self) -> &Held<String, C> {
        self.guard.held()
    }

    /// Keeps the fire: the job succeeded. Returns whether the store confirmed that, as [`Ran::confirmed`].
    ///
    /// # Errors
    /// [`LockingError::Lost`] if locks were lost before: another host may have run the job at the same time.
    ///
    /// # Cancel safety
    /// As [`OnceCall::run`] after the success.
    pub async fn keep(self) -> Result<bool, LockError<String, C>> {
        let keep = self.keep.left(self.held().0.lease.as_deref());
        self.guard.keep_first(keep).await
    }

    /// Releases the fire: the job failed, and another host may run it.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError<String, C>> {
        self.guard.release().await
    }
}

impl<C: ContextId, D: LockDao<String, C>> Deref for OnceGuard<C, D> {
    type Target = Held<String, C>;

    fn deref(&self) -> &Held<String, C> {
        self.guard.held()
    }
}

impl<C: ContextId, D: LockDao<String, C>> fmt::Debug for OnceGuard<C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceGuard").field(self.held()).finish()
    }
}

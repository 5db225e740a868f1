//! The DAO: turns requests into calls of the script, and its replies back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, Conflict, ContextId, Finding, Grant,
    Granted, Ident, Inspection, Listing, LockDao, LostLock, Mode, Page, Released, Renewed, Target,
    backend::{AcquireRequest, Acquired, Moment, Wakeup, Withdraw, Withdrawn},
    protocol::{RECHECK, TOMBSTONE},
};
use redis::Value;
use uuid::Uuid;

use crate::{
    admin,
    config::{RedisBuilder, Replicas},
    doctor,
    error::unexpected,
    reply::{Reply, written},
    scripts::{Call, HOLDER, waiter_name},
    server::Server,
    session::Session,
    store::Store,
    version,
};

/// The abilities of a [`RedisLockDao`].
pub const CAPABILITIES: Capabilities = Capabilities {
    push: true,
    shortening: true,
    // Redis removes expired keys by itself.
    sweeping: false,
    // A lease has to be renewed several times, over a network.
    min_lease: Duration::from_millis(100),
    // Redis serves no other client meanwhile: about a microsecond for each.
    max_ids: 1000,
    ..Capabilities::shared_store("redis")
};

/// The time of a tombstone where a grant is kept, and where it is undone without a tombstone.
const KEEP: i64 = 0;
const NO_TOMBSTONE: i64 = -1;

/// Locks in a Redis database; see the [crate](crate).
pub struct RedisLockDao<I = String, C = Uuid> {
    store: Arc<Store>,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId> RedisLockDao<I, C> {
    /// Connects to the server that `url` names, with default settings.
    ///
    /// ```no_run
    /// use lockcore::LockingService;
    /// use lockcore_redis::RedisLockDao;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(RedisLockDao::<String>::open("redis://127.0.0.1/").await?);
    /// locks.run_locked(["report.csv"], async || ()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`RedisBuilder::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).open().await
    }

    /// Begins with default settings, to be changed before connecting.
    pub fn builder() -> RedisBuilder<I, C> {
        RedisBuilder::new()
    }

    /// For tests: sets the namespace's [test clock](RedisBuilder::test_clock) forward.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn advance(&self, by: Duration) -> Result<(), BackendError> {
        self.store.session().await?.command(self.store.scripts.advance(by)).await.map(drop)
    }

    /// Begins a call of `acquire` or `withdraw`. Options and modes are left out where they may be and are the usual ones.
    fn request(&self, request: &AcquireRequest<I, C>, step: Step, session: &str) -> Call {
        let scripts = &self.store.scripts;
        let all_exclusive = request.claims.iter().all(|claim| claim.mode == Mode::Exclusive);
        let with_modes = step == Step::Withdraw || !all_exclusive;
        let (context, lease) = (request.context.stored(), millis(request.lease));
        let targets = request.claims.iter().map(|claim| &claim.target);
        let waiter = waiter_name(request.attempt, &request.context);
        let call =
            scripts.call(2 + 2 * request.claims.len()).fence_key(scripts).tombstone_key(scripts, &waiter);
        let call = call.main_keys(scripts, targets.clone()).line_keys(scripts, targets);
        let (length, attempt) = (context.len().to_string(), format!("{:016x}", request.attempt.0));
        let (lasts, label) = (lease.to_string(), request.owner.len().to_string());
        let value =
            ["|", &length, ":", &context, "|||", &lasts, "|x|", &attempt, "|", &label, ":", &request.owner];
        let mut call = call.arg(step.name()).text(&value).arg(lease + 1);
        if request.queue || request.nested || with_modes {
            let queue = if request.queue { "q" } else { "" };
            let nested = if request.nested { "n" } else { "" };
            call.add_text(&[queue, nested, " ", session]);
        }
        if with_modes {
            let modes: Vec<_> = request.claims.iter().map(|claim| written(claim.mode)).collect();
            call.add(modes.join(" "));
        }
        call
    }

    /// Returns a call of `release` or `renew`. Fences are left out where all are the same.
    fn grant(&self, grant: &Grant<I, C>, step: &str) -> Call {
        let scripts = &self.store.scripts;
        let (context, lease) = (grant.context.stored(), millis(grant.lease));
        let fence = grant.locks.first().map_or(0, |lock| lock.granted.fence);
        let one_fence = grant.locks.iter().all(|lock| lock.granted.fence == fence);
        let targets = grant.locks.iter().map(|lock| &lock.target);
        let call = scripts.call(grant.locks.len()).main_keys(scripts, targets);
        let call = call
            .arg(step)
            .text(&[HOLDER, &fence.to_string(), "|", &context.len().to_string(), ":", &context, "||"])
            .arg(lease);
        match one_fence {
            true => call,
            false => {
                let fences: Vec<_> = grant.locks.iter().map(|lock| lock.granted.fence.to_string()).collect();
                call.arg(fences.join(" "))
            }
        }
    }

    /// Waits until the replicas have the last write, if the settings ask for it.
    async fn replicate(&self, session: &Session) -> Result<(), BackendError> {
        match &self.store.settings.replicas {
            None => Ok(()),
            // Boxed to keep the usual future small.
            Some(replicas) => Box::pin(self.await_replicas(session, replicas)).await,
        }
    }

    async fn await_replicas(&self, session: &Session, replicas: &Replicas) -> Result<(), BackendError> {
        let &Replicas { count, within } = replicas;
        let mut wait = redis::cmd("WAIT");
        wait.arg(count).arg(within.as_millis().max(1) as u64);
        match session.command(wait).await? {
            Value::Int(have) if have >= i64::from(count) => Ok(()),
            Value::Int(have) => {
                let message = format!("redis: {have} of {count} replicas confirmed within {within:?}");
                Err(BackendError::new(BackendErrorKind::Unavailable, message))
            }
            other => Err(unexpected(&format!("{other:?} where a number was expected"))),
        }
    }

    /// Withdraws a request; `tombstone`: for how many ms its attempt is refused from now on, or [`KEEP`] or [`NO_TOMBSTONE`].
    async fn undo(&self, request: &AcquireRequest<I, C>, tombstone: i64) -> Result<Withdrawn, BackendError> {
        let session = self.store.session().await?;
        session.inbox.waiters.remove(&waiter_name(request.attempt, &request.context));
        let call = self.request(request, Step::Withdraw, &session.name).arg(tombstone);
        let mut reply = Reply::of(session.call(&call).await?)?;
        Ok(match reply.text()?.as_str() {
            "granted" => Withdrawn::Holds(read_granted(reply)?),
            _ => Withdrawn::Left,
        })
    }
}

/// The steps that begin with the keys and arguments of a request.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Acquire,
    /// Has all arguments: the time of the tombstone comes last.
    Withdraw,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Acquire => "acquire",
            Step::Withdraw => "withdraw",
        }
    }
}

/// The script's decision about a request.
enum Decision<I, C> {
    Granted(Vec<Granted>),
    Refused(Vec<Conflict<I, C>>),
    Queued { now: u64, first_end: Option<Duration>, conflicts: Vec<Conflict<I, C>> },
    Withdrawn,
}

impl<I: Ident, C: ContextId> Decision<I, C> {
    fn read(answer: Value, request: &AcquireRequest<I, C>) -> Result<Self, BackendError> {
        let Value::BulkString(fence) = answer else {
            return Self::read_list(Reply::of(answer)?, request);
        };
        // The usual case: all ids are exclusive and new, with one fence.
        let fence = std::str::from_utf8(&fence).ok().and_then(|fence| fence.parse().ok());
        let fence = fence.ok_or_else(|| unexpected("a fence that is not a number"))?;
        let granted = Granted { mode: Mode::Exclusive, fence, permits: Vec::new(), in_use: 1 };
        Ok(Decision::Granted(std::iter::repeat_n(granted, request.claims.len()).collect()))
    }

    fn read_list(mut reply: Reply, request: &AcquireRequest<I, C>) -> Result<Self, BackendError> {
        let conflicts = |reply: Reply| {
            let target = |position: usize| request.claims.get(position).map(|claim| claim.target.clone());
            reply.lists(|conflict| conflict.conflict(target))
        };
        Ok(match reply.text()?.as_str() {
            "granted" => Decision::Granted(read_granted(reply)?),
            "refused" => Decision::Refused(conflicts(reply)?),
            "queued" => {
                let (now, first_end) = (reply.number()?, reply.span()?);
                Decision::Queued { now, first_end, conflicts: conflicts(reply)? }
            }
            _ => Decision::Withdrawn,
        })
    }
}

impl<I: Ident, C: ContextId> RedisBuilder<I, C> {
    /// Connects, and checks that the server can keep locks: a master of Redis 6.2 or later that evicts no keys.
    ///
    /// # Errors
    /// [`BadSetting`](BackendErrorKind::BadSetting) for a setting out of bounds, naming field and value, or an invalid URL;
    /// [`Misconfigured`](BackendErrorKind::Misconfigured) for a server that evicts keys or is too old;
    /// [`Unavailable`](BackendErrorKind::Unavailable) for a replica, which may become the master;
    /// [`Denied`](BackendErrorKind::Denied) for credentials; otherwise the reason why connecting failed.
    pub async fn open(self) -> Result<RedisLockDao<I, C>, BackendError> {
        self.settings.check()?;
        let server = Server::read(&self.settings)?;
        let store = Store::new(self.settings, server);
        let session = store.session().await?;
        match doctor::check(&session).await {
            Ok(()) => Ok(RedisLockDao { store, types: PhantomData }),
            Err(error) => Err(store.server.explain(error).await),
        }
    }
}

impl<I, C> fmt::Debug for RedisLockDao<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLockDao").field("store", &self.store).finish_non_exhaustive()
    }
}

impl<I: Ident, C: ContextId> LockDao<I, C> for RedisLockDao<I, C> {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &AcquireRequest<I, C>) -> Result<Acquired<I, C>, BackendError> {
        let session = self.store.session().await?;
        let waiter = match request.queue {
            true => {
                session.listen().await?;
                Some(Waiter::add(&session, waiter_name(request.attempt, &request.context)))
            }
            false => None,
        };
        let sent = Moment::now();
        let answer = session.call(&self.request(request, Step::Acquire, &session.name)).await?;
        match (Decision::read(answer, request)?, waiter) {
            (Decision::Granted(granted), _) => match self.replicate(&session).await {
                Ok(()) => Ok(Acquired::Granted(granted)),
                // Too few replicas have it, so that it must not stay held. No request is on its way any more: no tombstone has to
                // refuse it, and a waiter may repeat its request with the same attempt.
                Err(error) => Err(match Box::pin(self.undo(request, NO_TOMBSTONE)).await {
                    Ok(_) => error,
                    Err(_) => error.possibly_done(),
                }),
            },
            (Decision::Queued { now, first_end, conflicts }, Some(waiter)) => {
                session.inbox.clock.sample(sent, Moment::now(), now);
                let ids = request.claims.iter().map(|claim| Box::from(&*claim.target.stored())).collect();
                session.inbox.queued(waiter.name.clone(), ids, first_end);
                session.watch();
                // Not later for many: ids are polled, and places kept, for some repeats only.
                Ok(Acquired::Queued { conflicts, wakeup: waiter.stay(), recheck: Some(jittered(RECHECK)) })
            }
            (Decision::Refused(conflicts) | Decision::Queued { conflicts, .. }, _) => {
                Ok(Acquired::Refused(conflicts))
            }
            (Decision::Withdrawn, _) => {
                let message = "redis: the request was withdrawn before it arrived";
                Err(BackendError::new(BackendErrorKind::Withdrawn, message))
            }
        }
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<I, C>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let tombstone = match how {
            Withdraw::KeepIfGranted => KEEP,
            Withdraw::Undo => {
                let lease = request.lease.unwrap_or_default();
                // Longer than any request is on its way.
                lease.max(TOMBSTONE).max(self.store.settings.response_timeout * 10).as_millis() as i64
            }
        };
        self.undo(request, tombstone).await
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let session = self.store.session().await?;
        let answer = session.call(&self.grant(grant, "release")).await?;
        Ok(Released { lost: lost(grant, answer)?, failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let session = self.store.session().await?;
        let answer = session.call(&self.grant(grant, "renew")).await?;
        self.replicate(&session).await.map_err(BackendError::possibly_done)?;
        Ok(Renewed::now(lost(grant, answer)?))
    }

    async fn shorten(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let session = self.store.session().await?;
        let answer = session.call(&self.grant(grant, "shorten")).await?;
        self.replicate(&session).await.map_err(BackendError::possibly_done)?;
        Ok(Renewed::now(lost(grant, answer)?))
    }

    async fn release_context(&self, context: &C) -> Result<Vec<Target<I>>, BackendError> {
        admin::release_context(&self.store, &context.stored()).await
    }

    async fn list(&self, page: &Page) -> Result<Listing<I, C>, BackendError> {
        admin::list(&self.store, page).await
    }

    async fn inspect(&self, target: &Target<I>) -> Result<Inspection<I, C>, BackendError> {
        admin::inspect(&self.store, &target.stored()).await
    }

    async fn break_lock(
        &self,
        target: &Target<I>,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, BackendError> {
        admin::break_lock(&self.store, &target.stored(), fence, how, by).await
    }

    async fn freeze(&self, target: &Target<I>, frozen: bool) -> Result<(), BackendError> {
        admin::freeze(&self.store, &target.stored(), frozen).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>, BackendError> {
        let session = self.store.session().await?;
        let mut findings = doctor::examine(&session).await?;
        findings.push(version::finding(&session, &self.store.scripts, self.store.settings.program).await?);
        Ok(findings)
    }
}

/// The receiver of messages while a request is on its way; removed unless the request is queued.
struct Waiter {
    session: Arc<Session>,
    name: Box<str>,
    wakeup: Option<Wakeup>,
}

impl Waiter {
    fn add(session: &Arc<Session>, name: Box<str>) -> Self {
        let wakeup = Some(session.inbox.add(name.clone()));
        Waiter { session: session.clone(), name, wakeup }
    }

    fn stay(mut self) -> Wakeup {
        self.wakeup.take().expect("taken only here, and this consumes it")
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.wakeup.is_some() {
            self.session.inbox.waiters.remove(&self.name);
        }
    }
}

/// Rounds a lease up to ms. `permanent` is not declared, so that every lease that arrives here is finite.
fn millis(lease: Option<Duration>) -> u64 {
    let micros = lease.unwrap_or_default().as_micros();
    u64::try_from(micros.div_ceil(1000)).unwrap_or(u64::MAX / 2).min(1 << 50)
}

/// Shortens a pause by up to a fifth, so that not all waiters of a process ask at once.
fn jittered(pause: Duration) -> Duration {
    let sooner = uuid::Uuid::new_v4().as_u128() as u32 % 200;
    pause - pause / 1000 * sooner
}

fn read_granted(reply: Reply) -> Result<Vec<Granted>, BackendError> {
    Ok(reply.lists(Reply::granted)?.into_iter().collect())
}

fn lost<I: Ident, C>(grant: &Grant<I, C>, answer: Value) -> Result<Vec<LostLock<I>>, BackendError> {
    if answer == Value::Int(0) {
        return Ok(Vec::new());
    }
    let losses = Reply::of(answer)?.lists(Reply::loss)?;
    let lost = |(position, reason): (usize, _)| {
        let lock = grant.locks.get(position).ok_or_else(|| unexpected("a loss of an unknown lock"))?;
        Ok(LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason })
    };
    losses.into_iter().map(lost).collect()
}

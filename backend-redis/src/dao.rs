//! The DAO: turns requests into calls of the script, and its replies back.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use lockcore::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, BreakMode, Broken, Capabilities, Conflict,
    ContextId, Finding, Grant, Granted, Ident, Inspection, Listing, LockDao, LostLock, Mode, Moment, Page,
    Released, Renewed, Target, Wakeup, Withdraw, Withdrawn,
};
use redis::Value;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::{
    admin,
    config::{RedisBuilder, Replicas, Settings},
    doctor,
    error::strange,
    reply::{Reply, written},
    scripts::{Call, waiter_name},
    session::Session,
    store::Store,
    target::Target as Server,
    version,
};

/// After how long a waiter asks again though nothing woke it. Its connection looks after it, gives signs of life for it,
/// and has it ask again when anything may have been missed, so this is for the case that all that is wrong.
const RECHECK: Duration = Duration::from_secs(30);

/// The least time for which the mark of a withdrawn attempt is kept; longer, ten times the response timeout, if that is
/// more. No request is on its way for so long.
const MARK: Duration = Duration::from_secs(50);

/// What a [`RedisLockDao`] can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    backend: "redis",
    shared_store: true,
    fifo: true,
    push: true,
    permanent: false,
    slots: true,
    shared: true,
    listing: true,
    breaking: true,
    // Redis removes what has expired by itself.
    sweeping: false,
    dead_holders: false,
    // A lease has to be renewed at a third of it, over a network.
    min_lease: Duration::from_millis(100),
    default_lease: Some(Duration::from_secs(30)),
    // Redis does nothing else meanwhile: about a microsecond for each.
    max_ids: 1000,
};

/// Always with all arguments: the mark's come last.
const WITHDRAW: &str = "withdraw";

/// What the mark's time is where what was granted is kept, and where it is undone without a mark.
const KEEP: i64 = 0;
const NO_MARK: i64 = -1;

/// Locks in a Redis database; see the [crate](crate) for how.
pub struct RedisLockDao<I = String, C = Uuid> {
    store: Arc<Store>,
    types: PhantomData<fn() -> (I, C)>,
}

impl<I: Ident, C: ContextId> RedisLockDao<I, C> {
    /// Connects to the server that `url` names, with the usual settings.
    ///
    /// # Errors
    /// As [`RedisBuilder::open`].
    pub async fn open(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).open().await
    }

    /// Settings to choose before connecting.
    pub fn builder() -> RedisBuilder<I, C> {
        RedisBuilder::new()
    }

    pub(crate) async fn start(settings: Settings, server: Server) -> Result<Self, BackendError> {
        let store = Store::new(settings, server);
        doctor::check(&*store.session().await?).await?;
        Ok(RedisLockDao { store, types: PhantomData })
    }

    /// What a request and its withdrawal have in common. `usual`: the step's name if all claims are exclusive.
    fn request(&self, request: &AcquireRequest<I, C>, usual: &str, other: &str, session: &str) -> Call {
        let scripts = &self.store.scripts;
        let all_exclusive = request.claims.iter().all(|claim| claim.mode == Mode::Exclusive);
        let step = if all_exclusive { usual } else { other };
        let (context, lease) = (request.context.stored(), millis(request.lease));
        let targets = request.claims.iter().map(|claim| &claim.target);
        let waiter = waiter_name(request.attempt, &request.context);
        let call = scripts.call(2 + 2 * request.claims.len()).fence_key(scripts).mark_key(scripts, &waiter);
        let call = call.main_keys(scripts, targets.clone()).line_keys(scripts, targets);
        let (length, attempt) = (context.len().to_string(), format!("{:016x}", request.attempt.0));
        let (lasts, label) = (lease.to_string(), request.owner.len().to_string());
        let value =
            ["|", &length, ":", &context, "|||", &lasts, "|x|", &attempt, "|", &label, ":", &request.owner];
        let mut call = call.arg(step).text(&value).arg(lease + 1);
        if request.queue || request.nested || step == other {
            let queue = if request.queue { "q" } else { "" };
            let nested = if request.nested { "n" } else { "" };
            call.add_text(&[queue, nested, " ", session]);
        }
        if step == other {
            let modes: Vec<_> = request.claims.iter().map(|claim| written(claim.mode)).collect();
            call.add(modes.join(" "));
        }
        call
    }

    /// The keys and arguments for a grant's locks. `usual`: the step's name if all have one fence.
    fn grant(&self, grant: &Grant<I, C>, usual: &str, other: &str) -> Call {
        let scripts = &self.store.scripts;
        let (context, lease) = (grant.context.stored(), millis(grant.lease));
        let fence = grant.locks.first().map_or(0, |lock| lock.granted.fence);
        let one_fence = grant.locks.iter().all(|lock| lock.granted.fence == fence);
        let targets = grant.locks.iter().map(|lock| &lock.target);
        let call = scripts.call(grant.locks.len()).main_keys(scripts, targets);
        let call = call
            .arg(if one_fence { usual } else { other })
            .text(&["lc2|", &fence.to_string(), "|", &context.len().to_string(), ":", &context, "||"])
            .arg(lease);
        match one_fence {
            true => call,
            false => {
                let fences: Vec<_> = grant.locks.iter().map(|lock| lock.granted.fence.to_string()).collect();
                call.arg(fences.join(" "))
            }
        }
    }

    /// Waits until the replicas have what was just written, if that was asked for.
    async fn replicate(&self, session: &Session) -> Result<(), BackendError> {
        match &self.store.settings.replicas {
            None => Ok(()),
            // In a box, so that steps that do not wait are no larger for it.
            Some(replicas) => Box::pin(self.await_replicas(session, replicas)).await,
        }
    }

    async fn await_replicas(&self, session: &Session, replicas: &Replicas) -> Result<(), BackendError> {
        let &Replicas { count, within } = replicas;
        let mut wait = redis::cmd("WAIT");
        wait.arg(count).arg(within.as_millis().max(1) as u64);
        match session.command(wait).await? {
            Value::Int(have) if have >= i64::from(count) => Ok(()),
            have => {
                let message = format!("redis: {have:?} of {count} replicas have it after {within:?}");
                Err(BackendError::new(BackendErrorKind::Unavailable, message))
            }
        }
    }

    /// Withdraws a request; `mark`: for how many ms its attempt is refused from now on, or [`KEEP`] or [`NO_MARK`].
    async fn undo(&self, request: &AcquireRequest<I, C>, mark: i64) -> Result<Withdrawn, BackendError> {
        let session = self.store.session().await?;
        session.inbox.waiters.remove(&waiter_name(request.attempt, &request.context));
        let call = self.request(request, WITHDRAW, WITHDRAW, &session.name).arg(mark);
        let mut reply = Reply::of(session.call(&call).await?)?;
        Ok(match reply.text()?.as_str() {
            "granted" => Withdrawn::Holds(read_granted(reply)?),
            _ => Withdrawn::Left,
        })
    }
}

/// The script's verdict on a request.
enum Verdict<I, C> {
    Granted(SmallVec<[Granted; 1]>),
    Refused(Vec<Conflict<I, C>>),
    Queued { now: u64, first_end: Option<Duration>, conflicts: Vec<Conflict<I, C>> },
    Withdrawn,
}

impl<I: Ident, C: ContextId> Verdict<I, C> {
    fn read(answer: Value, request: &AcquireRequest<I, C>) -> Result<Self, BackendError> {
        let Value::BulkString(fence) = answer else {
            return Self::read_list(Reply::of(answer)?, request);
        };
        // The usual case: all exclusive, all new, one fence.
        let fence = std::str::from_utf8(&fence).ok().and_then(|fence| fence.parse().ok());
        let fence = fence.ok_or_else(|| strange("a fence that is no number"))?;
        let granted = Granted { mode: Mode::Exclusive, fence, permits: SmallVec::new(), in_use: 1 };
        Ok(Verdict::Granted(SmallVec::from_elem(granted, request.claims.len())))
    }

    fn read_list(mut reply: Reply, request: &AcquireRequest<I, C>) -> Result<Self, BackendError> {
        let conflicts = |reply: Reply| {
            let target = |position: usize| request.claims.get(position).map(|claim| claim.target.clone());
            reply.lists(|conflict| conflict.conflict(target))
        };
        Ok(match reply.text()?.as_str() {
            "granted" => Verdict::Granted(read_granted(reply)?),
            "refused" => Verdict::Refused(conflicts(reply)?),
            "queued" => {
                let (now, first_end) = (reply.number()?, reply.span()?);
                Verdict::Queued { now, first_end, conflicts: conflicts(reply)? }
            }
            _ => Verdict::Withdrawn,
        })
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
        let answer = session.call(&self.request(request, "a", "acquire", &session.name)).await?;
        match (Verdict::read(answer, request)?, waiter) {
            (Verdict::Granted(granted), _) => match self.replicate(&session).await {
                Ok(()) => Ok(Acquired::Granted(granted)),
                // Too few have it, so that it must not be found held. Nothing of the request is on its way any more: no mark
                // has to refuse it, and a waiter may ask again with the same attempt.
                Err(error) => Err(match Box::pin(self.undo(request, NO_MARK)).await {
                    Ok(_) => error,
                    Err(_) => error.possibly_done(),
                }),
            },
            (Verdict::Queued { now, first_end, conflicts }, Some(waiter)) => {
                session.inbox.clock.sample(sent, Moment::now(), now);
                let ids = request.claims.iter().map(|claim| Box::from(&*claim.target.stored())).collect();
                session.inbox.waits(waiter.name.clone(), ids, first_end);
                session.watch();
                Ok(Acquired::Queued { conflicts, wakeup: waiter.stay(), recheck: Some(jittered(RECHECK)) })
            }
            (Verdict::Refused(conflicts) | Verdict::Queued { conflicts, .. }, _) => {
                Ok(Acquired::Refused(conflicts))
            }
            (Verdict::Withdrawn, _) => {
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
        let mark = match how {
            Withdraw::KeepIfGranted => KEEP,
            Withdraw::Undo => {
                let lease = request.lease.unwrap_or_default();
                lease.max(MARK).max(self.store.settings.response_timeout * 10).as_millis() as i64
            }
        };
        self.undo(request, mark).await
    }

    async fn release(&self, grant: &Grant<I, C>) -> Result<Released<I>, BackendError> {
        let session = self.store.session().await?;
        let answer = session.call(&self.grant(grant, "r", "release")).await?;
        Ok(Released { lost: lost(grant, answer)?, failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<I, C>) -> Result<Renewed<I>, BackendError> {
        let session = self.store.session().await?;
        let answer = session.call(&self.grant(grant, "e", "renew")).await?;
        self.replicate(&session).await.map_err(BackendError::possibly_done)?;
        Ok(Renewed { lost: lost(grant, answer)? })
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

/// Whom a message would find while the request is on its way; forgotten unless the request took a place.
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

/// `permanent` is not declared, so that every lease that arrives here is finite. Never shorter than asked for.
fn millis(lease: Option<Duration>) -> u64 {
    let micros = lease.unwrap_or_default().as_micros();
    u64::try_from(micros.div_ceil(1000)).unwrap_or(u64::MAX / 2).min(1 << 50)
}

/// Up to a fifth sooner, so that not all waiters of a process ask at once.
fn jittered(pause: Duration) -> Duration {
    let sooner = uuid::Uuid::new_v4().as_u128() as u32 % 200;
    pause - pause / 1000 * sooner
}

fn read_granted(reply: Reply) -> Result<SmallVec<[Granted; 1]>, BackendError> {
    Ok(reply.lists(Reply::granted)?.into_iter().collect())
}

fn lost<I: Ident, C>(grant: &Grant<I, C>, answer: Value) -> Result<Vec<LostLock<I>>, BackendError> {
    if answer == Value::Int(0) {
        return Ok(Vec::new());
    }
    let losses = Reply::of(answer)?.lists(Reply::loss)?;
    let lost = |(position, reason): (usize, _)| {
        let lock = grant.locks.get(position).ok_or_else(|| strange("a loss of no lock"))?;
        Ok(LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason })
    };
    losses.into_iter().map(lost).collect()
}

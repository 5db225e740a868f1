//! A complete backend in one file: exclusive locks with leases, in a map behind a mutex, and nothing that
//! is optional. It passes the conformance suite for what it declares.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use lockcore::{
    BackendError, BackendErrorKind, Capabilities, Conflict, ConflictReason, Grant, Granted, Holder, LockDao,
    LossReason, LostLock, Mode, Owner, Released, Renewed, StoredContext, Target,
    backend::{AcquireRequest, Acquired, AttemptId, Withdraw, Withdrawn},
    rules,
};
// Tests pause it.
use tokio::time::Instant;
use uuid::Uuid;

/// The backend: all that it knows, behind one mutex, so that every call is one atomic step.
#[derive(Debug, Default)]
struct MapDao(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    held: HashMap<Target<String>, Held>,
    /// Attempts that were undone: a request of theirs that arrives late is refused.
    undone: HashSet<(Uuid, AttemptId)>,
    /// The highest fence given so far; one number serves all ids.
    fence: u64,
}

#[derive(Debug)]
struct Held {
    context: Uuid,
    /// The attempt that got it: undoing a later one of the same context leaves it.
    attempt: AttemptId,
    owner: Owner,
    fence: u64,
    ends: Instant,
}

impl MapDao {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no call panics while it has the table")
    }
}

impl Table {
    /// Who holds the target now; an expired holder is none.
    fn holder(&self, target: &Target<String>) -> Option<&Held> {
        self.held.get(target).filter(|held| held.ends > Instant::now())
    }

    /// What is held under exactly this context and fence, or why it is not.
    fn of(
        &mut self,
        context: Uuid,
        target: &Target<String>,
        fence: u64,
    ) -> Result<&mut Held, LostLock<String>> {
        let reason = match self.held.get(target) {
            Some(held) if held.context == context && held.fence == fence => LossReason::Expired,
            _ => LossReason::Vanished,
        };
        let held = self.held.get_mut(target).filter(|held| held.context == context && held.fence == fence);
        let live = held.filter(|held| held.ends > Instant::now());
        live.ok_or_else(|| LostLock { target: target.clone(), fence, reason })
    }
}

impl LockDao<String, Uuid> for MapDao {
    fn capabilities(&self) -> Capabilities {
        // Exclusive locks with finite leases: no queue, listing, breaking or sweeping.
        Capabilities { min_lease: Duration::from_millis(10), ..Capabilities::minimal("map") }
    }

    async fn acquire(
        &self,
        request: &AcquireRequest<String, Uuid>,
    ) -> Result<Acquired<String, Uuid>, BackendError> {
        let mut table = self.table();
        if table.undone.contains(&(request.context, request.attempt)) {
            return Err(BackendError::new(BackendErrorKind::Withdrawn, "the attempt was withdrawn"));
        }
        let mut conflicts = Vec::new();
        for claim in request.claims.iter() {
            if let Some(held) = table.holder(&claim.target).filter(|held| held.context != request.context) {
                let holder = Holder {
                    context: StoredContext::Known(held.context),
                    owner: held.owner.clone(),
                    mode: Mode::Exclusive,
                    fence: held.fence,
                    remaining: Some(held.ends - Instant::now()),
                };
                let reason = ConflictReason::Held { holders: vec![holder], count: 1, in_use: 1 };
                conflicts.push(Conflict { target: claim.target.clone(), reason });
            }
        }
        if !conflicts.is_empty() {
            return Ok(Acquired::Refused(conflicts));
        }
        let clock =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("past 1970").as_micros() as u64;
        table.fence = rules::next_fence(table.fence, clock);
        let ends = Instant::now() + request.lease.expect("permanent locks are not declared");
        let granted = request.claims.iter().map(|claim| {
            let mine =
                table.holder(&claim.target).map(|held| (held.fence, held.attempt, held.ends.max(ends)));
            let (fence, attempt, ends) = mine.unwrap_or((table.fence, request.attempt, ends));
            let owner = request.owner.clone();
            let held = Held { context: request.context, attempt, owner, fence, ends };
            table.held.insert(claim.target.clone(), held);
            Granted { mode: Mode::Exclusive, fence, permits: Default::default(), in_use: 1 }
        });
        Ok(Acquired::Granted(granted.collect()))
    }

    async fn withdraw(
        &self,
        request: &AcquireRequest<String, Uuid>,
        how: Withdraw,
    ) -> Result<Withdrawn, BackendError> {
        let mut table = self.table();
        let (context, attempt) = (request.context, request.attempt);
        if how == Withdraw::KeepIfGranted {
            let mine = |held: &&Held| held.context == context && held.attempt == attempt;
            let granted = request.claims.iter().map(|claim| {
                let fence = table.holder(&claim.target).filter(mine)?.fence;
                Some(Granted { mode: Mode::Exclusive, fence, permits: Default::default(), in_use: 1 })
            });
            if let Some(whole) = granted.collect() {
                return Ok(Withdrawn::Holds(whole));
            }
        } else {
            table.undone.insert((context, attempt));
        }
        table.held.retain(|_, held| held.context != context || held.attempt != attempt);
        Ok(Withdrawn::Left)
    }

    async fn release(&self, grant: &Grant<String, Uuid>) -> Result<Released<String>, BackendError> {
        let mut table = self.table();
        let mut lost = Vec::new();
        for lock in &grant.locks {
            match table.of(grant.context, &lock.target, lock.granted.fence) {
                Ok(_) => drop(table.held.remove(&lock.target)),
                Err(gone) => lost.push(gone),
            }
        }
        Ok(Released { lost, failed: Vec::new() })
    }

    async fn renew(&self, grant: &Grant<String, Uuid>) -> Result<Renewed<String>, BackendError> {
        let mut table = self.table();
        let mut lost = Vec::new();
        for lock in &grant.locks {
            match table.of(grant.context, &lock.target, lock.granted.fence) {
                Ok(held) => {
                    held.ends = held.ends.max(Instant::now() + grant.lease.expect("leases are finite"))
                }
                Err(gone) => lost.push(gone),
            }
        }
        Ok(Renewed::now(lost))
    }
}

/// How the suite gets a store. Nothing outlives the map, so that there is nothing to open again.
struct MapBackend;

impl lockcore_conformance::Backend for MapBackend {
    type Dao = MapDao;
    type Guard = ();

    const VIRTUAL_TIME: bool = true;

    async fn build(&self) -> ((), MapDao) {
        ((), MapDao::default())
    }

    async fn reopen(&self, (): &()) -> Option<MapDao> {
        None
    }
}

lockcore_conformance::conformance!(map, MapBackend);

//! The tasks of a process: they lock random sets in all ways that there are, and record what they see.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::{Either, select};
use lockcore::{
    BreakMode, Grant, Held, LockDao, LockError, LockingError, LockingService, Page, StoredContext, Target,
    Wait, election::Election,
};
use lockcore_judge::history::{Claim, Mode, Outcome, Stage};
use tokio::time::{Instant, Sleep, sleep};

use crate::{history::Shared, plan::World, run::FOR_GOOD};

/// A task of a process.
pub(crate) struct Actor<D: LockDao<String, u64>> {
    pub(crate) locks: LockingService<String, u64, D>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) process: Arc<str>,
}

impl<D: LockDao<String, u64>> Clone for Actor<D> {
    fn clone(&self) -> Self {
        Actor { locks: self.locks.clone(), shared: self.shared.clone(), process: self.process.clone() }
    }
}

/// A limit that is shorter may end before the store has answered.
const IMPATIENT: Duration = Duration::from_secs(5);

/// The way to take and to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Callback,
    Guard,
    InPart,
    Kept,
    Elected,
}

fn one_in(rng: &mut Rng, many: u32) -> bool {
    rng.u32(..many) == 0
}

pub(crate) fn id(number: u32) -> String {
    format!("id-{number:03}")
}

impl<D: LockDao<String, u64> + 'static> Actor<D> {
    /// Does operations until none is left.
    pub(crate) async fn run(self, mut rng: Rng) {
        while self.shared.takes_one() {
            if one_in(&mut rng, 30) {
                self.administer(&mut rng).await;
            }
            if one_in(&mut rng, 3) {
                sleep(self.shared.plan.lease.mul_f64(rng.f64() * rng.f64() * 0.1)).await;
            }
            self.operation(&mut rng, 0).await;
        }
    }

    /// Locks an id after the run, and ends when it is done.
    pub(crate) async fn audit(self, number: u32, patience: Duration) {
        let claims = vec![Claim { id: id(number), mode: Mode::Exclusive }];
        let op = self.shared.op();
        let target = Target::Id(id(number));
        // A request to freeze it may have arrived after the one to thaw it, or its sender died.
        for _ in 0..100 {
            if self.locks.admin().freeze(&target, false).await.is_ok() {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.shared.record(&self.process, op, Stage::Asked { claims, nested: false });
        let ended = self.locks.wait(Wait::up_to(patience)).run_locked([id(number)], async || {}).await;
        self.shared.record(&self.process, op, Stage::Ended { outcome: outcome(ended) });
    }

    fn choose(&self, rng: &mut Rng, lowest: u32) -> Vec<Claim> {
        let count = *rng.choice(&[1, 1, 1, 2, 2, 3]).unwrap_or(&1);
        let mut numbers: Vec<_> = (0..count).map(|_| rng.u32(lowest..self.shared.plan.ids)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mode = |rng: &mut Rng, number: u32| match number % 3 {
            0 => Mode::Slots { permits: rng.u32(1..=2), limit: 3 },
            _ if one_in(rng, 3) => Mode::Shared,
            _ => Mode::Exclusive,
        };
        numbers.into_iter().map(|number| Claim { id: id(number), mode: mode(rng, number) }).collect()
    }

    /// Returns a boxed future, since an operation may have another one inside.
    fn operation<'s>(
        &'s self,
        rng: &'s mut Rng,
        lowest: u32,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 's>> {
        Box::pin(async move {
            let way = match rng.u32(..24) {
                0..8 => Way::Guard,
                8..10 => Way::InPart,
                10..12 => Way::Kept,
                12 if lowest == 0 => Way::Elected,
                _ => Way::Callback,
            };
            let claims = match way {
                Way::Elected => vec![Claim { id: "leader".to_owned(), mode: Mode::Exclusive }],
                _ => self.choose(rng, lowest),
            };
            let op = self.shared.op();
            let polls = one_in(rng, 12).then(|| rng.u32(1..40));
            let stalls = one_in(rng, 40).then(|| {
                let lasts = self.shared.plan.lease.mul_f64(rng.f64() * 2.0);
                (rng.u32(1..20), lasts)
            });
            let patience = (way == Way::Elected || one_in(rng, 8))
                .then(|| self.shared.plan.lease.mul_f64(rng.f64() * rng.f64() * 2.0));
            self.shared.record(
                &self.process,
                op,
                Stage::Asked { claims: claims.clone(), nested: lowest > 0 },
            );
            // With the call around it this one may be dropped too.
            let unless_dropped = Ending { actor: self, op };
            let asked = Instant::now();
            let mut inside = false;
            // The judge of the order looks at no other requests.
            let in_order = claims.len() == 1 && claims[0].mode == Mode::Exclusive && lowest == 0;
            let has_context = matches!(way, Way::Callback | Way::Guard);
            let is_fifo = self.locks.dao().capabilities().fifo;
            let watches = is_fifo && in_order && has_context && one_in(rng, 3);
            let watched = watches.then(|| self.shared.context());
            let hold = self.hold(rng, op, (way, watched), &claims, lowest > 0, &mut inside);
            let work = async {
                let hold = pin!(hold);
                let Some(context) = watched else { return hold.await };
                match select(hold, pin!(self.watch(op, &claims[0].id, context))).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(((), hold)) => hold.await,
                }
            };
            let disturbed = Disturbed {
                actor: self,
                inner: Some(Box::pin(work)),
                polls: 0,
                dropped_at: polls,
                stalls,
                until: None,
                patience: patience.map(|patience| Box::pin(sleep(patience))),
            };
            let ended = disturbed.await;
            let outcome = ended.unwrap_or(Outcome::Cancelled);
            self.count(outcome, inside, lowest > 0, asked.elapsed());
            if let Some((_, lasts)) = stalls
                && lasts > self.shared.plan.lease
            {
                self.shared.reach("stalled past its lease");
            }
            if ended.is_none() && polls.is_some() {
                self.shared.reach("given up at a poll");
            }
            std::mem::forget(unless_dropped);
            self.shared.record(&self.process, op, Stage::Ended { outcome });
        })
    }

    fn count(&self, outcome: Outcome, inside: bool, nested: bool, after: Duration) {
        let waited = after > Duration::from_secs(1);
        let reached = match (outcome, inside) {
            (Outcome::Cancelled, true) => "dropped while it held",
            (Outcome::Cancelled, false) => "dropped in the queue or before",
            (Outcome::Refused, _) if nested => "nested call refused",
            (Outcome::Refused, _) if waited => "refused after a wait",
            (Outcome::Refused, _) => "refused at once",
            (Outcome::Failed, _) => "ended as failed",
            (Outcome::Lost, _) => "ended as lost",
            (Outcome::Done, _) if nested => "nested call granted",
            (Outcome::Done, _) if waited => "granted after a wait",
            _ => return,
        };
        self.shared.reach(reached);
    }

    async fn hold(
        &self,
        rng: &mut Rng,
        op: u64,
        (way, context): (Way, Option<u64>),
        claims: &[Claim],
        nested: bool,
        inside: &mut bool,
    ) -> Outcome {
        if way == Way::Elected {
            return self.elect(rng, op, claims, inside).await;
        }
        let lease = self.shared.plan.lease;
        let wait = match rng.u8(..8) {
            0..2 => Wait::never(),
            2..6 => Wait::up_to(lease.mul_f64(rng.f64() * rng.f64() * 3.0)),
            _ => Wait::forever(),
        };
        let mut call = self.locks.wait(wait);
        if let Some(context) = context {
            call = call.context(context);
        }
        if nested {
            call = call.nested();
        }
        if way == Way::Kept {
            let kept = lease.mul_f64(0.05 + rng.f64());
            self.shared.fault(&format!("kept {}#{op}", self.process), kept, None, false);
            call = call.keep_for(kept);
        }
        let set: Vec<_> = claims.iter().map(claim).collect();
        match way {
            Way::Guard | Way::InPart => {
                let guard = match call.lock(set).await {
                    Ok(guard) => guard,
                    Err(error) => return outcome(Err(error)),
                };
                self.callback(rng, op, claims, guard.held(), inside).await;
                if way == Way::Guard || claims.len() == 1 {
                    return outcome(guard.release().await);
                }
                // One that was handed over is left with what remains of the offer.
                if guard.held().confirmed().await.is_err() {
                    return Outcome::Lost;
                }
                self.in_part(rng, guard.leave()).await
            }
            _ => {
                let callback = |held: Held<String, u64>| async move {
                    self.callback(rng, op, claims, &held, inside).await;
                    Ok::<(), Infallible>(())
                };
                let ended = call.with_held_locks(set, callback).await;
                if way == Way::Kept && ended.is_ok() {
                    self.shared.reach("kept for a time");
                }
                if matches!(ended, Err(LockingError::Lost { callback: None, .. })) {
                    self.shared.reach("callback stopped, its locks were lost");
                }
                outcome(ended)
            }
        }
    }

    /// Records that the request was seen in the queue, if it comes to that.
    async fn watch(&self, op: u64, id: &str, context: u64) {
        let is_ours = |stored: &StoredContext<u64>| *stored == StoredContext::Known(context);
        let target = Target::Id(id.to_owned());
        for _ in 0..5 {
            let Ok(seen) = self.locks.admin().inspect(&target).await else { return };
            if seen.waiters.iter().any(|waiter| is_ours(&waiter.context)) {
                self.shared.reach("seen in the queue");
                return self.shared.record(&self.process, op, Stage::Queued);
            }
            if seen.holders.iter().any(|holder| is_ours(&holder.context)) {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Releases one lock of a set, and then the rest.
    async fn in_part(&self, rng: &mut Rng, mut grant: Grant<String, u64>) -> Outcome {
        let rest = Grant { locks: grant.locks.split_off(1), ..grant.clone() };
        let mut ended = Outcome::Done;
        for part in [grant, rest] {
            match self.locks.admin().release(&part).await {
                Ok(released) if released.lost.is_empty() && released.failed.is_empty() => {}
                Ok(_) => ended = Outcome::Lost,
                Err(error) => return outcome(Err(error)),
            }
            sleep(Duration::from_millis(rng.u64(..200))).await;
        }
        self.shared.reach("released in part");
        ended
    }

    async fn elect(&self, rng: &mut Rng, op: u64, claims: &[Claim], inside: &mut bool) -> Outcome {
        let election = Election::new(&self.locks, claims[0].id.clone());
        match election.campaign(&*self.process).await {
            Ok(leadership) => {
                self.shared.reach("elected");
                self.callback(rng, op, claims, leadership.held(), inside).await;
                outcome(leadership.resign().await)
            }
            Err(error) => outcome(Err(error)),
        }
    }

    /// What is done under the locks.
    async fn callback(
        &self,
        rng: &mut Rng,
        op: u64,
        claims: &[Claim],
        held: &Held<String, u64>,
        inside: &mut bool,
    ) {
        let (shared, process) = (&self.shared, &self.process);
        let begun = Instant::now();
        let at = shared.now();
        if held.check().is_err() {
            return;
        }
        *inside = true;
        let fences = claims.iter().map(|claim| held.fence(&claim.id)).collect();
        shared.record_at(at, process, op, Stage::Entered { fences });
        let looks = rng.u32(..4);
        // Now and then for some leases.
        let longest = if one_in(rng, 12) { 1.0 } else { 0.05 };
        for _ in 0..looks {
            sleep(shared.plan.lease.mul_f64(rng.f64() * rng.f64() * longest)).await;
            let at = shared.now();
            if held.check().is_ok() {
                shared.record_at(at, process, op, Stage::Inside);
            }
        }
        if begun.elapsed() > shared.plan.lease && held.check().is_ok() {
            shared.reach("held past a lease");
        }
        for claim in claims.iter().filter(|claim| claim.mode == Mode::Exclusive) {
            if let Some(fence) = held.exclusive_fence(&claim.id) {
                shared.write(process, op, &claim.id, fence);
            }
        }
        let highest = claims.iter().filter_map(|claim| claim.id.get(3..)?.parse::<u32>().ok()).max();
        if let Some(above) = highest.map(|highest| highest + 1).filter(|above| *above < shared.plan.ids)
            && one_in(rng, 12)
        {
            self.operation(rng, above).await;
        }
        // As a user of a guard has to: a release after a lease that ended unnoticed is a success (2.3 of the contract).
        let at = shared.now();
        if held.check().is_ok() {
            shared.record_at(at, process, op, Stage::Inside);
        }
        shared.record(process, op, Stage::Left);
    }

    async fn administer(&self, rng: &mut Rng) {
        // DynamoDB's own clean-up takes the place of a sweep.
        if self.shared.plan.world == World::Dynamo {
            if self.locks.admin().list(&Page::default()).await.is_ok() {
                self.shared.reach("listed");
            }
            return;
        }
        match self.locks.admin().sweep(rng.usize(1..50)).await {
            Ok(swept) => {
                self.shared.reach("swept by hand");
                if swept.removed > 0 {
                    self.shared.reach("swept something");
                }
            }
            // The store has faults, and another sweep comes.
            Err(error) => drop(error),
        }
    }

    /// Breaks some lock.
    pub(crate) async fn break_one(self, mut rng: Rng) {
        let target = Target::Id(id(rng.u32(..self.shared.plan.ids)));
        let admin = self.locks.admin();
        let Ok(seen) = admin.inspect(&target).await else { return };
        let Some(holder) = rng.choice(&seen.holders) else { return };
        let lease = self.shared.plan.lease;
        let at_once = one_in(&mut rng, 4);
        if at_once {
            // The old holder learns of it with its next renewal.
            self.shared.fault("broken at once", lease * 3, None, true);
        }
        let how = if at_once { BreakMode::Now } else { BreakMode::AfterLease };
        if admin.break_lock(&target, holder.fence, how).await.is_ok() {
            self.shared.reach(match at_once {
                true => "admin: broke a lock at once",
                false => "admin: stopped the renewal of a lock",
            });
        }
    }

    /// Freezes some id for a while.
    pub(crate) async fn freeze_one(self, mut rng: Rng, lasts: Duration) {
        let id = id(rng.u32(..self.shared.plan.ids));
        let target = Target::Id(id.clone());
        self.shared.fault(&format!("freeze {id}"), FOR_GOOD, None, false);
        self.shared.set_frozen(&id, true);
        let frozen = self.locks.admin().freeze(&target, true).await.is_ok();
        if frozen {
            self.shared.reach("admin: froze an id");
        }
        sleep(lasts).await;
        while self.locks.admin().freeze(&target, false).await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
        // A request that failed may arrive later.
        self.shared.set_frozen(&id, !frozen);
        self.shared.fault(&format!("thaw {id}"), Duration::ZERO, None, false);
    }

    /// Thaws what processes that died left frozen, and requests that arrived late, so that no call waits for ever.
    pub(crate) async fn thaw_rest(self) {
        for _ in 0..8 {
            for id in self.shared.frozen() {
                // Another try comes, and at last that of the audit.
                drop(self.locks.admin().freeze(&Target::Id(id), false).await);
            }
            sleep(Duration::from_secs(5)).await;
        }
    }
}

/// Records the end of an operation that is dropped with the one around it.
struct Ending<'a, D: LockDao<String, u64>> {
    actor: &'a Actor<D>,
    op: u64,
}

impl<D: LockDao<String, u64>> Drop for Ending<'_, D> {
    fn drop(&mut self) {
        let Actor { shared, process, .. } = self.actor;
        if !shared.is_dying() {
            shared.record(process, self.op, Stage::Ended { outcome: Outcome::Cancelled });
        }
    }
}

fn claim(Claim { id, mode }: &Claim) -> lockcore::Claim {
    match *mode {
        Mode::Exclusive => lockcore::Claim::exclusive(id.clone()),
        Mode::Shared => lockcore::Claim::shared(id.clone()),
        Mode::Slots { permits, limit } => lockcore::Claim::slots(id.clone(), limit).permits(permits),
    }
}

/// The outcome of a call whose callback does not fail.
pub(crate) fn outcome(result: Result<(), LockError<String, u64>>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error @ LockingError::NotLocked { .. }) if error.is_contention() => Outcome::Refused,
        // The caller had less patience than a request takes.
        Err(LockingError::NotLocked { timed_out: Some(after), .. }) if after.after < IMPATIENT => {
            Outcome::Refused
        }
        Err(LockingError::NotLocked { .. }) => Outcome::Failed,
        Err(LockingError::Lost { .. }) => Outcome::Lost,
        Err(_) => Outcome::Mistaken,
    }
}

/// A call that is dropped at some poll or after some time, or is not polled for a while.
struct Disturbed<'a, D: LockDao<String, u64>, F> {
    actor: &'a Actor<D>,
    inner: Option<Pin<Box<F>>>,
    polls: u32,
    dropped_at: Option<u32>,
    stalls: Option<(u32, Duration)>,
    until: Option<Pin<Box<Sleep>>>,
    patience: Option<Pin<Box<Sleep>>>,
}

impl<D: LockDao<String, u64>, F: Future> Future for Disturbed<'_, D, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = &mut *self;
        this.polls += 1;
        if let Some((at, lasts)) = this.stalls
            && at <= this.polls
        {
            this.stalls = None;
            this.actor.shared.fault("stall", lasts, Some(&this.actor.process), false);
            this.until = Some(Box::pin(sleep(lasts)));
        }
        if let Some(until) = &mut this.until {
            match until.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => this.until = None,
            }
        }
        let gives_up = this.patience.as_mut().is_some_and(|patience| patience.as_mut().poll(cx).is_ready());
        if gives_up || this.dropped_at.is_some_and(|at| at <= this.polls) {
            this.inner = None;
            return Poll::Ready(None);
        }
        match &mut this.inner {
            Some(inner) => inner.as_mut().poll(cx).map(Some),
            None => Poll::Ready(None),
        }
    }
}

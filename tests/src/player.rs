//! Plays a history of operations on a store and on the model, and compares what both answer.

mod compare;
mod op;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use lockcore::{
    BreakMode, Broken, Claim, ConflictReason, Grant, LockDao, LossReason, Mode, StoredContext, Target,
    backend::{AcquireRequest, Acquired, Withdraw, Withdrawn},
};
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) use self::op::{Back, Op, Wanted};
use crate::{
    Backend, Caller, Place, Store, eventually,
    model::{Got, Id, Model, Outcome, Request, Serial, Who},
    store,
};

const IDS: usize = 5;
const CALLERS: usize = 6;

/// A request that was made, and what became of it.
struct Attempt<D> {
    model: Request,
    real: AcquireRequest<String, Uuid>,
    place: Option<Place<D>>,
    asked: Instant,
    state: State,
    /// The step that made it.
    step: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Refused,
    Waits,
    /// `plain`: every lock was a new one, so that undoing the attempt means one thing only.
    Granted {
        plain: bool,
    },
    Undone,
    Left,
}

struct Kept {
    attempt: usize,
    locks: Vec<(Id, Serial)>,
    real: Grant<String, Uuid>,
}

/// A history being played.
pub(crate) struct Player<'s, B: Backend> {
    store: &'s Store<B>,
    prefix: String,
    /// How long a waiter may take to notice that its turn has come.
    patience: Duration,
    /// The step being played.
    step: usize,
    callers: Vec<Caller<B::Dao>>,
    model: Model,
    attempts: Vec<Attempt<B::Dao>>,
    grants: Vec<Kept>,
    fences: BTreeMap<(Id, Serial), u64>,
    highest: [u64; IDS],
    /// Locks that another attempt than the one that got them was granted again.
    shared_by_attempts: BTreeSet<(Id, Serial)>,
    broken_now: BTreeSet<(Id, Serial)>,
    broken_later: BTreeSet<(Id, Serial)>,
}

impl<'s, B: Backend> Player<'s, B> {
    /// A history that has not begun, on ids and contexts that no other has.
    pub(crate) fn new(store: &'s Store<B>, patience: Duration) -> Self {
        Player {
            store,
            prefix: format!("history {}", Uuid::new_v4()),
            patience,
            step: 0,
            callers: (0..CALLERS).map(|_| store.caller()).collect(),
            model: Model::default(),
            attempts: Vec::new(),
            grants: Vec::new(),
            fences: BTreeMap::new(),
            highest: [0; IDS],
            shared_by_attempts: BTreeSet::new(),
            broken_now: BTreeSet::new(),
            broken_later: BTreeSet::new(),
        }
    }

    /// Plays it to its end: then everything is freed, and nothing may be left.
    pub(crate) async fn play(mut self, ops: &[Op]) {
        for (step, op) in ops.iter().enumerate() {
            self.step = step;
            self.step(op).await;
            self.serve().await;
        }
        for id in 0..IDS {
            self.inspect(id).await;
        }
        if self.store.capabilities().breaking {
            for id in 0..IDS {
                self.freeze(id, false).await;
            }
        }
        while let Some(held) = (0..IDS).find_map(|id| Some((id, self.model.holders(id).first()?.serial))) {
            let grant = self.grants.iter().position(|kept| kept.locks.contains(&held));
            self.release(grant.expect("who holds something has a grant")).await;
            self.serve().await;
        }
        let everything: Vec<_> = (0..IDS).map(|id| self.target(id)).collect();
        let last = self.store.caller();
        let claims = everything.into_iter().map(|target| Claim { target, mode: Mode::Exclusive });
        let all = last.take(claims.collect::<Vec<_>>()).await;
        last.free(&all).await;
    }

    async fn step(&mut self, op: &Op) {
        let declared = self.store.capabilities();
        match op {
            Op::Acquire { who, claims, queue, nested } => {
                self.acquire(who % CALLERS, claims, *queue && declared.fifo, *nested).await;
            }
            Op::Die { claims } => self.die(claims).await,
            Op::UndoUnsent { who, claims } => self.undo_unsent(who % CALLERS, claims).await,
            &Op::Release { back, live } => {
                if let Some(grant) = self.grant(back, live) {
                    self.release(grant).await;
                }
            }
            &Op::Forge { back, who } => {
                if let Some(grant) = self.grant(back, false) {
                    self.forge(grant, who % CALLERS).await;
                }
            }
            &Op::Renew { back, live } => {
                if let Some(grant) = self.grant(back, live) {
                    self.renew(grant).await;
                }
            }
            &Op::Again { back } => {
                if let Some(attempt) = self.pick(back, |_| true) {
                    self.again(attempt).await;
                }
            }
            &Op::Leave { back } => {
                if let Some(attempt) = self.pick(back, |_| true) {
                    self.leave(attempt).await;
                }
            }
            &Op::Undo { back } => {
                if let Some(attempt) = self.pick(back, |_| true) {
                    self.undo(attempt).await;
                }
            }
            &Op::Break { back, lock, live, now } if declared.breaking => {
                if let Some(grant) = self.grant(back, live) {
                    let locks = &self.grants[grant].locks;
                    self.break_lock(locks[lock % locks.len()], now).await;
                }
            }
            Op::Freeze { id, frozen } if declared.breaking => self.freeze(id % IDS, *frozen).await,
            Op::Sweep if declared.sweeping => {
                self.store.dao().sweep(100, None).await.expect("the store answers");
            }
            Op::ReleaseContext { who } if declared.listing => self.release_context(who % CALLERS).await,
            Op::Inspect { id } => self.inspect(id % IDS).await,
            _ => {}
        }
    }

    async fn acquire(&mut self, who: Who, claims: &[(usize, Wanted)], queue: bool, nested: bool) {
        // A context that waits makes no other request, as in the service.
        if self.is_waiting(who) {
            return;
        }
        let attempt = self.attempt(who, claims, queue, nested);
        // Whether a broken lock may be asked for again, the contract does not say.
        let broken = |&(id, _): &(Id, Mode)| self.model.own(who, id).is_some_and(|own| own.broken);
        if attempt.model.claims.iter().any(broken) {
            return;
        }
        self.attempts.push(attempt);
        self.send(self.attempts.len() - 1).await;
    }

    /// Sends the request to both, and compares.
    async fn send(&mut self, number: usize) {
        let request = self.attempts[number].model.clone();
        let plain = request.claims.iter().all(|&(id, _)| self.model.own(request.who, id).is_none());
        let expected = self.model.acquire(&request);
        let caller = self.callers[request.who].clone();
        let real = self.attempts[number].real.clone();
        self.attempts[number].asked = Instant::now();
        match expected {
            Outcome::Withdrawn => caller.refused_as_withdrawn(&real).await,
            Outcome::Granted(got) => match caller.send(&real).await {
                Acquired::Granted(granted) => self.granted(number, &got, &granted, plain, true),
                other => panic!("{request:?} is to be granted, and was {other:?}"),
            },
            Outcome::Refused(expected) => match caller.send(&real).await {
                Acquired::Refused(conflicts) => {
                    self.conflicts(&request, &expected, &conflicts);
                    self.attempts[number].state = State::Refused;
                }
                other => panic!("{request:?} is to be refused for {expected:?}, and was {other:?}"),
            },
            Outcome::Queued(expected) => match caller.send(&real).await {
                Acquired::Queued { conflicts, wakeup, recheck } => {
                    self.conflicts(&request, &expected, &conflicts);
                    let attempt = &mut self.attempts[number];
                    attempt.place = Some(Place::new(caller, real, conflicts, wakeup, recheck));
                    attempt.state = State::Waits;
                }
                other => panic!("{request:?} is to be queued for {expected:?}, and was {other:?}"),
            },
        }
    }

    async fn again(&mut self, number: usize) {
        let attempt = &self.attempts[number];
        let who = attempt.model.who;
        match attempt.state {
            State::Waits => self.send(number).await,
            State::Undone => self.send(number).await,
            State::Granted { plain: true } => {
                let locks = self.locks_of(number);
                let broken = |&(id, _): &(Id, Serial)| self.model.own(who, id).is_some_and(|own| own.broken);
                if self.model.lost(who, &locks).is_empty() && !locks.iter().any(broken) {
                    self.send(number).await;
                    self.attempts[number].state = State::Granted { plain: true };
                }
            }
            _ => {}
        }
    }

    async fn release(&mut self, grant: usize) {
        let (locks, real) = (self.grants[grant].locks.clone(), self.grants[grant].real.clone());
        let who = self.who(grant);
        let expected = self.model.release(who, &locks);
        let released = self.callers[who].release(&real).await;
        assert!(released.failed.is_empty(), "{released:?}");
        let mut lost = released.lost;
        // What is freed though it was broken may be reported, too.
        lost.retain(|lost| {
            let of_a_break = self.broken_later.contains(&self.key(lost)) && lost.reason == LossReason::Broken;
            !of_a_break || expected.contains(&self.key(lost))
        });
        self.losses(&expected, &lost);
    }

    async fn forge(&mut self, grant: usize, who: Who) {
        if who == self.who(grant) {
            return;
        }
        let mut forged = self.grants[grant].real.clone();
        forged.context = self.callers[who].context;
        let count = forged.locks.len();
        assert_eq!(
            self.callers[who].release(&forged).await.lost.len(),
            count,
            "nothing of it is that caller's"
        );
        assert_eq!(
            self.callers[who].renew(&forged).await.lost.len(),
            count,
            "nothing of it is that caller's"
        );
    }

    async fn renew(&mut self, grant: usize) {
        let (locks, real) = (self.grants[grant].locks.clone(), self.grants[grant].real.clone());
        let who = self.who(grant);
        let gone = self.model.lost(who, &locks);
        let over = |&(id, serial): &(Id, Serial)| {
            gone.contains(&(id, serial)) || self.model.own(who, id).is_some_and(|own| own.broken)
        };
        let expected: Vec<_> = locks.iter().copied().filter(over).collect();
        let renewed = self.callers[who].renew(&real).await;
        self.losses(&expected, &renewed.lost);
    }

    async fn leave(&mut self, number: usize) {
        let (who, real) = (self.attempts[number].model.who, self.attempts[number].real.clone());
        match self.attempts[number].state {
            State::Waits => {
                self.model.leave(number);
                let left = self.callers[who].withdraw(&real, Withdraw::KeepIfGranted).await;
                assert_eq!(left, Withdrawn::Left, "it was not granted yet");
                self.attempts[number].place = None;
                self.attempts[number].state = State::Left;
            }
            State::Granted { plain: true } => {
                let locks = self.locks_of(number);
                let lost = self.model.lost(who, &locks).len();
                // Whether a broken lock is still a whole grant, and what becomes of one that an earlier
                // attempt shares, is left open.
                let open = |lock| self.broken_later.contains(lock) || self.shared_by_attempts.contains(lock);
                if lost != 0 && lost != locks.len() || locks.iter().any(open) {
                    return;
                }
                match self.callers[who].withdraw(&real, Withdraw::KeepIfGranted).await {
                    Withdrawn::Left => assert_eq!(lost, locks.len(), "it holds {locks:?}"),
                    Withdrawn::Holds(holds) => {
                        assert_eq!(lost, 0, "it holds nothing any more");
                        let fences: Vec<_> = locks.iter().map(|lock| self.fences[lock]).collect();
                        assert_eq!(holds.iter().map(|held| held.fence).collect::<Vec<_>>(), fences);
                    }
                }
            }
            _ => {}
        }
    }

    async fn undo(&mut self, number: usize) {
        let (who, real) = (self.attempts[number].model.who, self.attempts[number].real.clone());
        match self.attempts[number].state {
            State::Waits => {}
            State::Granted { plain: true }
                if !self.locks_of(number).iter().any(|lock| self.shared_by_attempts.contains(lock)) => {}
            _ => return,
        }
        self.model.undo(number);
        assert_eq!(self.callers[who].withdraw(&real, Withdraw::Undo).await, Withdrawn::Left);
        self.attempts[number].place = None;
        self.attempts[number].state = State::Undone;
    }

    async fn undo_unsent(&mut self, who: Who, claims: &[(usize, Wanted)]) {
        let mut attempt = self.attempt(who, claims, false, false);
        attempt.state = State::Undone;
        self.model.undo(self.attempts.len());
        assert_eq!(self.callers[who].withdraw(&attempt.real, Withdraw::Undo).await, Withdrawn::Left);
        self.attempts.push(attempt);
    }

    async fn break_lock(&mut self, (id, serial): (Id, Serial), now: bool) {
        let owner =
            self.model.holders(id).into_iter().find(|lock| lock.serial == serial).map(|lock| lock.who);
        // Whether a waiter may be granted a broken lock of its own again, the contract does not say.
        if owner.is_some_and(|who| self.is_waiting(who)) {
            return;
        }
        let fence = self.fences[&(id, serial)];
        let how = if now { BreakMode::Now } else { BreakMode::AfterLease };
        let held = self.model.break_lock(id, serial, now);
        let broken = self.store.dao().break_lock(&self.target(id), fence, how, "the admin").await;
        match (held, now, broken.expect("the store answers")) {
            (false, _, Broken::NotHeld) => {}
            (true, true, Broken::Freed) => drop(self.broken_now.insert((id, serial))),
            (true, false, Broken::Within(Some(_))) => drop(self.broken_later.insert((id, serial))),
            (held, now, other) => panic!("broken (held: {held}, now: {now}): {other:?}"),
        }
    }

    async fn freeze(&mut self, id: Id, frozen: bool) {
        self.model.freeze(id, frozen);
        self.store.dao().freeze(&self.target(id), frozen).await.expect("the store answers");
        self.serve().await;
    }

    async fn release_context(&mut self, who: Who) {
        let expected: BTreeSet<Id> = self.model.release_context(who).into_iter().collect();
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.model.who == who) {
            if attempt.state == State::Waits {
                attempt.state = State::Left;
                attempt.place = None;
            }
        }
        let freed = self.store.dao().release_context(&self.callers[who].context).await;
        let freed = freed.expect("the store answers");
        assert_eq!(freed.iter().map(|target| self.id(target)).collect::<BTreeSet<_>>(), expected);
        assert_eq!(freed.len(), expected.len(), "each once: {freed:?}");
    }

    async fn die(&mut self, claims: &[(usize, Wanted)]) {
        let who = self.callers.len();
        // Places of live waiters would end with a clock that is set forward.
        let sets_clock = self.store.sets_clock() && !self.store.capabilities().fifo;
        let lease = self.store.short();
        self.callers.push(self.store.caller().with_lease(lease));
        let attempt = self.attempt(who, claims, false, false);
        self.attempts.push(attempt);
        let number = self.attempts.len() - 1;
        self.send(number).await;
        if !matches!(self.attempts[number].state, State::Granted { .. }) {
            return;
        }
        let locks = self.locks_of(number);
        if sets_clock {
            self.store.pass(lease).await;
        }
        self.until_over(who, &locks).await;
        self.model.release(who, &locks);
    }

    /// Waits until the store itself says that the leases are over, without taking anything.
    async fn until_over(&self, who: Who, locks: &[(Id, Serial)]) {
        let dead = StoredContext::Known(self.callers[who].context);
        if self.store.capabilities().listing {
            for &(id, _) in locks {
                eventually("the lease ends", || async {
                    let found = self.store.dao().inspect(&self.target(id)).await.expect("the store answers");
                    found.holders.iter().all(|held| held.context != dead).then_some(())
                })
                .await;
            }
            return;
        }
        let (stopper, prober) = (self.store.caller(), self.store.caller().nested());
        let held = stopper.take(["the probe's stopper"]).await;
        let ids: Vec<String> = locks.iter().map(|&(id, _)| self.target(id).stored().into_owned()).collect();
        eventually("the leases end", || async {
            let probe = ids.iter().map(String::as_str).chain(["the probe's stopper"]);
            let conflicts = prober.refused(probe.collect::<Vec<_>>()).await;
            let held_by_the_dead = conflicts.iter().any(|conflict| {
                matches!(&conflict.reason, ConflictReason::Held { holders, .. }
                    if holders.iter().any(|holder| holder.context == dead))
            });
            (!held_by_the_dead).then_some(())
        })
        .await;
        stopper.free(&held).await;
    }

    /// Waiters that the model serves by now have to be served, and no others.
    async fn serve(&mut self) {
        for (number, got) in self.model.serve() {
            let mut place = self.attempts[number].place.take().expect("who is served waited");
            let request = &self.attempts[number].model;
            let grant = timeout(self.patience, place.granted()).await;
            let grant = grant.unwrap_or_else(|_| panic!("{request:?} is to be served by now"));
            let granted: Vec<_> = grant.locks.into_iter().map(|lock| lock.granted).collect();
            let known = |got: &Got| self.fences.contains_key(&(got.id, got.serial));
            let plain = !got.iter().any(known);
            self.granted(number, &got, &granted, plain, false);
        }
        for number in 0..self.attempts.len() {
            let attempt = &mut self.attempts[number];
            let Some(place) = &mut attempt.place else { continue };
            assert!(self.model.waits(number));
            let told = place.notified().now_or_never();
            assert!(
                !matches!(told, Some(lockcore::backend::Wake::Offer(_))),
                "{:?}: out of turn",
                attempt.model
            );
            let lapses = place.recheck().is_some_and(|recheck| attempt.asked.elapsed() > recheck / 2);
            if told.is_some() || lapses {
                place.still_waits().await;
                attempt.asked = Instant::now();
            }
        }
    }

    fn attempt(&self, who: Who, claims: &[(usize, Wanted)], queue: bool, nested: bool) -> Attempt<B::Dao> {
        let declared = self.store.capabilities();
        let mode = |wanted| match wanted {
            Wanted::Shared if declared.shared => Mode::Shared,
            Wanted::Slots { permits, limit } if declared.slots => Mode::Slots { permits, limit },
            _ => Mode::Exclusive,
        };
        let claims: BTreeMap<Id, Mode> =
            claims.iter().map(|&(id, wanted)| (id % IDS, mode(wanted))).collect();
        let targets = claims.iter().map(|(&id, &mode)| Claim { target: self.target(id), mode });
        let mut real = self.callers[who].request(targets.collect::<Vec<_>>());
        let claims = claims.into_iter().collect();
        let mut model = Request { who, attempt: self.attempts.len(), claims, queue, nested };
        // Whether a changed lock may be part of a set that waits, or passes the queue, is left open.
        if self.model.changes(&model) {
            (model.queue, model.nested) = (false, true);
        }
        (real.queue, real.nested) = (model.queue, model.nested);
        Attempt { model, real, place: None, asked: Instant::now(), state: State::Refused, step: self.step }
    }

    /// The attempt that `back` chooses among those that are `wanted`.
    fn pick(&self, back: Back, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let step = back % self.step.max(1);
        let mut wanted = (0..self.attempts.len()).filter(|&number| wanted(number)).peekable();
        let first = wanted.peek().copied();
        wanted.take_while(|&number| self.attempts[number].step <= step).last().or(first)
    }

    /// The grant that `back` chooses, if `live` among those that still hold something.
    fn grant(&self, back: Back, live: bool) -> Option<usize> {
        let attempt = self.pick(back, |number| {
            let locks = self.locks_of(number);
            !locks.is_empty()
                && (!live || self.model.lost(self.attempts[number].model.who, &locks).len() < locks.len())
        })?;
        self.grants.iter().position(|kept| kept.attempt == attempt)
    }

    fn is_waiting(&self, who: Who) -> bool {
        self.attempts.iter().any(|attempt| attempt.model.who == who && attempt.state == State::Waits)
    }

    fn locks_of(&self, attempt: usize) -> Vec<(Id, Serial)> {
        let first = self.grants.iter().find(|kept| kept.attempt == attempt);
        first.map(|kept| kept.locks.clone()).unwrap_or_default()
    }

    fn who(&self, grant: usize) -> Who {
        self.attempts[self.grants[grant].attempt].model.who
    }

    fn target(&self, id: Id) -> Target<String> {
        store::id(&format!("{}/{id}", self.prefix))
    }

    fn id(&self, target: &Target<String>) -> Id {
        (0..IDS).find(|&id| self.target(id) == *target).expect("an id of this history")
    }
}

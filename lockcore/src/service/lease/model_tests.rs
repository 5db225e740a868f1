//! Searches all schedules of one lease of two locks and a store that answers late, twice asked, or not at all, has locks broken,
//! and lets other processes take what is over.
//!
//! The decisions are [`Lease`]'s own. A schedule is played from its beginning each time, on a clock that the test sets forward.
//! Each fault that [`Fault`] puts in on purpose must be found.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use lockcore_conformance::search::{Found, Model, search};

use super::Lease;
use crate::{Grant, Granted, Lock, LossReason, Mode, Target, clock, clock::Moment};

/// Long, so that the time that a test takes is none.
const TICK: Duration = Duration::from_secs(1_000);
/// Leases, in ticks.
const LENGTH: u32 = 3;
const HORIZON: u32 = 7;
const LOCKS: usize = 2;

/// A way to break the promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// An extension counts from its answer.
    FromAnswer,
    /// A loss that the clock alone shows is not noted.
    NotNoted,
    /// A loss that the store reports is ignored.
    LossIgnored,
    /// An extension brings back what was lost.
    BroughtBack,
    /// A lease that was handed over is taken for a whole one.
    WholeOffer,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Event {
    Tick,
    /// A renewal is sent.
    Send,
    /// The store carries out the renewal with this position.
    Arrive(usize),
    /// Its answer is received.
    Answer(usize),
    /// It is given up; it may still arrive.
    GiveUp(usize),
    /// Another process takes the locks whose lease is over.
    TakeOver,
    /// An administrator frees the first lock at once.
    Break,
    /// The callback is about to be polled.
    Look,
}

/// A renewal.
#[derive(Clone, Debug)]
struct Renewal {
    sent: Moment,
    /// For the key.
    at: u32,
    /// The locks that it names.
    locks: Vec<usize>,
    /// The sender waits for the answer.
    awaited: bool,
    /// The store's answer: the locks that are lost.
    answer: Option<Vec<usize>>,
}

struct World {
    fault: Fault,
    lease: Lease,
    grant: Grant<String, uuid::Uuid>,
    now: u32,
    /// The end of each lock's lease in the store; `None`: it is another's, or free.
    store: [Option<u32>; LOCKS],
    /// A break is reported by the next renewal.
    broken: bool,
    net: Vec<Renewal>,
    /// A look of the callback reported the loss.
    reported: bool,
    sends: u8,
}

impl World {
    fn new(offer: bool, fault: Fault) -> Self {
        let lasts = if offer { 1 } else { LENGTH };
        let believed = if fault == Fault::WholeOffer { LENGTH } else { lasts };
        let lock = |id: &str| Lock {
            target: Target::Id(id.to_owned()),
            granted: Granted { mode: Mode::Exclusive, fence: 1, permits: Default::default(), in_use: 1 },
        };
        World {
            fault,
            lease: Lease::new(TICK * LENGTH, 0.0, None, Moment::now(), TICK * believed, LOCKS),
            grant: Grant {
                context: uuid::Uuid::nil(),
                locks: [lock("a"), lock("b")].into_iter().collect(),
                lease: Some(TICK * LENGTH),
            },
            now: 0,
            store: [Some(lasts); LOCKS],
            broken: false,
            net: Vec::new(),
            reported: false,
            sends: 0,
        }
    }

    fn possible(&self) -> Vec<Event> {
        let mut all = Vec::new();
        if self.now < HORIZON {
            all.push(Event::Tick);
        }
        let is_under_way = self.net.iter().any(|renewal| renewal.awaited);
        if !is_under_way && self.sends < 3 && !self.lease.is_over() {
            all.push(Event::Send);
        }
        for (position, renewal) in self.net.iter().enumerate() {
            match renewal.answer {
                None => all.push(Event::Arrive(position)),
                Some(_) if renewal.awaited => all.push(Event::Answer(position)),
                Some(_) => {}
            }
            if renewal.awaited {
                all.push(Event::GiveUp(position));
            }
        }
        if self.store.iter().any(|until| until.is_some_and(|until| until <= self.now)) {
            all.push(Event::TakeOver);
        }
        if !self.broken && self.store[0].is_some() {
            all.push(Event::Break);
        }
        all.push(Event::Look);
        all
    }

    /// Returns the promise that the event breaks, if one is.
    fn happen(&mut self, event: Event) -> Option<&'static str> {
        match event {
            Event::Tick => {
                self.now += 1;
                clock::stops::once(TICK);
            }
            Event::Send => {
                self.lease.renewing();
                let held = self.lease.still_held(&self.grant);
                let is_held = |position: &usize| held.locks.contains(&self.grant.locks[*position]);
                let locks = (0..LOCKS).filter(is_held).collect();
                self.net.push(Renewal {
                    sent: Moment::now(),
                    at: self.now,
                    locks,
                    awaited: true,
                    answer: None,
                });
                self.sends += 1;
            }
            Event::Arrive(position) => {
                let mut lost = Vec::new();
                for lock in self.net[position].locks.clone() {
                    match &mut self.store[lock] {
                        Some(until) if *until > self.now => *until = self.now + LENGTH,
                        _ => lost.push(lock),
                    }
                }
                self.net[position].answer = Some(lost);
            }
            Event::Answer(position) => {
                let renewal = self.net.remove(position);
                self.answered(&renewal);
            }
            Event::GiveUp(position) => self.net[position].awaited = false,
            Event::TakeOver => {
                for until in &mut self.store {
                    *until = until.filter(|until| *until > self.now);
                }
            }
            Event::Break => {
                self.broken = true;
                self.store[0] = None;
            }
            Event::Look => {
                let is_lost = match self.fault {
                    Fault::NotNoted => self.lease.left_to_run().is_zero() || self.is_known_lost(),
                    _ => self.lease.look().0,
                };
                if self.reported && !is_lost {
                    return Some("once lost, always lost");
                }
                self.reported = is_lost;
            }
        }
        self.net.retain(|renewal| renewal.awaited || renewal.answer.is_none());
        let believes = !self.is_known_lost() && !self.lease.left_to_run().is_zero();
        let is_ours = |until: &Option<u32>| until.is_some_and(|until| until > self.now);
        // A lock that an administrator frees at once is reported by the next renewal, and not before.
        let held = if self.broken { &self.store[1..] } else { &self.store[..] };
        if believes && !held.iter().all(is_ours) {
            return Some("the local deadline is never later than the store's");
        }
        None
    }

    /// Does with an answer what `Renewal::renew` does.
    fn answered(&mut self, renewal: &Renewal) {
        let lost = renewal.answer.iter().flatten();
        let lost: Vec<_> =
            lost.map(|position| self.grant.locks[*position].lost(LossReason::Vanished)).collect();
        if self.fault != Fault::LossIgnored {
            self.lease.lose(&self.grant, &lost);
        }
        if self.fault == Fault::BroughtBack {
            self.lease.state().lost.clear();
        }
        if !self.lease.is_over() {
            let sent = if self.fault == Fault::FromAnswer { Moment::now() } else { renewal.sent };
            self.lease.extended(sent, self.lease.length);
        }
    }

    fn is_known_lost(&self) -> bool {
        !self.lease.state().lost.is_empty()
    }

    /// Distinguishes its state from others.
    fn key(&self) -> String {
        let net: Vec<_> =
            self.net.iter().map(|r| (self.now - r.at, &r.locks, r.awaited, &r.answer)).collect();
        let left = (self.lease.left().as_secs_f64() / TICK.as_secs_f64()).round();
        let state = self.lease.state();
        format!(
            "{} {:?} {} {net:?} {} {} {left} {} {:?}",
            self.now, self.store, self.broken, self.reported, self.sends, state.unanswered, state.lost
        )
    }
}

/// A search of leases that were granted, or handed over, with a fault.
struct Leases {
    offer: bool,
    fault: Fault,
}

/// A schedule, and what it leads to.
struct Played {
    schedule: Vec<Event>,
    /// The promise that its last event breaks.
    broken: Option<&'static str>,
    key: u64,
    possible: Vec<Event>,
}

impl Leases {
    /// Plays a schedule from its beginning, of which at most the last event breaks a promise.
    fn play(&self, schedule: Vec<Event>) -> Played {
        let mut world = World::new(self.offer, self.fault);
        let broken = schedule.iter().filter_map(|event| world.happen(*event)).last();
        let mut hasher = DefaultHasher::new();
        world.key().hash(&mut hasher);
        Played { schedule, broken, key: hasher.finish(), possible: world.possible() }
    }

    fn search(&self) -> Found {
        search(self, self.play(Vec::new()), usize::MAX)
    }
}

impl Model for Leases {
    type State = Played;
    type Key = u64;

    fn next(&self, state: &Played) -> Vec<(String, Played)> {
        let longer = |event: &Event| [&state.schedule[..], &[*event]].concat();
        state.possible.iter().map(|event| (format!("{event:?}"), self.play(longer(event)))).collect()
    }

    fn broken(&self, _before: &Played, state: &Played) -> Option<&'static str> {
        state.broken
    }

    fn key(&self, state: &Played) -> u64 {
        state.key
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    for offer in [false, true] {
        let found = Leases { offer, fault: Fault::None }.search();
        println!("offer: {offer}: {} states", found.states);
        assert_eq!(found.broken, None);
        assert!(found.is_complete);
    }
}

#[test]
fn each_fault_is_found() {
    for fault in
        [Fault::FromAnswer, Fault::NotNoted, Fault::LossIgnored, Fault::BroughtBack, Fault::WholeOffer]
    {
        let found = Leases { offer: fault == Fault::WholeOffer, fault }.search();
        println!("{fault:?}: {} states, {:?}", found.states, found.broken);
        assert!(found.broken.is_some(), "{fault:?} is not found");
    }
}

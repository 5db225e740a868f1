//! Searches all schedules of a small configuration: two processes, one id, requests and answers that are late, lost or
//! doubled, callers that give up, crashes, and a clock that is known to a second.
//!
//! The decisions are the engine's over a [`Step`], with [`Row::prune`] and [`Row::is_free_for_all`], and every row goes through
//! [`Row::attributes`] and [`Row::read`], as an item does. What the service does with a conditional write is written down here.
//! Each fault that [`Fault`] puts in on purpose must be found.

use std::hash::{DefaultHasher, Hash, Hasher};

use lockcore::{
    backend::Withdraw,
    engine::{self, Verdict},
};
use lockcore_conformance::search::{self, Model, search};

use super::*;
use crate::{
    request::{Request, StoredClaim},
    state::Step,
};

/// A tick, by the service's clock.
const TICK: u64 = SECOND;
/// Leases, in ticks.
const LEASE: u64 = 2;
/// The search ends at this tick.
const HORIZON: u64 = 7;
const BEGIN: u64 = 1_795_000_000_000_000;
const ID: &str = "id";

/// A way to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A withdrawal leaves no tombstone.
    NoTombstone,
    /// A withdrawal replaces the item whatever was written meanwhile.
    BlindUndo,
    /// A holder counts its lease from the answer.
    LeaseFromAnswer,
    /// One process believes that it is two ticks later.
    WrongClock,
    /// A fence is not above the one before.
    OldFence,
}

#[derive(Clone, Debug)]
struct State {
    tick: u64,
    /// The item, as it is read.
    row: Option<Row>,
    processes: [Process; 2],
    net: Vec<Message>,
    /// The number of answers that may still be lost or messages doubled, and of processes that may crash.
    faults: u8,
    /// Attempts whose withdrawal was confirmed.
    withdrawn: Vec<u64>,
    /// The highest fence that a holder saw.
    highest: u64,
    revisions: u64,
}

#[derive(Clone, Debug)]
struct Process {
    phase: Phase,
    attempts: u64,
}

#[derive(Clone, PartialEq, Debug)]
enum Phase {
    Idle,
    /// A request is under way.
    Asking,
    /// It believes to hold the lock before this tick.
    Holding {
        before: u64,
        fence: u64,
    },
    /// A withdrawal is under way.
    Undoing,
    Dead,
}

#[derive(Clone, PartialEq, Debug)]
struct Message {
    from: usize,
    attempt: u64,
    sent: u64,
    now: ServiceTime,
    /// The sender still waits for the answer.
    is_awaited: bool,
    write: Write,
}

#[derive(Clone, PartialEq, Debug)]
enum Write {
    /// Takes what is free, without having read it.
    Take(Entry),
    /// Replaces the item if it is the one that was read.
    Replace {
        old: Option<Box<Row>>,
        new: Box<Row>,
        is_undo: bool,
    },
    Renew {
        fence: u64,
    },
    Free {
        fence: u64,
    },
}

/// Each call has a context of its own.
fn context(attempt: u64) -> String {
    format!("context-{attempt}")
}

/// Returns what a process knows of the service's clock.
fn known(process: usize, tick: u64, fault: Fault) -> ServiceTime {
    let time = BEGIN + tick * TICK;
    match fault {
        Fault::WrongClock if process == 1 => ServiceTime { lo: time + 2 * TICK, hi: time + 2 * TICK },
        _ => ServiceTime { lo: time - TICK / 2, hi: time + TICK / 2 },
    }
}

/// The fence of a grant, as the store's clock has it: the upper bound of the time, or above the highest that is known.
fn fence(above: u64, now: ServiceTime, fault: Fault) -> u64 {
    if fault == Fault::OldFence { above.max(BEGIN) } else { now.hi.max(above + 1) }
}

/// The item as it is read after it was written.
fn stored(row: &Row, rev: u64, now: ServiceTime) -> Row {
    let rev = [("rev", Some(value::number(rev)))];
    let written = super::tests::named(row.attributes(now).into_iter().chain(rev));
    Row::read(written, &Names::default()).expect("what was written can be read")
}

impl State {
    fn new(faults: u8) -> Self {
        let process = Process { phase: Phase::Idle, attempts: 0 };
        State {
            tick: 0,
            row: None,
            processes: [process.clone(), process],
            net: Vec::new(),
            faults,
            withdrawn: Vec::new(),
            highest: 0,
            revisions: 0,
        }
    }

    fn attempt(&self, process: usize) -> u64 {
        process as u64 * 100 + self.processes[process].attempts
    }

    fn request(&self, process: usize) -> Request {
        Request {
            context: context(self.attempt(process)),
            attempt: self.attempt(process),
            claims: vec![StoredClaim { key: ID.to_owned(), mode: Mode::Exclusive }],
            lease: LEASE * TICK,
            owner: Owner::default(),
        }
    }

    fn send(&mut self, from: usize, write: Write, fault: Fault) {
        let attempt = self.attempt(from);
        let now = known(from, self.tick, fault);
        self.net.push(Message { from, attempt, sent: self.tick, now, is_awaited: true, write });
    }

    /// Returns the row with the lock of a process, if the engine grants it on the row that was found.
    fn granted(&self, process: usize, found: Row, fault: Fault) -> Option<Row> {
        let now = known(process, self.tick, fault);
        let fence = fence(found.fence, now, fault);
        let mut step = Step::new([(ID.to_owned(), found)], now).granting(fence);
        let Ok(verdict) = engine::acquire(&mut step, &self.request(process));
        matches!(verdict, Verdict::Granted(_)).then(|| step.row(ID).clone())
    }

    /// Decides about the row that was found, and sends the write; returns whether there is one.
    fn ask(&mut self, process: usize, found: Option<Row>, fault: Fault) -> bool {
        let Some(row) = self.granted(process, found.clone().unwrap_or_default(), fault) else { return false };
        let write = Write::Replace { old: found.map(Box::new), new: Box::new(row), is_undo: false };
        self.send(process, write, fault);
        true
    }

    /// Reads the row and sends what undoes the attempt; returns whether there is anything to do.
    fn undo(&mut self, process: usize, fault: Fault) -> bool {
        let (request, now) = (self.request(process), known(process, self.tick, fault));
        let old = self.row.clone();
        let found = old.clone().unwrap_or_default();
        let mut step = Step::new([(ID.to_owned(), found.clone())], now)
            .withdrawing(&request.context, now.hi + 100 * TICK);
        let Ok(_) = engine::withdraw(&mut step, &request, Withdraw::Undo);
        let mut row = step.pruned(ID);
        if fault == Fault::NoTombstone {
            row.tombstones.clone_from(&found.tombstones);
        }
        let is_undone = row.was_withdrawn(request.attempt) == found.was_withdrawn(request.attempt)
            && row.holder(&request.context) == found.holder(&request.context);
        if is_undone {
            return false;
        }
        let write = Write::Replace { old: old.map(Box::new), new: Box::new(row), is_undo: true };
        self.send(process, write, fault);
        true
    }

    /// The service carries a write out, or refuses it.
    fn carry_out(&mut self, message: &Message, fault: Fault) -> bool {
        let (context, now) = (context(message.attempt), message.now);
        let written = match &message.write {
            Write::Take(entry) => {
                let row = self.row.clone().unwrap_or_default();
                if !row.is_free_for_all(now) || row.fence >= entry.fence && fault != Fault::OldFence {
                    return false;
                }
                Row { fence: entry.fence, holders: vec![(context, entry.clone())], ..Row::default() }
            }
            Write::Replace { old, new, is_undo } => {
                if old.as_deref() != self.row.as_ref() && !(fault == Fault::BlindUndo && *is_undo) {
                    return false;
                }
                (**new).clone()
            }
            Write::Renew { fence } | Write::Free { fence } => {
                let Some(mut row) = self.row.clone() else { return false };
                let is_free = matches!(message.write, Write::Free { .. });
                let lasts = |own: &&mut Entry| is_free || own.certainly_lasts(now);
                match row.holder_mut(&context).filter(|own| own.fence == *fence).filter(lasts) {
                    Some(_) if is_free => drop(row.remove(&context)),
                    Some(own) => own.extend(LEASE * TICK, now),
                    None => return false,
                }
                row
            }
        };
        self.revisions += 1;
        self.row = Some(stored(&written, self.revisions, now));
        true
    }

    /// The sender learns what became of its message.
    fn answer(&mut self, message: &Message, done: bool, fault: Fault) {
        let from = message.from;
        if !message.is_awaited || self.processes[from].phase == Phase::Dead {
            return;
        }
        let begin = if fault == Fault::LeaseFromAnswer { self.tick } else { message.sent };
        let fence = |fence| Phase::Holding { before: begin + LEASE, fence };
        let phase = match (&message.write, done) {
            (Write::Take(entry), true) => fence(entry.fence),
            (Write::Replace { new, is_undo: false, .. }, true) => {
                fence(new.holder(&context(message.attempt)).expect("it was granted").fence)
            }
            (Write::Take(_) | Write::Replace { is_undo: false, .. }, false) => {
                let found = self.row.clone();
                if self.ask(from, found, fault) { Phase::Asking } else { Phase::Idle }
            }
            (Write::Replace { .. }, true) => {
                self.withdrawn.push(message.attempt);
                Phase::Idle
            }
            (Write::Replace { .. }, false) if self.undo(from, fault) => Phase::Undoing,
            (Write::Replace { .. }, false) => {
                self.withdrawn.push(message.attempt);
                Phase::Idle
            }
            (Write::Renew { fence: renewed }, true) => match self.processes[from].phase {
                // Once lost, always lost.
                Phase::Holding { before, fence: held } if held == *renewed && self.tick < before => {
                    fence(held)
                }
                _ => return,
            },
            (Write::Renew { fence: renewed }, false) => match self.processes[from].phase {
                Phase::Holding { fence, .. } if fence == *renewed => Phase::Idle,
                _ => return,
            },
            (Write::Free { .. }, _) => return,
        };
        self.processes[from].phase = phase;
    }

    /// Returns all states that can come next, each with what happened.
    fn next(&self, fault: Fault) -> Vec<(String, State)> {
        let mut all = Vec::new();
        let mut add = |what: &dyn Fn() -> String, change: &dyn Fn(&mut State)| {
            let mut next = self.clone();
            change(&mut next);
            next.tidy();
            all.push((what(), next));
        };
        if self.tick < HORIZON {
            add(&|| "a tick".into(), &|next| next.tick += 1);
        }
        for (process, Process { phase, attempts }) in self.processes.iter().enumerate() {
            match phase {
                Phase::Idle if *attempts < 2 => add(&|| format!("{process} asks"), &|next| {
                    next.processes[process] = Process { phase: Phase::Asking, attempts: attempts + 1 };
                    let row = next.granted(process, Row::default(), fault).expect("nothing is in the way");
                    next.send(process, Write::Take(row.holders[0].1.clone()), fault);
                }),
                Phase::Asking => add(&|| format!("the caller of {process} gives up"), &|next| {
                    // The caller gives up; what was sent may still arrive.
                    next.net
                        .iter_mut()
                        .filter(|message| message.from == process)
                        .for_each(|message| message.is_awaited = false);
                    next.processes[process].phase = Phase::Undoing;
                    if !next.undo(process, fault) {
                        let attempt = next.attempt(process);
                        next.withdrawn.push(attempt);
                        next.processes[process].phase = Phase::Idle;
                    }
                }),
                Phase::Holding { fence, .. } => {
                    let renews = self.net.iter().any(|message| {
                        message.from == process && matches!(message.write, Write::Renew { .. })
                    });
                    if !renews {
                        add(&|| format!("{process} renews"), &|next| {
                            next.send(process, Write::Renew { fence: *fence }, fault);
                        });
                    }
                    add(&|| format!("{process} releases"), &|next| {
                        next.processes[process].phase = Phase::Idle;
                        next.send(process, Write::Free { fence: *fence }, fault);
                    });
                }
                Phase::Idle | Phase::Undoing | Phase::Dead => {}
            }
            if self.faults > 0 && *phase != Phase::Dead {
                add(&|| format!("{process} crashes"), &|next| {
                    next.faults -= 1;
                    next.processes[process].phase = Phase::Dead;
                });
            }
        }
        for at in 0..self.net.len() {
            let from = self.net[at].from;
            add(&|| format!("a request of {from} arrives"), &|next| {
                let message = next.net.remove(at);
                let done = next.carry_out(&message, fault);
                next.answer(&message, done, fault);
            });
            if self.faults > 0 {
                // The answer is lost; or the message arrives once more, later.
                for doubled in [false, true] {
                    let what = if doubled { "is doubled" } else { "loses its answer" };
                    add(&|| format!("a request of {from} {what}"), &|next| {
                        next.faults -= 1;
                        let mut message = next.net.remove(at);
                        let done = next.carry_out(&message, fault);
                        if doubled {
                            next.answer(&message, done, fault);
                            message.is_awaited = false;
                            next.net.push(message);
                        }
                    });
                }
            }
        }
        all
    }

    /// Ends beliefs whose time is over, and takes what holders saw into account.
    fn tidy(&mut self) {
        for process in &mut self.processes {
            if let Phase::Holding { before, fence } = process.phase {
                self.highest = self.highest.max(fence);
                if self.tick >= before {
                    process.phase = Phase::Idle;
                }
            }
        }
    }

    /// Returns the promise that is broken here, if one is.
    fn broken(&self, before: &State) -> Option<&'static str> {
        let holds = |process: &Process| matches!(process.phase, Phase::Holding { .. });
        if self.processes.iter().all(holds) {
            return Some("two holders");
        }
        let row = self.row.as_ref()?;
        if row.holders.iter().any(|(_, entry)| self.withdrawn.contains(&entry.attempt)) {
            return Some("a withdrawn attempt holds");
        }
        for (now, then) in self.processes.iter().zip(&before.processes) {
            if let (Phase::Holding { fence, .. }, false) = (&now.phase, holds(then))
                && *fence <= before.highest
            {
                return Some("a fence that is not above the one before");
            }
        }
        None
    }

    /// Tells it from other states.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        hasher.finish()
    }
}

/// A search with a fault.
struct Search(Fault);

impl Model for Search {
    type State = State;
    type Key = u64;

    fn next(&self, state: &State) -> Vec<(String, State)> {
        state.next(self.0)
    }

    fn broken(&self, before: &State, state: &State) -> Option<&'static str> {
        state.broken(before)
    }

    fn key(&self, state: &State) -> u64 {
        state.key()
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    let found = search(&Search(Fault::None), State::new(1), search::most(30_000));
    println!("{} states, depth {}, complete: {}", found.states, found.depth, found.is_complete);
    assert_eq!(found.broken, None);
}

#[test]
fn each_fault_of_the_protocol_is_found() {
    for fault in
        [Fault::NoTombstone, Fault::BlindUndo, Fault::LeaseFromAnswer, Fault::WrongClock, Fault::OldFence]
    {
        let found = search(&Search(fault), State::new(1), 400_000);
        println!("{fault:?}: {} states, {:?}", found.states, found.broken);
        assert!(found.broken.is_some(), "{fault:?} is not found");
    }
}

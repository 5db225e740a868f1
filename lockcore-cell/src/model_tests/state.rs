//! The state of a search: the store, what is in flight, and the processes.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use lockcore::backend::ServiceTime;

use super::{BEGIN, Fault, SKEW, Setup, TICK};
use crate::{
    session::Session,
    table::{Stamp, Table, Write},
    takeover::{ALIVE, Seen, SeenCell, Sessions},
};

/// An object of the store; version 0: there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Object<T> {
    pub(super) version: u64,
    pub(super) content: T,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) tick: u64,
    pub(super) table: Object<Table>,
    pub(super) sessions: Vec<Object<Session>>,
    pub(super) net: Vec<Message>,
    pub(super) processes: Vec<Process>,
    pub(super) faults: u8,
    pub(super) crashes: u8,
    pub(super) versions: u64,
    /// Attempts whose withdrawal was confirmed.
    pub(super) withdrawn: Vec<u64>,
    pub(super) highest: u64,
    pub(super) broken: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) phase: Phase,
    /// The time at which the call began.
    pub(super) since: u64,
    pub(super) writes: u64,
    /// Writes of this step of which it is not known whether they were made, with what they would answer.
    pub(super) doubtful: Vec<(u64, Answer)>,
    pub(super) renewals: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Acquire,
    /// Takes over from a holder whose lease is over, for a waiter.
    Clean,
    Undo,
    Release(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// It is to read the table, and to decide.
    Looks(Job),
    /// Its write of the table is in flight.
    Writes(Job),
    /// Its write of another session is in flight.
    Closes(Job),
    Waits,
    Holds(Held),
    Renews(Held),
    Ended,
    Dead,
}

/// The lock as the process believes to hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) fence: u64,
    pub(super) before: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Fence(u64),
    Place,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) from: usize,
    /// The sender still waits for the response.
    pub(super) awaited: bool,
    pub(super) sent: u64,
    /// The version that it was made for.
    pub(super) base: u64,
    pub(super) write: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Table(Box<Table>, Answer),
    Session(usize, Session),
}

pub(super) fn session(process: usize) -> String {
    format!("p{process}")
}

/// A session that was read at this time.
pub(super) fn seen(session: Session, now: ServiceTime) -> Seen {
    Seen { cell: SeenCell::There(Arc::new(session)), at: now.lo, since: now.hi, is_after_mark: true }
}

pub(super) fn attempt(process: usize) -> u64 {
    process as u64 + 1
}

impl State {
    pub(super) fn new(setup: &Setup) -> Self {
        let process = Process {
            phase: Phase::Looks(Job::Acquire),
            since: BEGIN,
            writes: 0,
            doubtful: Vec::new(),
            renewals: setup.renewals,
        };
        State {
            tick: 0,
            table: Object { version: 1, content: Table::default() },
            sessions: vec![Object::default(); setup.sets.len()],
            net: Vec::new(),
            processes: vec![process; setup.sets.len()],
            faults: setup.faults,
            crashes: setup.crashes,
            versions: 1,
            withdrawn: Vec::new(),
            highest: 0,
            broken: None,
        }
    }

    pub(super) fn time(&self) -> u64 {
        BEGIN + self.tick * TICK
    }

    pub(super) fn now(&self, setup: &Setup) -> ServiceTime {
        let (lo, hi) = (self.time() - SKEW, self.time() + SKEW);
        match setup.fault {
            Fault::SwappedBounds => ServiceTime { lo: hi + TICK, hi: lo.saturating_sub(TICK) },
            _ => ServiceTime { lo, hi },
        }
    }

    /// The sessions as they are, with a heartbeat of each process that lives.
    pub(super) fn known_sessions(&self, now: ServiceTime) -> Sessions {
        let all = self.sessions.iter().zip(&self.processes).enumerate();
        all.map(|(process, (object, of))| {
            let mut content = object.content.clone();
            content.alive = if of.phase == Phase::Dead { 0 } else { now.hi + ALIVE };
            (session(process), seen(content, now))
        })
        .collect()
    }

    pub(super) fn send(&mut self, from: usize, base: u64, write: Content) {
        self.net.push(Message { from, awaited: true, sent: self.time(), base, write });
    }

    pub(super) fn stamp(&mut self, process: usize) -> Stamp {
        self.processes[process].writes += 1;
        Stamp { session: session(process), number: self.processes[process].writes }
    }

    pub(super) fn has(&self, process: usize, fence: u64) -> bool {
        let table = &self.table.content;
        let has = |held: &crate::table::Held| held.fence == fence && *held.grant.context == session(process);
        table.ids.values().any(|id| id.held.iter().any(has))
    }

    /// Tells a state from others. Versions and numbers matter only by whether they are the same.
    pub(super) fn key(&self, setup: &Setup) -> u64 {
        let mut state = self.clone();
        let keeps = setup.fault == Fault::EqualBytes || setup.fault == Fault::BlindRenewal;
        // A write that can never be made, and for whose response no process waits, is as good as gone.
        let (table, sessions) = (self.table.version, &self.sessions);
        state.net.retain(|message| {
            keeps
                || message.awaited
                || match &message.write {
                    Content::Table(..) => message.base == table,
                    Content::Session(of, _) => message.base == sessions[*of].version,
                }
        });
        let mut names = HashMap::from([(0, 0)]);
        let mut name = |version: &mut u64| {
            let next = names.len() as u64;
            *version = *names.entry(*version).or_insert(next);
        };
        name(&mut state.table.version);
        state.sessions.iter_mut().for_each(|object| name(&mut object.version));
        let doubtful: Vec<Vec<u64>> = state
            .processes
            .iter()
            .map(|me| me.doubtful.iter().map(|(number, _)| *number).collect())
            .collect();
        let plain = |table: &mut Table| {
            table.stamp = Stamp::default();
            table.grants.values_mut().for_each(|grant| grant.since = 0);
            table.grants_mut().for_each(|(_, grant)| Arc::make_mut(grant).since = 0);
            table.places.values_mut().for_each(|place| place.since = 0);
            for (process, numbers) in doubtful.iter().enumerate() {
                let own = table.writes.remove(&session(process)).map(|write| write.number);
                if let Some(position) = numbers.iter().position(|number| own == Some(*number)) {
                    table.writes.insert(
                        session(process),
                        Write { number: position as u64, at: 0, kept: 0, rest: serde_json::Map::new() },
                    );
                }
            }
        };
        plain(&mut state.table.content);
        state.sessions.iter_mut().for_each(|object| object.content.stamp = Stamp::default());
        for message in &mut state.net {
            name(&mut message.base);
            match &mut message.write {
                Content::Table(table, _) => {
                    if !doubtful[message.from].contains(&table.stamp.number) {
                        plain(table);
                    }
                }
                Content::Session(_, session) => session.stamp = Stamp::default(),
            }
        }
        state.versions = 0;
        for me in &mut state.processes {
            me.writes = 0;
            me.doubtful.iter_mut().enumerate().for_each(|(position, (number, _))| *number = position as u64);
        }
        let mut hasher = DefaultHasher::new();
        format!("{state:?}").hash(&mut hasher);
        hasher.finish()
    }
}

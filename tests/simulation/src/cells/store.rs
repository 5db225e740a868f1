//! The store: what it answers to a request that has arrived, and which of its promises it breaks.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;
use lockcore::backend::ServiceTime;
use lockcore_cell::{CellPage, Change, Found, Written};

use super::{Cells, Event, FOREIGN, GARBAGE, Reply, Request, Stored, content::states, is_session};
use crate::{
    faults::Kind,
    net::{State, Step, Store},
    plan::Broken,
};

impl Store for Cells {
    type Request = Request;
    type Reply = Reply;
    type Event = Event;

    fn writes(request: &Request) -> bool {
        matches!(request, Request::Replace { .. } | Request::Remove { .. })
    }

    fn is_done(reply: &Reply) -> bool {
        matches!(reply, Reply::Written(Written::Done(_)))
    }

    fn reply(state: &mut State<Cells>, process: u32, request: &Request) -> Reply {
        let reply = state.answer(process, request);
        state.trace(process, request, &reply);
        reply
    }

    fn happen(state: &mut State<Cells>, event: Event) {
        match event {
            // Its client may have given up.
            Event::Changed(to) => drop(to.send(())),
            Event::Undone(name, version) => {
                if let Some(stored) = state.store.cells.get_mut(&name)
                    && stored.version == version
                    && let Some((version, content, _)) = stored.before.take()
                {
                    (stored.version, stored.content) = (version, content);
                }
            }
        }
    }

    fn unanswered(&mut self, process: u32, request: &Request, reply: &Reply) {
        if let (Request::Replace { changes }, Reply::Written(Written::Done(versions))) = (request, reply) {
            for (change, version) in changes.iter().zip(versions) {
                self.unanswered.insert((change.name.clone(), process), *version);
            }
        }
    }

    /// Removes or garbles the cell of some session.
    fn spoil(state: &mut State<Cells>, kind: Kind, chance: u64) -> Option<u32> {
        let all: Vec<_> = state.store.cells.keys().filter(|name| is_session(name)).cloned().collect();
        let name = all.get(usize::try_from(chance % all.len().max(1) as u64).ok()?)?.clone();
        let owner = state.store.cells.get(&name)?.owner;
        if kind == Kind::Forget {
            state.reached.count("session cell forgotten");
            state.remove(&name);
        } else {
            state.reached.count("session cell garbled");
            let at = state.store.cells.get(&name).map(|stored| stored.version);
            state.write(owner, &Change { name, at, content: Bytes::from_static(GARBAGE) });
        }
        Some(owner)
    }

    /// An administrator removes what cannot be read, as the error says.
    fn heal(state: &mut State<Cells>) {
        let garbled = state.store.cells.iter().filter(|(_, stored)| stored.content == GARBAGE);
        let garbled: Vec<_> = garbled.map(|(name, _)| name.clone()).collect();
        for name in garbled {
            state.remove(&name);
        }
    }

    fn lost_foreign(&self) -> Vec<&'static str> {
        let gone = |name: &&str| self.has_foreign && !self.cells.contains_key(*name);
        FOREIGN.into_iter().filter(gone).collect()
    }
}

impl State<Cells> {
    fn answer(&mut self, process: u32, request: &Request) -> Reply {
        match request {
            Request::Read { cells } => {
                Reply::Found(cells.iter().map(|(name, known)| self.read(process, name, *known)).collect())
            }
            Request::Replace { changes } => Reply::Written(self.replace(process, changes)),
            Request::Remove { name, at: Some(at) } => {
                if self.store.cells.get(name).is_some_and(|stored| stored.version == *at) {
                    self.reached.count("a cell removed with its version");
                    self.remove(name);
                }
                Reply::Removed
            }
            Request::Remove { name, at: None } => {
                if is_session(name) && self.store.cells.contains_key(name) {
                    self.reached.count("session cell collected");
                }
                self.remove(name);
                Reply::Removed
            }
            Request::List { folder, after } => Reply::Page(self.list(folder, after.as_deref())),
            Request::Now => Reply::Time(self.service_time(process)),
        }
    }

    pub(super) fn service_time(&mut self, process: u32) -> ServiceTime {
        let mut time = self.time();
        if self.broken == Some(Broken::WrongTime) {
            time += u64::from(process % 3) * 30_000_000;
        }
        // The true time is anywhere in the interval.
        let above = if self.store.unsure == 0 { 0 } else { self.rng.u64(0..=self.store.unsure) };
        ServiceTime { lo: time - (self.store.unsure - above), hi: time + above }
    }

    fn read(&mut self, process: u32, name: &str, known: Option<u64>) -> Found<u64> {
        let Some(stored) = self.store.cells.get(name).cloned() else {
            if self.store.removed.contains_key(name) {
                self.reached.count("read of a removed cell");
            }
            return Found::Absent;
        };
        if let Some(version) = self.store.unanswered.remove(&(name.to_owned(), process)) {
            self.reached.count(match version == stored.version {
                true => "lost answer, then read as done",
                false => "lost answer, then overwritten before it was read",
            });
        }
        if self.broken == Some(Broken::StaleReads)
            && let Some((version, content, until)) = &stored.before
            && until + 1_000_000 > self.now
            && self.one_in(4)
        {
            return Found::Changed(*version, content.clone());
        }
        if known == Some(stored.version) {
            self.reached.count("read unchanged");
            return Found::Unchanged;
        }
        if stored.content == GARBAGE {
            self.reached.count("read of a garbled cell");
        }
        Found::Changed(stored.version, stored.content)
    }

    /// Replaces all of these cells, or none.
    fn replace(&mut self, process: u32, changes: &[Change<u64>]) -> Written<Vec<u64>> {
        let mut allowed = true;
        for Change { name, at, .. } in changes {
            let stored = self.store.cells.get(name);
            let (version, owner) = (stored.map(|stored| stored.version), stored.map(|stored| stored.owner));
            if is_session(name) && owner.is_some_and(|owner| owner != process) {
                self.reached.count("session of another closed");
            }
            // Now and then: the look at a store before it is used must not find it.
            let ignores = self.broken == Some(Broken::IgnoresConditions)
                && !name.starts_with("probe/")
                && self.one_in(5);
            if version != *at && !ignores {
                self.reached.count(match at {
                    None => "create refused, the cell exists",
                    Some(_) => "write lost a race",
                });
                allowed = false;
            }
        }
        if changes.len() > 1 {
            self.reached.count(if allowed { "several replaced" } else { "several refused" });
        }
        if !allowed {
            return Written::Refused;
        }
        Written::Done(changes.iter().map(|change| self.write(process, change)).collect())
    }

    fn write(&mut self, process: u32, Change { name, content, .. }: &Change<u64>) -> u64 {
        let (stored, content) = (self.store.cells.get(name).cloned(), content.clone());
        if name == "table" || name.starts_with("id/") {
            let before = stored.as_ref().map(|stored| &stored.content[..]).unwrap_or_default();
            for state in states(before, &content) {
                self.reached.count(state);
            }
        }
        self.store.versions += 1;
        let version = if self.store.by_content {
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            hasher.finish()
        } else {
            self.store.versions
        };
        let created = stored.as_ref().map_or(self.now, |stored| stored.created);
        let owner = stored.as_ref().map_or(process, |stored| stored.owner);
        let before = stored.map(|stored| (stored.version, stored.content, self.now));
        let written = self.time();
        self.store
            .cells
            .insert(name.to_owned(), Stored { version, content, written, created, owner, before });
        self.store.removed.remove(name);
        if self.broken == Some(Broken::ForgetsWrites) && self.one_in(20) {
            self.push(1, Step::Happens(Event::Undone(name.to_owned(), version)));
        }
        let mut rest = Vec::new();
        for (watched, to) in std::mem::take(&mut self.store.watchers) {
            if watched.iter().all(|(of, known)| of != name || *known == Some(version)) {
                rest.push((watched, to));
            } else if !self.one_in(5) {
                let way = self.way();
                self.push(way, Step::Happens(Event::Changed(to)));
            }
        }
        self.store.watchers = rest;
        version
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(stored) = self.store.cells.remove(name) {
            self.store.removed.insert(name.to_owned(), (stored.written, self.now));
        }
    }

    fn list(&mut self, folder: &str, after: Option<&str>) -> CellPage {
        let as_of = self.now.saturating_sub(self.store.late_list);
        let prefix = format!("{folder}/");
        let in_folder = |name: &str| {
            let rest = name.strip_prefix(&prefix);
            rest.is_some_and(|rest| !rest.contains('/')) && after.is_none_or(|after| name > after)
        };
        let mut found = BTreeMap::new();
        let (mut hides, mut shows) = (false, false);
        for (name, stored) in self.store.cells.iter().filter(|(name, _)| in_folder(name)) {
            if stored.created <= as_of || self.store.late_list == 0 {
                found.insert(name.clone(), stored.written);
            } else {
                hides = true;
            }
        }
        for (name, (written, removed)) in self.store.removed.iter().filter(|(name, _)| in_folder(name)) {
            if *removed > as_of && self.store.late_list > 0 {
                found.insert(name.clone(), *written);
                shows = true;
            }
        }
        if hides {
            self.reached.count("list hides a new cell");
        }
        if shows {
            self.reached.count("list shows a removed cell");
        }
        let most = self.rng.usize(1..=10);
        let more = found.len() > most;
        CellPage { cells: found.into_iter().take(most).collect(), more }
    }

    /// Writes down what a write does.
    pub(crate) fn trace(&mut self, process: u32, request: &Request, reply: &Reply) {
        let (now, time) = (self.now as f64 / 1e6, self.time());
        let Some(trace) = &mut self.trace else { return };
        let line = match (request, reply) {
            (Request::Replace { changes }, Reply::Written(written)) => {
                let verb = if matches!(written, Written::Done(_)) { "writes" } else { "writes not" };
                let line = |Change { name, content, .. }: &Change<u64>| {
                    let content = String::from_utf8_lossy(content);
                    format!("{now:.6} (store {time}) process {process} {verb} {name}: {content}\n")
                };
                changes.iter().map(line).collect()
            }
            (Request::Remove { name, .. }, _) => format!("{now:.6} process {process} removes {name}\n"),
            _ => return,
        };
        trace.push_str(&line);
    }
}

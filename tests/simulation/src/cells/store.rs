//! The store: what it answers to a request that has arrived, and which of its promises it breaks.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;
use lockcore::backend::ServiceTime;
use lockcore_cell::{CellPage, Found, Written};

use super::{GARBAGE, Reply, Request, State, Step, Stored, content::states, is_session};
use crate::plan::Broken;

impl State {
    pub(super) fn reply(&mut self, process: u32, request: &Request) -> Reply {
        let reply = self.answer(process, request);
        self.trace(process, request, &reply);
        reply
    }

    fn answer(&mut self, process: u32, request: &Request) -> Reply {
        match request {
            Request::Read { name, known } => Reply::Found(self.read(process, name, *known)),
            Request::Replace { name, at, content } => {
                if is_session(name) && self.cells.get(name).is_some_and(|stored| stored.owner != process) {
                    self.reached.count("session of another closed");
                }
                Reply::Written(self.replace(process, name, *at, content.clone()))
            }
            Request::Remove { name } => {
                if is_session(name) && self.cells.contains_key(name) {
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
        let above = if self.unsure == 0 { 0 } else { self.rng.u64(0..=self.unsure) };
        ServiceTime { lo: time - (self.unsure - above), hi: time + above }
    }

    fn read(&mut self, process: u32, name: &str, known: Option<u64>) -> Found<u64> {
        let Some(stored) = self.cells.get(name).cloned() else {
            if self.removed.contains_key(name) {
                self.reached.count("read of a removed cell");
            }
            return Found::Absent;
        };
        if let Some(version) = self.unanswered.remove(&(name.to_owned(), process)) {
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

    pub(super) fn replace(
        &mut self,
        process: u32,
        name: &str,
        at: Option<u64>,
        content: Bytes,
    ) -> Written<u64> {
        let stored = self.cells.get(name).cloned();
        let version = stored.as_ref().map(|stored| stored.version);
        // Now and then: the look at a store before it is used must not find it.
        let ignores =
            self.broken == Some(Broken::IgnoresConditions) && !name.starts_with("probe/") && self.one_in(5);
        if version != at && !ignores {
            self.reached.count(match at {
                None => "create refused, the cell exists",
                Some(_) => "write lost a race",
            });
            return Written::Refused;
        }
        if name == "table" {
            let before = stored.as_ref().map(|stored| &stored.content[..]).unwrap_or_default();
            for state in states(before, &content) {
                self.reached.count(state);
            }
        }
        self.versions += 1;
        let version = if self.by_content {
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            hasher.finish()
        } else {
            self.versions
        };
        let created = stored.as_ref().map_or(self.now, |stored| stored.created);
        let owner = stored.as_ref().map_or(process, |stored| stored.owner);
        let before = stored.map(|stored| (stored.version, stored.content, self.now));
        let written = self.time();
        self.cells.insert(name.to_owned(), Stored { version, content, written, created, owner, before });
        self.removed.remove(name);
        if self.broken == Some(Broken::ForgetsWrites) && self.one_in(20) {
            self.push(1, Step::Undone(name.to_owned(), version));
        }
        let mut rest = Vec::new();
        for (watched, known, to) in std::mem::take(&mut self.watchers) {
            if watched != name || known == Some(version) {
                rest.push((watched, known, to));
            } else if !self.one_in(5) {
                let way = self.way();
                self.push(way, Step::Changed(to));
            }
        }
        self.watchers = rest;
        Written::Done(version)
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(stored) = self.cells.remove(name) {
            self.removed.insert(name.to_owned(), (stored.written, self.now));
        }
    }

    fn list(&mut self, folder: &str, after: Option<&str>) -> CellPage {
        let as_of = self.now.saturating_sub(self.late_list);
        let prefix = format!("{folder}/");
        let in_folder = |name: &str| {
            let rest = name.strip_prefix(&prefix);
            rest.is_some_and(|rest| !rest.contains('/')) && after.is_none_or(|after| name > after)
        };
        let mut found = BTreeMap::new();
        let (mut hides, mut shows) = (false, false);
        for (name, stored) in self.cells.iter().filter(|(name, _)| in_folder(name)) {
            if stored.created <= as_of || self.late_list == 0 {
                found.insert(name.clone(), stored.written);
            } else {
                hides = true;
            }
        }
        for (name, (written, removed)) in self.removed.iter().filter(|(name, _)| in_folder(name)) {
            if *removed > as_of && self.late_list > 0 {
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
}

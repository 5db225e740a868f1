//! The way of requests and answers: they travel for some time, are lost, doubled, late, or refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use lockcore::{BackendError, BackendErrorKind};
use lockcore_cell::Written;
use tokio::sync::oneshot;

use super::{Answer, FOREIGN, GARBAGE, Net, Reply, Request, START, Sent, State, Step, Stored, is_session};
use crate::{
    faults::Kind,
    history::lock,
    plan::{Broken, Plan, World},
    reached::Reached,
};

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Net {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = Rng::with_seed(plan.seed ^ 0xce11);
        let late_list = match plan.kinds.contains(&Kind::LateList) {
            true => rng.u64(0..10_000_000),
            false => 0,
        };
        let by_content = rng.bool();
        let (tells, knows_time) = (rng.bool(), rng.bool());
        let unsure = *rng.choice(&[0, 1_000, 50_000, 500_000]).unwrap_or(&0);
        let mut state = State {
            now: 0,
            seq: 0,
            rng,
            reached: Reached::new(World::Cell),
            broken: plan.broken,
            way: plan.way,
            cells: BTreeMap::new(),
            removed: BTreeMap::new(),
            queue: BTreeMap::new(),
            versions: 0,
            trace: None,
            by_content,
            offset: 0,
            unsure,
            late_list,
            cut: BTreeMap::new(),
            outage: 0,
            noise: 0,
            slow: 0,
            dead: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            watchers: Vec::new(),
        };
        if plan.kinds.contains(&Kind::Foreign) {
            for name in FOREIGN {
                let content = Bytes::from_static(b"not ours");
                // A week ago.
                let written = START - 7 * 86_400 * 1_000_000;
                let stored = Stored { version: 1, content, written, created: 0, owner: 0, before: None };
                state.cells.insert(name.to_owned(), stored);
            }
        }
        Net { state: Mutex::new(state), plan: plan.clone(), tells, knows_time }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().queue.is_empty()
    }

    /// Sets the time, and carries out what is due.
    pub(crate) fn set_now(&self, now: Duration) {
        let mut state = self.state();
        state.now = micros(now);
        while let Some(entry) = state.queue.first_entry()
            && entry.key().0 <= micros(now)
        {
            let step = entry.remove();
            state.carry_out(step);
        }
    }

    /// What is sent by a process or to it is lost, or refused at once, for a time.
    pub(crate) fn cut(&self, process: u32, refused: bool, lasts: Duration) {
        let mut state = self.state();
        state.reached.count("process cut off");
        let until = state.now + micros(lasts);
        state.cut.insert(process, (until, refused));
    }

    pub(crate) fn outage(&self, lasts: Duration) {
        let mut state = self.state();
        state.outage = state.now + micros(lasts);
    }

    pub(crate) fn noise(&self, lasts: Duration) {
        let mut state = self.state();
        state.noise = state.now + micros(lasts);
    }

    pub(crate) fn slow(&self, lasts: Duration) {
        let mut state = self.state();
        state.slow = state.now + micros(lasts);
    }

    pub(crate) fn died(&self, process: u32) {
        self.state().dead.insert(process);
    }

    pub(crate) fn step_clock(&self, by: i64) {
        let mut state = self.state();
        state.reached.count(if by < 0 { "clock stepped back" } else { "clock stepped forward" });
        state.offset += by;
    }

    /// Removes or garbles the cell of some session; returns the process whose it is.
    pub(crate) fn spoil(&self, kind: Kind, chance: u64) -> Option<u32> {
        let mut state = self.state();
        let all: Vec<_> = state.cells.keys().filter(|name| is_session(name)).cloned().collect();
        let name = all.get(usize::try_from(chance % all.len().max(1) as u64).ok()?)?.clone();
        let owner = state.cells.get(&name)?.owner;
        if kind == Kind::Forget {
            state.reached.count("session cell forgotten");
            state.remove(&name);
        } else {
            state.reached.count("session cell garbled");
            let at = state.cells.get(&name).map(|stored| stored.version);
            state.replace(owner, &name, at, Bytes::from_static(GARBAGE));
        }
        Some(owner)
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.outage, state.noise, state.slow, state.broken) = (0, 0, 0, None);
        state.cut.clear();
        let garbled: Vec<_> = state.cells.iter().filter(|(_, stored)| stored.content == GARBAGE).collect();
        // An administrator removes what cannot be read, as the error says.
        let garbled: Vec<_> = garbled.into_iter().map(|(name, _)| name.clone()).collect();
        for name in garbled {
            state.remove(&name);
        }
    }

    /// The cells that were not ours and are gone.
    pub(crate) fn lost_foreign(&self) -> Vec<&'static str> {
        if !self.plan.kinds.contains(&Kind::Foreign) {
            return Vec::new();
        }
        let state = self.state();
        FOREIGN.into_iter().filter(|name| !state.cells.contains_key(*name)).collect()
    }

    /// From here on all writes are written down.
    pub(crate) fn trace(&self) {
        self.state().trace = Some(String::new());
    }

    /// The writes that were written down.
    pub(crate) fn traced(&self) -> String {
        self.state().trace.take().unwrap_or_default()
    }

    pub(crate) fn reached(&self) -> Reached {
        self.state().reached.clone()
    }
}

impl State {
    pub(super) fn time(&self) -> u64 {
        (START + self.now).saturating_add_signed(self.offset)
    }

    pub(super) fn way(&mut self) -> u64 {
        let way = self.rng.u64(self.way.0..=self.way.1);
        if self.slow > self.now { way * 10 } else { way }
    }

    pub(super) fn push(&mut self, delay: u64, step: Step) {
        self.seq += 1;
        self.queue.insert((self.now + delay, self.seq), step);
    }

    pub(super) fn one_in(&mut self, many: u32) -> bool {
        self.rng.u32(..many) == 0
    }

    /// A client sends a request. What it gets at once is an error.
    pub(super) fn send(
        &mut self,
        process: u32,
        request: Request,
        answer: oneshot::Sender<Answer>,
    ) -> Result<(), BackendError> {
        let cut = self.cut.get(&process).copied().filter(|(until, _)| *until > self.now);
        if let Some((_, true)) = cut {
            self.reached.count("refused as unavailable");
            return Err(BackendError::new(BackendErrorKind::Unavailable, "simulated: refused"));
        }
        if cut.is_some() || self.outage > self.now {
            self.reached.count("request lost");
            return Ok(());
        }
        let (mut is_late, mut loses_answer) = (false, false);
        let mut delay = self.way();
        if self.noise > self.now {
            match self.rng.u32(..40) {
                0 => {
                    self.reached.count("request lost");
                    return Ok(());
                }
                1 | 2 => loses_answer = true,
                3 => {
                    let (kind, reached) = match self.rng.u32(..3) {
                        0 => (BackendErrorKind::Busy, "refused as busy"),
                        1 => (BackendErrorKind::Unavailable, "refused as unavailable"),
                        _ => (BackendErrorKind::Denied, "refused as denied"),
                    };
                    self.reached.count(reached);
                    return Err(BackendError::new(kind, "simulated: refused"));
                }
                4 if request.writes() => {
                    (is_late, loses_answer) = (true, true);
                    delay += self.rng.u64(..20_000_000);
                }
                5 if request.writes() => {
                    let again = delay + self.rng.u64(..3_000_000);
                    let copy = Sent {
                        process,
                        request: request.clone(),
                        answer: None,
                        is_late: true,
                        loses_answer: true,
                    };
                    self.push(again, Step::Arrives(copy));
                }
                // Doubled, and the second one is answered.
                6 if request.writes() => {
                    let copy = Sent {
                        process,
                        request: request.clone(),
                        answer: None,
                        is_late: false,
                        loses_answer: true,
                    };
                    self.push(delay, Step::Arrives(copy));
                    delay += self.way();
                    self.reached.count("write doubled, the second refused");
                }
                _ => {}
            }
        }
        if self.broken == Some(Broken::DeniesDoubt) && request.writes() && self.one_in(20) {
            // It arrives all the same.
            let sent = Sent { process, request, answer: None, is_late: false, loses_answer: true };
            self.push(delay, Step::Arrives(sent));
            return Err(BackendError::new(BackendErrorKind::Busy, "simulated: said not to be done"));
        }
        let sent = Sent { process, request, answer: Some(answer), is_late, loses_answer };
        self.push(delay, Step::Arrives(sent));
        Ok(())
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Arrives(sent) => self.arrive(sent),
            // Its client may have given up.
            Step::Answered(to, answer) => drop(to.send(answer)),
            Step::Changed(to) => drop(to.send(())),
            Step::Undone(name, version) => {
                if let Some(stored) = self.cells.get_mut(&name)
                    && stored.version == version
                    && let Some((version, content, _)) = stored.before.take()
                {
                    (stored.version, stored.content) = (version, content);
                }
            }
        }
    }

    fn arrive(&mut self, sent: Sent) {
        let Sent { process, request, answer, is_late, loses_answer } = sent;
        let reply = self.reply(process, &request);
        let done = matches!(reply, Reply::Written(Written::Done(_)));
        if is_late && request.writes() {
            self.reached.count(match (done, self.dead.contains(&process)) {
                (true, true) => "late write done after its sender died",
                (true, false) => "late write done after its sender gave up",
                _ => "late write refused",
            });
        }
        let is_cut =
            self.outage > self.now || self.cut.get(&process).is_some_and(|(until, _)| *until > self.now);
        let Some(answer) = answer else { return };
        if loses_answer || is_cut {
            if let (Request::Replace { name, .. }, Reply::Written(Written::Done(version))) =
                (&request, &reply)
            {
                self.reached.count("answer lost of a write that was done");
                self.unanswered.insert((name.clone(), process), *version);
            } else {
                self.reached.count("answer lost of a read");
            }
            // Cut off at once, or nothing ever comes.
            if self.one_in(2) {
                let error = BackendError::new(BackendErrorKind::Unavailable, "simulated: cut off");
                let error = if request.writes() { error.possibly_done() } else { error };
                let way = self.way();
                self.push(way, Step::Answered(answer, Err(error)));
            }
            return;
        }
        let way = self.way();
        self.push(way, Step::Answered(answer, Ok(reply)));
    }

    /// Writes down what a write does.
    pub(super) fn trace(&mut self, process: u32, request: &Request, reply: &Reply) {
        let (now, time) = (self.now as f64 / 1e6, self.time());
        let Some(trace) = &mut self.trace else { return };
        let line = match (request, reply) {
            (Request::Replace { name, content, .. }, Reply::Written(Written::Done(_))) => {
                format!(
                    "{now:.6} (store {time}) process {process} writes {name}: {}\n",
                    String::from_utf8_lossy(content)
                )
            }
            (Request::Replace { name, .. }, _) => {
                format!("{now:.6} process {process} may not write {name}\n")
            }
            (Request::Remove { name }, _) => format!("{now:.6} process {process} removes {name}\n"),
            _ => return,
        };
        trace.push_str(&line);
    }
}

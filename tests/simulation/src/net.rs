//! The way of requests and answers to a store and back: they travel for some time, are lost, doubled, late, or refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::pending,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use fastrand::Rng;
use lockcore::{BackendError, BackendErrorKind};
use tokio::sync::oneshot;

use crate::{
    faults::Kind,
    history::lock,
    plan::{Broken, Plan},
    reached::Reached,
};

/// The time of the store at the begin of a run: in 2023.
pub(crate) const START: u64 = 1_700_000_000_000_000;

/// What the requests are for.
pub(crate) trait Store: Sized {
    type Request: Clone;
    type Reply;
    /// What the store does later by itself.
    type Event;

    /// Returns whether a request may change something.
    fn writes(request: &Self::Request) -> bool;
    /// Returns whether a write was done.
    fn is_done(reply: &Self::Reply) -> bool;
    /// Carries out a request that has arrived.
    fn reply(state: &mut State<Self>, process: u32, request: &Self::Request) -> Self::Reply;
    fn happen(state: &mut State<Self>, event: Self::Event);
    /// The sender of a write that was done will not know of it.
    fn unanswered(&mut self, _process: u32, _request: &Self::Request, _reply: &Self::Reply) {}
    /// Spoils what is stored; returns the process whose it is.
    fn spoil(_state: &mut State<Self>, _kind: Kind, _chance: u64) -> Option<u32> {
        None
    }
    /// Ends what was spoilt.
    fn heal(_state: &mut State<Self>) {}
    /// What was not ours and is gone.
    fn lost_foreign(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A store and the way to it, which all processes share.
pub(crate) struct Net<S: Store> {
    state: Mutex<State<S>>,
}

pub(crate) struct State<S: Store> {
    /// Microseconds since the begin of the run.
    pub(crate) now: u64,
    seq: u64,
    pub(crate) rng: Rng,
    pub(crate) reached: Reached,
    pub(crate) broken: Option<Broken>,
    way: (u64, u64),
    queue: BTreeMap<(u64, u64), Step<S>>,
    /// All writes, as lines of text, if they are asked for.
    pub(crate) trace: Option<String>,
    /// How far the clock of the store was set, in microseconds.
    offset: i64,
    /// The processes whose requests are dropped or refused, until when.
    cut: BTreeMap<u32, (u64, bool)>,
    outage: u64,
    pub(crate) noise: u64,
    slow: u64,
    dead: BTreeSet<u32>,
    pub(crate) store: S,
}

pub(crate) enum Step<S: Store> {
    Arrives(Sent<S>),
    Answered(oneshot::Sender<Answer<S>>, Answer<S>),
    Happens(S::Event),
}

pub(crate) struct Sent<S: Store> {
    process: u32,
    request: S::Request,
    /// `None` for a copy, and where the answer is lost.
    answer: Option<oneshot::Sender<Answer<S>>>,
    is_late: bool,
    loses_answer: bool,
}

pub(crate) type Answer<S> = Result<<S as Store>::Reply, BackendError>;

impl<S: Store> fmt::Debug for Net<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl<S: Store> Net<S> {
    pub(crate) fn new(plan: &Plan, rng: Rng, store: S) -> Self {
        let state = State {
            now: 0,
            seq: 0,
            rng,
            reached: Reached::new(plan.world),
            broken: plan.broken,
            way: plan.way,
            queue: BTreeMap::new(),
            trace: plan.writes.then(String::new),
            offset: 0,
            cut: BTreeMap::new(),
            outage: 0,
            noise: 0,
            slow: 0,
            dead: BTreeSet::new(),
            store,
        };
        Net { state: Mutex::new(state) }
    }

    /// Sends a request, and waits for its answer; for ever if one of them is lost.
    pub(crate) async fn ask(&self, process: u32, request: S::Request) -> Answer<S> {
        let (answer, answered) = oneshot::channel();
        self.state().send(process, request, answer)?;
        match answered.await {
            Ok(answer) => answer,
            Err(_) => pending().await,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<S>> {
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

    /// Spoils what is stored; returns the process whose it is.
    pub(crate) fn spoil(&self, kind: Kind, chance: u64) -> Option<u32> {
        S::spoil(&mut self.state(), kind, chance)
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.outage, state.noise, state.slow, state.broken) = (0, 0, 0, None);
        state.cut.clear();
        S::heal(&mut state);
    }

    /// What was not ours and is gone.
    pub(crate) fn lost_foreign(&self) -> Vec<&'static str> {
        self.state().store.lost_foreign()
    }

    /// The writes that were written down.
    pub(crate) fn traced(&self) -> String {
        self.state().trace.take().unwrap_or_default()
    }

    pub(crate) fn reached(&self) -> Reached {
        self.state().reached.clone()
    }
}

impl<S: Store> State<S> {
    pub(crate) fn time(&self) -> u64 {
        (START + self.now).saturating_add_signed(self.offset)
    }

    pub(crate) fn way(&mut self) -> u64 {
        let way = self.rng.u64(self.way.0..=self.way.1);
        if self.slow > self.now { way * 10 } else { way }
    }

    pub(crate) fn push(&mut self, delay: u64, step: Step<S>) {
        self.seq += 1;
        self.queue.insert((self.now + delay, self.seq), step);
    }

    pub(crate) fn one_in(&mut self, many: u32) -> bool {
        self.rng.u32(..many) == 0
    }

    /// A client sends a request. What it gets at once is an error.
    pub(crate) fn send(
        &mut self,
        process: u32,
        request: S::Request,
        answer: oneshot::Sender<Answer<S>>,
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
        let writes = S::writes(&request);
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
                4 if writes => {
                    (is_late, loses_answer) = (true, true);
                    delay += self.rng.u64(..20_000_000);
                }
                5 if writes => {
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
                6 if writes => {
                    let copy = Sent {
                        process,
                        request: request.clone(),
                        answer: None,
                        is_late: false,
                        loses_answer: true,
                    };
                    self.push(delay, Step::Arrives(copy));
                    delay += self.way();
                    self.reached.count("write doubled, the second answered");
                }
                _ => {}
            }
        }
        if self.broken == Some(Broken::DeniesDoubt) && writes && self.one_in(20) {
            // It arrives all the same.
            let sent = Sent { process, request, answer: None, is_late: false, loses_answer: true };
            self.push(delay, Step::Arrives(sent));
            return Err(BackendError::new(BackendErrorKind::Busy, "simulated: said not to be done"));
        }
        let sent = Sent { process, request, answer: Some(answer), is_late, loses_answer };
        self.push(delay, Step::Arrives(sent));
        Ok(())
    }

    fn carry_out(&mut self, step: Step<S>) {
        match step {
            Step::Arrives(sent) => self.arrive(sent),
            // Its client may have given up.
            Step::Answered(to, answer) => drop(to.send(answer)),
            Step::Happens(event) => S::happen(self, event),
        }
    }

    fn arrive(&mut self, sent: Sent<S>) {
        let Sent { process, request, answer, is_late, loses_answer } = sent;
        let writes = S::writes(&request);
        let reply = S::reply(self, process, &request);
        let done = S::is_done(&reply);
        if is_late && writes {
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
            if done {
                self.reached.count("answer lost of a write that was done");
                self.store.unanswered(process, &request, &reply);
            } else {
                self.reached.count("answer lost of a read");
            }
            // Cut off at once, or nothing ever comes.
            if self.one_in(2) {
                let error = BackendError::new(BackendErrorKind::Unavailable, "simulated: cut off");
                let error = if writes { error.possibly_done() } else { error };
                let way = self.way();
                self.push(way, Step::Answered(answer, Err(error)));
            }
            return;
        }
        let way = self.way();
        self.push(way, Step::Answered(answer, Ok(reply)));
    }
}

//! The steps of a process: the order in which a driver looks, closes and writes, and what it makes of responses.

use lockcore::{Mode, backend::Withdraw};

use super::{
    BEGIN, Fault, LEASE, SKEW, Setup,
    state::{Answer, Content, Held, Job, Message, Object, Phase, State, attempt, seen, session},
};
use crate::{
    poll::{self, State as Look},
    request::{Hold, Request},
    step::{Step, Verdict},
    table::{Claim, Table, Write},
    takeover::{Needs, Scope},
};

impl State {
    pub(super) fn request(process: usize, setup: &Setup) -> Request {
        let claim = |id: &&str| Claim::new(*id, Mode::Exclusive);
        Request {
            context: session(process),
            attempt: attempt(process),
            claims: setup.sets[process].iter().map(claim).collect(),
            lease: LEASE,
            owner: String::new(),
            queue: true,
            nested: false,
        }
    }

    pub(super) fn hold(process: usize, fence: u64, setup: &Setup) -> Hold {
        let locks = setup.sets[process].iter().map(|id| ((*id).to_owned(), fence)).collect();
        Hold { context: session(process), locks, lease: LEASE }
    }

    /// One look of a driver: learns that a write was made, closes, answers, or writes.
    pub(super) fn look(&mut self, process: usize, job: Job, setup: &Setup) {
        let me = &self.processes[process];
        let own = self.table.content.writes.get(&session(process)).map(|write| write.number);
        if let Some((_, answer)) = me.doubtful.iter().find(|(number, _)| own == Some(*number)) {
            return self.finish(process, job, &answer.clone(), setup);
        }
        let now = self.now(setup);
        let mut sessions = self.known_sessions(now);
        let ids = setup.sets[process].iter().map(|id| (*id).to_owned()).collect();
        let scope = Scope { ids, ..Scope::default() };
        let table = self.table.content.clone();
        if let Some((of, locks)) = Needs::of(&table, &sessions, now, &scope).close.into_iter().next() {
            let of = (0..self.sessions.len()).find(|other| session(*other) == of).expect("a process's");
            let mut closed = self.sessions[of].content.clone();
            if closed.close(&locks, now) {
                if setup.fault != Fault::NoClose {
                    closed.stamp = self.stamp(process);
                    self.processes[process].phase = Phase::Closes(job);
                    return self.send(process, self.sessions[of].version, Content::Session(of, closed));
                }
                sessions.insert(session(of), seen(closed, now));
            }
        }
        let mut new = table.clone();
        let left_out =
            if setup.fault == Fault::NoQueue { std::mem::take(&mut new.places) } else { Default::default() };
        let name = session(process);
        let least_fence = now.hi;
        let mut step = Step::new(&mut new, &sessions, now, least_fence, &name);
        let answer = match job {
            Job::Acquire => match step.acquire(&Self::request(process, setup)) {
                Verdict::Granted(granted) => Answer::Fence(granted[0].fence),
                Verdict::Queued(_) => Answer::Place,
                Verdict::Refused(_) | Verdict::Withdrawn => Answer::Done,
            },
            Job::Clean => {
                step.clean();
                Answer::Done
            }
            Job::Undo => {
                step.withdraw(&Self::request(process, setup), Withdraw::Undo);
                Answer::Done
            }
            Job::Release(fence) => {
                step.release(&Self::hold(process, fence, setup));
                Answer::Done
            }
        };
        new.places.extend(left_out);
        if job == Job::Undo && matches!(setup.fault, Fault::NoWrite | Fault::EqualBytes) {
            let left = new.tombstones.remove(&attempt(process));
            if setup.fault == Fault::EqualBytes && left.is_some() {
                // It writes though there is nothing to change.
                return self.write(process, job, new, answer);
            }
        }
        if new == table {
            return self.finish(process, job, &answer, setup);
        }
        self.write(process, job, new, answer);
    }

    pub(super) fn write(&mut self, process: usize, job: Job, mut new: Table, answer: Answer) {
        let stamp = self.stamp(process);
        new.prune(self.time() - SKEW, crate::driver::WRITES_KEPT);
        new.mark(&session(process));
        new.writes.insert(
            session(process),
            Write { number: stamp.number, at: BEGIN, kept: 0, rest: serde_json::Map::new() },
        );
        new.stamp = stamp;
        self.processes[process].phase = Phase::Writes(job);
        self.send(process, self.table.version, Content::Table(Box::new(new), answer));
    }

    /// A step was carried out.
    pub(super) fn finish(&mut self, process: usize, job: Job, answer: &Answer, setup: &Setup) {
        let (now, me) = (self.time(), &mut self.processes[process]);
        me.doubtful.clear();
        me.phase = match (job, answer) {
            (Job::Acquire, Answer::Fence(fence)) => {
                let from = if setup.fault == Fault::LeaseFromResponse { now } else { me.since };
                let held = Held { fence: *fence, before: from + LEASE };
                if now < held.before { Phase::Holds(held) } else { Phase::Looks(Job::Undo) }
            }
            (Job::Acquire, Answer::Place) | (Job::Clean, _) => Phase::Waits,
            (Job::Acquire, Answer::Done) | (Job::Release(_), _) => Phase::Ended,
            (Job::Undo, _) => {
                self.withdrawn.push(attempt(process));
                Phase::Ended
            }
        };
    }

    /// A waiter looks at the table.
    pub(super) fn poll(&mut self, process: usize, setup: &Setup) {
        let now = self.now(setup);
        let sessions = self.known_sessions(now);
        let request = Self::request(process, setup);
        let table = &self.table.content;
        let phase = match poll::state(table, &sessions, now, &request) {
            Look::Waits => {
                let on = |claim: &Claim| table.ids.get(&claim.id).map(|id| &id.held[..]).unwrap_or_default();
                let mut held =
                    request.claims.iter().flat_map(|claim| on(claim).iter().map(|held| (&claim.id, held)));
                let is_over = held.any(|(id, held)| table.until(id, held, &sessions, now) < now.lo);
                if !is_over {
                    return;
                }
                Phase::Looks(Job::Clean)
            }
            Look::Holds(granted, left) => {
                let left = if setup.fault == Fault::WholeOffer { LEASE } else { left.as_micros() as u64 };
                Phase::Holds(Held { fence: granted[0].fence, before: self.time() + left })
            }
            Look::Lost if setup.fault == Fault::WholeOffer => {
                // It believes what it found, be it over.
                let own = table.ids.get(&request.claims[0].id).into_iter().flat_map(|id| &id.held);
                let mut own = own.filter(|held| held.grant.context == request.context);
                let Some(own) = own.next() else { return };
                Phase::Holds(Held { fence: own.fence, before: self.time() + LEASE })
            }
            Look::Lost => Phase::Looks(Job::Undo),
        };
        self.processes[process].phase = phase;
    }

    /// A holder looks what it still holds, and sends its renewal.
    pub(super) fn renew(&mut self, process: usize, held: Held, setup: &Setup) {
        let now = self.now(setup);
        let sessions = self.known_sessions(now);
        let mut table = self.table.content.clone();
        let name = session(process);
        let mut step = Step::new(&mut table, &sessions, now, 0, &name);
        let found = step.renew(&Self::hold(process, held.fence, setup));
        let is_closed = setup.sets[process]
            .iter()
            .any(|id| self.sessions[process].content.closed_until(held.fence, id).is_some());
        if !found.lost.is_empty() || is_closed && setup.fault != Fault::BlindRenewal {
            self.processes[process].phase = Phase::Ended;
            return;
        }
        let Object { version, mut content } = self.sessions[process].clone();
        content.extend([(held.fence, LEASE)], now);
        content.stamp = self.stamp(process);
        self.processes[process].phase = Phase::Renews(held);
        self.send(process, version, Content::Session(process, content));
    }

    /// The sender learns what became of its write.
    pub(super) fn answer(&mut self, message: &Message, done: bool, setup: &Setup) {
        if !message.awaited {
            return;
        }
        let now = self.time();
        let process = message.from;
        match (self.processes[process].phase.clone(), &message.write) {
            (Phase::Writes(job), Content::Table(_, answer)) if done => {
                self.finish(process, job, answer, setup)
            }
            (Phase::Writes(job) | Phase::Closes(job), _) => self.processes[process].phase = Phase::Looks(job),
            // Once lost, always lost.
            (Phase::Renews(held), _) if now >= held.before => self.processes[process].phase = Phase::Ended,
            (Phase::Renews(held), Content::Session(_, new)) if done => {
                let from = if setup.fault == Fault::LeaseFromResponse { now } else { message.sent };
                let is_closed = new.closed.contains_key(&held.fence);
                let held = Held { before: held.before.max(from + LEASE), ..held };
                self.processes[process].phase = if is_closed { Phase::Ended } else { Phase::Holds(held) };
            }
            // It asks again, if it may.
            (Phase::Renews(held), _) => self.processes[process].phase = Phase::Holds(held),
            (phase, _) => unreachable!("{phase:?} awaits no response"),
        }
    }

    /// The sender gives up to wait for a response; the write may still arrive.
    pub(super) fn give_up(&mut self, process: usize) {
        let awaited = self.net.iter_mut().find(|message| message.from == process && message.awaited);
        let lost = awaited.map(|message| {
            message.awaited = false;
            message.write.clone()
        });
        self.doubt(process, lost.as_ref());
    }

    /// It is not known whether a write was made.
    pub(super) fn doubt(&mut self, process: usize, lost: Option<&Content>) {
        let me = &mut self.processes[process];
        match me.phase.clone() {
            Phase::Writes(job) => {
                if let Some(Content::Table(new, answer)) = lost {
                    me.doubtful.push((new.stamp.number, answer.clone()));
                }
                me.phase = Phase::Looks(job);
            }
            Phase::Closes(job) => me.phase = Phase::Looks(job),
            Phase::Renews(held) => me.phase = Phase::Holds(held),
            _ => {}
        }
    }
}

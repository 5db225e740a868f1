//! The events that can happen next.

use super::{
    Fault, Setup,
    state::{Job, Message, Object, Phase, State, session},
};

impl State {
    /// Returns all states that can come next, each with what happened.
    pub(super) fn next(&self, setup: &Setup) -> Vec<(String, State)> {
        let mut all = Vec::new();
        let mut add = |what: &dyn Fn() -> String, change: &dyn Fn(&mut State)| {
            let mut next = self.clone();
            change(&mut next);
            next.tidy();
            all.push((what(), next));
        };
        if self.tick < setup.horizon {
            add(&|| "a tick".into(), &|next| next.tick += 1);
        }
        for (process, me) in self.processes.iter().enumerate() {
            match me.phase.clone() {
                Phase::Looks(job) => {
                    add(&|| format!("{process} looks for {job:?}"), &|next| next.look(process, job, setup))
                }
                Phase::Waits => add(&|| format!("{process} polls"), &|next| next.poll(process, setup)),
                Phase::Holds(held) => {
                    add(&|| format!("{process} releases"), &|next| {
                        next.processes[process].phase = Phase::Looks(Job::Release(held.fence));
                    });
                    if me.renewals > 0 {
                        add(&|| format!("{process} renews"), &|next| {
                            next.processes[process].renewals -= 1;
                            next.renew(process, held, setup);
                        });
                    }
                }
                Phase::Writes(_) | Phase::Closes(_) | Phase::Renews(_) | Phase::Ended | Phase::Dead => {}
            }
            let asks =
                matches!(me.phase, Phase::Writes(Job::Acquire) | Phase::Looks(Job::Acquire) | Phase::Waits);
            if setup.gives_up && asks && process == 0 {
                add(&|| format!("the caller of {process} gives up"), &|next| {
                    next.give_up(process);
                    next.processes[process].doubtful.clear();
                    next.processes[process].phase = Phase::Looks(Job::Undo);
                });
            }
            if self.crashes > 0 && !matches!(me.phase, Phase::Ended | Phase::Dead) {
                add(&|| format!("{process} crashes"), &|next| {
                    next.crashes -= 1;
                    next.give_up(process);
                    next.processes[process].phase = Phase::Dead;
                });
            }
            let collected = setup.fault == Fault::SessionMadeAgain
                && self.sessions[process].version > 0
                && !self.sessions[process].content.closed.is_empty()
                && !self.table.content.grants.values().any(|grant| grant.session == session(process));
            if collected {
                add(&|| format!("the session of {process} is collected"), &|next| {
                    next.sessions[process] = Object::default();
                });
            }
        }
        for at in 0..self.net.len() {
            let Message { from, awaited, .. } = self.net[at];
            add(&|| format!("a write of {from} arrives"), &|next| {
                let message = next.net.remove(at);
                let done = next.carry_out(&message, setup);
                next.answer(&message, done, setup);
            });
            if self.faults > 0 && awaited {
                add(&|| format!("a write of {from} arrives, its response is lost"), &|next| {
                    next.faults -= 1;
                    let message = next.net.remove(at);
                    next.carry_out(&message, setup);
                    next.doubt(from, Some(&message.write));
                });
                add(&|| format!("a write of {from} is late"), &|next| {
                    next.faults -= 1;
                    next.give_up(from);
                });
            }
        }
        all
    }

    /// Ends beliefs whose time is over. A renewal that is in flight is waited for all the same: its answer counts.
    pub(super) fn tidy(&mut self) {
        let now = self.time();
        for me in &mut self.processes {
            if matches!(me.phase, Phase::Holds(held) if now >= held.before) {
                me.phase = Phase::Ended;
            }
        }
    }
}

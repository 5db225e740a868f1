//! A step: what a request makes of a table. Pure: no input or output, no clock of its own, and only `lockcore::engine` decides.
//!
//! Whether a holder's lease has ended is known from the table and from the cell of its session. A step takes over from a
//! holder only if that cell was [closed](crate::session::Session::closed) before, so that no later renewal succeeds; `store` sees to it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::AtomicU64},
};

use lockcore::{
    Granted,
    backend::{ServiceTime, Withdraw, unique_name},
    engine::{self, Queue, Turn},
    rules::{self, Again},
};
use serde_json::Map;

use crate::{
    request::{Hold, Request},
    table::{Claim, Grant, Held, Place, Stamp, Table, Write},
    takeover::Sessions,
};

/// The lost locks of a grant, by position.
pub(crate) type Losses = engine::Losses;

/// The outcome of a request.
pub(crate) type Verdict = engine::Verdict<String>;

/// The findings of a renewal in the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Renewable {
    pub(crate) lost: Losses,
    /// The sessions and fences to extend.
    pub(crate) extend: Vec<(String, u64)>,
}

/// A table under change.
pub(crate) struct Step<'a> {
    pub(crate) table: &'a mut Table,
    pub(crate) sessions: &'a Sessions,
    pub(crate) now: ServiceTime,
    /// The least fence of a grant.
    pub(crate) least_fence: u64,
    /// The last fence that the process gave, if each id has a cell of its own: no two grants of a session have the same, but where
    /// another process hands one over in the same microsecond.
    pub(crate) fences: Option<&'a AtomicU64>,
    /// The session of the process that makes the step.
    pub(crate) session: &'a str,
    /// The last grant that was made.
    pub(crate) granted: Arc<Grant>,
    /// The ids of which it would have to know to serve some who wait.
    pub(crate) missing: BTreeSet<String>,
    /// The ids with room for those who wait.
    pub(crate) rooms: Vec<(String, u64)>,
    /// Set if it is written also where it changes nothing: a write of before that was given up is refused then if it arrives.
    pub(crate) is_written: bool,
    /// The queues of the table's places, made when one is asked for first.
    queues: Option<HashMap<String, Queue>>,
}

impl Request {
    /// Returns the size of a table that has only these claims of the set, in bytes, with numbers as long as they are for long.
    pub(crate) fn size_alone(&self, claims: &[Claim]) -> usize {
        const NUMBER: u64 = 1 << 53;
        let (mut table, now) = (Table::default(), ServiceTime { lo: NUMBER, hi: NUMBER });
        let (context, owner, claims) = (self.context.clone(), self.owner.clone(), claims.to_vec());
        let (part, session) = (Request { context, owner, claims, ..*self }, unique_name());
        Step::new(&mut table, &Sessions::new(), now, NUMBER, &session).acquire(&part);
        table.stamp = Stamp { session: session.clone(), number: NUMBER };
        table.writes.insert(session, Write { number: NUMBER, at: NUMBER, kept: 0, rest: Map::new() });
        table.prune(0, 0);
        table.write().len()
    }
}

impl<'a> Step<'a> {
    pub(crate) fn new(
        table: &'a mut Table,
        sessions: &'a Sessions,
        now: ServiceTime,
        least_fence: u64,
        session: &'a str,
    ) -> Self {
        Step {
            table,
            sessions,
            now,
            least_fence,
            fences: None,
            session,
            granted: Arc::default(),
            missing: BTreeSet::new(),
            rooms: Vec::new(),
            is_written: false,
            queues: None,
        }
    }

    /// Takes the whole set, or nothing of it; a request that is to wait gets a place.
    pub(crate) fn acquire(&mut self, request: &Request) -> Verdict {
        let Ok(verdict) = engine::acquire(self, request);
        // A change may be to fewer permits, and a place that was left lets others pass.
        self.serve();
        verdict
    }

    /// Takes the set as [`acquire`](Self::acquire) does. If it is granted, all places are removed from the cells of its ids: those who wait
    /// may all wait for what its caller holds, so that it must not wait for their room. A place stays in the cell of another id that the
    /// step does not have; its waiter puts it back when it asks again, as after it was taken for dead, or waits without a place.
    pub(crate) fn acquire_before_waiters(&mut self, request: &Request) -> Verdict {
        let verdict = self.acquire(request);
        if matches!(verdict, Verdict::Granted(_)) {
            let ids: BTreeSet<&String> = request.ids().collect();
            self.remove_places(|_, place| place.claims.iter().any(|claim| ids.contains(&claim.id)));
            // The step has other ids if another one in the same write is about them, or if those whom it may serve wait for them.
            self.rooms.retain(|(id, _)| self.table.has(id));
            self.serve();
        }
        verdict
    }

    /// Returns whether a request has a place, or goes on with what its context holds.
    pub(crate) fn knows(&self, request: &Request) -> bool {
        let keeps = |claim: &Claim| {
            let own = self.held_by(&claim.id, &request.context).map(|held| self.seen(&claim.id, held));
            own.is_some_and(|own| {
                own.lasts && !own.broken && rules::again(own.mode, claim.mode) == Again::Keep
            })
        };
        let has_place = self.table.ticket_of(&request.context, request.attempt).is_some();
        has_place || request.claims.iter().all(keeps)
    }

    /// Ends an attempt. `None`: it left; otherwise what it holds.
    pub(crate) fn withdraw(&mut self, request: &Request, how: Withdraw) -> Option<Vec<Granted>> {
        let Ok(kept) = engine::withdraw(self, request, how);
        self.serve();
        kept
    }

    /// Leaves the queue; what was granted meanwhile stays as it is.
    pub(crate) fn leave_queue(&mut self, request: &Request) {
        if let Some(ticket) = self.table.ticket_of(&request.context, request.attempt) {
            let Ok(()) = engine::leave(self, request, ticket);
        }
        self.serve();
    }

    /// Frees what the grant holds. What it lost does not keep the rest from being freed.
    pub(crate) fn release(&mut self, hold: &Hold) -> Losses {
        let Ok(lost) = engine::release(self, &hold.context, hold.locks());
        self.clean();
        lost
    }

    /// Looks which of a grant's locks can be renewed in the cells of their sessions. A lock that may have ended cannot.
    pub(crate) fn renew(&mut self, hold: &Hold) -> Renewable {
        let mut extend = Vec::new();
        let Ok(lost) = engine::renew(self, &hold.context, hold.locks(), |step, id, fence| {
            let held =
                step.table.ids.get(id).and_then(|state| state.held.iter().find(|held| held.fence == fence));
            extend.extend(held.map(|held| (held.grant.session.clone(), fence)));
            Ok(())
        });
        extend.sort_unstable();
        extend.dedup();
        Renewable { lost, extend }
    }

    /// Returns whether a grant has all that is held under its fences: only then are these what a session may extend.
    pub(crate) fn is_whole(&self, hold: &Hold) -> bool {
        let ours = |id: &str, fence: u64| hold.locks.iter().any(|(own, under)| own == id && *under == fence);
        let fences: Vec<u64> = hold.locks.iter().map(|(_, fence)| *fence).collect();
        if self.table.of.is_some() {
            // Others of its ids are in cells that this step does not have: what was granted with them says how many there are.
            let all = self.table.ids.values().flat_map(|state| &state.held);
            let mut own =
                all.filter(|held| fences.contains(&held.fence) && held.grant.context == hold.context);
            let count = |fence: u64| fences.iter().filter(|of| **of == fence).count();
            return own.all(|held| usize::try_from(held.grant.ids) == Ok(count(held.fence)));
        }
        self.table.ids.iter().all(|(id, state)| {
            state.held.iter().all(|held| !fences.contains(&held.fence) || ours(id, held.fence))
        })
    }

    /// Returns whether a grant is to be renewed for longer than the table says: the longest lease is always in the table.
    pub(crate) fn is_shorter(&self, hold: &Hold) -> bool {
        let held = |id: &String| self.table.ids.get(id).map(|id| &id.held[..]).unwrap_or_default();
        let is_shorter = |held: &Held, fence: u64| held.fence == fence && held.lease < hold.lease;
        hold.locks().any(|(id, fence)| held(id).iter().any(|held| is_shorter(held, fence)))
    }

    /// Extends what a grant holds, in the table; what it held by a session that is gone is another's from now on: `gone` is the former and
    /// the latter.
    pub(crate) fn extend(&mut self, hold: &Hold, gone: Option<(&str, &str)>) -> Losses {
        let until = self.now.hi.saturating_add(hold.lease);
        let Ok(lost) = engine::renew(self, &hold.context, hold.locks(), |step, id, fence| {
            let state = step.table.ids.get_mut(id);
            for held in state.into_iter().flat_map(|state| &mut state.held).filter(|held| held.fence == fence)
            {
                held.until = held.until.max(until);
                held.lease = held.lease.max(hold.lease);
            }
            let all = step.table.grants_mut().filter(|(of, _)| *of == fence).map(|(_, grant)| grant);
            let Some((gone, own)) = gone else { return Ok(()) };
            for grant in all.filter(|grant| grant.session == gone) {
                Arc::make_mut(grant).session = own.to_owned();
            }
            Ok(())
        });
        lost
    }

    /// Removes what is over, and grants what has room to those who wait for it: to all of them, as another step may have freed what
    /// it did not know to be waited for.
    pub(crate) fn serve_all(&mut self) {
        self.room_for_all();
        self.clean();
    }

    /// Notes that there may be room for all who wait.
    pub(crate) fn room_for_all(&mut self) {
        let waited = self.table.places.values().flat_map(|place| &place.claims);
        self.rooms.extend(waited.map(|claim| (claim.id.clone(), 0)));
    }

    /// Grants what has room to those who wait for it.
    pub(crate) fn serve(&mut self) {
        let Ok(()) = engine::serve(self);
    }

    /// Notes that the cell of a session is there.
    pub(crate) fn mark(&mut self, session: &str) {
        self.table.mark(session);
    }

    /// Removes some places from all their queues that are looked at.
    pub(crate) fn remove_places(&mut self, goes: impl Fn(u64, &Place) -> bool) {
        self.queues = None;
        let gone = self.table.places.extract_if(.., |ticket, place| goes(*ticket, place));
        let behind =
            |(ticket, place): (u64, Place)| place.claims.into_iter().map(move |claim| (claim.id, ticket));
        self.rooms.extend(gone.flat_map(behind));
    }

    pub(crate) fn queues(&mut self) -> &mut HashMap<String, Queue> {
        self.queues.get_or_insert_with(|| {
            let mut queues: HashMap<String, Queue> = HashMap::new();
            for (ticket, place) in &self.table.places {
                for Claim { id, mode, .. } in &place.claims {
                    let turn = Turn { ticket: *ticket, mode: *mode };
                    queues.entry(id.clone()).or_default().insert(turn, place.nested);
                }
            }
            queues
        })
    }

    pub(crate) fn remove(&mut self, id: &str, which: impl Fn(&Held) -> bool) -> Option<Held> {
        let held = &self.table.ids.get(id)?.held;
        let position = held.iter().position(which)?;
        Some(self.table.ids.get_mut(id)?.held.remove(position))
    }
}

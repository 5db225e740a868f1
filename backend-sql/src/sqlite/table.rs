//! The rows as the engine sees them.

use std::rc::Rc;

use lockcore::{
    Granted, LossReason, Mode,
    engine::{self, Back, Held, Look, New, Own, Terms, Turn},
    protocol,
    rules::Admission,
};
use rusqlite::{OptionalExtension, Row, params};

use super::{
    clock::micros,
    error::StoreError,
    row::{HeldRow, Key, Place, Request, Text, Wanted, mode_at, mode_columns},
    statements::state,
    step::{Handed, Liveness, Step, hold_one},
};

/// The time for which an offer lasts, in microseconds; at most the lease that the waiter asked for.
pub(super) const OFFER: i64 = micros(protocol::OFFER);

/// The most sets that one transaction hands over, so that it keeps neither the write lock nor its caller for long.
const MOST_HANDED: usize = 64;

/// The shortest time for which the tombstone of a withdrawn attempt is kept, in microseconds: ten times the default
/// busy timeout.
const TOMBSTONE: i64 = micros(protocol::TOMBSTONE);

/// The longest time for which it is kept, in microseconds: no busy timeout is longer.
pub(super) const TOMBSTONE_AT_MOST: i64 = 3_600_000_000;

impl engine::Table for Step<'_> {
    type Error = StoreError;
    type Id = Key;
    type Context = Text;
    type Request = Request;
    type Waiter = Rc<Request>;

    fn look(&mut self, id: &Key) -> Result<Look, StoreError> {
        let state = self.load(id)?;
        Ok(Look { held: !state.holders.is_empty(), waited_for: state.waiters, frozen: state.frozen })
    }

    fn holders(&mut self, id: &Key) -> Result<impl Iterator<Item = Held<'_, Text>>, StoreError> {
        let now = self.now;
        Ok(self.load(id)?.holders.iter().map(move |row| row.held(&now)))
    }

    fn own(&mut self, id: &Key, context: &Text) -> Result<Option<Own>, StoreError> {
        Ok(self.load(id)?.holder(context).map(HeldRow::own))
    }

    fn replaced(&mut self, id: &Key, context: &Text) -> Result<Option<Own>, StoreError> {
        let replaces = self.load(id)?.holder(context).map_or(0, |own| own.replaces);
        if replaces == 0 {
            return Ok(None);
        }
        let mut replaced = self.conn.prepare_cached(&self.sql.replaced)?;
        let before = replaced.query_row(params![self.ns, &id[..], replaces], HeldRow::read).optional()?;
        // If its lease is over, it was removed with the holders whose leases are.
        Ok(before.map(|before| before.own()))
    }

    fn ticket(&mut self, request: &Request) -> Result<Option<u64>, StoreError> {
        let has_waiters = |id| self.ids.get(id).is_none_or(|state| state.waiters);
        if !request.claims.iter().any(|claim| has_waiters(&claim.id)) {
            return Ok(None);
        }
        let (sql, ns) = (self.sql, self.ns);
        let place = self.come_upon(&sql.place, params![ns, request.context.bytes(), request.attempt])?;
        Ok(place.map(|turn| turn.ticket))
    }

    fn next(
        &mut self,
        id: &Key,
        nested: bool,
        admission: Admission,
        behind: u64,
    ) -> Result<Option<Turn>, StoreError> {
        let (sql, ns, behind) = (self.sql, self.ns, stored(behind));
        let (statement, above) = match admission {
            _ if nested => (&sql.next_nested, None),
            Admission::Open => (&sql.next_queued, None),
            Admission::Shared => (&sql.next_shared, None),
            Admission::SlotsAbove(limit) => (&sql.next_slots, Some(limit)),
            Admission::Closed => return Ok(None),
        };
        match above {
            Some(limit) => self.come_upon(statement, params![ns, &id[..], behind, limit]),
            None => self.come_upon(statement, params![ns, &id[..], behind]),
        }
    }

    fn blocker(&mut self, id: &Key, mode: Mode, before: u64) -> Result<Option<Turn>, StoreError> {
        let ((code, _, cap), sql, ns) = (mode_columns(mode), self.sql, self.ns);
        self.come_upon(&sql.blocker, params![ns, &id[..], stored(before), code, cap])
    }

    fn count_blockers(&mut self, id: &Key, mode: Mode, before: u64) -> Result<usize, StoreError> {
        let (code, _, cap) = mode_columns(mode);
        let mut count = self.conn.prepare_cached(&self.sql.count_blockers)?;
        let key = params![self.ns, &id[..], stored(before), code, cap];
        let count: i64 = count.query_row(key, |row| row.get(0))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn context_of(&mut self, ticket: u64) -> Result<Text, StoreError> {
        Ok(self.places[&ticket].request.context.clone())
    }

    fn waiter(&mut self, ticket: u64) -> Result<Rc<Request>, StoreError> {
        let place = self.places.get_mut(&ticket).expect("the engine was told of it");
        if place.request.claims.is_empty() {
            let key = params![self.ns, place.request.context.bytes(), place.request.attempt];
            let wanted = |row: &Row<'_>| Ok(Wanted { id: row.get(0)?, mode: mode_at(row, 1)? });
            let mut read = self.conn.prepare_cached(&self.sql.wanted)?;
            let claims = read.query_map(key, wanted)?.collect::<Result<_, _>>()?;
            Rc::make_mut(&mut place.request).claims = claims;
        }
        Ok(Rc::clone(&place.request))
    }

    fn is_withdrawn(&mut self, request: &Request) -> Result<bool, StoreError> {
        if let Some(gate) = self.gate {
            return Ok(gate.withdrawn);
        }
        self.read_gate(request).map(|gate| gate.withdrawn)
    }

    fn why_missing(&mut self, id: &Key, fence: u64) -> Result<LossReason, StoreError> {
        if self.ended.iter().any(|(of, under)| of == id && *under == fence) {
            return Ok(LossReason::Expired);
        }
        let mut was_broken = self.conn.prepare_cached(&self.sql.was_broken)?;
        let broken = was_broken.query_row(params![self.ns, &id[..], fence as i64], |row| row.get(0))?;
        Ok(if broken { LossReason::Broken } else { LossReason::Vanished })
    }

    fn remove_dead(&mut self, id: &Key) -> Result<bool, StoreError> {
        let sessions: Vec<i64> = self.load(id)?.holders.iter().map(|row| row.session).collect();
        let mut gone = Vec::new();
        for session in sessions {
            if !gone.contains(&session) && self.liveness(session)? == Liveness::Gone {
                gone.push(session);
            }
        }
        let any = self.remove_where(id, |row| !row.detached && gone.contains(&row.session))?;
        if any {
            self.room(id, 0);
        }
        Ok(any)
    }

    fn still_waits(&mut self, ticket: u64) -> Result<bool, StoreError> {
        let session = self.places[&ticket].session;
        if self.liveness(session)? == Liveness::Alive {
            return Ok(true);
        }
        self.leave_session(session)?;
        Ok(false)
    }

    fn may_hand_over(&self) -> bool {
        self.handed.len() < MOST_HANDED
    }

    fn new_fence(&mut self, _terms: &Terms<'_, Request>) -> Result<u64, StoreError> {
        Ok(self.next_number()? as u64)
    }

    fn hold(&mut self, id: &Key, new: New, back: Back, terms: &Terms<'_, Request>) -> Result<(), StoreError> {
        let request = terms.request;
        let own = self.load(id)?.take(&request.context);
        let replaces = match (&own, back) {
            (Some(own), Back::ToOwn) => own.number,
            (Some(own), Back::ToBeforeOwn) => own.replaces,
            (_, Back::ToNothing) | (None, _) => 0,
        };
        if let Some(own) = &own {
            let statement = if back == Back::ToOwn { &self.sql.replace } else { &self.sql.remove };
            self.change(statement, id, (own.state, own.number))?;
        }
        let (state, lease, session) = match terms.offer {
            Some(ticket) => (state::OFFERED, request.lease.min(OFFER), self.places[&ticket].session),
            None => (state::HELD, request.lease, self.session),
        };
        let mut hold = self.hold_by(request, (state, lease, session), (new.fence, replaces))?;
        hold_one(&mut hold, id, &new)?;
        let now = self.now;
        self.load(id)?.holders.push(HeldRow {
            state,
            number: new.fence as i64,
            context: request.context.clone(),
            attempt: request.attempt,
            mode: new.mode,
            indexes: new.permits,
            owner: request.owner.clone(),
            lease,
            boot: now.boot,
            renewed: now.at,
            since: now.wall,
            session,
            detached: request.detached,
            broken: false,
            replaces,
        });
        Ok(())
    }

    /// In an offer, what is kept stays as it is until the offer is confirmed.
    fn keep(&mut self, id: &Key, terms: &Terms<'_, Request>) -> Result<(), StoreError> {
        let Request { context, lease, detached, .. } = terms.request;
        let (now, session) = (self.now, self.session);
        let holders = &mut self.load(id)?.holders;
        let own = holders.iter_mut().find(|row| terms.offer.is_none() && row.context == *context);
        let Some(own) = own else { return Ok(()) };
        (own.session, own.detached) = (session, *detached);
        let lease = (*lease).max(own.remaining(&now));
        self.set_lease(id, context, lease)
    }

    fn free(&mut self, id: &Key, context: &Text, fence: u64) -> Result<Option<LossReason>, StoreError> {
        if self.load(id)?.holder(context).is_none_or(|own| own.fence() != fence) {
            return self.why_missing(id, fence).map(Some);
        }
        let replaces = self.remove_of(id, context)?.map_or(0, |own| own.replaces);
        if replaces != 0 {
            self.change(&self.sql.remove, id, (state::REPLACED, replaces))?;
        }
        Ok(None)
    }

    fn undo(&mut self, id: &Key, context: &Text, restores: bool) -> Result<(), StoreError> {
        let replaces = self.remove_of(id, context)?.map_or(0, |own| own.replaces);
        if replaces != 0 {
            let statement = if restores { &self.sql.restore } else { &self.sql.remove };
            self.change(statement, id, (state::REPLACED, replaces))?;
            // The row that came back is read where it is asked for.
            self.ids.remove(id);
        }
        Ok(())
    }

    fn queue(&mut self, request: &Request, ticket: Option<u64>) -> Result<(), StoreError> {
        match ticket {
            Some(_) => {
                // It is kept for the session that asked last, which is to be notified.
                let place =
                    params![self.ns, request.context.bytes(), request.attempt, self.session, request.lease];
                self.conn.prepare_cached(&self.sql.move_place)?.execute(place)?;
                Ok(())
            }
            None => self.take_place(request),
        }
    }

    fn leave(&mut self, ticket: u64) -> Result<(), StoreError> {
        let request = &self.places[&ticket].request;
        let mut leave = self.conn.prepare_cached(&self.sql.leave)?;
        leave.execute(params![self.ns, request.context.bytes(), request.attempt])?;
        Ok(())
    }

    fn hand_over(&mut self, ticket: u64, mut granted: Vec<Granted>) -> Result<(), StoreError> {
        self.leave(ticket)?;
        let Place { session, request } = &self.places[&ticket];
        let (lasts, as_of) = self.left_of(request.lease.min(OFFER));
        let (session, request) = (*session, Rc::clone(request));
        let (context, attempt) = (request.context.clone(), request.attempt);
        // A part that it held before is another session's, or ends sooner: the waiter is to ask again, which takes that over.
        for wanted in &request.claims {
            let own = self.load(&wanted.id)?.holder(&context);
            if own.is_some_and(|own| own.state != state::OFFERED || own.attempt != attempt) {
                granted.clear();
            }
        }
        self.handed.push(Handed { session, context, attempt, granted, lasts, as_of });
        Ok(())
    }

    fn withdraw(&mut self, request: &Request) -> Result<(), StoreError> {
        let until = self.now.at + request.lease.clamp(TOMBSTONE, TOMBSTONE_AT_MOST);
        let tombstone = params![self.ns, request.context.bytes(), request.attempt, self.now.boot, until];
        self.conn.prepare_cached(&self.sql.add_tombstone)?.execute(tombstone)?;
        Ok(())
    }

    fn rooms(&mut self) -> &mut Vec<(Key, u64)> {
        &mut self.rooms
    }

    fn room(&mut self, id: &Key, behind: u64) {
        if self.ids.get(id).is_none_or(|state| state.waiters) {
            self.rooms.push((id.clone(), behind));
        }
    }
}

/// Returns a ticket as it is stored; the highest there is stands for none.
fn stored(ticket: u64) -> i64 {
    i64::try_from(ticket).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lockcore::{Owner, engine::Table, rules};

    use super::*;
    use crate::{SqliteLockDao, sqlite::store::Store};

    const MODES: [Mode; 6] = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Slots { permits: 1, limit: 1 },
        Mode::Slots { permits: 1, limit: 2 },
        Mode::Slots { permits: 2, limit: 2 },
        Mode::Slots { permits: 1, limit: 3 },
    ];

    /// 3.7: who is next, and who comes first, is asked in SQL of queues that may be long.
    #[test]
    fn the_statements_of_the_queue_answer_as_the_rules_say() {
        let settings = SqliteLockDao::<String>::builder().path(":memory:").settings;
        let mut store = Store::open(settings).expect("a database in memory");
        let mut random = fastrand::Rng::with_seed(7);
        let id = Key::from(&b"a"[..]);
        let answered = store.write(Some(Instant::now() + Duration::from_secs(60)), |step| {
            let mut all: Vec<(Turn, bool)> = Vec::new();
            for attempt in 1..=400 {
                let (mode, nested) = (MODES[random.usize(..6)], random.u8(..4) == 0);
                let request = Request {
                    context: Text("c".into()),
                    attempt,
                    claims: [Wanted { id: id.clone(), mode }].into_iter().collect(),
                    lease: 1,
                    owner: Owner::default(),
                    queue: true,
                    nested,
                    detached: false,
                };
                step.queue(&request, None)?;
                let ticket = step.ticket(&request)?.expect("it has a place");
                all.push((Turn { ticket, mode }, nested));
                if random.bool() {
                    let (gone, _) = all.remove(random.usize(..all.len()));
                    step.leave(gone.ticket)?;
                }
                let at = all.get(random.usize(..=all.len())).map_or(u64::MAX, |(turn, _)| turn.ticket);
                let mode = MODES[random.usize(..6)];
                let admission = Admission::Open.behind(mode);
                for (nested, admission) in [(true, admission), (false, admission), (false, Admission::Open)] {
                    let admits = |turn: &Turn| turn.ticket > at && (nested || admission.admits(turn.mode));
                    let next = all.iter().find(|(turn, of)| *of == nested && admits(turn));
                    assert_eq!(step.next(&id, nested, admission, at)?, next.map(|(turn, _)| *turn));
                }
                let comes_first = |turn: &Turn| turn.ticket < at && !rules::passes(mode, turn.mode);
                let first: Vec<Turn> = all.iter().map(|(turn, _)| *turn).filter(comes_first).collect();
                assert_eq!(step.blocker(&id, mode, at)?, first.first().copied(), "{mode} before {at}");
                assert_eq!(step.count_blockers(&id, mode, at)?, first.len());
                if let Some((turn, nested)) = all.first() {
                    step.next(&id, *nested, Admission::Open, 0)?;
                    let waiter = step.waiter(turn.ticket)?;
                    assert_eq!((waiter.nested, waiter.claims[0].mode), (*nested, turn.mode));
                }
            }
            Ok(())
        });
        answered.expect("an answer");
    }
}

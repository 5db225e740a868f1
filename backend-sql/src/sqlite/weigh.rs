//! Weighing: what stands against granting a set now.

use lockcore::{ConflictReason, Holder, MAX_HOLDERS_LISTED, Mode, rules, rules::InUse};
use rusqlite::{OptionalExtension, params};
use smallvec::SmallVec;

use super::{
    clock,
    error::StoreError,
    row::{HeldRow, Key, Set, Text, mode_columns},
    step::Step,
};

/// Who wants a set.
#[derive(Debug)]
pub(super) struct Asker<'r> {
    pub(super) context: &'r Text,
    pub(super) attempt: i64,
    /// Its ticket; `i64::MAX` if it has none yet.
    pub(super) number: i64,
    pub(super) nested: bool,
    pub(super) claims: &'r Set,
}

/// How one claim relates to what its context holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stance {
    /// It holds nothing.
    New,
    /// It holds as much: that goes on, under the same fence.
    Keep,
    /// It holds the id otherwise: a new grant if no other context is in the way.
    Change,
    /// An administrator broke what it holds: that is not extended, and so in the way.
    Broken,
}

/// What stands against a set.
#[derive(Debug, Default)]
pub(super) struct Weighed {
    pub(super) stances: SmallVec<[Stance; 1]>,
    /// The context holds an id otherwise than it wants to, which is never queued for.
    pub(super) changes: bool,
    /// By position in the set.
    pub(super) conflicts: Vec<(usize, ConflictReason<String>)>,
}

impl Step<'_> {
    /// What stands against granting the set now. Ids that dead holders or dead waiters were in the way
    /// of are `freed` in passing: then others may come first, and the question has to be asked again.
    pub(super) fn weigh(&mut self, who: &Asker<'_>) -> Result<Weighed, StoreError> {
        let mut weighed = Weighed::default();
        for (position, claim) in who.claims.iter().enumerate() {
            if self.load(&claim.id)?.is_unused() {
                weighed.stances.push(Stance::New);
                continue;
            }
            let stance = self.stance(who, &claim.id, claim.mode);
            weighed.stances.push(stance);
            let conflict = match stance {
                Stance::Keep => None,
                Stance::Broken => Some(self.held(&claim.id, |_| true)),
                Stance::New | Stance::Change => self.against(who, &claim.id, claim.mode, stance)?,
            };
            weighed.changes |= matches!(stance, Stance::Change | Stance::Broken);
            weighed.conflicts.extend(conflict.map(|reason| (position, reason)));
        }
        Ok(weighed)
    }

    fn stance(&self, who: &Asker<'_>, id: &Key, wanted: Mode) -> Stance {
        match self.ids[id].holders.iter().find(|row| row.context == *who.context) {
            None => Stance::New,
            Some(own) if own.broken => Stance::Broken,
            Some(own) => match rules::again(own.mode, wanted) {
                rules::Again::Keep => Stance::Keep,
                rules::Again::Change => Stance::Change,
            },
        }
    }

    fn against(
        &mut self,
        who: &Asker<'_>,
        id: &Key,
        mode: Mode,
        stance: Stance,
    ) -> Result<Option<ConflictReason<String>>, StoreError> {
        if self.ids[id].frozen {
            return Ok(Some(ConflictReason::Frozen));
        }
        let mut fits = self.fits(who, id, mode);
        // Whether their processes live is asked only of holders that are in the way.
        if !fits && self.remove_dead(id)? {
            fits = self.fits(who, id, mode);
        }
        if !fits {
            return Ok(Some(self.held(id, |row| row.context != *who.context)));
        }
        // Who holds the id already, or holds others, obeys no queue: nesting would deadlock.
        if stance == Stance::Change || who.nested || !self.ids[id].waiters {
            return Ok(None);
        }
        self.queued(id, who.number, mode)
    }

    fn fits(&self, who: &Asker<'_>, id: &Key, mode: Mode) -> bool {
        let others = self.ids[id].holders.iter().filter(|row| row.context != *who.context);
        InUse::of(others.map(|row| row.mode)).fits(mode)
    }

    fn held(&self, id: &Key, among: impl Fn(&HeldRow) -> bool) -> ConflictReason<String> {
        let mut rows: Vec<&HeldRow> = self.ids[id].holders.iter().filter(|row| among(row)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.remaining(&self.now)));
        let in_use = InUse::of(self.ids[id].holders.iter().map(|row| row.mode)).units();
        let listed = rows.iter().take(MAX_HOLDERS_LISTED).map(|row| Holder {
            context: row.context.stored(),
            owner: row.owner.clone(),
            mode: row.mode,
            fence: row.number as u64,
            remaining: Some(clock::duration(row.remaining(&self.now))),
        });
        ConflictReason::Held { holders: listed.collect(), count: rows.len(), in_use }
    }

    /// The earlier waiters that this claim may not pass.
    fn queued(
        &mut self,
        id: &Key,
        number: i64,
        mode: Mode,
    ) -> Result<Option<ConflictReason<String>>, StoreError> {
        let (code, _, cap) = mode_columns(mode);
        let ns = self.ns;
        let key = params![ns, &id[..], number, code, cap];
        let mut blocker = self.conn.prepare_cached(&self.sql.blocker)?;
        loop {
            let first = blocker.query_row(key, |row| Ok((row.get::<_, Text>(1)?, row.get(2)?))).optional()?;
            let Some((head, session)) = first else {
                return Ok(None);
            };
            if self.still_waits(session)? {
                let mut blockers = self.conn.prepare_cached(&self.sql.blockers)?;
                let count: i64 = blockers.query_row(key, |row| row.get(0))?;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                return Ok(Some(ConflictReason::QueuedBehind { head: head.stored(), count }));
            }
        }
    }
}

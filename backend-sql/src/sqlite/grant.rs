//! Granting: the rows of what a context holds from now on.

use lockcore::{Granted, Mode, Owner, rules, rules::InUse};
use rusqlite::{OptionalExtension, params};
use smallvec::SmallVec;

use super::{
    error::StoreError,
    row::{HeldRow, Indexes, IndexesColumn, Key, Text, mode_columns},
    statements::state,
    step::Step,
    weigh::{Applicant, Stance},
};

/// On what terms a set is granted.
#[derive(Debug)]
pub(super) struct Terms<'r> {
    pub(super) state: i64,
    pub(super) lease: i64,
    pub(super) owner: &'r Owner,
    pub(super) session: i64,
    pub(super) detached: bool,
}

impl Step<'_> {
    /// Grants the set, against which nothing may stand.
    pub(super) fn grant(
        &mut self,
        who: &Applicant<'_>,
        stances: &[Stance],
        terms: &Terms<'_>,
    ) -> Result<SmallVec<[Granted; 1]>, StoreError> {
        let fence = match stances.iter().all(|stance| *stance == Stance::Keep) {
            true => 0,
            false => self.next_number()?,
        };
        let mut granted = SmallVec::with_capacity(stances.len());
        for (claim, stance) in who.claims.iter().zip(stances) {
            granted.push(match stance {
                Stance::Keep => self.keep(who.context, &claim.id, terms)?,
                Stance::New | Stance::Change | Stance::Broken => {
                    self.hold(who, &claim.id, claim.mode, fence, terms)?
                }
            });
        }
        Ok(granted)
    }

    /// Gives back what the context held before `replacement`, which is gone, so far as it still lasts.
    pub(super) fn restore(&mut self, id: &Key, replacement: &HeldRow) -> Result<(), StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let mut replaced = conn.prepare_cached(&sql.replaced)?;
        let before =
            replaced.query_row(params![ns, &id[..], replacement.replaces], HeldRow::read).optional()?;
        let Some(mut before) = before.filter(|before| before.remaining(&now) > 0) else {
            return Ok(());
        };
        let holders = &mut self.load(id)?.holders;
        // Fewer permits may have let somebody in meanwhile who needs the rest: then they stay as few.
        if !InUse::of(holders.iter().map(|row| row.mode)).fits(before.mode) {
            before.mode = replacement.mode;
        }
        let taken = holders.iter().flat_map(|row| row.indexes.iter().copied());
        before.indexes = rules::lowest_free(taken, before.mode.permits());
        before.state = state::HELD;
        let (code, permits, cap) = mode_columns(before.mode);
        let indexes = IndexesColumn::encode(&before.indexes);
        let key = params![ns, &id[..], before.number, code, permits, cap, &indexes[..]];
        conn.prepare_cached(&sql.restore)?.execute(key)?;
        holders.push(before);
        Ok(())
    }

    /// Takes an id anew, in the place of what the context holds of it.
    fn hold(
        &mut self,
        who: &Applicant<'_>,
        id: &Key,
        mode: Mode,
        fence: i64,
        terms: &Terms<'_>,
    ) -> Result<Granted, StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let own = holders.iter().position(|row| &*row.context.0 == who.context);
        let own = own.map(|position| holders.swap_remove(position));
        if let Some(own) = &own {
            conn.prepare_cached(&sql.replace)?.execute(params![ns, &id[..], own.state, own.number])?;
        }
        let replaces = own.map_or(0, |own| own.number);
        let taken = holders.iter().flat_map(|row| row.indexes.iter().copied());
        let indexes: Indexes = rules::lowest_free(taken, mode.permits());
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).plus(mode).units();
        let (code, permits, cap) = mode_columns(mode);
        conn.prepare_cached(&sql.hold)?.execute(params![
            ns,
            &id[..],
            terms.state,
            fence,
            who.context.as_bytes(),
            who.attempt,
            code,
            permits,
            cap,
            &IndexesColumn::encode(&indexes)[..],
            in_use,
            &**terms.owner,
            terms.lease,
            now.boot,
            now.at,
            now.wall,
            terms.session,
            terms.detached,
            replaces,
        ])?;
        holders.push(HeldRow {
            state: terms.state,
            number: fence,
            context: Text(who.context.into()),
            attempt: who.attempt,
            mode,
            indexes: indexes.clone(),
            owner: terms.owner.clone(),
            lease: terms.lease,
            boot: now.boot,
            renewed: now.at,
            since: now.wall,
            session: terms.session,
            detached: terms.detached,
            broken: false,
            replaces,
        });
        Ok(Granted { mode, fence: fence as u64, permits: indexes, in_use })
    }

    /// Goes on holding what the context holds. A longer lease of an earlier grant is not cut short: it
    /// relies on it. In an offer, what is kept stays as it is until the offer is confirmed.
    fn keep(&mut self, context: &str, id: &Key, terms: &Terms<'_>) -> Result<Granted, StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).units();
        let row = holders
            .iter_mut()
            .find(|row| &*row.context.0 == context)
            .expect("only what the context holds is kept");
        if terms.state == state::HELD {
            let lease = terms.lease.max(row.remaining(&now));
            let keep =
                params![ns, &id[..], row.state, row.number, lease, now.at, terms.session, terms.detached];
            conn.prepare_cached(&sql.keep)?.execute(keep)?;
            (row.state, row.lease, row.renewed) = (state::HELD, lease, now.at);
            (row.session, row.detached) = (terms.session, terms.detached);
        }
        Ok(Granted { mode: row.mode, fence: row.number as u64, permits: row.indexes.clone(), in_use })
    }
}

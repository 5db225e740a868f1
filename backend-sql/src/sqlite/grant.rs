//! Granting: the rows of what a context holds from now on.

use std::collections::HashSet;

use lockcore::{Granted, Mode, Owner, backend::List, rules, rules::InUse};
use rusqlite::{OptionalExtension, Statement, params};

use super::{
    error::StoreError,
    row::{HeldRow, Indexes, IndexesColumn, Key, Text, Wanted, mode_columns},
    statements::state,
    step::Step,
    weigh::{Asker, Stance},
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
        who: &Asker<'_>,
        stances: &[Stance],
        terms: &Terms<'_>,
    ) -> Result<List<Granted>, StoreError> {
        let fence = match stances.iter().all(|stance| *stance == Stance::Keep) {
            true => 0,
            false => self.next_number()?,
        };
        let mut hold = self.conn.prepare_cached(&self.sql.hold)?;
        self.bind_common(&mut hold, who, fence, terms)?;
        let mut granted = List::with_capacity(stances.len());
        for (claim, stance) in who.claims.iter().zip(stances) {
            granted.push(match stance {
                Stance::Keep => self.keep(who.context, &claim.id, terms)?,
                Stance::New | Stance::Change | Stance::Broken => {
                    self.hold(&mut hold, who, claim, fence, terms)?
                }
            });
        }
        Ok(granted)
    }

    /// Grants a set of ids of which nothing is known, and notes nothing of them: for the end of a step.
    pub(super) fn grant_unused(
        &mut self,
        who: &Asker<'_>,
        terms: &Terms<'_>,
    ) -> Result<List<Granted>, StoreError> {
        let fence = self.next_number()?;
        let mut hold = self.conn.prepare_cached(&self.sql.hold)?;
        self.bind_common(&mut hold, who, fence, terms)?;
        hold.raw_bind_parameter(19, 0)?;
        let mut granted = List::with_capacity(who.claims.len());
        for Wanted { id, mode } in who.claims {
            let permits = rules::lowest_free([], mode.permits());
            let in_use = InUse::default().plus(*mode).units();
            bind_claim(&mut hold, id, *mode, &permits, in_use)?;
            hold.raw_execute()?;
            granted.push(Granted { mode: *mode, fence: fence as u64, permits, in_use });
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
        // Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
        let own: HashSet<u32> = before.indexes.iter().copied().collect();
        let is_taken = holders.iter().any(|row| row.indexes.iter().any(|index| own.contains(index)));
        if is_taken || !InUse::of(holders.iter().map(|row| row.mode)).fits(before.mode) {
            let key = params![ns, &id[..], before.state, before.number];
            conn.prepare_cached(&sql.remove)?.execute(key)?;
            return Ok(());
        }
        before.state = state::HELD;
        conn.prepare_cached(&sql.restore)?.execute(params![ns, &id[..], before.number])?;
        holders.push(before);
        Ok(())
    }

    /// Binds what is the same for all ids of a set, once: binding costs as much as inserting.
    fn bind_common(
        &self,
        hold: &mut Statement<'_>,
        who: &Asker<'_>,
        fence: i64,
        terms: &Terms<'_>,
    ) -> Result<(), StoreError> {
        hold.raw_bind_parameter(1, self.ns)?;
        hold.raw_bind_parameter(3, terms.state)?;
        hold.raw_bind_parameter(4, fence)?;
        hold.raw_bind_parameter(5, who.context.0.as_bytes())?;
        hold.raw_bind_parameter(6, who.attempt)?;
        hold.raw_bind_parameter(12, &**terms.owner)?;
        hold.raw_bind_parameter(13, terms.lease)?;
        hold.raw_bind_parameter(14, self.now.boot)?;
        hold.raw_bind_parameter(15, self.now.at)?;
        hold.raw_bind_parameter(16, self.now.wall)?;
        hold.raw_bind_parameter(17, terms.session)?;
        Ok(hold.raw_bind_parameter(18, terms.detached)?)
    }

    /// Grants an id, in place of what the context holds of it. That comes back if the grant is undone.
    fn hold(
        &mut self,
        hold: &mut Statement<'_>,
        who: &Asker<'_>,
        Wanted { id, mode }: &Wanted,
        fence: i64,
        terms: &Terms<'_>,
    ) -> Result<Granted, StoreError> {
        let mode = *mode;
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let own = holders.iter().position(|row| row.context == *who.context);
        let own = own.map(|position| holders.swap_remove(position));
        let held_before = own.is_some();
        let mut replaces = 0;
        if let Some(own) = own {
            let key = params![ns, &id[..], own.state, own.number];
            conn.prepare_cached(&sql.replace)?.execute(key)?;
            replaces = own.number;
        }
        let taken = holders.iter().flat_map(|row| row.indexes.iter().copied());
        let indexes: Indexes = rules::lowest_free(taken, mode.permits());
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).plus(mode).units();
        bind_claim(hold, id, mode, &indexes, in_use)?;
        hold.raw_bind_parameter(19, replaces)?;
        hold.raw_execute()?;
        holders.push(HeldRow {
            state: terms.state,
            number: fence,
            context: who.context.clone(),
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
        if self.ids[id].waiters {
            self.changed.push(id.clone());
        }
        if held_before {
            // A change may be to fewer permits, which lets others in.
            self.freed.insert(id.clone());
        }
        Ok(Granted { mode, fence: fence as u64, permits: indexes, in_use })
    }

    /// Goes on holding what the context holds. A longer lease of an earlier grant is not cut short: it
    /// relies on it. In an offer, what is kept stays as it is until the offer is confirmed.
    fn keep(&mut self, context: &Text, id: &Key, terms: &Terms<'_>) -> Result<Granted, StoreError> {
        let (conn, sql, ns, now) = (self.conn, self.sql, self.ns, self.now);
        let holders = &mut self.load(id)?.holders;
        let in_use = InUse::of(holders.iter().map(|row| row.mode)).units();
        let row = holders
            .iter_mut()
            .find(|row| row.context == *context)
            .expect("only what the context holds is kept");
        if terms.state == state::HELD {
            let lease = terms.lease.max(row.remaining(&now));
            let keep = params![
                ns,
                &id[..],
                row.state,
                row.number,
                lease,
                now.at,
                terms.session,
                terms.detached,
                now.boot
            ];
            conn.prepare_cached(&sql.keep)?.execute(keep)?;
            (row.state, row.lease, row.boot, row.renewed) = (state::HELD, lease, now.boot, now.at);
            (row.session, row.detached) = (terms.session, terms.detached);
        }
        Ok(Granted { mode: row.mode, fence: row.number as u64, permits: row.indexes.clone(), in_use })
    }
}

/// Binds what one id of a set has of its own.
fn bind_claim(
    hold: &mut Statement<'_>,
    id: &Key,
    mode: Mode,
    indexes: &Indexes,
    in_use: u32,
) -> Result<(), StoreError> {
    let (code, permits, cap) = mode_columns(mode);
    hold.raw_bind_parameter(2, &id[..])?;
    hold.raw_bind_parameter(7, code)?;
    hold.raw_bind_parameter(8, permits)?;
    hold.raw_bind_parameter(9, cap)?;
    hold.raw_bind_parameter(10, &IndexesColumn::encode(indexes)[..])?;
    Ok(hold.raw_bind_parameter(11, in_use)?)
}

//! The session of this DAO: its heartbeat, its offers and its places.

use std::collections::HashSet;

use lockcore::Granted;

use super::{
    clock::LeaseAt,
    error::StoreError,
    row::{IndexesColumn, Key, Text, mode_at},
    step::{Handed, Step},
};

/// Contexts and attempts that have places.
pub(super) type Places = HashSet<(Text, i64)>;

impl Step<'_> {
    /// Writes the heartbeat of this session.
    pub(super) fn heartbeat(&self) -> Result<(), StoreError> {
        self.conn.prepare_cached(&self.sql.heartbeat)?.execute([self.session, self.now.at])?;
        Ok(())
    }

    /// Returns the offers to the waiters of this session that are not confirmed yet.
    pub(super) fn offers(&mut self) -> Result<Vec<Handed>, StoreError> {
        let mut offers = self.conn.prepare_cached(&self.sql.offers)?;
        let mut rows = offers.query([self.session])?;
        let mut found: Vec<Handed> = Vec::new();
        while let Some(row) = rows.next()? {
            let (context, attempt): (Text, i64) = (row.get(0)?, row.get(1)?);
            let lease = self.now.lease(row.get(10)?, row.get(11)?, row.get(9)?, row.get(12)?);
            let LeaseAt::Lasts(lasts) = lease else {
                continue;
            };
            let (mode, fence) = (mode_at(row, 4)?, row.get::<_, i64>(3)? as u64);
            let permits = row.get::<_, IndexesColumn>(7)?.0;
            let granted = Granted { mode, fence, permits, in_use: row.get(8)? };
            match found.last_mut() {
                Some(last) if last.context == context && last.attempt == attempt => {
                    last.granted.push(granted)
                }
                _ => {
                    let (lasts, as_of) = self.left_of(lasts);
                    let granted = [granted].into_iter().collect();
                    found.push(Handed { session: self.session, context, attempt, granted, lasts, as_of });
                }
            }
        }
        Ok(found)
    }

    /// Returns the attempts of this session that have places, if these places are not for `expected` claims.
    pub(super) fn places_unless(&self, expected: usize) -> Result<Option<Places>, StoreError> {
        let mut count = self.conn.prepare_cached(&self.sql.count_places)?;
        if count.query_row([self.session], |row| row.get::<_, i64>(0))? == expected as i64 {
            return Ok(None);
        }
        let mut places = self.conn.prepare_cached(&self.sql.places)?;
        let places = places.query_map([self.session], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Some(places.collect::<Result<_, _>>()?))
    }

    /// Returns when the first lease on each of these ids ends, in microseconds from now; of those that were read.
    pub(super) fn first_ends(&self, ids: &[Key]) -> Vec<(Key, i64)> {
        let first = |id: &Key| self.ids.get(id)?.holders.iter().map(|row| row.remaining(&self.now)).min();
        ids.iter().filter_map(|id| Some((id.clone(), first(id)?))).collect()
    }
}

//! Collecting the cells of sessions that have ended, and what a probe left.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    cell::Cell,
    error::StoreError,
    parts::{IDS, Part},
    session::KEPT,
    store::{AT_ONCE, Store},
    table::Table,
};

/// The time for which the highest fence of an id is kept, in microseconds: a store's clock that is set back by less gives none again.
const FENCE_KEPT: u64 = 3600 * 1_000_000;

/// The most pages that one call looks at.
const PAGES: usize = 4;

/// The folders with cells that end.
const FOLDERS: [&str; 3] = [SESSIONS, "probe", IDS];
const SESSIONS: &str = "session";

impl<C: Cell> Store<C> {
    /// Removes at most `most` cells of sessions that have neither a grant nor a place, and were not written for [`KEPT`]; returns
    /// whether there may be more. It goes on where the last collection of this process ended. Where each id has a cell of its own, `used`
    /// are the sessions that were in one of them since the collection began; no session is removed if they are not known.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        most: usize,
        used: Option<&BTreeSet<String>>,
    ) -> Result<bool, StoreError> {
        let mut cursor = self.collected.lock().await;
        let (mut folder, mut after) = cursor.clone().unwrap_or((FOLDERS[0], None));
        let mut left = most;
        for _ in 0..PAGES {
            // Read again for each page: a session that is in it was listed before.
            if !self.is_apart() {
                self.look(&[Part::rest()]).await?;
            }
            let page = self.cell.list(folder, after.as_deref()).await?;
            let old = self.old(folder, &page.cells, used).await?;
            let batch: Vec<_> = old.iter().take(left).cloned().collect();
            let removed = stream::iter(&batch).map(Ok::<_, StoreError>);
            removed.try_for_each_concurrent(AT_ONCE, async |name| self.remove(name).await).await?;
            left -= batch.len();
            if batch.len() < old.len() {
                // Behind those that were looked at: some of them may be in use, and stay.
                *cursor = Some((folder, batch.last().cloned().or(after)));
                return Ok(true);
            }
            after = page.cells.last().filter(|_| page.more).map(|(name, _)| name.clone());
            if after.is_none() {
                let next = FOLDERS.iter().skip_while(|other| **other != folder).nth(1);
                let Some(next) = next else {
                    *cursor = None;
                    return Ok(false);
                };
                folder = next;
            }
        }
        *cursor = Some((folder, after));
        Ok(true)
    }

    /// Removes a cell; that of an id only if nothing is known of it any more. Its fences go on above the store's time.
    async fn remove(&self, name: &str) -> Result<(), StoreError> {
        let Some(part) = Part::named(name) else { return Ok(self.cell.remove(name).await?) };
        match self.look(std::slice::from_ref(&part)).await {
            // It is named by the sweep, and stays.
            Err(error) if error.is_of_content() => return Ok(()),
            looked => looked.map(drop)?,
        }
        let now = self.cell.now().await?;
        // A clock that was set back gives out no fence again.
        let is_over = |table: &Table| table.is_over() && table.high.saturating_add(FENCE_KEPT) < now.lo;
        let known = self.known_of(&part).filter(|known| is_over(&known.table));
        match known.as_ref().and_then(|known| known.version.as_ref()) {
            Some(version) => Ok(self.cell.remove_at(name, version).await?),
            None => Ok(()),
        }
    }

    /// Returns the cells that can be removed.
    async fn old(
        &self,
        folder: &str,
        cells: &[(String, u64)],
        used: Option<&BTreeSet<String>>,
    ) -> Result<Vec<String>, StoreError> {
        let now = self.cell.now().await?;
        let (own, _) = self.own.name();
        let known = self.view(&[Part::rest()]);
        let mut live = known.table.sessions();
        live.extend(used.into_iter().flatten().map(String::as_str));
        live.insert(&own);
        let keeps_all = folder == SESSIONS && used.is_none();
        let is_old = |(name, written): &&(String, u64)| {
            let last = name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
            let is_ours = if folder == IDS { Part::named(name).is_some() } else { is_ours(last) };
            is_ours && !keeps_all && !live.contains(last) && written.saturating_add(KEPT) < now.lo
        };
        Ok(cells.iter().filter(is_old).map(|(name, _)| name.clone()).collect())
    }
}

/// Returns whether a cell has a name of ours: a folder may hold what others put there.
fn is_ours(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

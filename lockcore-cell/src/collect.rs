//! Collecting the cells of sessions that have ended, and what a probe left.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    cell::{Cell, Found},
    error::StoreError,
    parts::{IDS, Part},
    session::{OLD, Session},
    store::{AT_ONCE, Store},
    table::Table,
};

/// A cell is kept for so long after its last write, in microseconds: for longer than a renewal takes from its look at the table to
/// its write, so that none finds its cell gone, and the closed grants with it, in between. A process whose session has been idle for
/// a quarter of it goes on under another name.
pub(crate) const KEPT: u64 = 4 * 3600 * 1_000_000;

/// The most pages that one call looks at.
const PAGES: usize = 4;

/// The folders with cells that end.
const FOLDERS: [&str; 3] = ["session", "probe", IDS];

/// Where a collection goes on: the folder, and the last name that was looked at.
pub(crate) type Cursor = (&'static str, Option<String>);

impl<C: Cell> Store<C> {
    /// Removes at most `most` cells of sessions that have neither a grant nor a place, and were not written for [`KEPT`]; returns
    /// whether there may be more. It goes on where the last collection of this process ended.
    pub(crate) async fn collect(self: &Arc<Self>, most: usize) -> Result<bool, StoreError> {
        let mut cursor = self.collected.lock().await;
        let (mut folder, mut after) = cursor.clone().unwrap_or((FOLDERS[0], None));
        let mut left = most;
        for _ in 0..PAGES {
            // Read again for each page: a session that is in it was listed before.
            if !self.is_apart() {
                self.look(&[Part::rest()]).await?;
            }
            let page = self.cell.list(folder, after.as_deref()).await?;
            let old = self.old(folder, &page.cells).await?;
            let batch: Vec<_> = old.iter().take(left).cloned().collect();
            let removed = stream::iter(&batch).map(Ok::<_, StoreError>);
            removed.try_for_each_concurrent(AT_ONCE, async |name| self.remove(name).await).await?;
            left -= batch.len();
            if batch.len() < old.len() {
                *cursor = Some((folder, after));
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
        let Some(part) = Part::named(name) else { return self.remove_session(name).await };
        self.look(std::slice::from_ref(&part)).await?;
        let now = self.cell.now().await?;
        // A clock that was set back gives out no fence again.
        let is_over = |table: &Table| table.is_over() && table.high.saturating_add(OLD) < now.lo;
        let known = self.known_of(&part).filter(|known| is_over(&known.table));
        match known.as_ref().and_then(|known| known.version.as_ref()) {
            Some(version) => Ok(self.cell.remove_at(name, version).await?),
            None => Ok(()),
        }
    }

    /// Removes the cell of a session that has neither a grant nor a place. Where the table does not say that, the cell does.
    async fn remove_session(&self, name: &str) -> Result<(), StoreError> {
        if !self.is_apart() || !name.starts_with(FOLDERS[0]) {
            return Ok(self.cell.remove(name).await?);
        }
        let Found::Changed(version, content) = self.cell.read(name, None).await? else { return Ok(()) };
        let now = self.cell.now().await?;
        match Session::read(&content).is_ok_and(|session| session.is_over(now)) {
            true => Ok(self.cell.remove_at(name, &version).await?),
            false => Ok(()),
        }
    }

    /// Returns the cells that can be removed.
    async fn old(&self, folder: &str, cells: &[(String, u64)]) -> Result<Vec<String>, StoreError> {
        let now = self.cell.now().await?;
        let (own, _) = self.own.name();
        // With a cell for each id, that of a session says by itself whether it is over.
        let known = self.view(&[Part::rest()]);
        let mut live = known.table.sessions();
        live.insert(&own);
        let is_old = |(name, written): &&(String, u64)| {
            let last = name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
            (is_ours(last) || Part::named(name).is_some())
                && !live.contains(last)
                && written.saturating_add(KEPT) < now.lo
        };
        Ok(cells.iter().filter(is_old).map(|(name, _)| name.clone()).collect())
    }
}

/// Returns whether a cell has a name of ours: a folder may hold what others put there.
fn is_ours(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

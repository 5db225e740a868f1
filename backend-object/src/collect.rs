//! Collecting the objects of sessions that have ended.

use std::sync::Arc;

use crate::{cell::Cell, driver::Store, error::StoreError, takeover::Scope};

/// An object is kept for so long after its last write, in microseconds: longer than a renewal takes from its look at the table
/// to its write, so that none finds its object gone, and the closed grants with it, in between.
const KEPT: u64 = 24 * 3600 * 1_000_000;

impl<C: Cell> Store<C> {
    /// Removes at most `most` objects of sessions that have no grant, and had none for a day.
    pub(crate) async fn collect(self: &Arc<Self>, most: usize) -> Result<(), StoreError> {
        let of_table = |step: &mut crate::step::Step<'_>| {
            step.table.grants.values().map(|grant| grant.session.clone()).collect::<Vec<_>>()
        };
        let live = self.submit(Scope::default(), of_table).await?;
        let now = self.cell.now().await?;
        let mut removed = 0;
        for (name, modified) in self.cell.list("session").await? {
            let session = name.rsplit('/').next().unwrap_or_default();
            let is_ours = is_name(session) && session != self.session;
            if removed == most || !is_ours || live.iter().any(|live| live == session) {
                continue;
            }
            if modified.saturating_add(KEPT) < now.lo {
                self.cell.remove(&name).await?;
                removed += 1;
            }
        }
        Ok(())
    }
}

/// Returns whether an object has the name of a session: a folder of the bucket may hold what others put there.
fn is_name(session: &str) -> bool {
    session.len() == 32 && session.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

//! Checks for what weakens a promise, or costs more than it need.

use std::sync::Arc;

use lockcore::{Finding, Severity};

use crate::{cell::Cell, error::StoreError, parts::Part, probe, store::Store, table::MAX_BYTES};

/// A table of this size is named.
const LARGE: usize = MAX_BYTES / 4;

/// Looks at the store.
pub(crate) async fn examine<C: Cell>(store: &Arc<Store<C>>) -> Result<Vec<Finding>, StoreError> {
    probe::has_conditional_writes(&store.cell).await?;
    let refused = "a write is refused where its condition does not hold";
    let mut findings = vec![Finding::new(Severity::Ok, "conditional writes", refused)];
    let now = store.cell.now().await?;
    let known = format!("known to {} ms", (now.hi - now.lo) / 1000);
    findings.push(Finding::new(Severity::Ok, "service's time", known));
    let size = |step: &mut crate::step::Step<'_>| {
        let waiters = step.table.places.len();
        (step.table.write().len(), step.table.reserved(), step.table.grants.len(), waiters)
    };
    let rest = Part::rest();
    if !store.is_apart() {
        let (bytes, reserved, grants, waiters) = store.submit(vec![rest.clone()], size).await?;
        let severity = if bytes + reserved < LARGE { Severity::Ok } else { Severity::Warning };
        let detail = format!(
            "{bytes} bytes, and {reserved} for what the waiters will hold, of at most {MAX_BYTES}, for {grants} grants and {waiters} waiters: each step writes the table"
        );
        findings.push(Finding::new(severity, "size of the table", detail));
    }
    // A response without content says nothing of rules.
    store.cell.read(rest.name(), None).await?;
    findings.extend(store.cell.findings());
    Ok(findings)
}

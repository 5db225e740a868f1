//! Checks for what weakens a promise, or costs more than it need.

use std::sync::Arc;

use lockcore::{Finding, Severity};

use crate::{cell::Cell, error::StoreError, parts::Part, probe, store::Store, table::MAX_BYTES};

/// A table of this size is named.
const LARGE: usize = MAX_BYTES / 4;

/// Looks at the store.
pub(crate) async fn examine<C: Cell>(store: &Arc<Store<C>>) -> Result<Vec<Finding>, StoreError> {
    probe::has_conditional_writes(&store.cell).await?;
    let mut findings = vec![Finding {
        severity: Severity::Ok,
        check: "conditional writes",
        detail: "a write is refused where its condition does not hold".to_owned(),
    }];
    let now = store.cell.now().await?;
    findings.push(Finding {
        severity: Severity::Ok,
        check: "service's time",
        detail: format!("known to {} ms", (now.hi - now.lo) / 1000),
    });
    let size = |step: &mut crate::step::Step<'_>| {
        let waiters = step.table.places.len();
        (step.table.write().len(), step.table.grants.len(), waiters)
    };
    let rest = Part::rest();
    if !store.is_apart() {
        let (bytes, grants, waiters) = store.submit(vec![rest.clone()], false, size).await?;
        findings.push(Finding {
            severity: if bytes < LARGE { Severity::Ok } else { Severity::Warning },
            check: "size of the table",
            detail: format!(
                "{bytes} bytes of at most {MAX_BYTES}, for {grants} grants and {waiters} waiters: each step writes all of it"
            ),
        });
    }
    // A response without content says nothing of rules.
    store.cell.read(rest.name(), None).await?;
    findings.extend(store.cell.findings());
    Ok(findings)
}

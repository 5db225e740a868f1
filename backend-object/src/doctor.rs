//! What weakens a promise, or costs more than it need.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use lockcore::{Finding, Severity};

use crate::{
    cell::Cell,
    driver::{Store, TABLE},
    error::StoreError,
    probe,
    table::MAX_BYTES,
    takeover::Scope,
};

/// A table of this size is named.
const LARGE: usize = MAX_BYTES / 4;

/// Looks at the store.
pub(crate) async fn examine<C: Cell>(store: &Arc<Store<C>>) -> Result<Vec<Finding>, StoreError> {
    let nonce = format!("{}-doctor", store.session);
    probe::has_conditional_writes(&store.cell, &nonce).await?;
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
    let (bytes, grants, waiters) = store.submit(Scope::default(), size).await?;
    findings.push(Finding {
        severity: if bytes < LARGE { Severity::Ok } else { Severity::Warning },
        check: "size of the table",
        detail: format!(
            "{bytes} bytes of at most {MAX_BYTES}, for {grants} grants and {waiters} waiters: each step writes all of it"
        ),
    });
    // A response without content says nothing of rules.
    store.cell.read(TABLE, None).await?;
    let rules = store.cell.rules();
    for (is_seen, check, detail) in [
        (
            &rules.keep,
            "versions of objects",
            "the bucket keeps each version of the table: a lifecycle rule has to delete noncurrent versions below the prefix",
        ),
        (
            &rules.expire,
            "lifecycle rules",
            "a rule deletes objects below the prefix: with the table all locks vanish",
        ),
        (
            &rules.retain,
            "object lock",
            "objects below the prefix are retained: no version of the table can be deleted before its time",
        ),
    ] {
        if is_seen.load(Relaxed) {
            let (severity, detail) = (Severity::Warning, detail.to_owned());
            findings.push(Finding { severity, check, detail });
        }
    }
    Ok(findings)
}

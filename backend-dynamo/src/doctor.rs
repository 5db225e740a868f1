//! Looking for what would weaken a promise.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::TableStatus;
use lockcore::{Finding, Severity};

use crate::{error::StoreError, store::Store};

/// A wall clock that is off by more makes the service refuse signatures, until the SDK has learned by how much.
const SIGNATURE: Duration = Duration::from_secs(5 * 60);

impl Store {
    /// All checks.
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        match self.describe().await? {
            None => {
                let detail = "missing, or it may not be described; `lockctl migrate` creates it".to_owned();
                findings.push(Finding::new(Severity::Error, "table", detail));
                findings.push(self.clock_finding()?);
                return Ok(findings);
            }
            Some(table) => {
                let active = table.table_status() == Some(&TableStatus::Active);
                let status = table.table_status().map_or("unknown", TableStatus::as_str);
                let items = table.item_count().unwrap_or(0);
                let severity = if active { Severity::Ok } else { Severity::Warning };
                findings.push(Finding::new(severity, "table", format!("{status}, about {items} items")));
                findings.push(match &self.names().index {
                    None => Finding::new(Severity::Ok, "context index", "none is wanted".to_owned()),
                    Some(index) => {
                        let there =
                            table.global_secondary_indexes().iter().any(|it| it.index_name() == Some(index));
                        let severity = if there { Severity::Ok } else { Severity::Warning };
                        let found = if there { "is there" } else { "is missing: other clients may need it" };
                        Finding::new(severity, "context index", format!("{index} {found}"))
                    }
                });
            }
        }
        findings.push(match self.has_ttl().await? {
            Some(true) => Finding::new(
                Severity::Ok,
                "ttl",
                format!("on, by {}: what is over is collected", self.names().expires),
            ),
            Some(false) => {
                let detail = format!(
                    "not on for {}: items of free ids stay for ever; `lockctl migrate` enables it",
                    self.names().expires
                );
                Finding::new(Severity::Warning, "ttl", detail)
            }
            None => Finding::new(Severity::Warning, "ttl", "it may not be asked whether it is on".to_owned()),
        });
        findings.push(self.clock_finding()?);
        findings.push(match self.settings.strict_fence {
            true => Finding::new(Severity::Ok, "fences", "strict: an item of its own keeps every id's".to_owned()),
            false => {
                let detail = "they outlast what other clients and TTL remove as long as the bounds of the service's \
                              time are no wider than the pause before the next grant";
                Finding::new(Severity::Ok, "fences", detail.to_owned())
            }
        });
        Ok(findings)
    }

    fn clock_finding(&self) -> Result<Finding, StoreError> {
        let now = self.now()?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (lo, hi) = (Duration::from_micros(now.lo), Duration::from_micros(now.hi));
        let off = if wall > hi { wall - hi } else { lo.saturating_sub(wall) };
        let severity = if off > SIGNATURE { Severity::Warning } else { Severity::Ok };
        let detail = format!(
            "the service's time is known to {:.1?}; this machine's is off by {off:.1?}, which moves no lease",
            hi - lo
        );
        Ok(Finding::new(severity, "clock", detail))
    }
}

//! Looking for what would weaken a promise.

use lockcore::{Finding, Severity};
use sqlx::Row;

use super::{engine::Postgres, error::failed, link::Link};
use crate::server::ServerError;

/// All checks but those that every server has.
pub(super) async fn examine(_engine: &Postgres, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
    let look = "SELECT current_setting('synchronous_commit'), current_setting('server_version')";
    let row = sqlx::raw_sql(look).fetch_one(link.raw()).await.map_err(failed)?;
    let commit: String = row.try_get(0).map_err(failed)?;
    let version: String = row.try_get(1).map_err(failed)?;
    Ok(vec![
        Finding { severity: Severity::Ok, check: "server version", detail: version },
        Finding {
            severity: if commit == "off" { Severity::Warning } else { Severity::Ok },
            check: "synchronous_commit",
            detail: commit,
        },
    ])
}

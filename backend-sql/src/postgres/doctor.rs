//! Looking for what would weaken a promise.

use std::{
    pin::pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockcore::{Finding, Severity};
use sqlx::{AssertSqlSafe, Row, postgres::PgRow};
use tokio::time::timeout;

use super::{error::failed, link::Link, schema::qualified};
use crate::server::ServerError;

const LOOK: &str = "SELECT current_setting('server_version'), current_setting('synchronous_commit'), \
    current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery(), \
    current_setting('transaction_read_only'), current_setting('transaction_isolation'), \
    (date_part('epoch', clock_timestamp()) * 1000000)::int8, \
    current_setting('synchronous_standby_names'), current_setting('server_version_num')::int4, \
    greatest((SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()), \
    (SELECT max(age(xmin)) FROM pg_replication_slots), (SELECT max(age(transaction)) FROM pg_prepared_xacts), 0)::int8";

const PID: &str = "SELECT pg_backend_pid()";

/// A server's clock may differ so much from ours before it is worth a word: leases do not depend on it, times shown do.
const SKEW: Duration = Duration::from_secs(5);

/// A snapshot may be so many transactions old before it is worth a word. Every use of an id leaves two versions of its row,
/// which the next ones pass over as long as the snapshot might see them: after 20 000 uses one takes four times as long.
const SNAPSHOT: i64 = 10_000;

/// The time within which a server has to answer that is asked again while another transaction is open.
const PATIENCE: Duration = Duration::from_secs(1);

/// All checks but those that every server has. `other` is another connection.
pub(super) async fn examine(
    link: &mut Link,
    other: &mut Link,
    prepared: bool,
) -> Result<Vec<Finding>, ServerError> {
    let row = sqlx::raw_sql(AssertSqlSafe(qualified(LOOK))).fetch_one(link.raw()).await.map_err(failed)?;
    let text = |column: usize| row.try_get::<String, _>(column).map_err(failed);
    let (version, commit, fsync, pages) = (text(0)?, text(1)?, text(2)?, text(3)?);
    let recovery: bool = row.try_get(4).map_err(failed)?;
    let (read_only, isolation) = (text(5)?, text(6)?);
    let clock: i64 = row.try_get(7).map_err(failed)?;
    let standbys = text(8)?;
    let number: i32 = row.try_get(9).map_err(failed)?;
    let snapshot: i64 = row.try_get(10).map_err(failed)?;
    let pooled = is_pooled(link, other).await?;
    Ok(vec![
        finding(
            number < 140_000,
            Severity::Warning,
            "server version",
            version,
            "14 and later have all that is used",
        ),
        finding(
            recovery || read_only == "on",
            Severity::Error,
            "primary",
            format!("in recovery: {recovery}, read-only: {read_only}"),
            "locks need a server that can be written to",
        ),
        finding(
            commit == "off" || fsync == "off" || pages == "off",
            Severity::Warning,
            "durability",
            format!("synchronous_commit {commit}, fsync {fsync}, full_page_writes {pages}"),
            "a crash of the server may forget locks that were granted",
        ),
        finding(
            !standbys.is_empty() && commit == "local",
            Severity::Warning,
            "failover",
            format!("synchronous_standby_names {standbys:?}"),
            "a fail-over may forget locks that were granted",
        ),
        finding(
            isolation != "read committed",
            Severity::Error,
            "isolation",
            isolation,
            "locks need read committed: ALTER ROLE .. SET default_transaction_isolation TO 'read committed'",
        ),
        finding(
            snapshot > SNAPSHOT,
            Severity::Warning,
            "oldest snapshot",
            format!("{snapshot} transactions ago"),
            "until it ends, an id that is used often becomes slower with each use: look for an old backend_xmin in \
             pg_stat_activity (a dump, an idle transaction), for replication slots and for prepared transactions",
        ),
        pooler(pooled, prepared),
        skew(clock),
    ])
}

/// The number of tries: others may use the same pooler meanwhile.
const ROUNDS: usize = 3;

/// Returns whether `link` is served by one process of the server after the other. A pooler that takes them in turn
/// shows it when it is asked twice; one that gives out first what came back last, when that is in use by another
/// transaction.
async fn is_pooled(link: &mut Link, other: &mut Link) -> Result<bool, ServerError> {
    let pid = |row: Result<PgRow, sqlx::Error>| row.and_then(|row| row.try_get::<i32, _>(0)).map_err(failed);
    for _ in 0..ROUNDS {
        let before = pid(sqlx::raw_sql(PID).fetch_one(link.raw()).await)?;
        if pid(sqlx::raw_sql(PID).fetch_one(link.raw()).await)? != before {
            return Ok(true);
        }
        other.run("BEGIN; SELECT pg_backend_pid()").await?;
        let mut asked = pin!(sqlx::raw_sql(PID).fetch_one(link.raw()));
        let in_time = timeout(PATIENCE, &mut asked).await;
        other.run("ROLLBACK").await?;
        match in_time {
            Ok(after) => {
                if pid(after)? != before {
                    return Ok(true);
                }
            }
            // The other transaction had the only one.
            Err(_elapsed) => return pid(asked.await).map(|_| true),
        }
    }
    Ok(false)
}

fn pooler(pooled: bool, prepared: bool) -> Finding {
    let (severity, detail) = match (pooled, prepared) {
        (true, true) => (
            Severity::Error,
            "a pooler hands out another connection for each transaction: set prepared=false and a listen_url past it",
        ),
        (true, false) => (
            Severity::Ok,
            "a pooler hands out another connection for each transaction, and nothing is prepared",
        ),
        (false, true) => (Severity::Ok, "none was noticed"),
        (false, false) => (Severity::Ok, "none was noticed; prepared=true would be faster without one"),
    };
    Finding { severity, check: "pooler", detail: detail.to_owned() }
}

fn skew(clock: i64) -> Finding {
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let there = Duration::from_micros(clock.unsigned_abs());
    let skew = here.abs_diff(there);
    let severity = if skew > SKEW { Severity::Warning } else { Severity::Ok };
    let detail = format!("the server's differs from ours by {skew:.1?}; the server's decides");
    Finding { severity, check: "clock", detail }
}

fn finding(bad: bool, severity: Severity, check: &'static str, found: String, advice: &str) -> Finding {
    match bad {
        true => Finding { severity, check, detail: format!("{found}: {advice}") },
        false => Finding { severity: Severity::Ok, check, detail: found },
    }
}

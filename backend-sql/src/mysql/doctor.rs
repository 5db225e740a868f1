//! Looking for what would weaken a promise.

use lockcore::{Finding, Severity};

use super::{flavor::Flavor, link::Link};
use crate::server::ServerError;

/// All checks but those of schema and waking.
pub(super) async fn examine(flavor: Flavor, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
    Ok(vec![
        version(flavor, link).await?,
        commits(link).await?,
        binary_log(link).await?,
        writable(flavor, link).await?,
        replica(flavor, link).await?,
    ])
}

async fn version(flavor: Flavor, link: &mut Link) -> Result<Finding, ServerError> {
    let version = link.text("SELECT VERSION()").await?.unwrap_or_default();
    Ok(Finding::new(Severity::Ok, "server", format!("{} {version}", flavor.name())))
}

async fn commits(link: &mut Link) -> Result<Finding, ServerError> {
    let flush = number(link, "@@GLOBAL.innodb_flush_log_at_trx_commit").await?;
    Ok(match flush {
        Some(1) => Finding::new(Severity::Ok, "durability", "every commit is on the disk".to_owned()),
        Some(flush) => Finding::new(
            Severity::Warning,
            "durability",
            format!(
                "innodb_flush_log_at_trx_commit is {flush}: a crash of {} loses up to a second of grants, which others \
                 may then get too",
                if flush == 0 { "the server" } else { "its host" }
            ),
        ),
        None => Finding::new(
            Severity::Warning,
            "durability",
            "it is not known when a commit is on the disk".to_owned(),
        ),
    })
}

/// READ COMMITTED cannot be written to a binary log of statements.
async fn binary_log(link: &mut Link) -> Result<Finding, ServerError> {
    let on = number(link, "@@GLOBAL.log_bin").await?.unwrap_or(0) != 0;
    // MySQL 9 has no other format any more, and will have no such variable.
    let format =
        link.text("SELECT CAST(@@GLOBAL.binlog_format AS CHAR)").await.ok().flatten().unwrap_or_default();
    let synced = number(link, "@@GLOBAL.sync_binlog").await?.unwrap_or(0);
    Ok(match (on, format.as_str()) {
        (false, _) => Finding::new(Severity::Ok, "binary log", "off".to_owned()),
        (true, "STATEMENT") => Finding::new(
            Severity::Error,
            "binary log",
            "binlog_format is STATEMENT, which cannot hold what READ COMMITTED does: set it to ROW or MIXED"
                .to_owned(),
        ),
        (true, _) => {
            Finding::new(Severity::Ok, "binary log", format!("on, {format}, sync_binlog = {synced}"))
        }
    })
}

async fn writable(flavor: Flavor, link: &mut Link) -> Result<Finding, ServerError> {
    Ok(match number(link, flavor.read_only()).await? {
        Some(0) => Finding::new(Severity::Ok, "write", "the server accepts writes".to_owned()),
        _ => Finding::new(Severity::Error, "write", "the server is read-only: is it a replica?".to_owned()),
    })
}

/// Certification-based clusters abort a grant at commit; asynchronous replicas lose it at a failover.
async fn replica(flavor: Flavor, link: &mut Link) -> Result<Finding, ServerError> {
    let variable = match flavor {
        Flavor::MySql => "group_replication_single_primary_mode",
        Flavor::MariaDb => "wsrep_on",
    };
    let found = link
        .text(&format!("SHOW GLOBAL VARIABLES WHERE Variable_name = '{variable}' AND Value = 'ON'"))
        .await?;
    Ok(match (flavor, found) {
        (Flavor::MariaDb, Some(_)) => Finding::new(
            Severity::Warning,
            "cluster",
            "Galera: send all of an application's locks to one node, rows are locked on that node only, and a conflict \
             with another node shows as a deadlock at the commit; waiters at another node look for their turn"
                .to_owned(),
        ),
        (Flavor::MySql, Some(_)) => Finding::new(
            Severity::Ok,
            "cluster",
            "group replication with a single primary: send all locks there".to_owned(),
        ),
        _ => Finding::new(
            Severity::Ok,
            "cluster",
            "one server; what an asynchronous replica has not got when it takes over is lost".to_owned(),
        ),
    })
}

async fn number(link: &mut Link, expression: &str) -> Result<Option<i64>, ServerError> {
    let text = link.text(&format!("SELECT CAST({expression} AS SIGNED)")).await?;
    Ok(text.and_then(|text| text.parse().ok()))
}

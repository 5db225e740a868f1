//! Checks the server for settings that weaken the guarantees.

use std::collections::HashMap;

use futures_util::future::join;
use lockcore::{BackendError, BackendErrorKind, Finding, Severity, backend::Moment};
use redis::{Cmd, Value};

use crate::{reply::Reply, session::Session};

/// The oldest server that has every command of the script.
const OLDEST: (u32, u32) = (6, 2);

/// The check of whether the server is a master.
const ROLE: &str = "role";

/// A server's own description.
#[derive(Debug, Default)]
struct Info(HashMap<String, String>);

/// The descriptions of every master of a cluster by address, or of a single server without one.
#[derive(Debug)]
struct Infos(Vec<(String, Info)>);

/// Refuses a server that cannot keep locks, and loads the script into its cache.
pub(crate) async fn check(session: &Session) -> Result<(), BackendError> {
    let (info, loaded) = join(session.command(info_of_all()), session.command(session.scripts.load())).await;
    // Without the right to it the script is loaded at its first use.
    loaded.map(drop).or_else(unless_denied)?;
    let servers = match info {
        Ok(reply) => Infos::read(reply),
        // A user without the right to ask is trusted; `doctor` says so.
        Err(error) => return unless_denied(error),
    };
    match servers.findings().into_iter().find(|finding| finding.severity == Severity::Error) {
        Some(Finding { check, detail, .. }) => {
            // During a fail-over the name of the master may still lead to a replica.
            let kind = match check {
                ROLE => BackendErrorKind::Unavailable,
                _ => BackendErrorKind::Misconfigured,
            };
            Err(BackendError::new(kind, format!("redis: {check}: {detail}")))
        }
        None => Ok(()),
    }
}

fn unless_denied(error: BackendError) -> Result<(), BackendError> {
    if error.kind() == BackendErrorKind::Denied { Ok(()) } else { Err(error) }
}

/// All checks.
pub(crate) async fn examine(session: &Session) -> Result<Vec<Finding>, BackendError> {
    let mut findings = match session.command(info_of_all()).await {
        Ok(reply) => Infos::read(reply).findings(),
        Err(error) if error.kind() == BackendErrorKind::Denied => {
            vec![Finding::new(Severity::Warning, "server", format!("cannot be looked at: {error}"))]
        }
        Err(error) => return Err(error),
    };
    findings.push(clock(session).await?);
    findings.push(waking(session).await);
    Ok(findings)
}

/// Checks that messages reach this process. Without them calls that have to wait fail; in a cluster they poll while the
/// connection to a node is replaced.
async fn waking(session: &Session) -> Finding {
    let (severity, detail) = match session.listens().await {
        Ok(_) if session.inbox.is_unsubscribed() => {
            (Severity::Warning, "polling: the connection to a node of the cluster was lost".to_owned())
        }
        Ok(since) => (Severity::Ok, format!("listening for {}s", since.as_secs())),
        Err(error) => (Severity::Error, format!("not listening, so that calls cannot wait: {error}")),
    };
    Finding::new(severity, "waking", detail)
}

/// The sections one by one: a server that is asked for several answers with none before 7.0.
fn info_of_all() -> Cmd {
    redis::cmd("INFO")
}

/// The server's clock beside this host's: leases need neither to be right.
async fn clock(session: &Session) -> Result<Finding, BackendError> {
    let asked = Moment::now();
    let mut reply = Reply::of(session.command(redis::cmd("TIME")).await?)?;
    let took = asked.elapsed();
    let seconds: f64 = reply.text()?.parse().unwrap_or_default();
    let own = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    let ahead = seconds - own;
    let severity = if ahead.abs() > 60.0 { Severity::Warning } else { Severity::Ok };
    // Rounded to a number that has no sign if it is zero.
    let ahead = ahead.round() as i64;
    let apart = match ahead {
        0 => "as this host's".to_owned(),
        1.. => format!("{ahead}s ahead of this host's"),
        _ => format!("{}s behind this host's", ahead.unsigned_abs()),
    };
    let detail = format!("{apart}, asked in {took:.1?}; leases do not depend on it");
    Ok(Finding::new(severity, "clock", detail))
}

impl Infos {
    fn read(reply: Value) -> Self {
        match reply {
            Value::Map(nodes) => {
                let read = |(address, node): (Value, Value)| {
                    (redis::from_redis_value(address).unwrap_or_default(), Info::read(&node))
                };
                Infos(nodes.into_iter().map(read).collect())
            }
            reply => Infos(vec![(String::new(), Info::read(&reply))]),
        }
    }

    /// Returns the finding of each check, by node where they differ.
    fn findings(&self) -> Vec<Finding> {
        let checks = [Info::version, Info::role, Info::eviction, Info::persistence, Info::replicas];
        checks.into_iter().flat_map(|check| self.findings_of(check)).collect()
    }

    fn findings_of(&self, check: fn(&Info) -> Finding) -> Vec<Finding> {
        let mut found: Vec<(Vec<&str>, Finding)> = Vec::new();
        for (address, info) in &self.0 {
            let finding = check(info);
            match found.iter_mut().find(|(_, known)| *known == finding) {
                Some((addresses, _)) => addresses.push(address),
                None => found.push((vec![address], finding)),
            }
        }
        if found.len() > 1 {
            for (addresses, finding) in &mut found {
                finding.detail = format!("{}: {}", addresses.join(", "), finding.detail);
            }
        }
        found.into_iter().map(|(_, finding)| finding).collect()
    }
}

impl Info {
    fn read(reply: &Value) -> Self {
        let text = match reply {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::VerbatimString { text, .. } => text.clone(),
            _ => String::new(),
        };
        let lines = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Info(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn version(&self) -> Finding {
        let version = self.get("redis_version");
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let old = !version.is_empty() && known < OLDEST;
        Finding::new(
            if old { Severity::Error } else { Severity::Ok },
            "version",
            format!("{version}, {}.{} or later is needed", OLDEST.0, OLDEST.1),
        )
    }

    fn role(&self) -> Finding {
        match self.get("role") {
            "slave" => Finding::new(
                Severity::Error,
                ROLE,
                "a replica, which takes no locks: name its master".to_owned(),
            ),
            role => Finding::new(Severity::Ok, ROLE, role.to_owned()),
        }
    }

    fn eviction(&self) -> Finding {
        let (policy, limit) = (self.get("maxmemory_policy"), self.get("maxmemory"));
        let limited = !matches!(limit, "" | "0");
        let advice = "full memory would remove held locks: set maxmemory-policy to noeviction";
        let (severity, detail) = match policy {
            "" | "noeviction" => (Severity::Ok, "noeviction".to_owned()),
            // Locks have a time to live, so that those policies choose among them too.
            _ if limited || policy.starts_with("allkeys") => {
                (Severity::Error, format!("{policy} with maxmemory {limit}: {advice}"))
            }
            _ => (Severity::Warning, format!("{policy}, without a limit yet: {advice}")),
        };
        Finding::new(severity, "eviction", detail)
    }

    fn persistence(&self) -> Finding {
        let (severity, detail) = match self.get("aof_enabled") {
            "1" => (Severity::Ok, "append-only file: a restart loses at most what was not synced"),
            _ => (
                Severity::Warning,
                "no append-only file: a restart loses all locks, so set appendonly yes; fences go on from the clock",
            ),
        };
        Finding::new(severity, "persistence", detail.to_owned())
    }

    fn replicas(&self) -> Finding {
        let count = self.get("connected_slaves");
        match count {
            "" | "0" => Finding::new(Severity::Ok, "replicas", "none".to_owned()),
            _ => Finding::new(
                Severity::Warning,
                "replicas",
                format!(
                    "{count}, asynchronous: a failover loses the grants that had not reached them; fences go on"
                ),
            ),
        }
    }
}

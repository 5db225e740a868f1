//! `sqlite:PATH`: the processes of one host share a file. `sqlite::memory:` is one connection's own.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident, LockDao};
use lockcore_sql::{SqliteLockDao, Synchronous};

use super::Settings;
use crate::{ConnectError, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "sqlite:locks.db";

/// See [`SqliteBuilder`](lockcore_sql::SqliteBuilder); `mode` says whether the file may be created (`rwc`,
/// the default) or must be there (`rw`).
pub(super) const OPTIONS: &[&str] = &["busy_timeout", "mode", "synchronous", "table_prefix"];

pub(super) fn capabilities() -> Capabilities {
    let dao = pollster::block_on(SqliteLockDao::<String>::open(":memory:"));
    dao.expect("a store in memory needs nothing that could fail").capabilities()
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let mut builder = SqliteLockDao::<I, C>::builder().path(url.path()?);
    if let Some(namespace) = options.read(NAMESPACE, any)? {
        builder = builder.namespace(namespace);
    }
    if let Some(timeout) = options.read("busy_timeout", parse_duration)? {
        builder = builder.busy_timeout(timeout);
    }
    if let Some(synchronous) = options.read("synchronous", synchronous)? {
        builder = builder.synchronous(synchronous);
    }
    if let Some(prefix) = options.read("table_prefix", any)? {
        builder = builder.table_prefix(prefix);
    }
    if let Some(create) = options.read("mode", may_create)? {
        builder = builder.create(create);
    }
    Ok(AnyLockDao::new(builder.open().await?))
}

/// What the builder checks itself.
fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn synchronous(text: &str) -> Result<Synchronous, String> {
    match text {
        "normal" => Ok(Synchronous::Normal),
        "full" => Ok(Synchronous::Full),
        _ => Err("it must be normal or full".to_owned()),
    }
}

fn may_create(text: &str) -> Result<bool, String> {
    match text {
        "rwc" => Ok(true),
        "rw" => Ok(false),
        _ => Err("it must be rwc or rw".to_owned()),
    }
}

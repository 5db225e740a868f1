//! `sqlite:PATH`: the processes of one host share a file. `sqlite::memory:` is one connection's own.

use lockcore::{AnyLockDao, ContextId, Ident};
pub(super) use lockcore_sql::sqlite::capabilities;
use lockcore_sql::{SqliteBuilder, SqliteLockDao, Synchronous};

use super::Settings;
use crate::{ConnectError, option::Plain, parse_duration, url::{IN_MEMORY, NAMESPACE}};

pub(super) const EXAMPLE: &str = "sqlite:/var/lib/locks.db";

/// See [`SqliteBuilder`]; `mode` says whether the file may be created (`rwc`,
/// the default) or must be there (`rw`).
pub(super) const OPTIONS: &[&str] = &["busy_timeout", "mode", "synchronous", "table_prefix"];

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let path = url.path()?;
    // A store in memory is there only once it was created.
    let in_memory = path == IN_MEMORY;
    let builder = options
        .fill(SqliteLockDao::<I, C>::builder().path(path))
        .with(NAMESPACE, String::plain, SqliteBuilder::namespace)?
        .with("busy_timeout", parse_duration, SqliteBuilder::busy_timeout)?
        .with("synchronous", synchronous, SqliteBuilder::synchronous)?
        .with("table_prefix", String::plain, SqliteBuilder::table_prefix)?
        .with("mode", may_create, |builder, create| builder.create(create || in_memory))?
        .builder;
    Ok(AnyLockDao::new(builder.open().await?))
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

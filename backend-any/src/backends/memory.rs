//! `memory:`: one process, nothing stored. Every connection is a store of its own.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident, LockDao};
use lockcore_memory::MemoryLockDao;

use super::Settings;
use crate::{ConfigError, ConnectError};

pub(super) const EXAMPLE: &str = "memory:";

/// `shards`: see [`MemoryLockDao::with_shards`].
pub(super) const OPTIONS: &[&str] = &["shards"];

pub(super) fn capabilities() -> Capabilities {
    MemoryLockDao::<String>::new().capabilities()
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let path = settings.url.path()?;
    if !path.is_empty() {
        let expected = "nothing may stand behind memory: but options".to_owned();
        return Err(ConfigError::Value { field: "url".to_owned(), value: format!("{path:?}"), expected }.into());
    }
    let mut dao = MemoryLockDao::<I, C>::new();
    if let Some(shards) = settings.options.read("shards", at_least_one)? {
        dao = dao.with_shards(shards);
    }
    Ok(AnyLockDao::new(dao))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it must be a whole number of at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

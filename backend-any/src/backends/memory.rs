//! `memory:`: one process, nothing stored. Every connection is a store of its own.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident, LockDao};
use lockcore_memory::MemoryLockDao;

use super::Settings;
use crate::{ConfigError, ConnectError};

pub(super) const EXAMPLE: &str = "memory:";

pub(super) const OPTIONS: &[&str] = &[];

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
    Ok(AnyLockDao::new(MemoryLockDao::<I, C>::new()))
}

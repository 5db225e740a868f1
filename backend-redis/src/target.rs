//! Which server or servers a URL names.

use lockcore::BackendError;

use crate::config::Settings;

/// Which server or servers.
#[derive(Clone)]
pub(crate) struct Target;

impl Target {
    pub(crate) fn read(_settings: &Settings) -> Result<Self, BackendError> {
        Ok(Target)
    }
}

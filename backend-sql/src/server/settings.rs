//! Settings that all database servers have.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind, backend::StoreVersion};

use super::ServerError;

/// The settings of every server backend; the builders have methods for them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Keeps applications and tenants in one database apart.
    pub(crate) namespace: String,
    /// The prefix of the names of all tables and routines.
    pub(crate) prefix: String,
    /// The most connections that each tokio runtime may have, apart from the one that listens.
    pub(crate) max_connections: usize,
    /// The time that an operation may take in all, with connecting and retrying.
    pub(crate) timeout: Duration,
    /// Create or migrate the schema on connecting.
    pub(crate) migrate: bool,
    /// Keep a connection on which this process is notified.
    pub(crate) listen: bool,
    /// Create nothing, and do not listen: for looking at what is there.
    pub(crate) administration: bool,
    /// The version of this program.
    pub(crate) program: StoreVersion,
}

impl Settings {
    /// Returns the defaults.
    pub(crate) fn new(program: StoreVersion) -> Self {
        Settings {
            namespace: "default".to_owned(),
            prefix: "lockcore_".to_owned(),
            max_connections: 10,
            timeout: Duration::from_secs(5),
            migrate: true,
            listen: true,
            administration: false,
            program,
        }
    }

    /// Reports whether to create or migrate the schema on connecting.
    pub(crate) fn migrates(&self) -> bool {
        self.migrate && !self.administration
    }

    /// Reports whether to listen.
    pub(crate) fn listens(&self) -> bool {
        self.listen && !self.administration
    }

    /// Checks what does not depend on the database.
    pub(crate) fn check(&self, backend: &'static str) -> Result<(), ServerError> {
        let refuse = |key, value: &str, expected| {
            let value = value.chars().take(64).collect();
            Err(ServerError::Setting { backend, key, value, expected })
        };
        if self.namespace.is_empty() || self.namespace.len() > 255 {
            return refuse("namespace", &self.namespace, "it must have 1 to 255 bytes");
        }
        check_name(backend, "table_prefix", &self.prefix)?;
        if !(1..=1000).contains(&self.max_connections) {
            return refuse("max_connections", &self.max_connections.to_string(), "it must be 1 to 1000");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&self.timeout) {
            return refuse("timeout", &format!("{:?}", self.timeout), "it must be 10 ms to 1 h");
        }
        Ok(())
    }
}

/// Returns the time after which the server is to give up what this process gives up after `timeout`: a little before
/// that, so that the connection is kept, and it is known that nothing was done.
pub(crate) fn in_server(timeout: Duration) -> Duration {
    timeout * 9 / 10
}

/// Checks a name in the database that the user chooses: any text, for it is quoted. It is at most 40 bytes long: 63 bytes of
/// Postgres less the longest name of ours.
pub(crate) fn check_name(backend: &'static str, key: &'static str, value: &str) -> Result<(), ServerError> {
    if value.is_empty() || value.len() > 40 || value.contains('\0') {
        let value = value.chars().take(64).collect();
        let expected = "it must have 1 to 40 bytes, and no NUL";
        return Err(ServerError::Setting { backend, key, value, expected });
    }
    Ok(())
}

/// Returns whether a URL names a user.
pub(crate) fn names_user(url: &str) -> bool {
    let (_, behind) = url.split_once("://").unwrap_or_default();
    let (place, options) = behind.split_once('?').unwrap_or((behind, ""));
    let authority = place.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    !user.is_empty() && !user.starts_with(':') || options.split('&').any(|option| option.starts_with("user="))
}

/// Adds to a refusal which user was tried, where the settings name none.
pub(crate) fn tried(user: Option<&str>, error: BackendError) -> BackendError {
    let Some(user) = user.filter(|_| error.kind() == BackendErrorKind::Denied) else { return error };
    let message = format!("{error}; the URL names no user, so that {user:?} was tried");
    BackendError::new(error.kind(), message).with_source(error)
}

/// The host of a URL as it is dialled: the brackets around an address of IPv6 are the URL's.
pub(crate) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

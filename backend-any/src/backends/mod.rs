//! The backends that are compiled in: one file each, a line in the list below, the feature in the condition and the message above it, and in
//! `schemes.rs` its name, and which of its options and URLs name files or have secrets.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};

use crate::{
    BackendUrl, ConfigError, ConnectError,
    option::{OptionValue, Options},
    schemes::{BACKENDS, WITHHELD, backend_of},
    url::NAMESPACE,
};

#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
mod driver;

/// The settings that a backend is opened with.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: BackendUrl,
    /// The backend's own options, and the namespace.
    pub(crate) options: Options,
}

/// Generates all that dispatches on the backend. The file of a backend has `OPTIONS` (their names), `EXAMPLE` (a URL),
/// `capabilities()` and `open(Settings)`.
macro_rules! backends {
    ($($backend:ident $feature:literal;)*) => {
        $(#[cfg(feature = $feature)] mod $backend;)*

        /// Returns the backends of this build.
        pub(crate) fn compiled_in() -> Vec<&'static str> {
            vec![$(#[cfg(feature = $feature)] stringify!($backend),)*]
        }

        /// Returns the names of a backend's own options, if it is compiled in.
        pub(crate) fn options_of(scheme: &str) -> Option<&'static [&'static str]> {
            match backend_of(scheme) {
                $(#[cfg(feature = $feature)] stringify!($backend) => Some($backend::OPTIONS),)*
                _ => None,
            }
        }

        /// Returns each backend of this build with an example of its URL.
        pub(crate) fn capabilities() -> Vec<(&'static str, Capabilities)> {
            vec![$(#[cfg(feature = $feature)] ($backend::EXAMPLE, $backend::capabilities()),)*]
        }

        async fn open_compiled_in<I: Ident, C: ContextId>(
            settings: Settings,
        ) -> Option<Result<AnyLockDao<I, C>, ConnectError>> {
            match backend_of(settings.url.scheme()) {
                $(#[cfg(feature = $feature)] stringify!($backend) => Some($backend::open(settings).await),)*
                _ => None,
            }
        }
    };
}

#[cfg(not(any(
    feature = "memory",
    feature = "sqlite",
    feature = "dynamodb",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "s3",
    feature = "share"
)))]
compile_error!(
    "lockcore-any needs at least one backend: enable one of its cargo features memory, sqlite, dynamodb, etcd, mysql, postgres, redis, s3, share"
);

backends! {
    memory "memory";
    sqlite "sqlite";
    dynamodb "dynamodb";
    etcd "etcd";
    mysql "mysql";
    postgres "postgres";
    redis "redis";
    s3 "s3";
    share "share";
}

/// Opens the backend that the settings name.
pub(crate) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    check_known(&settings)?;
    let scheme = settings.url.scheme().to_owned();
    match open_compiled_in(settings).await {
        Some(opened) => opened,
        None => Err(missing(scheme).into()),
    }
}

/// Refuses a backend that is not compiled in, and every option that it does not know.
fn check_known(settings: &Settings) -> Result<(), ConfigError> {
    let scheme = settings.url.scheme();
    if WITHHELD.strip_suffix(':') == Some(scheme) {
        let reason = "the --url of the lockctl around this program has a secret, which is not handed on: give the URL here too, \
                      or there in LOCKCORE_URL and not by --url";
        return Err(ConfigError::Url { place: "LOCKCORE_URL".to_owned(), reason });
    }
    let Some(own) = options_of(scheme) else { return Err(missing(scheme.to_owned())) };
    let known: Vec<_> = own.iter().copied().chain([NAMESPACE]).collect();
    settings.options.check_known(&known)
}

/// Sets whether the store and its schema may be created or migrated on connecting, whatever the options say.
pub(crate) fn set_creation(settings: &mut Settings, allowed: bool) -> Result<(), ConfigError> {
    check_known(settings)?;
    let own = options_of(settings.url.scheme()).unwrap_or_default();
    let (migrate, mode) = if allowed { ("true", "rwc") } else { ("false", "rw") };
    for (key, value) in [("migrate", migrate), ("mode", mode)] {
        if own.contains(&key) {
            settings.options.insert(key.to_owned(), OptionValue::new(key, key.to_owned(), value.to_owned()));
        }
    }
    Ok(())
}

/// Returns the schema of the backend that the settings name, for another tool to create.
pub(crate) fn schema(settings: &Settings, language: &str) -> Result<String, ConnectError> {
    check_known(settings)?;
    let languages: &[&str] = match backend_of(settings.url.scheme()) {
        #[cfg(feature = "dynamodb")]
        "dynamodb" => {
            if let Some(schema) = dynamodb::schema(settings, language)? {
                return Ok(schema);
            }
            dynamodb::SCHEMAS
        }
        #[cfg(feature = "mysql")]
        "mysql" => {
            if language == "sql" {
                return Ok(mysql::schema(settings)?);
            }
            &["sql"]
        }
        #[cfg(feature = "postgres")]
        "postgres" => {
            if language == "sql" {
                return Ok(postgres::schema(settings)?);
            }
            &["sql"]
        }
        #[cfg(feature = "s3")]
        "s3" => {
            if let Some(policy) = s3::schema(settings, language)? {
                return Ok(policy);
            }
            s3::SCHEMAS
        }
        _ => &[],
    };
    let expected = match languages {
        [] => "this backend has none: `migrate` creates what it needs".to_owned(),
        known => format!("it must be one of {}", known.join(", ")),
    };
    let (field, value) = ("the language of the schema".to_owned(), format!("{language:?}"));
    Err(ConfigError::Value { field, value, expected }.into())
}

/// Explains why there is no backend for a scheme.
fn missing(scheme: String) -> ConfigError {
    let known = compiled_in();
    if let Some(feature) = BACKENDS.into_iter().find(|backend| *backend == backend_of(&scheme)) {
        return ConfigError::NotCompiledIn { scheme, feature, known };
    }
    ConfigError::UnknownScheme { scheme, known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_of_this_build_has_a_scheme() {
        let compiled_in = compiled_in();
        assert!(compiled_in.iter().all(|backend| BACKENDS.contains(backend)), "{compiled_in:?}");
    }
}

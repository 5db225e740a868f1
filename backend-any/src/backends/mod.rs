//! The backends that are compiled in: one file each, and one line in the list below.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};

use crate::{
    BackendUrl, ConfigError, ConnectError,
    option::{OptionValue, Options},
    url::NAMESPACE,
};

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod driver;

/// What a backend is opened with.
pub(crate) struct Settings {
    pub(crate) url: BackendUrl,
    /// Its own options, all of them known to it, and the namespace.
    pub(crate) options: Options,
}

/// Writes everything that goes through the list of backends. The file of a backend has `OPTIONS` (their
/// names), `EXAMPLE` (a URL), `capabilities()` and `open(Settings)`.
macro_rules! backends {
    ($($backend:ident $feature:literal;)*) => {
        $(#[cfg(feature = $feature)] mod $backend;)*

        /// The schemes of this version and the features that bring them.
        const FEATURES: &[(&str, &str)] = &[$((stringify!($backend), $feature),)*];

        /// The schemes of this build.
        pub(crate) fn compiled_in() -> Vec<&'static str> {
            vec![$(#[cfg(feature = $feature)] stringify!($backend),)*]
        }

        /// The options of a backend of this build, its namespace among them.
        pub(crate) fn options_of(scheme: &str) -> Option<&'static [&'static str]> {
            match backend_of(scheme) {
                $(#[cfg(feature = $feature)] stringify!($backend) => Some($backend::OPTIONS),)*
                _ => None,
            }
        }

        /// Each backend of this build with a URL of it.
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
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
)))]
compile_error!(
    "lockcore-any needs at least one backend: enable one of its cargo features memory, sqlite, dynamodb, mysql, postgres, redis"
);

backends! {
    memory "memory";
    sqlite "sqlite";
    dynamodb "dynamodb";
    mysql "mysql";
    postgres "postgres";
    redis "redis";
}

/// Schemes that mean a backend of another name.
const ALIASES: &[(&str, &str)] = &[
    ("mariadb", "mysql"),
    ("postgresql", "postgres"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
    ("redis+cluster", "redis"),
    ("rediss+cluster", "redis"),
];

/// The options, of whatever backend, that name files.
pub(crate) const FILES: &[&str] = &[
    "client_certificate",
    "client_key",
    "root_certificate",
    "socket",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "sslcert",
    "sslkey",
    "sslrootcert",
];

/// Whether the URLs of a scheme name a file.
pub(crate) fn is_file(scheme: &str) -> bool {
    scheme == "sqlite"
}

/// Every scheme that means something, compiled in or not.
pub(crate) fn all_schemes() -> impl Iterator<Item = &'static str> {
    FEATURES.iter().map(|(scheme, _)| *scheme)
}

/// The backend that a scheme means: its name is also that of its table in the file.
pub(crate) fn backend_of(scheme: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == scheme).map_or(scheme, |(_, backend)| backend)
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
    let Some(own) = options_of(scheme) else { return Err(missing(scheme.to_owned())) };
    let known: Vec<_> = own.iter().copied().chain([NAMESPACE]).collect();
    settings.options.check_known(&known)
}

/// Says whether the store and its schema may be created or migrated on connecting, whatever the options say of it.
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

/// What creates the schema of the backend that the settings name, for another tool to read.
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
        _ => &[],
    };
    let expected = match languages {
        [] => "none of this backend is printed: `migrate` makes what it needs".to_owned(),
        known => format!("it must be one of {}", known.join(", ")),
    };
    let (field, value) = ("the language of the schema".to_owned(), format!("{language:?}"));
    Err(ConfigError::Value { field, value, expected }.into())
}

/// Why there is no backend for a scheme.
fn missing(scheme: String) -> ConfigError {
    let known = compiled_in();
    if let Some((_, feature)) = FEATURES.iter().find(|(named, _)| *named == backend_of(&scheme)) {
        return ConfigError::NotCompiledIn { scheme, feature, known };
    }
    ConfigError::UnknownScheme { scheme, known }
}

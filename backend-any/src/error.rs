//! Errors of a configuration, which name the place and the value, and of connecting.

use std::{fmt, io, path::PathBuf};

use lockcore::{BackendError, BadRequest};

/// An error in a configuration. Shows no secret of a URL or an option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No URL anywhere.
    #[error(
        "url: not given; set it in lockcore.toml, in LOCKCORE_URL, or in code, such as sqlite:/var/lib/locks.db"
    )]
    NoUrl,
    /// A URL that cannot be taken apart. It is not shown, as it may hold a password.
    #[error("{place}: {reason}")]
    Url {
        /// The place of the URL.
        place: String,
        /// The fault of it.
        reason: &'static str,
    },
    /// A URL scheme that no backend has.
    #[error("url: unknown scheme {scheme:?}; this build has {}", List(.known))]
    UnknownScheme {
        /// The scheme.
        scheme: String,
        /// The schemes of this build.
        known: Vec<&'static str>,
    },
    /// The scheme of a backend that was left out when the program was built.
    #[error("url: scheme {scheme:?} needs the cargo feature {feature:?} of lockcore-any, which is not compiled in; this build has {}", List(.known))]
    NotCompiledIn {
        /// The scheme.
        scheme: String,
        /// The feature that brings it.
        feature: &'static str,
        /// The schemes of this build.
        known: Vec<&'static str>,
    },
    /// An unknown key or option.
    #[error("{place}: unknown key {key:?}; known are {}", List(.known))]
    UnknownKey {
        /// The place of the key.
        place: String,
        /// The key.
        key: String,
        /// The known keys.
        known: Vec<&'static str>,
    },
    /// A value that is not possible.
    #[error("{field}: {value} is not possible, {expected}")]
    Value {
        /// The field and its place.
        field: String,
        /// The quoted value, or a placeholder if the option is secret.
        value: String,
        /// The possible values.
        expected: String,
    },
    /// A file that is not TOML.
    #[error("{file}: line {line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line in it.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// A file that cannot be read.
    #[error("{}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A file that was not named but found, and that another user may have written.
    #[error("{}: not used, {reason}; name it in LOCKCORE_CONFIG if it is meant", file.display())]
    Untrusted {
        /// The file.
        file: PathBuf,
        /// The reason why it is not trusted.
        reason: String,
    },
    /// An environment variable that looks like one of lockcore's, but is none.
    #[error("{name}: unknown variable; the nearest known one is {nearest}")]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The known variable that may be meant.
        nearest: String,
    },
}

/// The reason why there is no backend or no service.
/// ```
/// use lockcore_any::ConnectError;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// match lockcore_any::connect("postgers://localhost/app").await {
///     Ok(_) => unreachable!(),
///     Err(ConnectError::Config(error)) => println!("wrong in the configuration: {error}"),
///     Err(ConnectError::Backend(error)) if error.is_retryable() => println!("not there yet: {error}"),
///     Err(other) => println!("{other}"),
/// }
/// # assert!(matches!(lockcore_any::connect("postgers://localhost/app").await, Err(ConnectError::Config(_))));
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A default of the service is not possible on this backend.
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Words separated by commas.
struct List<'a>(&'a [&'static str]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0.join(", ").fmt(f)
    }
}

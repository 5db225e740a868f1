//! Options of one backend, from the URL's query or from the backend's table in the file.

use std::{borrow::Cow, collections::BTreeMap, fmt, num::NonZeroUsize, path::Path};

use secrecy::{ExposeSecret, SecretString};

use crate::{
    ConfigError,
    schemes::{BACKENDS, FILE_OPTIONS, backend_of},
};

/// Shown in place of a secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// Returns whether a value with this name may be a secret: rather too many than one too few.
pub(crate) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token", "key", "cred", "auth", "url"].iter().any(|word| key.contains(word))
}

/// The value of an option, and its place.
#[derive(Clone)]
pub(crate) struct OptionValue {
    /// Such as `sqlite.synchronous in lockcore.toml`.
    pub(crate) field: String,
    text: SecretString,
    secret: bool,
}

impl OptionValue {
    pub(crate) fn new(key: &str, field: String, text: String) -> Self {
        OptionValue { field, text: text.into(), secret: is_secret(key) }
    }

    /// Returns the value, including a secret.
    pub(crate) fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    /// Returns the value as it may be shown.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        if self.secret { REDACTED.into() } else { self.expose().into() }
    }

    /// Makes a relative path of a file a path under `folder`, if the option `key` is one.
    pub(crate) fn move_under(&mut self, key: &str, folder: &Path) {
        let path = Path::new(self.text.expose_secret());
        // The drivers take PEM text in place of the path of a certificate.
        let is_path = FILE_OPTIONS.contains(&key) && !self.expose().starts_with("-----");
        // A word of libpq, and no file.
        let is_path = is_path && (key, self.expose()) != ("sslrootcert", "system");
        if is_path && path.is_relative() {
            self.text = folder.join(path).to_string_lossy().into_owned().into();
        }
    }

    fn refuse(&self, expected: String) -> ConfigError {
        let value = if self.secret { REDACTED.to_owned() } else { format!("{:?}", self.expose()) };
        ConfigError::Value { field: self.field.clone(), value, expected }
    }
}

impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown(), f)
    }
}

/// The backends' own options, as their tables in the file give them.
#[derive(Clone, Default, Debug)]
pub struct BackendOptions(BTreeMap<String, Options>);

impl BackendOptions {
    /// Sets an option of the backend with this scheme. Connecting fails if there is no such backend or option.
    #[must_use]
    pub fn with(mut self, scheme: &str, key: &str, value: impl Into<String>) -> Self {
        let value = OptionValue::new(key, format!("{scheme}.{key}"), value.into());
        self.0.entry(backend_of(scheme).to_owned()).or_default().insert(key.to_owned(), value);
        self
    }

    pub(crate) fn set(&mut self, scheme: String, options: Options) {
        self.0.insert(scheme, options);
    }

    /// Returns the options with relative paths of files as paths under `folder`.
    pub(crate) fn under(mut self, folder: &Path) -> Self {
        for options in self.0.values_mut() {
            options.0.iter_mut().for_each(|(key, value)| value.move_under(key, folder));
        }
        self
    }

    /// Refuses options of unknown backends.
    pub(crate) fn check_backends(&self) -> Result<(), ConfigError> {
        match self.0.keys().find(|name| !BACKENDS.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(ConfigError::UnknownKey {
                place: "options".to_owned(),
                key: name.clone(),
                known: BACKENDS.to_vec(),
            }),
        }
    }

    pub(crate) fn of(&self, scheme: &str) -> Options {
        self.0.get(scheme).cloned().unwrap_or_default()
    }

    /// Returns these options, overridden by `other`'s.
    pub(crate) fn overridden_by(mut self, other: BackendOptions) -> Self {
        for (scheme, over) in other.0 {
            let below = self.0.remove(&scheme).unwrap_or_default();
            self.0.insert(scheme, below.overridden_by(over));
        }
        self
    }
}

/// The options of one backend by name.
#[derive(Clone, Default, Debug)]
pub(crate) struct Options(BTreeMap<String, OptionValue>);

impl Options {
    pub(crate) fn insert(&mut self, key: String, value: OptionValue) {
        self.0.insert(key, value);
    }

    /// Returns these options, overridden by `other`'s.
    pub(crate) fn overridden_by(mut self, other: Options) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Refuses every option that is not one of `known`.
    pub(crate) fn check_known(&self, known: &[&'static str]) -> Result<(), ConfigError> {
        match self.0.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, value)) => Err(ConfigError::UnknownKey {
                place: value.field.clone(),
                key: key.clone(),
                known: known.to_vec(),
            }),
        }
    }

    /// Reads the option by `read`, which returns what it expects if it refuses the text.
    pub(crate) fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let read = |value: &OptionValue| read(value.expose()).map_err(|expected| value.refuse(expected));
        self.0.get(key).map(read).transpose()
    }
}

/// A backend's builder, and the options that are passed to it.
pub(crate) struct Fill<'o, B> {
    pub(crate) builder: B,
    options: &'o Options,
}

impl Options {
    /// Begins to pass the options to a builder.
    pub(crate) fn fill<B>(&self, builder: B) -> Fill<'_, B> {
        Fill { builder, options: self }
    }
}

impl<B> Fill<'_, B> {
    /// Passes one option, read by `read`, to the builder if it is set.
    pub(crate) fn with<T>(
        mut self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
        set: impl FnOnce(B, T) -> B,
    ) -> Result<Self, ConfigError> {
        if let Some(value) = self.options.read(key, read)? {
            self.builder = set(self.builder, value);
        }
        Ok(self)
    }
}

/// A type that an option can be read as, whatever it is for.
pub(crate) trait Plain: Sized {
    /// Parses the text, or returns what is expected.
    fn plain(text: &str) -> Result<Self, String>;
}

/// Checked by the builder or the driver.
impl Plain for String {
    fn plain(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

macro_rules! plain {
    ($($type:ty: $expected:literal;)*) => {
        $(impl Plain for $type {
            fn plain(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| $expected.to_owned())
            }
        })*
    };
}

plain! {
    bool: "it must be true or false";
    u32: "it must be a whole number";
    usize: "it must be a whole number";
    NonZeroUsize: "it must be a whole number of at least 1";
}

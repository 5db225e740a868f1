//! Options of one backend, from the URL's query or from the backend's table in the file.

use std::{borrow::Cow, collections::BTreeMap, fmt, num::NonZeroUsize, path::Path};

use secrecy::{ExposeSecret, SecretString};

use crate::{ConfigError, backends};

/// What an option whose name says so is shown as.
const REDACTED: &str = "[redacted]";

/// Whether a value under this name is not to be shown. Rather too many than one too few.
pub(crate) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token", "key", "cred", "auth", "url"].iter().any(|word| key.contains(word))
}

/// One value and where it stands.
#[derive(Clone)]
pub(crate) struct OptionValue {
    /// Such as `sqlite.shards in lockcore.toml`.
    pub(crate) field: String,
    text: SecretString,
    secret: bool,
}

impl OptionValue {
    pub(crate) fn new(key: &str, field: String, text: String) -> Self {
        OptionValue { field, text: text.into(), secret: is_secret(key) }
    }

    /// The value, also a secret one.
    pub(crate) fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    /// The value as it may be shown.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        if self.secret { REDACTED.into() } else { self.expose().into() }
    }

    /// Makes a relative path of a file a path under `folder`, if the option `key` is one.
    pub(crate) fn move_under(&mut self, key: &str, folder: &Path) {
        let path = Path::new(self.text.expose_secret());
        // The drivers take PEM text in place of the path of a certificate.
        let is_path = backends::FILES.contains(&key) && !self.expose().starts_with("-----");
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
    /// Sets an option of the backend with this scheme. Whether there is such a backend, and whether it knows the option,
    /// shows on connecting.
    #[must_use]
    pub fn with(mut self, scheme: &str, key: &str, value: impl Into<String>) -> Self {
        let value = OptionValue::new(key, format!("{scheme}.{key}"), value.into());
        self.0.entry(backends::backend_of(scheme).to_owned()).or_default().insert(key.to_owned(), value);
        self
    }

    pub(crate) fn set(&mut self, scheme: String, options: Options) {
        self.0.insert(scheme, options);
    }

    /// The same with relative paths of files as paths under `folder`.
    pub(crate) fn under(mut self, folder: &Path) -> Self {
        for options in self.0.values_mut() {
            options.0.iter_mut().for_each(|(key, value)| value.move_under(key, folder));
        }
        self
    }

    /// Refuses options of a backend that there is not.
    pub(crate) fn check_backends(&self) -> Result<(), ConfigError> {
        match self.0.keys().find(|name| backends::all_schemes().all(|scheme| scheme != name.as_str())) {
            None => Ok(()),
            Some(name) => Err(ConfigError::UnknownKey {
                place: "options".to_owned(),
                key: name.clone(),
                known: backends::all_schemes().collect(),
            }),
        }
    }

    pub(crate) fn of(&self, scheme: &str) -> Options {
        self.0.get(scheme).cloned().unwrap_or_default()
    }

    /// These options, and over them `other`'s.
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

    /// These options, and over them `other`'s.
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

    /// The option read by `read`, which says what it expects of a text that it cannot take.
    pub(crate) fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let read = |value: &OptionValue| read(value.expose()).map_err(|expected| value.refuse(expected));
        self.0.get(key).map(read).transpose()
    }
}

/// A backend's builder that is being told the options.
pub(crate) struct Fill<'o, B> {
    pub(crate) builder: B,
    options: &'o Options,
}

impl Options {
    /// Begins telling a builder the options.
    pub(crate) fn fill<B>(&self, builder: B) -> Fill<'_, B> {
        Fill { builder, options: self }
    }
}

impl<B> Fill<'_, B> {
    /// Tells the builder one option, read by `read`, if it is there.
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

/// What an option can be read as without knowing more of it.
pub(crate) trait Plain: Sized {
    /// Reads it, or says what is expected.
    fn plain(text: &str) -> Result<Self, String>;
}

/// What the builder, or the driver, checks itself.
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

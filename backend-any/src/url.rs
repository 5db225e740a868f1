//! The URL that names a backend: taken apart by hand, shown without its secrets.

use std::{fmt, path::Path, str::FromStr};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de};

use crate::{
    ConfigError,
    option::{OptionValue, Options, REDACTED},
    schemes::{has_credentials, is_file},
    text::trimmed,
};

/// A backend's URL: `scheme:rest?option=value&...`, such as `sqlite:/var/lib/locks.db?busy_timeout=5s`.
///
/// Not every one is a URL to the letter (`sqlite::memory:`), so that it is split by hand. Parts are
/// percent-decoded; a `+` is a plus. `Debug` and `Display` show neither a password nor an option whose
/// name sounds like a secret.
#[derive(Clone)]
pub struct BackendUrl {
    whole: SecretString,
    shown: String,
    scheme: String,
    options: Vec<(String, OptionValue)>,
}

impl BackendUrl {
    /// Returns its scheme, which names the backend.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the whole URL, including secrets, for a driver that parses it itself.
    pub fn expose(&self) -> &str {
        self.whole.expose_secret()
    }

    /// Returns the part between the scheme and the options, decoded, without the `//` before a path; for backends without user and
    /// password.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if it has a password, or is not UTF-8 when decoded.
    pub fn path(&self) -> Result<String, ConfigError> {
        let (_, rest) = self.expose().split_once(':').expect("checked when it was read");
        let (path, _) = split_options(rest);
        if without_password(path) != path {
            return Err(url_error("url", "this backend has no password; an @ in a path must be written %40"));
        }
        decode(path.strip_prefix("//").unwrap_or(path)).map_err(|reason| url_error("url", reason))
    }

    /// Returns the URL with relative paths resolved against the current folder, as a process in another folder needs it.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if there is no current folder whose name is UTF-8.
    pub fn in_current_folder(&self) -> Result<Self, ConfigError> {
        let folder = std::env::current_dir();
        self.under(&folder.map_err(|_| url_error("url", "a relative path needs a current folder"))?)
    }

    /// Returns whether it has a password, or an option whose name sounds like a secret.
    pub fn has_secret(&self) -> bool {
        self.shown.contains(REDACTED)
    }

    /// Returns the URL with relative paths, of the database or of options, resolved against `folder`.
    pub(crate) fn under(&self, folder: &Path) -> Result<Self, ConfigError> {
        let mut url = self.clone();
        if is_file(&self.scheme) {
            // A path that cannot be read is refused on connecting.
            let path = self.path().ok().filter(|path| !path.is_empty() && path != IN_MEMORY);
            if let Some(path) = path.filter(|path| Path::new(path).is_relative()) {
                let Some(folder) = folder.to_str() else {
                    return Err(url_error("url", "a relative path needs a folder whose name is UTF-8"));
                };
                let path = Path::new(folder).join(path);
                let encoded = utf8_percent_encode(path.to_str().unwrap_or_default(), SPECIAL);
                let query = self.expose().split_once('?').map(|(_, query)| format!("?{query}"));
                url = BackendUrl::read(
                    &format!("{}:{encoded}{}", self.scheme, query.unwrap_or_default()),
                    "url",
                )?;
            }
        }
        for (key, value) in &mut url.options {
            value.move_under(key, folder);
        }
        Ok(url)
    }

    /// Its options.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default();
        for (key, value) in &self.options {
            options.insert(key.clone(), value.clone());
        }
        options
    }

    /// Removes the one option that is not the backend's.
    pub(crate) fn take_namespace(&mut self) -> Option<OptionValue> {
        let position = self.options.iter().position(|(key, _)| key == NAMESPACE)?;
        Some(self.options.remove(position).1)
    }

    /// Parses a URL from `place`, which the error names.
    pub(crate) fn read(text: &str, place: &str) -> Result<Self, ConfigError> {
        let refuse = |reason| url_error(place, reason);
        let text = trimmed(text).map_err(refuse)?;
        let (scheme, rest) = text.split_once(':').ok_or_else(|| refuse(NO_SCHEME))?;
        let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) || !scheme.bytes().all(word) {
            return Err(refuse(NO_SCHEME));
        }
        let (before, query) = split_options(rest);
        if query.is_some_and(|query| query.contains('@')) {
            // Part of a password with a bare `?` would be taken for an option, and shown.
            return Err(refuse("a ? in a password must be written %3F, an @ in an option %40"));
        }
        let scheme = scheme.to_ascii_lowercase();
        if has_credentials(&scheme) {
            check_credentials(before).map_err(refuse)?;
        }
        let mut shown = format!("{scheme}:{}", without_password(before));
        let mut options: Vec<(String, OptionValue)> = Vec::new();
        for pair in query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| refuse("an option without a value"))?;
            let (key, value) = (decode(key).map_err(refuse)?, decode(value).map_err(refuse)?);
            if options.iter().any(|(earlier, _)| *earlier == key) {
                return Err(refuse("an option is given twice"));
            }
            let value = OptionValue::new(&key, format!("{} in the {place}", key.escape_debug()), value);
            shown.push(if options.is_empty() { '?' } else { '&' });
            shown.push_str(&format!("{}={}", key.escape_debug(), value.shown().escape_debug()));
            options.push((key, value));
        }
        Ok(BackendUrl { whole: text.into(), shown, scheme, options })
    }
}

/// The path that names no file.
pub(crate) const IN_MEMORY: &str = ":memory:";

/// Characters that would end a path or have another meaning in it.
const SPECIAL: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'@');

/// The option that every backend's URL may have.
pub(crate) const NAMESPACE: &str = "namespace";

const NO_SCHEME: &str = "must begin with a scheme, such as sqlite:/var/lib/locks.db";

impl FromStr for BackendUrl {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        BackendUrl::read(text, "url")
    }
}

impl<'de> Deserialize<'de> for BackendUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

fn split_options(rest: &str) -> (&str, Option<&str>) {
    match rest.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (rest, None),
    }
}

/// Redacts what is between the first `:` and the last `@`: a password may contain an `@`, a `/` or a `:` although it should not.
fn without_password(before: &str) -> String {
    let user_at = if before.starts_with("//") { 2 } else { 0 };
    match before.rfind('@') {
        Some(at) if at >= user_at => match before[user_at..at].find(':') {
            Some(colon) => format!("{}:{REDACTED}{}", &before[..user_at + colon], &before[at..]),
            None => before.to_owned(),
        },
        _ => before.to_owned(),
    }
}

/// Refuses characters of a user or password that a driver takes for the end of it: it would dial a part of the password.
fn check_credentials(before: &str) -> Result<(), &'static str> {
    let authority = before.strip_prefix("//").unwrap_or(before);
    let Some((credentials, _)) = authority.rsplit_once('@') else { return Ok(()) };
    let bytes = credentials.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
        return Err(match byte {
            b'/' => "a / in a user or password must be written %2F",
            b'#' => "a # in a user or password must be written %23",
            b'@' => "an @ in a user or password must be written %40",
            b'[' => "a [ in a user or password must be written %5B",
            b']' => "a ] in a user or password must be written %5D",
            b'\\' => "a \\ in a user or password must be written %5C",
            b' ' => "a blank in a user or password must be written %20",
            b'%' if !(hex(at + 1) && hex(at + 2)) => "a % in a user or password must be written %25",
            _ => continue,
        });
    }
    Ok(())
}

fn decode(text: &str) -> Result<String, &'static str> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "is not UTF-8 when percent-decoded")?;
    Ok(decoded.into_owned())
}

fn url_error(place: &str, reason: &'static str) -> ConfigError {
    ConfigError::Url { place: place.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> BackendUrl {
        text.parse().expect("a good URL")
    }

    #[test]
    fn it_is_split_at_the_first_colon_and_question_mark_and_decoded() {
        for (text, path) in [
            ("sqlite:locks.db", "locks.db"),
            ("sqlite::memory:", ":memory:"),
            ("sqlite:/var/lib/locks.db?mode=rw", "/var/lib/locks.db"),
            ("sqlite:///var/lib/locks.db", "/var/lib/locks.db"),
            ("SQLITE://locks.db", "locks.db"),
            ("sqlite:a%20b%3Fc+d#e.db", "a b?c+d#e.db"),
            ("memory:", ""),
        ] {
            assert_eq!(url(text).path().expect("UTF-8"), path, "{text}");
        }
        assert_eq!(url("SQLITE:x").scheme(), "sqlite");
        assert_eq!(url("sqlite:locks.db\r\n").expose(), "sqlite:locks.db", "no second store");
        let mut with_options = url("sqlite:x?busy_timeout=5s&namespace=a%26b&");
        let timeout = with_options.options().read("busy_timeout", |text| Ok(text.to_owned()));
        assert_eq!(timeout.expect("any text will do").as_deref(), Some("5s"));
        assert_eq!(with_options.take_namespace().as_ref().map(OptionValue::expose), Some("a&b"));
        assert!(with_options.take_namespace().is_none());
        assert_eq!(with_options.to_string(), "sqlite:x?busy_timeout=5s&namespace=a&b");
    }

    #[test]
    fn what_cannot_be_split_is_refused_without_showing_it() {
        for (text, message) in [
            ("hunter2", "url: must begin with a scheme, such as sqlite:/var/lib/locks.db"),
            ("", "url: must begin with a scheme, such as sqlite:/var/lib/locks.db"),
            ("//:hunter2@host", "url: must begin with a scheme, such as sqlite:/var/lib/locks.db"),
            ("redis://:a?hunter2@host", "url: a ? in a password must be written %3F, an @ in an option %40"),
            (
                "redis://user:p@ss?x=hunter2@host",
                "url: a ? in a password must be written %3F, an @ in an option %40",
            ),
            (
                "redis:user:a?x=hunter2@host",
                "url: a ? in a password must be written %3F, an @ in an option %40",
            ),
            (" redis://hunter2", "url: it must not begin or end with white space"),
            ("sqlite:/hunter2 ", "url: it must not begin or end with white space"),
            ("postgres://app:12/hunter2@host/app", "url: a / in a user or password must be written %2F"),
            ("mysql://app:12/hunter2@host/app", "url: a / in a user or password must be written %2F"),
            ("redis://app:12/hunter2@host/0", "url: a / in a user or password must be written %2F"),
            ("redis+cluster://a:hunter#2@host,host", "url: a # in a user or password must be written %23"),
            ("postgres://a:hunter@2@host", "url: an @ in a user or password must be written %40"),
            ("mysql://a:hunter[2@host", "url: a [ in a user or password must be written %5B"),
            ("postgres://a:hunter%2@host", "url: a % in a user or password must be written %25"),
            ("redis://host?hunter2", "url: an option without a value"),
            ("sqlite:x?a=1&a=2", "url: an option is given twice"),
            ("sqlite:x?a=%ff", "url: is not UTF-8 when percent-decoded"),
        ] {
            assert_eq!(BackendUrl::from_str(text).expect_err(text).to_string(), message);
        }
        let error = url("sqlite:%ff").path().expect_err("not UTF-8");
        assert_eq!(error.to_string(), "url: is not UTF-8 when percent-decoded");
        let error = url("sqlite://a:hunter2@b/c.db").path().expect_err("a password");
        assert_eq!(
            error.to_string(),
            "url: this backend has no password; an @ in a path must be written %40"
        );
    }

    #[test]
    fn a_relative_path_is_moved_under_a_folder_and_nothing_else_is() {
        let folder = Path::new("/srv/a?b@c%");
        for (text, path) in [
            ("sqlite:locks.db?mode=rw", "/srv/a?b@c%/locks.db"),
            ("sqlite:../x%3Fy", "/srv/a?b@c%/../x?y"),
            ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("share:team/locks", "/srv/a?b@c%/team/locks"),
            ("sqlite::memory:", ":memory:"),
            ("memory:", ""),
        ] {
            let moved = url(text).under(folder).expect("UTF-8");
            assert_eq!(moved.path().expect("UTF-8"), path, "{text}");
            assert_eq!(moved.options.len(), url(text).options.len(), "{text}");
        }
        let redis = url("redis://:hunter2@h?root_certificate=ca.pem&client_key=/k.pem&namespace=x");
        let moved = redis.under(folder).expect("UTF-8");
        let values: Vec<_> = moved.options.iter().map(|(_, value)| value.expose()).collect();
        assert_eq!(values, ["/srv/a?b@c%/ca.pem", "/k.pem", "x"]);
        assert_eq!(moved.expose(), redis.expose());
    }

    #[test]
    fn no_password_is_shown() {
        for (text, shown) in [
            ("redis://user:hunter2@host:1/0", "redis://user:[redacted]@host:1/0"),
            ("redis://:hunter2@host", "redis://:[redacted]@host"),
            ("redis://:hunter2%2Fhunter2%40hunter2@host", "redis://:[redacted]@host"),
            ("redis:user:hunter2@host", "redis:user:[redacted]@host"),
            ("postgres://host/db?password=hunter2&a=b", "postgres://host/db?password=[redacted]&a=b"),
            ("dynamodb:?Secret_Access_Key=hunter2", "dynamodb:?Secret_Access_Key=[redacted]"),
            ("redis://user@host", "redis://user@host"),
            ("etcds://user:hunter2@a:1,b/x", "etcds://user:[redacted]@a:1,b/x"),
            ("sqlite:/home/a@b/x.db", "sqlite:/home/a@b/x.db"),
        ] {
            let url = url(text);
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("{shown:?}"));
            assert_eq!(url.expose(), text);
        }
    }
}

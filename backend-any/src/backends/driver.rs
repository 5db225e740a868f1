//! URLs for drivers that read them themselves.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Settings;
use crate::{ConfigError, option::Plain};

/// A name in the database, as the builders take it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn name(text: &str) -> Result<String, String> {
    match (1..=40).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err("it must have 1 to 40 bytes, and no NUL".to_owned()),
    }
}

/// The URL, secrets included, with no options but those of `keys`, wherever they were set.
pub(super) fn url(settings: &Settings, keys: &[&str]) -> Result<String, ConfigError> {
    let Settings { url, options } = settings;
    let (place, _) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let mut url = place.to_owned();
    for key in keys {
        if let Some(value) = options.read(key, String::plain)? {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&format!("{key}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
        }
    }
    Ok(url)
}

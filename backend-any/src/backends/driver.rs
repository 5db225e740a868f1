//! Checks that several drivers have in common: of URLs that they read themselves, files of certificates, options that go together.

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

/// Returns whether routines of the server decide, as they do unless the options say otherwise.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn routines(settings: &Settings) -> Result<bool, ConfigError> {
    let read = |text: &str| match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("it must be yes or no".to_owned()),
    };
    Ok(settings.options.read("routines", read)?.unwrap_or(true))
}

/// Reads whether each statement is to be serializable.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn isolation(text: &str) -> Result<bool, String> {
    match text {
        "serializable" => Ok(true),
        "read-committed" => Ok(false),
        _ => Err("it must be read-committed or serializable".to_owned()),
    }
}

/// Checks that the URL names one host, where the driver knows no others.
///
/// # Errors
/// That it names several.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn one_host(settings: &Settings) -> Result<(), ConfigError> {
    let (place, _) = settings.url.expose().split_once('?').unwrap_or((settings.url.expose(), ""));
    let authority = place.split_once("//").map_or("", |(_, rest)| rest);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split('/').next().unwrap_or_default();
    let option = settings.options.read("host", String::plain)?.unwrap_or_default();
    if [host, &option].iter().any(|host| host.contains(',')) {
        let reason = "several hosts are not supported; name one that leads to the server that takes writes";
        return Err(ConfigError::Url { place: "url".to_owned(), reason });
    }
    Ok(())
}

/// Checks that options which name files name files that are there; the drivers take PEM text in their place.
///
/// # Errors
/// The first that is not.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn files(settings: &Settings, keys: &[&str]) -> Result<(), ConfigError> {
    for key in keys {
        settings.options.read(key, |path| match path.starts_with("-----") {
            true => Ok(()),
            false => std::fs::File::open(path)
                .map(drop)
                .map_err(|error| format!("it must be a file that can be read: {path}: {error}")),
        })?;
    }
    Ok(())
}

/// Reads the content of a file that an option names.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(super) fn file(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("it must be a file that can be read: {error}"))
}

/// Returns the values of two options that go together, if they are given.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(super) fn both<A, B>(
    [first, second]: [&str; 2],
    values: (Option<A>, Option<B>),
) -> Result<Option<(A, B)>, ConfigError> {
    let field = match values {
        (Some(a), Some(b)) => return Ok(Some((a, b))),
        (None, None) => return Ok(None),
        (Some(_), None) => first,
        (None, Some(_)) => second,
    };
    let expected = format!("{first} and {second} go together");
    Err(ConfigError::Value { field: field.to_owned(), value: "alone".to_owned(), expected })
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

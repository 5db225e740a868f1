//! `redis://`, over TLS `rediss://`, `redis+sentinel://HOST,HOST/MASTER`, `redis+cluster://HOST,HOST`, `redis+unix:///PATH`.

use std::fs;

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_redis::{CAPABILITIES, RedisLockDao};

use super::Settings;
use crate::{ConfigError, ConnectError, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "redis://127.0.0.1/";

/// See [`RedisBuilder`](lockcore_redis::RedisBuilder); certificates and the key are files. `db` is the database where the
/// URL has no place for it, behind the path of a socket.
pub(super) const OPTIONS: &[&str] = &[
    "client_certificate",
    "client_key",
    "connect_timeout",
    "db",
    "replicas",
    "replicas_within",
    "response_timeout",
    "root_certificate",
    "sentinel_password",
    "sentinel_user",
];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let (mut place, _) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let with_db;
    if let Some(db) = options.read("db", number)? {
        if !url.expose().to_ascii_lowercase().contains("unix:") {
            let expected = "it is for redis+unix; elsewhere the URL itself says it: redis://USER:PASSWORD@HOST/DB";
            let (field, value) = ("db".to_owned(), "an option".to_owned());
            return Err(ConfigError::Value { field, value, expected: expected.to_owned() }.into());
        }
        with_db = format!("{place}?db={db}");
        place = &with_db;
    }
    let mut builder = RedisLockDao::<I, C>::builder().url(place);
    if let Some(namespace) = options.read(NAMESPACE, any)? {
        builder = builder.namespace(namespace);
    }
    if let Some(timeout) = options.read("connect_timeout", parse_duration)? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = options.read("response_timeout", parse_duration)? {
        builder = builder.response_timeout(timeout);
    }
    match (options.read("replicas", number)?, options.read("replicas_within", parse_duration)?) {
        (Some(replicas), Some(within)) => builder = builder.replicas(replicas, within),
        (None, None) => {}
        (Some(_), None) => return Err(alone("replicas", "replicas and replicas_within")),
        (None, Some(_)) => return Err(alone("replicas_within", "replicas and replicas_within")),
    }
    if let Some(certificate) = options.read("root_certificate", file)? {
        builder = builder.root_certificate(certificate);
    }
    match (options.read("client_certificate", file)?, options.read("client_key", file)?) {
        (Some(certificate), Some(key)) => builder = builder.client_certificate(certificate, key),
        (None, None) => {}
        (Some(_), None) => return Err(alone("client_certificate", "client_certificate and client_key")),
        (None, Some(_)) => return Err(alone("client_key", "client_certificate and client_key")),
    }
    match (options.read("sentinel_user", any)?, options.read("sentinel_password", any)?) {
        (None, None) => {}
        (user, Some(password)) => builder = builder.sentinel_user(user.unwrap_or_default(), password),
        (Some(_), None) => return Err(alone("sentinel_user", "sentinel_user and sentinel_password")),
    }
    Ok(AnyLockDao::new(builder.open().await?))
}

/// What the builder checks itself.
fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "it must be a whole number".to_owned())
}

fn file(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("it must be a file that can be read: {error}"))
}

fn alone(field: &str, both: &str) -> ConnectError {
    let (value, expected) = ("alone".to_owned(), format!("{both} go together"));
    ConfigError::Value { field: field.to_owned(), value, expected }.into()
}

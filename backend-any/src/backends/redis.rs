//! `redis://`, over TLS `rediss://`, `redis+sentinel://HOST,HOST/MASTER`, `redis+cluster://HOST,HOST`, `redis+unix:///PATH`.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_redis::{CAPABILITIES, RedisBuilder, RedisLockDao, TlsVerify};

use super::{Settings, driver::{self, both, file}};
use crate::{ConfigError, ConnectError, option::Plain, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "redis://127.0.0.1/";

/// See [`RedisBuilder`]; certificates and the key are files. `db`, `user` and `pass` are for the path of a socket, behind which a
/// URL has no place for them.
pub(super) const OPTIONS: &[&str] = &[
    "client_certificate",
    "client_key",
    "connect_timeout",
    "db",
    "pass",
    "replicas",
    "replicas_within",
    "response_timeout",
    "root_certificate",
    "sentinel_password",
    "sentinel_user",
    "tls_verify",
    "user",
];

/// Those of them that belong to a socket.
const OF_A_SOCKET: &[&str] = &["db", "user", "pass"];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    // Only where the URL has no place for them; `db` is a number.
    settings.options.read("db", u32::plain)?;
    let is_socket = settings.url.scheme() == "redis+unix";
    for key in OF_A_SOCKET.iter().filter(|_| !is_socket) {
        if settings.options.read(key, String::plain)?.is_some() {
            let expected = "it is for redis+unix; elsewhere the URL itself says it: redis://USER:PASSWORD@HOST/DB";
            let (field, value) = ((*key).to_owned(), "an option".to_owned());
            return Err(ConfigError::Value { field, value, expected: expected.to_owned() }.into());
        }
    }
    let place = driver::url(&settings, OF_A_SOCKET)?;
    let options = &settings.options;
    let mut builder = options
        .fill(RedisLockDao::<I, C>::builder().url(place))
        .with(NAMESPACE, String::plain, RedisBuilder::namespace)?
        .with("connect_timeout", parse_duration, RedisBuilder::connect_timeout)?
        .with("response_timeout", parse_duration, RedisBuilder::response_timeout)?
        .with("root_certificate", file, RedisBuilder::root_certificate)?
        .with("tls_verify", tls_verify, RedisBuilder::tls_verify)?
        .builder;
    let replicas = (options.read("replicas", u32::plain)?, options.read("replicas_within", parse_duration)?);
    if let Some((replicas, within)) = both(["replicas", "replicas_within"], replicas)? {
        builder = builder.replicas(replicas, within);
    }
    let certificate = (options.read("client_certificate", file)?, options.read("client_key", file)?);
    if let Some((certificate, key)) = both(["client_certificate", "client_key"], certificate)? {
        builder = builder.client_certificate(certificate, key);
    }
    let password = options.read("sentinel_password", String::plain)?;
    // A password needs no name.
    let user = options.read("sentinel_user", String::plain)?.or(password.as_ref().map(|_| String::new()));
    if let Some((user, password)) = both(["sentinel_user", "sentinel_password"], (user, password))? {
        builder = builder.sentinel_user(user, password);
    }
    Ok(AnyLockDao::new(builder.open().await?))
}

fn tls_verify(text: &str) -> Result<TlsVerify, String> {
    match text {
        "full" => Ok(TlsVerify::Full),
        "ca" => Ok(TlsVerify::Ca),
        "none" => Ok(TlsVerify::None),
        _ => Err("it must be full, ca or none".to_owned()),
    }
}


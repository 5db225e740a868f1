//! `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX`, over TLS `etcds://`.

use std::fs;

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_etcd::{CAPABILITIES, EtcdBuilder, EtcdLockDao};

use super::{Settings, driver};
use crate::{ConfigError, ConnectError, option::Plain, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "etcd://127.0.0.1/locks";

/// See [`EtcdBuilder`]; certificates and the key are files.
pub(super) const OPTIONS: &[&str] =
    &["client_certificate", "client_key", "clock_difference", "request_timeout", "root_certificate", "timeout"];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let options = &settings.options;
    let mut builder = options
        .fill(EtcdLockDao::<I, C>::builder().url(driver::url(&settings, &[])?))
        .with(NAMESPACE, String::plain, EtcdBuilder::namespace)?
        .with("timeout", parse_duration, EtcdBuilder::timeout)?
        .with("request_timeout", parse_duration, EtcdBuilder::request_timeout)?
        .with("clock_difference", parse_duration, EtcdBuilder::clock_difference)?
        .with("root_certificate", file, EtcdBuilder::root_certificate)?
        .builder;
    builder = match (options.read("client_certificate", file)?, options.read("client_key", file)?) {
        (Some(certificate), Some(key)) => builder.client_certificate(certificate, key),
        (None, None) => builder,
        (Some(_), None) => return Err(alone("client_certificate")),
        (None, Some(_)) => return Err(alone("client_key")),
    };
    Ok(AnyLockDao::new(builder.open().await?))
}

fn file(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("it must be a file that can be read: {error}"))
}

fn alone(field: &str) -> ConnectError {
    let expected = "client_certificate and client_key go together".to_owned();
    ConfigError::Value { field: field.to_owned(), value: "alone".to_owned(), expected }.into()
}

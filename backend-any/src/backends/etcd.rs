//! `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX`, over TLS `etcds://`.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_etcd::{CAPABILITIES, EtcdBuilder, EtcdLockDao};

use super::{Settings, driver::{self, both, file}};
use crate::{ConnectError, option::Plain, parse_duration, url::NAMESPACE};

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
    let certificate = (options.read("client_certificate", file)?, options.read("client_key", file)?);
    if let Some((certificate, key)) = both(["client_certificate", "client_key"], certificate)? {
        builder = builder.client_certificate(certificate, key);
    }
    Ok(AnyLockDao::new(builder.open().await?))
}

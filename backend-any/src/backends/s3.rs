//! `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, with `?endpoint=http://127.0.0.1:4566` for an
//! emulator; `memory-object:NAME` for tests, one store for all connections of a process that name it. Region, account and
//! credentials come from the usual variables, or the instance, unless options say otherwise.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_object::{CAPABILITIES, ObjectBuilder, ObjectLockDao};

use super::Settings;
use crate::{ConnectError, option::Plain, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "s3://bucket/locks";

/// See [`ObjectBuilder`].
pub(super) const OPTIONS: &[&str] = &[
    "access_key_id",
    "account_key",
    "account_name",
    "endpoint",
    "region",
    "request_timeout",
    "secret_access_key",
    "service_account",
    "session_token",
    "timeout",
];

/// The options of the services' client, which has them by the same names.
const OF_SERVICE: [&str; 7] = [
    "access_key_id",
    "account_key",
    "account_name",
    "region",
    "secret_access_key",
    "service_account",
    "session_token",
];

/// The languages in which the rights that programs need can be written down.
pub(super) const SCHEMAS: &[&str] = &["iam"];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    Ok(AnyLockDao::new(builder::<I, C>(&settings)?.open().await?))
}

/// The policy with the rights that programs need.
pub(super) fn schema(settings: &Settings, language: &str) -> Result<Option<String>, ConnectError> {
    let builder = builder::<String, uuid::Uuid>(settings)?;
    Ok(if language == "iam" { Some(builder.iam_policy()?) } else { None })
}

fn builder<I: Ident, C: ContextId>(settings: &Settings) -> Result<ObjectBuilder<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let path = url.path()?;
    let (bucket, prefix) = path.split_once('/').unwrap_or((&path, ""));
    let builder = ObjectLockDao::<I, C>::builder();
    let mut builder = match url.scheme() {
        "gs" => builder.gcs(bucket),
        "az" => builder.azure(bucket),
        "memory-object" => builder.in_memory(bucket),
        _ => builder.s3(bucket),
    };
    if !prefix.is_empty() {
        builder = builder.prefix(prefix.trim_end_matches('/'));
    }
    for option in OF_SERVICE {
        if let Some(value) = options.read(option, String::plain)? {
            builder = builder.option(option, value);
        }
    }
    let builder = options
        .fill(builder)
        .with(NAMESPACE, String::plain, ObjectBuilder::namespace)?
        .with("endpoint", String::plain, ObjectBuilder::endpoint)?
        .with("timeout", parse_duration, ObjectBuilder::timeout)?
        .with("request_timeout", parse_duration, ObjectBuilder::request_timeout)?
        .builder;
    Ok(builder)
}

//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, also as `postgresql://`.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_sql::{PostgresLockDao, postgres};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Settings;
use crate::{ConfigError, ConnectError, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "postgres://localhost/app";

/// See [`PostgresBuilder`](lockcore_sql::PostgresBuilder); the last ones are the driver's own, as libpq has them.
pub(super) const OPTIONS: &[&str] = &[
    "commit",
    "listen",
    "listen_url",
    "max_connections",
    "migrate",
    "prepared",
    "schema",
    "table_prefix",
    "timeout",
    "application_name",
    "host",
    "options",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
];

/// Those of them that go to the driver.
const OF_THE_DRIVER: &[&str] =
    &["application_name", "host", "options", "port", "sslcert", "sslkey", "sslmode", "sslrootcert"];

pub(super) fn capabilities() -> Capabilities {
    postgres::capabilities()
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let (place, _) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let mut driver = place.to_owned();
    for key in OF_THE_DRIVER {
        if let Some(value) = options.read(key, any)? {
            driver.push(if driver.contains('?') { '&' } else { '?' });
            driver.push_str(&format!("{key}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
        }
    }
    let mut builder = PostgresLockDao::<I, C>::builder().url(driver);
    if let Some(namespace) = options.read(NAMESPACE, any)? {
        builder = builder.namespace(namespace);
    }
    if let Some(schema) = options.read("schema", any)? {
        builder = builder.schema(schema);
    }
    if let Some(prefix) = options.read("table_prefix", any)? {
        builder = builder.table_prefix(prefix);
    }
    if let Some(max) = options.read("max_connections", number)? {
        builder = builder.max_connections(max);
    }
    if let Some(timeout) = options.read("timeout", parse_duration)? {
        builder = builder.timeout(timeout);
    }
    if let Some(migrate) = options.read("migrate", truth)? {
        builder = builder.migrate(migrate);
    }
    if let Some(listen) = options.read("listen", truth)? {
        builder = builder.listen(listen);
    }
    if let Some(listen_url) = options.read("listen_url", any)? {
        builder = builder.listen_url(listen_url);
    }
    if let Some(prepared) = options.read("prepared", truth)? {
        builder = builder.prepared(prepared);
    }
    if let Some(commit) = options.read("commit", commit)? {
        builder = builder.commit(commit);
    }
    Ok(AnyLockDao::new(builder.connect().await?))
}

/// The schema as SQL, for the names that the settings give.
pub(super) fn schema(settings: &Settings) -> Result<String, ConfigError> {
    let schema = settings.options.read("schema", any)?.unwrap_or_else(|| "public".to_owned());
    let prefix = settings.options.read("table_prefix", any)?.unwrap_or_else(|| "lockcore_".to_owned());
    Ok(postgres::schema_sql(&schema, &prefix))
}

/// What the builder, or the driver, checks itself.
fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a whole number".to_owned())
}

fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "it must be true or false".to_owned())
}

fn commit(text: &str) -> Result<postgres::Commit, String> {
    match text {
        "durable" => Ok(postgres::Commit::Durable),
        "release-async" => Ok(postgres::Commit::ReleaseAsync),
        "async" => Ok(postgres::Commit::Async),
        _ => Err("it must be durable, release-async or async".to_owned()),
    }
}

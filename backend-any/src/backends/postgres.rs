//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, also as `postgresql://`.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_sql::{PostgresBuilder, PostgresLockDao, postgres};

use super::{Settings, driver};
use crate::{
    ConfigError, ConnectError,
    option::Plain,
    parse_duration,
    url::NAMESPACE,
};

pub(super) const EXAMPLE: &str = "postgres://localhost/app";

/// See [`PostgresBuilder`]; the last ones are the driver's own, as libpq has them.
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
    let driver = driver::url(&settings, OF_THE_DRIVER)?;
    let builder = settings
        .options
        .fill(PostgresLockDao::<I, C>::builder().url(driver))
        .with(NAMESPACE, String::plain, PostgresBuilder::namespace)?
        .with("schema", driver::name, PostgresBuilder::schema)?
        .with("table_prefix", driver::name, PostgresBuilder::table_prefix)?
        .with("max_connections", usize::plain, PostgresBuilder::max_connections)?
        .with("timeout", parse_duration, PostgresBuilder::timeout)?
        .with("migrate", bool::plain, PostgresBuilder::migrate)?
        .with("listen", bool::plain, PostgresBuilder::listen)?
        .with("listen_url", String::plain, PostgresBuilder::listen_url)?
        .with("prepared", bool::plain, PostgresBuilder::prepared)?
        .with("commit", commit, PostgresBuilder::commit)?
        .builder;
    Ok(AnyLockDao::new(builder.open().await?))
}

/// The schema as SQL, for the names that the settings give.
pub(super) fn schema(settings: &Settings) -> Result<String, ConfigError> {
    let schema = settings.options.read("schema", driver::name)?.unwrap_or_else(|| "public".to_owned());
    let prefix = settings.options.read("table_prefix", driver::name)?.unwrap_or_else(|| "lockcore_".to_owned());
    Ok(postgres::schema_sql(&schema, &prefix))
}

fn commit(text: &str) -> Result<postgres::Commit, String> {
    match text {
        "durable" => Ok(postgres::Commit::Durable),
        "release-async" => Ok(postgres::Commit::ReleaseAsync),
        "async" => Ok(postgres::Commit::Async),
        _ => Err("it must be durable, release-async or async".to_owned()),
    }
}

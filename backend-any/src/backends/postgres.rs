//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, also as `postgresql://`.

use lockcore::{AnyLockDao, ContextId, Ident};
pub(super) use lockcore_sql::postgres::capabilities;
use lockcore_sql::{PostgresBuilder, PostgresLockDao, postgres};

use super::{Settings, driver};
use crate::{
    ConfigError, ConnectError,
    option::Plain,
    parse_duration,
    url::NAMESPACE,
};

pub(super) const EXAMPLE: &str = "postgres://localhost/app";

/// See [`PostgresBuilder`]; those behind `timeout` are libpq's, which URLs of providers and other programs have. Some of these change
/// nothing here, whatever they say: `channel_binding`, `connect_timeout` (see [`PostgresBuilder::timeout`]), `keepalives`,
/// `tcp_user_timeout`.
pub(super) const OPTIONS: &[&str] = &[
    "clock_difference",
    "commit",
    "isolation",
    "listen",
    "listen_url",
    "max_connections",
    "migrate",
    "prepared",
    "routines",
    "schema",
    "table_prefix",
    "timeout",
    "application_name",
    "channel_binding",
    "connect_timeout",
    "gssencmode",
    "host",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "options",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
];

/// Those of them that go to the driver.
const OF_THE_DRIVER: &[&str] =
    &["application_name", "host", "options", "port", "sslcert", "sslkey", "sslmode", "sslrootcert"];

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    driver::one_host(&settings)?;
    settings.options.read("gssencmode", gssencmode)?;
    settings.options.read("target_session_attrs", target_session_attrs)?;
    // The word of libpq for the roots of the system, which are the default.
    let roots = settings.options.read("sslrootcert", String::plain)?.filter(|file| file != "system");
    let of_the_driver: Vec<&str> =
        OF_THE_DRIVER.iter().copied().filter(|key| *key != "sslrootcert" || roots.is_some()).collect();
    driver::files(&settings, &["sslcert", "sslkey"])?;
    if roots.is_some() {
        driver::files(&settings, &["sslrootcert"])?;
    }
    let driver = driver::url(&settings, &of_the_driver)?;
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
        .with("clock_difference", parse_duration, PostgresBuilder::clock_difference)?
        .with("isolation", driver::isolation, PostgresBuilder::serializable)?
        .builder;
    Ok(match driver::routines(&settings)? {
        true => AnyLockDao::new(builder.open().await?),
        false => AnyLockDao::new(builder.open_without_routines().await?),
    })
}

/// The schema as SQL, for the names that the settings give.
pub(super) fn schema(settings: &Settings) -> Result<String, ConfigError> {
    let schema = settings.options.read("schema", driver::name)?.unwrap_or_else(|| "public".to_owned());
    let prefix = settings.options.read("table_prefix", driver::name)?.unwrap_or_else(|| "lockcore_".to_owned());
    Ok(match driver::routines(settings)? {
        true => postgres::schema_sql(&schema, &prefix),
        false => postgres::statements_schema_sql(&schema, &prefix),
    })
}

/// Without Kerberos nothing is encrypted by it.
fn gssencmode(text: &str) -> Result<(), String> {
    match text {
        "disable" | "prefer" => Ok(()),
        _ => Err("it must be disable or prefer; encryption by Kerberos is not supported".to_owned()),
    }
}

/// Locks are written: what asks for less cannot be meant.
fn target_session_attrs(text: &str) -> Result<(), String> {
    match text {
        "any" | "read-write" | "primary" => Ok(()),
        _ => Err("it must be any, read-write or primary; locks are written".to_owned()),
    }
}

fn commit(text: &str) -> Result<postgres::Commit, String> {
    match text {
        "durable" => Ok(postgres::Commit::Durable),
        "release-async" => Ok(postgres::Commit::ReleaseAsync),
        "async" => Ok(postgres::Commit::Async),
        _ => Err("it must be durable, release-async or async".to_owned()),
    }
}

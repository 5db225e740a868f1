//! `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, also as `mariadb://`.

use lockcore::{AnyLockDao, ContextId, Ident};
pub(super) use lockcore_sql::mysql::capabilities;
use lockcore_sql::{MysqlBuilder, MysqlLockDao, mysql};

use super::{Settings, driver};
use crate::{
    ConfigError, ConnectError,
    option::Plain,
    parse_duration,
    url::NAMESPACE,
};

pub(super) const EXAMPLE: &str = "mysql://localhost/app";

/// See [`MysqlBuilder`]; the last ones are the driver's own.
pub(super) const OPTIONS: &[&str] = &[
    "clock_difference",
    "isolation",
    "listen",
    "max_connections",
    "migrate",
    "routines",
    "table_prefix",
    "timeout",
    "socket",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
];

/// Those of them that go to the driver.
const OF_THE_DRIVER: &[&str] = &["socket", "ssl-ca", "ssl-cert", "ssl-key", "ssl-mode"];

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    driver::one_host(&settings)?;
    driver::files(&settings, &["ssl-ca", "ssl-cert", "ssl-key"])?;
    let driver = driver::url(&settings, OF_THE_DRIVER)?;
    let builder = settings
        .options
        .fill(MysqlLockDao::<I, C>::builder().url(driver))
        .with(NAMESPACE, String::plain, MysqlBuilder::namespace)?
        .with("table_prefix", driver::name, MysqlBuilder::table_prefix)?
        .with("max_connections", usize::plain, MysqlBuilder::max_connections)?
        .with("timeout", parse_duration, MysqlBuilder::timeout)?
        .with("migrate", bool::plain, MysqlBuilder::migrate)?
        .with("listen", bool::plain, MysqlBuilder::listen)?
        .with("clock_difference", parse_duration, MysqlBuilder::clock_difference)?
        .with("isolation", driver::isolation, MysqlBuilder::serializable)?
        .builder;
    Ok(match driver::routines(&settings)? {
        true => AnyLockDao::new(builder.open().await?),
        false => AnyLockDao::new(builder.open_without_routines().await?),
    })
}

/// The schema as SQL for the command line client of the server that the scheme names, under the prefix that the settings
/// give.
pub(super) fn schema(settings: &Settings) -> Result<String, ConfigError> {
    let prefix = settings.options.read("table_prefix", driver::name)?.unwrap_or_else(|| "lockcore_".to_owned());
    if !driver::routines(settings)? {
        return Ok(mysql::statements_schema_sql(&prefix));
    }
    let flavor = match settings.url.scheme() {
        "mariadb" => mysql::Flavor::MariaDb,
        _ => mysql::Flavor::MySql,
    };
    Ok(mysql::schema_sql(&prefix, flavor))
}

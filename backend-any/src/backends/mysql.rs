//! `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, also as `mariadb://`.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_sql::{MysqlLockDao, mysql};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Settings;
use crate::{ConfigError, ConnectError, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "mysql://localhost/app";

/// See [`MysqlBuilder`](lockcore_sql::MysqlBuilder); the last ones are the driver's own.
pub(super) const OPTIONS: &[&str] = &[
    "listen",
    "max_connections",
    "migrate",
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

pub(super) fn capabilities() -> Capabilities {
    mysql::capabilities()
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
    let mut builder = MysqlLockDao::<I, C>::builder().url(driver);
    if let Some(namespace) = options.read(NAMESPACE, any)? {
        builder = builder.namespace(namespace);
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
    Ok(AnyLockDao::new(builder.connect().await?))
}

/// The schema as SQL for the command line client of the server that the scheme names, under the prefix that the settings
/// give.
pub(super) fn schema(settings: &Settings) -> Result<String, ConfigError> {
    let prefix = settings.options.read("table_prefix", any)?.unwrap_or_else(|| "lockcore_".to_owned());
    let flavor = match settings.url.scheme() {
        "mariadb" => mysql::Flavor::MariaDb,
        _ => mysql::Flavor::MySql,
    };
    Ok(mysql::schema_sql(&prefix, flavor))
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

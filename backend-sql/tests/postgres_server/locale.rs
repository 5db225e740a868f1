//! Ids are their bytes and in the order of their bytes, whatever the locale and the encoding of the database are.

use std::sync::Arc;

use lockcore_conformance::{
    Backend, Store, all,
    servers::{self, Kind, Trial},
};
use lockcore_sql::PostgresLockDao;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::{place::Error, test};

/// How a database is made in which texts are not in the order of their bytes, or not in UTF-8. (One whose texts are equal
/// though their bytes differ is not to be had.)
const LOCALES: [(&str, &str); 2] = [
    ("turkish", "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'tr-u-kn-ks-level1' LOCALE 'C'"),
    ("latin1", "ENCODING 'LATIN1' LOCALE 'C'"),
];

pub(crate) fn tests() -> Vec<Trial> {
    let checks = LOCALES.into_iter().flat_map(|(name, options)| {
        let ids = all::<Database>().into_iter().filter(|check| check.name.starts_with("ids::"));
        ids.map(move |check| {
            test(&format!("locale::{name}::{}", check.name), move || async move {
                let backend = Database::make(options).await?;
                (check.run)(Store::new(Arc::new(backend)).await).await;
                Ok(())
            })
        })
    });
    checks.collect()
}

struct Database {
    url: String,
}

impl Database {
    async fn make(options: &str) -> Result<Self, Error> {
        let server = servers::shared(Kind::Postgres).await?;
        let name = format!("t{}", Uuid::new_v4().simple());
        let mut sql = PgConnection::connect(&server.url()).await?;
        let make = format!("CREATE DATABASE {name} TEMPLATE template0 {options}");
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut sql).await?;
        let url = server.url();
        let (before, _) = url.rsplit_once('/').ok_or("a URL with a database")?;
        Ok(Database { url: format!("{before}/{name}") })
    }
}

impl Backend for Database {
    type Dao = PostgresLockDao<String, Uuid>;
    type Guard = String;

    async fn build(&self) -> (String, Self::Dao) {
        let namespace = Uuid::new_v4().to_string();
        let dao = self.reopen(&namespace).await.expect("it opens");
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &String) -> Option<Self::Dao> {
        let builder =
            PostgresLockDao::builder().url(&*self.url).timeout(servers::ANSWERS).namespace(namespace);
        Some(builder.max_connections(2).open().await.expect("the server answers"))
    }
}

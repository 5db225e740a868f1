//! Ids are their bytes whatever the collation of the database is: the suite's checks of ids in databases that fold case and
//! accents, and ignore blanks at the end.

use std::{sync::Arc, time::Duration};

use lockcore::{
    ClaimSet, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::{
    Backend, Store, all,
    servers::{self, Kind, TestResult, Trial, trial},
};
use lockcore_sql::MysqlLockDao;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use uuid::Uuid;

const OF_BOTH: &[&str] =
    &["utf8mb4_general_ci", "utf8mb4_turkish_ci", "utf8mb4_bin", "latin1_swedish_ci", "ucs2_general_ci"];

pub(crate) fn trials() -> Vec<Trial> {
    let mysql = OF_BOTH.iter().chain(&["utf8mb4_0900_ai_ci", "utf8mb4_ja_0900_as_cs"]);
    let mariadb = OF_BOTH.iter().chain(&["utf8mb4_nopad_bin", "utf8mb4_uca1400_ai_ci"]);
    let mysql = mysql.flat_map(|collation| tests(Kind::MySql, collation));
    let mariadb = mariadb.flat_map(|collation| tests(Kind::MariaDb, collation));
    mysql.chain(mariadb).collect()
}

fn tests(kind: Kind, collation: &'static str) -> impl Iterator<Item = Trial> {
    let ids = all::<Database>().into_iter().filter(|check| check.name.starts_with("ids::"));
    let ids = ids.map(move |check| {
        trial(kind, &format!("collations::{collation}::{}", check.name), move || async move {
            let backend = Database { url: make(kind, collation).await? };
            (check.run)(Store::new(Arc::new(backend)).await).await;
            Ok(())
        })
    });
    let namespaces = format!("collations::{collation}::namespaces_are_their_bytes");
    ids.chain([trial(kind, &namespaces, move || namespaces_are_their_bytes(kind, collation))])
}

/// The URL of a new database, whose texts are compared in that way unless they say otherwise.
async fn make(kind: Kind, collation: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let url = servers::shared(kind).await?.url();
    let mut conn = MySqlConnection::connect(&url).await?;
    let name = format!("t{}", Uuid::new_v4().simple());
    let charset = collation.split('_').next().expect("it begins with the character set");
    let create = format!("CREATE DATABASE {name} CHARACTER SET {charset} COLLATE {collation}");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut conn).await?;
    let (server, _) = url.rsplit_once('/').ok_or("the URL names a database")?;
    Ok(format!("{server}/{name}"))
}

struct Database {
    url: String,
}

impl Database {
    async fn open(&self, namespace: &str) -> MysqlLockDao<String, Uuid> {
        let builder = MysqlLockDao::builder().url(&*self.url).timeout(servers::ANSWERS).namespace(namespace);
        builder.open().await.expect("the server answers")
    }
}

impl Backend for Database {
    type Dao = MysqlLockDao<String, Uuid>;
    type Guard = String;

    async fn build(&self) -> (String, Self::Dao) {
        let namespace = Uuid::new_v4().to_string();
        let dao = self.open(&namespace).await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &String) -> Option<Self::Dao> {
        Some(self.open(namespace).await)
    }
}

async fn namespaces_are_their_bytes(kind: Kind, collation: &str) -> TestResult {
    let database = Database { url: make(kind, collation).await? };
    let mut held = Vec::new();
    for namespace in ["n", "N", "n ", "\u{f1}", "n\0", "\u{1F512}", "\u{1F513}", "i", "I", "\u{131}"] {
        let dao = database.open(namespace).await;
        let request = AcquireRequest {
            context: Uuid::new_v4(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(["a"], Mode::Exclusive)?,
            lease: Some(Duration::from_secs(600)),
            owner: "".into(),
            queue: false,
            nested: false,
            detached: false,
        };
        let taken = dao.acquire(&request).await?;
        assert!(matches!(taken, Acquired::Granted(_)), "{namespace:?}: {taken:?}");
        held.push(dao);
    }
    Ok(())
}

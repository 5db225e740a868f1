//! A database of a test's own on a shared server, and what tests do there.

use std::{sync::Arc, time::Duration};

use lockcore::{AcquireRequest, Acquired, AttemptId, ClaimSet, Grant, Ids, LockDao, Mode, Wake, Wakeup};
use lockcore_conformance::servers::{self, Kind, Server};
use lockcore_sql::{MysqlBuilder, MysqlLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use uuid::Uuid;

pub(crate) type Dao = MysqlLockDao<String, Uuid>;
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a test waits for what has to happen some time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A database that nobody else uses.
pub(crate) struct Place {
    pub(crate) server: Arc<Server>,
    pub(crate) database: String,
}

impl Place {
    pub(crate) async fn new(kind: Kind) -> Result<Self, Error> {
        let server = servers::shared(kind).await?;
        let database = format!("t{}", Uuid::new_v4().simple());
        let mut conn = MySqlConnection::connect(&server.url()).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}"))).execute(&mut conn).await?;
        Ok(Place { server, database })
    }

    /// The URL of the database.
    pub(crate) fn url(&self) -> String {
        let url = self.server.url();
        let (place, _) = url.rsplit_once('/').expect("the URL names a database");
        format!("{place}/{}", self.database)
    }

    pub(crate) fn builder(&self) -> MysqlBuilder<String, Uuid> {
        MysqlLockDao::builder().url(self.url()).timeout(servers::ANSWERS)
    }

    pub(crate) async fn open(&self) -> Result<Dao, Error> {
        Ok(self.builder().connect().await?)
    }

    /// A connection that knows nothing of locks.
    pub(crate) async fn sql(&self) -> Result<Sql, Error> {
        Ok(Sql(MySqlConnection::connect(&self.url()).await?))
    }
}

/// Plain SQL.
pub(crate) struct Sql(pub(crate) MySqlConnection);

impl Sql {
    pub(crate) async fn run(&mut self, sql: impl Into<String>) -> Result<u64, Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut self.0).await?.rows_affected())
    }

    pub(crate) async fn number(&mut self, sql: impl Into<String>) -> Result<i64, Error> {
        let sql = format!("SELECT CAST(({}) AS SIGNED)", sql.into());
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut self.0).await?.try_get(0)?)
    }

    /// Asks until the answer is `wanted`, and gives it.
    pub(crate) async fn until(&mut self, sql: &str, wanted: impl Fn(i64) -> bool) -> Result<i64, Error> {
        let until = async {
            loop {
                let answer = self.number(sql).await?;
                if wanted(answer) {
                    return Ok(answer);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await?
    }
}

/// A request of a fresh context for a minute.
pub(crate) fn request(ids: impl Ids<String>) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(ids, Mode::Exclusive).expect("valid claims"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

/// Takes what has to be free.
pub(crate) async fn take(dao: &Dao, ids: impl Ids<String>) -> Result<Grant<String, Uuid>, Error> {
    granted(dao, &request(ids)).await
}

pub(crate) async fn granted(
    dao: &Dao,
    request: &AcquireRequest<String, Uuid>,
) -> Result<Grant<String, Uuid>, Error> {
    match dao.acquire(request).await? {
        Acquired::Granted(granted) => {
            Ok(Grant::new(request.context, request.claims.clone(), granted, request.lease))
        }
        other => Err(format!("not granted: {other:?}").into()),
    }
}

/// Takes a place in the queue for what is held.
pub(crate) async fn queue(
    dao: &Dao,
    ids: impl Ids<String>,
) -> Result<(AcquireRequest<String, Uuid>, Wakeup), Error> {
    let request = AcquireRequest { queue: true, ..request(ids) };
    match dao.acquire(&request).await? {
        Acquired::Queued { wakeup, .. } => Ok((request, wakeup)),
        other => Err(format!("not queued: {other:?}").into()),
    }
}

/// Waits until the set is handed over, asking again when told to, and confirms it.
pub(crate) async fn handed(
    dao: &Dao,
    request: &AcquireRequest<String, Uuid>,
    mut wakeup: Wakeup,
) -> Result<Grant<String, Uuid>, Error> {
    let wait = async {
        loop {
            if let Wake::Offer(offer) = wakeup.recv().await {
                let grant = Grant::new(request.context, request.claims.clone(), offer.granted, request.lease);
                // On a busy machine it may be too late for that.
                if dao.renew(&grant).await?.lost.is_empty() {
                    return Ok(grant);
                }
            }
            match dao.acquire(request).await? {
                Acquired::Granted(granted) => {
                    return Ok(Grant::new(request.context, request.claims.clone(), granted, request.lease));
                }
                Acquired::Queued { wakeup: next, .. } => wakeup = next,
                Acquired::Refused(conflicts) => return Err(format!("refused: {conflicts:?}").into()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await?
}

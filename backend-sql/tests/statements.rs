//! Locks by plain statements, on each server: the checks of the adapter and of the DAO.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockcore::LockDao;
use lockcore_cell::Cell;
use lockcore_conformance::{
    Backend,
    cell::Adapter,
    instances::{SAMPLE, listed},
    servers::{ANSWERS, Kind, Server, Trial, cell_checks, checks, checks_of as checks_of_suite, shared},
};
use lockcore_sql::{
    MysqlBuilder, MysqlLockDao, PostgresBuilder, PostgresLockDao,
    mysql::{MysqlCells, MysqlStatementsLockDao},
    postgres::{PostgresCells, PostgresStatementsLockDao},
};
use uuid::Uuid;

/// The checks of the adapter and of the DAO, on each server.
pub(crate) fn checks_of(kind: Kind) -> Vec<Trial> {
    match kind {
        Kind::Postgres => of::<OfPostgres>("postgres-statements", kind, Flags::default()),
        Kind::MySql => of::<OfMysql>("mysql-statements", kind, Flags::default()),
        _ => of::<OfMysql>("mariadb-statements", kind, Flags::default()),
    }
}

/// The same with what engines that lack something need: all flags forced, and a part of the suite of the DAO.
pub(crate) fn trials() -> Vec<Trial> {
    let flags = Flags { all: true, ..Flags::default() };
    let spelt_out = Flags { spelt_out: true, ..Flags::default() };
    [
        with::<OfPostgres>("postgres-flags", Kind::Postgres, flags),
        with::<OfPostgres>("postgres-text", Kind::Postgres, spelt_out),
        with::<OfMysql>("mysql-flags", Kind::MySql, flags),
        with::<OfMysql>("mariadb-flags", Kind::MariaDb, flags),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn with<O: Opens>(name: &'static str, kind: Kind, flags: Flags) -> Vec<Trial> {
    let open = opening::<O>(kind, flags);
    let dao = checks_of_suite(name, |check| listed(SAMPLE, check), open.clone());
    cell_checks(name, open).chain(dao).collect()
}

/// The settings for engines that lack something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    /// Nothing listens, every statement is serializable, and the clocks of nodes differ.
    pub(crate) all: bool,
    /// Nothing is prepared, on Postgres.
    pub(crate) spelt_out: bool,
}

/// The difference of clocks that is forced.
pub(crate) const DIFFERENCE: Duration = Duration::from_millis(200);

/// How one of the two libraries opens a namespace.
pub(crate) trait Opens: Send + Sync + 'static {
    type Cell: Cell;
    type Dao: LockDao<String, Uuid> + fmt::Debug;

    fn cells(place: &Place) -> impl Future<Output = Self::Cell> + Send;
    fn dao(place: &Place, ahead: &Arc<AtomicU64>) -> impl Future<Output = Self::Dao> + Send;
}

/// A namespace of its own for each test.
pub(crate) struct Shared<O> {
    server: Arc<Server>,
    flags: Flags,
    opens: std::marker::PhantomData<O>,
}

/// A namespace.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) namespace: String,
    flags: Flags,
    /// The time by which its clock was set forward, in microseconds.
    ahead: Arc<AtomicU64>,
    _server: Arc<Server>,
}

impl Place {
    pub(crate) fn of(server: &Arc<Server>, flags: Flags) -> Self {
        let (url, namespace) = (server.url(), format!("cells {}", Uuid::new_v4()));
        Place { url, namespace, flags, ahead: Arc::default(), _server: server.clone() }
    }

    pub(crate) fn postgres(&self) -> PostgresBuilder<String, Uuid> {
        let builder = PostgresLockDao::builder().url(&*self.url).namespace(&*self.namespace);
        let builder = builder.timeout(ANSWERS).max_connections(4).prepared(!self.flags.spelt_out);
        match self.flags.all {
            true => builder.listen(false).serializable(true).clock_difference(DIFFERENCE),
            false => builder,
        }
    }

    pub(crate) fn mysql(&self) -> MysqlBuilder<String, Uuid> {
        let builder = MysqlLockDao::builder().url(&*self.url).namespace(&*self.namespace);
        let builder = builder.timeout(ANSWERS).max_connections(4);
        match self.flags.all {
            true => builder.listen(false).serializable(true).clock_difference(DIFFERENCE),
            false => builder,
        }
    }
}

/// Postgres.
pub(crate) struct OfPostgres;

impl Opens for OfPostgres {
    type Cell = PostgresCells;
    type Dao = PostgresStatementsLockDao<String, Uuid>;

    async fn cells(place: &Place) -> PostgresCells {
        place.postgres().cells().await.expect("the server answers")
    }

    async fn dao(place: &Place, ahead: &Arc<AtomicU64>) -> Self::Dao {
        place.postgres().ahead(ahead.clone()).open_without_routines().await.expect("the server answers")
    }
}

/// MySQL and MariaDB.
pub(crate) struct OfMysql;

impl Opens for OfMysql {
    type Cell = MysqlCells;
    type Dao = MysqlStatementsLockDao<String, Uuid>;

    async fn cells(place: &Place) -> MysqlCells {
        place.mysql().cells().await.expect("the server answers")
    }

    async fn dao(place: &Place, ahead: &Arc<AtomicU64>) -> Self::Dao {
        place.mysql().ahead(ahead.clone()).open_without_routines().await.expect("the server answers")
    }
}

impl<O: Opens> Adapter for Shared<O> {
    type Cell = O::Cell;
    type Place = Place;

    const MANY: usize = 1010;

    async fn place(&self) -> Place {
        Place::of(&self.server, self.flags)
    }

    async fn open(&self, place: &Place) -> O::Cell {
        O::cells(place).await
    }
}

impl<O: Opens> Backend for Shared<O> {
    type Dao = O::Dao;
    type Guard = Place;

    async fn build(&self) -> (Place, O::Dao) {
        let place = Place::of(&self.server, self.flags);
        let dao = O::dao(&place, &place.ahead).await;
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<O::Dao> {
        Some(O::dao(place, &place.ahead).await)
    }

    async fn reopen_ahead(&self, place: &Place, by: Duration) -> Option<O::Dao> {
        Some(O::dao(place, &Arc::new(AtomicU64::new(place.ahead.load(Relaxed) + micros(by)))).await)
    }

    async fn advance(&self, place: &Place, by: Duration) -> bool {
        place.ahead.fetch_add(micros(by), Relaxed);
        true
    }
}

/// Returns a duration in microseconds.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no test sets a clock so far")
}

type Opened<O> = Result<Shared<O>, Box<dyn std::error::Error + Send + Sync>>;

fn opening<O: Opens>(
    kind: Kind,
    flags: Flags,
) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = Opened<O>>>> + Clone + Send + 'static {
    move || {
        Box::pin(async move {
            let (server, opens) = (shared(kind).await?, std::marker::PhantomData);
            Ok(Shared::<O> { server, flags, opens })
        })
    }
}

/// The checks of the adapter and of the DAO, by the name of a row of the table of instances.
fn of<O: Opens>(name: &'static str, kind: Kind, flags: Flags) -> Vec<Trial> {
    let open = opening::<O>(kind, flags);
    cell_checks(name, open.clone()).chain(checks(name, open)).collect()
}

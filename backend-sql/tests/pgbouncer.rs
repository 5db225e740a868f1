//! Postgres behind a real `PgBouncer` that hands out another connection for each transaction.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, LockDao, LockError, LockingService, Page, Severity, Wait};
use lockcore_conformance::{
    PATIENCE, eventually,
    judge::BROKEN,
    judge::in_time,
    servers::{self, Kind, Mode, Pooler, Proxy, Server, TestResult, Trial, trial},
    store::id,
};
use lockcore_sql::{PostgresBuilder, PostgresLockDao};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row, postgres::PgConnectOptions};
use tokio::{task::JoinSet, time::timeout};
use uuid::Uuid;

use crate::steps;

type Dao = PostgresLockDao<String, Uuid>;
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Fewer than the clients need at once.
const CONNECTIONS: usize = 3;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(Kind::Postgres, "pgbouncer::with_locks_excludes", with_locks_excludes),
        trial(Kind::Postgres, "pgbouncer::a_lease_is_renewed", a_lease_is_renewed),
        trial(Kind::Postgres, "pgbouncer::waiters_are_notified_past_it", waiters_are_notified_past_it),
        trial(
            Kind::Postgres,
            "pgbouncer::waiters_poll_if_they_are_not_notified",
            waiters_poll_if_they_are_not_notified,
        ),
        trial(
            Kind::Postgres,
            "pgbouncer::listening_is_seldom_tried_where_it_cannot_work",
            listening_is_seldom_tried_where_it_cannot_work,
        ),
        trial(Kind::Postgres, "pgbouncer::two_round_trips", two_round_trips),
        trial(Kind::Postgres, "pgbouncer::the_doctor_notices_it", the_doctor_notices_it),
        trial(Kind::Postgres, "pgbouncer::prepared_statements_fail_safely", prepared_statements_fail_safely),
        trial(
            Kind::Postgres,
            "pgbouncer::no_setting_is_left_to_other_clients",
            no_setting_is_left_to_other_clients,
        ),
        trial(
            Kind::Postgres,
            "pgbouncer::the_server_gives_up_with_its_client",
            the_server_gives_up_with_its_client,
        ),
        trial(
            Kind::Postgres,
            "pgbouncer::a_role_with_another_isolation_level_is_refused_at_open",
            a_role_with_another_isolation_level_is_refused_at_open,
        ),
    ]
}

/// A namespace on the shared server, behind a pooler of its own.
struct Place {
    server: Arc<Server>,
    pooler: Pooler,
    namespace: String,
}

impl Place {
    async fn new() -> Result<Self, Error> {
        let server = servers::shared(Kind::Postgres).await?;
        let pooler = Pooler::start(&server, CONNECTIONS).await?;
        let place = Place { server, pooler, namespace: Uuid::new_v4().to_string() };
        // The schema is there for all that follows, whatever their way.
        place.directly().open().await?;
        Ok(place)
    }

    fn url(&self) -> String {
        self.server.url_through(self.pooler.address())
    }

    /// As the documentation says for such a pooler.
    fn builder(&self) -> PostgresBuilder<String, Uuid> {
        Dao::builder()
            .url(self.url())
            .namespace(&*self.namespace)
            .timeout(servers::ANSWERS)
            .prepared(false)
            .listen_url(self.server.url())
    }

    /// Past the pooler.
    fn directly(&self) -> PostgresBuilder<String, Uuid> {
        Dao::builder().url(self.server.url()).timeout(servers::ANSWERS).namespace(&*self.namespace)
    }

    async fn locks(&self) -> Result<LockingService<String, Uuid, Dao>, Error> {
        Ok(LockingService::new(self.builder().open().await?))
    }
}

/// Many clients of few connections: each set is one client's at a time, and nothing is left.
async fn with_locks_excludes() -> TestResult {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 10;
    let place = Place::new().await?;
    let inside = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (locks, inside) = (place.locks().await?, inside.clone());
        clients.spawn(async move {
            for _ in 0..ROUNDS {
                let other = format!("of {number}");
                let done =
                    locks.wait(Wait::up_to(PATIENCE)).run_locked(["hot", other.as_str()], async || {
                        assert!(inside.fetch_add(1, Ordering::SeqCst) == 0, "{BROKEN}two at a time");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                done.await.map_err(|error| format!("{error:?}"))?;
            }
            assert_eq!(locks.shutdown(PATIENCE).await, 0);
            Ok::<_, String>(())
        });
    }
    for ended in clients.join_all().await {
        ended?;
    }
    let seen = place.directly().open().await?.inspect(&id("hot")).await?;
    assert!(seen.holders.is_empty() && seen.waiters.is_empty(), "{seen:?}");
    Ok(())
}

async fn a_lease_is_renewed() -> TestResult {
    let place = Place::new().await?;
    let (locks, other) = (place.locks().await?, place.locks().await?);
    let lease = Duration::from_secs(2);
    let guard = locks.lease(lease).lock(["a", "b"]).await?;
    let begun = Instant::now();
    eventually("two leases have passed", || async {
        // Another asks all the time, through connections that the holder had before.
        let refused = other.with_locks(["b"], async || ()).await;
        assert!(matches!(refused, Err(lockcore::LockingError::NotLocked { .. })), "{refused:?}");
        (begun.elapsed() > lease * 2).then_some(())
    })
    .await;
    guard.held().check()?;
    guard.release().await?;
    other.with_locks(["a", "b"], async || ()).await?;
    Ok(())
}

/// With `listen_url` a hand-off arrives at once, a client that has had the connection since.
async fn waiters_are_notified_past_it() -> TestResult {
    let place = Place::new().await?;
    let (holder, waiter) = (place.locks().await?, place.locks().await?);
    assert!(waiter.dao().capabilities().push);
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        fastest = fastest.min(hand_over(&place, &holder, &waiter).await?);
    }
    // Looking would take 200 ms on average.
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
    Ok(())
}

/// A LISTEN through it works and delivers nothing: that is noticed, and all clients get a turn all the same.
async fn waiters_poll_if_they_are_not_notified() -> TestResult {
    let place = Place::new().await?;
    let polling = place.builder().listen_url(place.url()).open().await?;
    assert!(!polling.capabilities().push, "no notification passes through it");
    let waking = polling.doctor().await?.into_iter().find(|finding| finding.check == "waking");
    assert_eq!(waking.map(|finding| finding.severity), Some(Severity::Warning));
    let (holder, waiter) = (place.locks().await?, LockingService::new(polling));
    for _ in 0..3 {
        let took = hand_over(&place, &holder, &waiter).await?;
        in_time(took, Duration::from_secs(5));
    }
    Ok(())
}

/// Each try leaves its LISTEN for a while on a connection that other clients have next.
async fn listening_is_seldom_tried_where_it_cannot_work() -> TestResult {
    let place = Place::new().await?;
    let proxy = Proxy::start(place.pooler.address().to_string()).await?;
    let listens = place.server.url_through(proxy.address());
    let dao = place.builder().listen_url(listens).open().await?;
    assert!(!dao.capabilities().push, "no notification passes through it");
    // A try takes three seconds.
    let tried = proxy.counts().connections;
    let again = timeout(Duration::from_secs(8), proxy.counted(|counts| counts.connections > tried));
    assert!(again.await.is_err(), "{:?}", proxy.counts());
    Ok(())
}

/// How long it takes from a release until the next one is inside.
async fn hand_over(
    place: &Place,
    holder: &LockingService<String, Uuid, Dao>,
    waiter: &LockingService<String, Uuid, Dao>,
) -> Result<Duration, Error> {
    let guard = holder.lock(["a", "b"]).await?;
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.wait(Wait::forever()).run_locked(["b"], async || Instant::now()).await }
    });
    let direct = place.directly().listen(false).open().await?;
    eventually("it waits", || async {
        let seen = direct.inspect(&id("b")).await.ok()?;
        (seen.waiters.len() == 1).then_some(())
    })
    .await;
    let released = Instant::now();
    guard.release().await?;
    let at = timeout(PATIENCE, waiting).await??;
    Ok(at.map_err(|error| format!("{error:?}"))?.saturating_duration_since(released))
}

/// No ping, no prepare, no BEGIN, for any number of ids.
async fn two_round_trips() -> TestResult {
    let place = Place::new().await?;
    let each_way = Duration::from_millis(10);
    let proxy = Proxy::start(place.pooler.address().to_string()).await?;
    let dao = place.builder().url(place.server.url_through(proxy.address())).open().await?;
    let locks = LockingService::new(dao);
    locks.with_locks(["warm"], async || ()).await?;
    proxy.set(Mode::Delay { requests: each_way, replies: each_way }).await;
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("some/object/{number:03}")).collect();
        let mut requests = u64::MAX;
        for _ in 0..5 {
            let (before, begun) = (proxy.counts(), Instant::now());
            locks.with_locks(&ids, async || ()).await?;
            assert!(begun.elapsed() >= each_way * 4);
            requests = requests.min(proxy.counts().requests - before.requests);
        }
        assert_eq!(requests, 2, "{count} ids");
    }
    Ok(())
}

async fn the_doctor_notices_it() -> TestResult {
    let place = Place::new().await?;
    for (dao, severity, word) in [
        (place.builder().open().await?, Severity::Ok, "another connection"),
        (place.builder().prepared(true).migrate(false).open().await?, Severity::Error, "prepared=false"),
        (place.directly().open().await?, Severity::Ok, "none was noticed"),
    ] {
        // No other is there to take a connection.
        let findings = dao.doctor().await?;
        let pooler = findings.iter().find(|finding| finding.check == "pooler").ok_or("no such check")?;
        assert!(pooler.severity == severity && pooler.detail.contains(word), "{findings:?}");
    }
    Ok(())
}

/// Who leaves prepared statements on gets errors, not locks that no client knows of.
async fn prepared_statements_fail_safely() -> TestResult {
    let place = Place::new().await?;
    let inside = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..6 {
        let dao = place.builder().prepared(true).migrate(false).open().await?;
        let (locks, inside) = (LockingService::new(dao), inside.clone());
        clients.spawn(async move {
            let mut failed = 0;
            for _ in 0..10 {
                let done = locks.run_locked(["a", "b"], async || {
                    assert!(inside.fetch_add(1, Ordering::SeqCst) == 0, "{BROKEN}two at a time");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
                match timeout(PATIENCE, done).await.map_err(|_| "it does not end")? {
                    Ok(()) => {}
                    Err(LockError::NotLocked { .. } | LockError::Lost { .. }) => failed += 1,
                    Err(other) => return Err(format!("{other:?}")),
                }
            }
            let _ = locks.shutdown(PATIENCE).await;
            Ok(failed)
        });
    }
    for ended in clients.join_all().await {
        ended?;
    }
    let direct = place.directly().open().await?;
    eventually("nothing is left", || async {
        let holders =
            [direct.inspect(&id("a")).await.ok()?.holders, direct.inspect(&id("b")).await.ok()?.holders];
        holders.iter().all(Vec::is_empty).then_some(())
    })
    .await;
    Ok(())
}

/// Every setting of every connection to the server that the pooler has, as its next client finds it: all of them are in a
/// transaction at the same time.
async fn settings(place: &Place) -> Result<Vec<String>, Error> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let options: PgConnectOptions = place.url().parse()?;
        let mut client = options.extra_float_digits(None).connect().await?;
        sqlx::raw_sql("BEGIN").execute(&mut client).await?;
        clients.push(client);
    }
    let mut found = Vec::new();
    for client in &mut clients {
        let all = "SELECT string_agg(name || '=' || setting, ', ' ORDER BY name) FROM pg_settings \
                   WHERE source = 'session' OR name IN ('transaction_isolation', 'synchronous_commit', 'lock_timeout')";
        found.push(sqlx::raw_sql(all).fetch_one(client).await?.try_get(0)?);
    }
    Ok(found)
}

/// 10.3: what other clients of the pooler get is as they would have it without us.
async fn no_setting_is_left_to_other_clients() -> TestResult {
    let place = Place::new().await?;
    let before = settings(&place).await?;
    for prepared in [true, false] {
        let dao = place.builder().prepared(prepared).migrate(false).open().await?;
        for _ in 0..2 * CONNECTIONS {
            // What was prepared on another connection may fail, and leaves nothing behind either.
            let _ = dao.list(&Page::default()).await;
        }
        let locks = LockingService::new(dao);
        for ids in [&["a"][..], &["a", "b"]] {
            for _ in 0..2 * CONNECTIONS {
                let _ = locks.with_locks(ids.iter().copied(), async || ()).await;
            }
        }
        let _ = locks.shutdown(PATIENCE).await;
        assert_eq!(settings(&place).await?, before, "prepared: {prepared}");
    }
    Ok(())
}

/// 10.3: a pooler takes no limit for the session, so that each call brings its own.
async fn the_server_gives_up_with_its_client() -> TestResult {
    let place = Place::new().await?;
    let schema = format!("t{}", Uuid::new_v4().simple());
    place.directly().schema(&*schema).open().await?;
    let url = place.url();
    let with = if url.contains('?') { '&' } else { '?' };
    let builder = place.builder().url(format!("{url}{with}application_name={schema}")).schema(&*schema);
    let dao = Arc::new(builder.timeout(Duration::from_secs(1)).listen(false).open().await?);
    let mut locker = PgConnection::connect(&place.server.url()).await?;
    let mut sql = PgConnection::connect(&place.server.url()).await?;
    let lock = format!("BEGIN; LOCK TABLE {schema}.lockcore_lock");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut locker).await?;
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state = 'active'"
    );
    let mut waiting = async || {
        let row = sqlx::raw_sql(AssertSqlSafe(waiting.clone())).fetch_one(&mut sql).await?;
        Ok(row.try_get(0)?)
    };
    steps::giving_up::leaves_no_sessions(&dao, &mut waiting).await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut locker).await?;
    let free = steps::request(["a"]);
    eventually("it goes on", || async { dao.acquire(&free).await.ok() }).await;
    Ok(())
}

/// The routines decide under READ COMMITTED only. A pooler takes no such setting from us, so that the role has to have it.
async fn a_role_with_another_isolation_level_is_refused_at_open() -> TestResult {
    let server = Arc::new(Server::start(Kind::Postgres).await?);
    let mut sql = PgConnection::connect(&server.url()).await?;
    let user: String = sqlx::raw_sql("SELECT current_user::text").fetch_one(&mut sql).await?.try_get(0)?;
    let level = format!("ALTER ROLE \"{user}\" SET default_transaction_isolation TO 'repeatable read'");
    sqlx::raw_sql(AssertSqlSafe(level)).execute(&mut sql).await?;
    let pooler = Pooler::start(&server, CONNECTIONS).await?;
    let place = Place { server, pooler, namespace: Uuid::new_v4().to_string() };
    // A connection of our own brings the level along, and works.
    let direct = LockingService::new(place.directly().open().await?);
    direct.with_locks(["a"], async || ()).await?;
    for prepared in [true, false] {
        let refused = place.builder().prepared(prepared).open().await.expect_err("it cannot decide");
        assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
        let said = refused.to_string();
        assert!(said.contains("repeatable read") && said.contains("ALTER ROLE"), "{said}");
    }
    Ok(())
}

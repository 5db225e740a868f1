//! What is known to go wrong between a driver and a server: abandoned exchanges, lost listeners, deadlocks, passwords.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, Grant, LockDao, Severity,
    backend::{Acquired, Wake, Withdraw},
};
use lockcore_conformance::{
    eventually,
    judge::{in_time, late},
    refusing::a_store_that_refuses_for_good_ends_a_sleeping_wait,
    servers::{Kind, Mode, Proxy, Server, TestResult, Trial},
};
use lockcore_sql::PostgresLockDao;
use sqlx::{Connection, PgConnection, postgres::PgPoolOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    place::{Dao, Error, PATIENCE, Place, Sql, granted, handed, queue, request, take, told_to_ask},
    steps::{self, fences, waking},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "hazards::an_abandoned_exchange_harms_no_other_request",
            an_abandoned_exchange_harms_no_other_request,
        ),
        test("hazards::a_deadlock_is_retried", a_deadlock_is_retried),
        test("hazards::overlapping_sets_do_not_deadlock", overlapping_sets_do_not_deadlock),
        test("hazards::a_lost_listener_is_replaced", a_lost_listener_is_replaced),
        test("hazards::a_reset_listener_is_replaced", a_reset_listener_is_replaced),
        test("hazards::a_renewal_needs_no_new_connection", a_renewal_needs_no_new_connection),
        test("hazards::nothing_depends_on_notifications", nothing_depends_on_notifications),
        test("hazards::a_process_looks_after_its_own_releases", a_process_looks_after_its_own_releases),
        test("hazards::a_cut_connection_is_replaced", a_cut_connection_is_replaced),
        test("hazards::an_exhausted_pool_is_reported", an_exhausted_pool_is_reported),
        test("hazards::a_refused_connection_closes_no_other", a_refused_connection_closes_no_other),
        test("hazards::what_is_refused_for_good_ends_a_wait", what_is_refused_for_good_ends_a_wait),
        test("hazards::the_server_gives_up_with_its_client", the_server_gives_up_with_its_client),
        test("hazards::passwords_are_not_shown", passwords_are_not_shown),
        test("hazards::fences_rise_though_the_clock_does_not", fences_rise_though_the_clock_does_not),
        test(
            "hazards::a_search_path_that_hides_the_catalogue_changes_nothing",
            a_hidden_catalogue_changes_nothing,
        ),
        test("hazards::an_old_snapshot_is_reported", an_old_snapshot_is_reported),
        test("hazards::other_runtimes_have_other_connections", other_runtimes_have_other_connections),
    ]
}

/// The schema is gone while one waits.
async fn what_is_refused_for_good_ends_a_wait() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    a_store_that_refuses_for_good_ends_a_sleeping_wait(dao, async || {
        sql.run(format!("DROP SCHEMA {} CASCADE", place.schema)).await?;
        Ok(())
    })
    .await
}

/// An open snapshot anywhere on the server slows an id that is used often.
async fn an_old_snapshot_is_reported() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let (mut sql, mut other) = (place.sql().await?, place.sql().await?);
    other.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    other.run("SELECT count(*) FROM lockcore_lock").await?;
    let transactions = "DO 'BEGIN SET synchronous_commit TO off; \
                        FOR i IN 1 .. 11000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'";
    sql.run(transactions).await?;
    let severity = async || {
        let findings = dao.doctor().await?;
        let snapshot = findings.iter().find(|finding| finding.check == "oldest snapshot");
        Ok::<_, Error>(snapshot.ok_or("no such check")?.severity)
    };
    assert_eq!(severity().await?, Severity::Warning);
    other.run("ROLLBACK").await?;
    // Other tests use the server, too.
    eventually("it is gone", || async { (severity().await.ok()? == Severity::Ok).then_some(()) }).await;
    Ok(())
}

/// A role or database may name `pg_catalog` behind a schema with functions of the same names, as compatibility extensions
/// ask for.
async fn a_hidden_catalogue_changes_nothing() -> TestResult {
    let place = Place::new().await?;
    let other = format!("{}_other", place.schema);
    let mut sql = place.sql().await?;
    let function =
        |head: &str, body: &str| format!("CREATE FUNCTION {other}.{head} LANGUAGE sql AS 'SELECT {body}'; ");
    let functions = [
        function("clock_timestamp() RETURNS timestamptz", "timestamptz ''2100-01-01''"),
        function("cardinality(bytea[]) RETURNS int4", "1 / 0"),
        function("encode(bytea, text) RETURNS text", "NULL::text"),
    ];
    sql.run(format!("CREATE SCHEMA {other}; {}", functions.concat())).await?;
    place.open().await?;
    let url = place.server.url();
    let joint = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{joint}options=-c%20search_path%3D{other},pg_catalog");
    let hidden = place.builder().url(url).open().await?;
    let held = take(&hidden, ["a", "b"]).await?;
    let in_2090 = 3_786_912_000_000_000;
    assert!(held.locks.iter().all(|lock| lock.granted.fence < in_2090), "{held:?}");
    let refused = hidden.acquire(&request(["a"])).await?;
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    hidden.release(&held).await?;
    let findings = hidden.doctor().await?;
    let clock = findings.iter().find(|finding| finding.check == "clock").ok_or("no such check")?;
    assert_eq!(clock.severity, Severity::Ok, "{clock:?}");
    Ok(())
}

async fn fences_rise_though_the_clock_does_not() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut other) = (place.open().await?, place.sql().await?);
    let sql = async |text: String| other.run(text).await;
    fences::rise_though_the_clock_does_not(&dao, sql, "lockcore_lock").await
}

/// A future that is dropped in the middle of an exchange leaves no connection in a transaction, or with a client
/// else's answer on it.
async fn an_abandoned_exchange_harms_no_other_request() -> TestResult {
    let place = Place::new().await?;
    let dao = place.builder().max_connections(1).open().await?;
    for round in 0..60_u64 {
        let abandoned = request(["a", "b"]);
        let acquire = dao.acquire(&abandoned);
        // Dropped before it is sent, on its way, or just about when the answer comes.
        let _ = tokio::time::timeout(Duration::from_micros(round * 37 % 1500), acquire).await;
        dao.withdraw(&abandoned, Withdraw::Undo).await?;
        let held = take(&dao, ["a", "b"]).await?;
        {
            let mut release = pin!(dao.release(&held));
            // Its answer may even be there already.
            let _ = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        assert!(dao.release(&held).await?.failed.is_empty());
    }
    let mut sql = place.sql().await?;
    let stuck = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%{}%'",
        place.schema
    );
    assert_eq!(sql.number(stuck).await?, 0);
    Ok(())
}

/// Another's transaction and ours want the same rows the other way round: the server gives ours up, and it is
/// tried again.
async fn a_deadlock_is_retried() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a", "b"]).await?;
    dao.release(&held).await?;
    let mut sql = place.sql().await?;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let before = sql.number(deadlocks).await?;
    let mut transaction = sql.0.begin().await?;
    sqlx::raw_sql("SET LOCAL deadlock_timeout = '20s'; SELECT FROM lockcore_lock WHERE id = 'b' FOR UPDATE")
        .execute(&mut *transaction)
        .await?;
    let asked = request(["a", "b"]);
    let acquiring = async { granted(&dao, &asked).await };
    let crossing = async {
        let mut watch = place.sql().await?;
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%v1_acquire%'",
            place.schema
        );
        watch.until(&waits, 1).await?;
        // Waits for ours, which waits for this one.
        sqlx::raw_sql("SELECT FROM lockcore_lock WHERE id = 'a' FOR UPDATE")
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok::<_, super::place::Error>(())
    };
    let (grant, crossed) = tokio::join!(acquiring, crossing);
    crossed?;
    assert_eq!(dao.renew(&grant?).await?.lost, []);
    let mut sql = place.sql().await?;
    let after = async {
        while sql.number(deadlocks).await? == before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, super::place::Error>(())
    };
    tokio::time::timeout(PATIENCE, after).await.map_err(|_| "there was no deadlock")??;
    Ok(())
}

/// All clients takes rows in the order of their ids, whatever their order in the table, and holds none out of order.
async fn overlapping_sets_do_not_deadlock() -> TestResult {
    const IDS: u32 = 8;
    let server = Server::start(Kind::Postgres).await?;
    let builder = PostgresLockDao::builder().url(server.url()).timeout(2 * PATIENCE);
    let dao: Arc<Dao> = Arc::new(builder.open().await?);
    for id in (0..IDS).rev() {
        dao.release(&take(&dao, [id.to_string()]).await?).await?;
    }
    let mut racing = JoinSet::new();
    for racer in 1..=8_u32 {
        let dao = dao.clone();
        racing.spawn(async move {
            for round in 1..=100 {
                // Some of them, another choice each time; 0 is among all.
                let chosen = (0..IDS).filter(|id| *id == 0 || (racer * round * 37) >> id & 1 == 1);
                let asked = request(chosen.map(|id| id.to_string()).collect::<Vec<_>>());
                if let Acquired::Granted(set) = dao.acquire(&asked).await? {
                    let held = Grant::new(asked.context, asked.claims.clone(), set, asked.lease);
                    dao.release(&held).await?;
                }
            }
            Ok::<_, Error>(())
        });
    }
    for raced in racing.join_all().await {
        raced?;
    }
    let mut sql = Sql(PgConnection::connect(&server.url()).await?);
    assert_eq!(sql.number("SELECT sum(deadlocks) FROM pg_stat_database").await?, 0);
    Ok(())
}

/// The backends that listen for the DAOs of this schema cannot be told apart, but by who is told: all are ended.
async fn end_listeners(place: &Place) -> Result<(), super::place::Error> {
    let mut sql = place.sql().await?;
    let name = format!("'{}'", place.schema);
    sql.run(format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE query LIKE 'LISTEN %' AND application_name = {name}"
    ))
    .await?;
    Ok(())
}

async fn a_lost_listener_is_replaced() -> TestResult {
    let place = Place::new().await?;
    let url = place.server.url();
    let with = if url.contains('?') { '&' } else { '?' };
    let dao =
        place.builder().listen_url(format!("{url}{with}application_name={}", place.schema)).open().await?;
    for _ in 0..3 {
        let held = take(&dao, ["a"]).await?;
        let (waits, wakeup) = queue(&dao, ["a"]).await?;
        end_listeners(&place).await?;
        let wakeup = told_to_ask(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;
        let held = handed(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;
    }
    Ok(())
}

/// A reset is told by the driver as an error, other ends as a gap: also then a client that waits is to ask again.
async fn a_reset_listener_is_replaced() -> TestResult {
    let place = Place::new().await?;
    let proxy = Proxy::start(place.server.address()).await?;
    let dao = place.builder().listen_url(place.server.url_through(proxy.address())).open().await?;
    let held = take(&dao, ["a"]).await?;
    let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
    proxy.set(Mode::Reset).await;
    let told = tokio::time::timeout(PATIENCE, wakeup.recv()).await?;
    assert!(matches!(told, Wake::Recheck), "{told:?}");
    let waking = async || {
        let findings = dao.doctor().await.ok()?;
        findings.into_iter().find(|found| found.check == "waking")
    };
    let polling = waking().await.ok_or("it is checked")?;
    assert_eq!(polling.severity, Severity::Warning, "{polling:?}");
    assert!(polling.detail.starts_with("polling for"), "{polling:?}");
    proxy.set(Mode::Pass).await;
    eventually("it listens again", || async {
        let found = waking().await?;
        (found.severity == Severity::Ok && found.detail.starts_with("listening for")).then_some(())
    })
    .await;
    let Acquired::Queued { wakeup, .. } = dao.acquire(&waits).await? else {
        return Err("not queued".into());
    };
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    dao.release(&held).await?;
    Ok(())
}

/// To connect may take longer than is left: who renews where there is no connection yet borrows one that is.
async fn a_renewal_needs_no_new_connection() -> TestResult {
    let place = Place::new().await?;
    let url = place.server.url();
    let with = if url.contains('?') { '&' } else { '?' };
    let mut sql = place.sql().await?;
    for listen in [true, false] {
        let name = format!("{}_{listen}", place.schema);
        let builder = place.builder().url(format!("{url}{with}application_name={name}"));
        let dao = std::sync::Arc::new(builder.listen(listen).open().await?);
        let held = take(&dao, ["a"]).await?;
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
        let before = sql.number(&*count).await?;
        let (there, grant) = (dao.clone(), held.clone());
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok::<_, super::place::Error>(runtime.block_on(there.renew(&grant))?.lost)
        });
        assert_eq!(elsewhere.join().map_err(|_| "it panicked")??, []);
        assert_eq!(sql.number(&*count).await?, before);
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

async fn a_process_looks_after_its_own_releases() -> TestResult {
    let place = Place::new().await?;
    let (listens, polls) = (place.open().await?, place.builder().listen(false).open().await?);
    waking::a_process_looks_after_its_own_releases(&listens, &polls).await
}

/// Without a listener everything works, a little later; and it is said.
async fn nothing_depends_on_notifications() -> TestResult {
    let place = Place::new().await?;
    let dao = place.builder().listen(false).open().await?;
    assert!(!dao.capabilities().push);
    assert!(
        dao.doctor()
            .await?
            .iter()
            .any(|found| found.check == "waking" && found.severity == Severity::Warning)
    );
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&dao, ["b"]).await?;
    let (behind, next) = queue(&dao, ["b"]).await?;
    let released = std::time::Instant::now();
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    in_time(released.elapsed(), Duration::from_secs(5));
    dao.release(&held).await?;
    let held = handed(&dao, &behind, next).await?;
    dao.release(&held).await?;
    Ok(())
}

/// All connections are cut at once, as by a restart: what can be repeated is, the rest is told as in doubt once.
async fn a_cut_connection_is_replaced() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE pid <> pg_backend_pid() AND query LIKE '%{}%'",
        place.schema
    );
    let mut sql = place.sql().await?;
    sql.run(&*cut).await?;
    assert_eq!(dao.renew(&held).await?.lost, [], "a renewal is repeated");
    sql.run(&*cut).await?;
    assert_eq!(dao.release(&held).await?.lost, [], "so is a release");
    sql.run(&*cut).await?;
    let asked = request(["a"]);
    let error = dao.acquire(&asked).await.expect_err("an acquire is not repeated: it may arrive late");
    assert!(error.in_doubt() && error.is_retryable(), "{error}");
    dao.withdraw(&asked, Withdraw::Undo).await?;
    take(&dao, ["a"]).await?;
    Ok(())
}

/// Another's transaction keeps the only connection waiting, until the server gives up; then the application has it.
async fn an_exhausted_pool_is_reported() -> TestResult {
    let place = Place::new().await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&place.server.url()).await?;
    let builder = place.builder().pool(pool.clone()).listen(false);
    let dao = builder.timeout(Duration::from_secs(4)).open().await?;
    let held = take(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let mut sql = place.sql().await?;
    let mut transaction = sql.0.begin().await?;
    sqlx::raw_sql("SELECT FROM lockcore_lock FOR UPDATE").execute(&mut *transaction).await?;
    let stuck = dao.acquire(&request(["a"])).await.expect_err("the row is locked");
    if stuck.in_doubt() {
        late(format_args!("the server gives up after nine tenths of the timeout: {stuck}"));
    }
    assert_eq!(stuck.kind(), BackendErrorKind::Busy, "{stuck}");
    transaction.rollback().await?;
    let taken = pool.acquire().await?;
    let other = dao.acquire(&request(["b"])).await.expect_err("the only connection is in use");
    assert!(!other.in_doubt() && other.is_retryable(), "{other}");
    drop(taken);
    take(&dao, ["b"]).await?;
    Ok(())
}

async fn passwords_are_not_shown() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let url = place.server.url();
    let password = url.split([':', '@']).nth(2).unwrap_or_default().to_owned();
    let shown = format!("{:?} {dao:?} {:?}", place.builder(), dao.doctor().await?);
    assert!(password.len() < 4 || !shown.contains(&password), "{shown}");
    let wrong = url.replacen(&format!(":{password}@"), ":hunter2@", 1);
    let away = wrong.replace(place.server.address().as_str(), "127.0.0.1:1");
    let error = place.builder().url(away).open().await.expect_err("nothing listens there");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    Ok(())
}

/// A connection belongs to the runtime that made it: one that is gone takes its own along, and no others.
async fn a_refused_connection_closes_no_other() -> TestResult {
    let place = Place::new().await?;
    let mut sql = place.sql().await?;
    let (role, server) = (format!("role_{}", Uuid::new_v4().simple()), place.server.url());
    sql.run(format!("CREATE ROLE {role} LOGIN PASSWORD 'hunter2' CONNECTION LIMIT 6")).await?;
    sql.run(format!("GRANT CREATE ON DATABASE postgres TO {role}")).await?;
    let (_, behind) = server.split_once('@').ok_or("the URL has a user")?;
    let url = format!("postgres://{role}:hunter2@{behind}");
    let dao = Arc::new(place.builder().url(&*url).open().await?);
    dao.release(&take(&dao, ["a"]).await?).await?;
    let mut others = Vec::new();
    while let Ok(other) = PgConnection::connect(&url).await {
        others.push(other);
    }
    let newest = format!(
        "SELECT extract(epoch FROM max(backend_start)) * 1000000 FROM pg_stat_activity WHERE usename = '{role}'"
    );
    let before = sql.number(&newest).await?;
    let mut locker = place.sql().await?;
    let mut transaction = locker.0.begin().await?;
    sqlx::raw_sql("LOCK TABLE lockcore_lock").execute(&mut *transaction).await?;
    steps::limit::keeps_what_there_is(&dao, async { Ok(transaction.rollback().await?) }).await?;
    assert_eq!(sql.number(&newest).await?, before, "no connection was replaced");
    Ok(())
}

/// 10.3: what this process gives up goes on nowhere, however long the table is locked, on connections of its own and lent ones.
async fn the_server_gives_up_with_its_client() -> TestResult {
    for lent in [false, true] {
        let place = Place::new().await?;
        place.open().await?;
        let url = place.server.url();
        let with = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{with}application_name={}", place.schema);
        let builder = place.builder().timeout(Duration::from_secs(1)).listen(false);
        let dao = match lent {
            // Longer-lived than what is asked of it, and with room for what the application itself does.
            true => builder.pool(PgPoolOptions::new().max_connections(12).connect(&url).await?),
            false => builder.url(url),
        };
        let dao = Arc::new(dao.open().await?);
        let (mut locker, mut sql) = (place.sql().await?, place.sql().await?);
        locker.run("BEGIN; LOCK TABLE lockcore_lock").await?;
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND state = 'active'",
            place.schema
        );
        steps::giving_up::leaves_no_sessions(&dao, async || sql.number(&*waiting).await).await?;
        locker.run("ROLLBACK").await?;
        sql.until(&waiting, 0).await?;
        take(&*dao, ["a"]).await?;
    }
    Ok(())
}

async fn other_runtimes_have_other_connections() -> TestResult {
    let place = Place::new().await?;
    let dao = std::sync::Arc::new(place.open().await?);
    for _ in 0..3 {
        let there = dao.clone();
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(take(&there, ["elsewhere"]))
        });
        let held = elsewhere.join().map_err(|_| "it panicked")??;
        assert_eq!(dao.release(&held).await?.lost, []);
        let held = take(&dao, ["here"]).await?;
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

//! What is known to go wrong between the driver and a server: abandoned exchanges, deadlocks, passwords, hidden messages.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, LockDao, LossReason, Target,
    backend::{AcquireRequest, Acquired, Withdraw},
};
use lockcore_conformance::{
    eventually,
    refusing::a_store_that_refuses_for_good_ends_a_sleeping_wait,
    servers::{Kind, Proxy, TestResult, Trial},
};
use lockcore_sql::MysqlLockDao;
use sqlx::{Connection, MySqlConnection};
use uuid::Uuid;

use super::{
    place::{Place, granted, handed, queue, request, take},
    steps::{self, fences},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(
            kind,
            "hazards::an_abandoned_exchange_harms_no_other_request",
            an_abandoned_exchange_harms_no_other_request,
        ),
        test(kind, "hazards::a_deadlock_is_retried", a_deadlock_is_retried),
        test(kind, "hazards::a_cut_connection_is_replaced", a_cut_connection_is_replaced),
        test(kind, "hazards::an_exhausted_pool_is_reported", an_exhausted_pool_is_reported),
        test(kind, "hazards::a_refused_connection_closes_no_other", a_refused_connection_closes_no_other),
        test(kind, "hazards::what_is_refused_for_good_ends_a_wait", what_is_refused_for_good_ends_a_wait),
        test(kind, "hazards::the_server_gives_up_with_its_client", the_server_gives_up_with_its_client),
        test(kind, "hazards::passwords_are_not_shown", passwords_are_not_shown),
        test(kind, "hazards::passwords_are_sent_over_tls_only", passwords_are_sent_over_tls_only),
        test(kind, "hazards::a_damaged_schema_is_reported", a_damaged_schema_is_reported),
        test(kind, "hazards::fences_rise_though_the_clock_does_not", fences_rise_though_the_clock_does_not),
        test(kind, "hazards::a_release_serves_whose_turn_it_is", a_release_serves_whose_turn_it_is),
        test(kind, "hazards::a_late_release_changes_no_fence", a_late_release_changes_no_fence),
        test(kind, "hazards::two_round_trips_however_many_ids", two_round_trips_however_many_ids),
        test(kind, "hazards::other_runtimes_have_other_connections", other_runtimes_have_other_connections),
    ]
}

/// The database is gone while one waits.
async fn what_is_refused_for_good_ends_a_wait(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    a_store_that_refuses_for_good_ends_a_sleeping_wait(dao, async || {
        sql.run(format!("DROP DATABASE {}", place.database)).await?;
        Ok(())
    })
    .await
}

/// A future that is dropped in the middle of an exchange leaves no connection in a transaction, or with another's
/// answer on it.
async fn an_abandoned_exchange_harms_no_other_request(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
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
        "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p
         ON p.id = t.trx_mysql_thread_id WHERE p.db = '{}' AND p.command = 'Sleep'",
        place.database
    );
    sql.until(&stuck, |answer| answer == 0).await?;
    Ok(())
}

/// Another's transaction and ours want the same rows the other way round: the server gives one up, and if that is
/// ours it is tried again.
async fn a_deadlock_is_retried(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a", "b"]).await?;
    dao.release(&held).await?;
    let mut sql = place.sql().await?;
    // Of two transactions InnoDB gives up the one that has changed fewer rows.
    sql.run("CREATE TABLE heavy (n INT PRIMARY KEY) SELECT 1 AS n").await?;
    let mut transaction = sql.0.begin().await?;
    for n in 2..200 {
        let insert = sqlx::query("INSERT INTO heavy VALUES (?)").bind(n);
        insert.execute(&mut *transaction).await?;
    }
    sqlx::raw_sql("SELECT 1 FROM lockcore_ids WHERE id = 'b' FOR UPDATE").execute(&mut *transaction).await?;
    let asked = request(["a", "b"]);
    let acquiring = async { granted(&dao, &asked).await };
    let crossing = async {
        let mut watch = place.sql().await?;
        let waits = format!(
            "SELECT COUNT(*) > 0 FROM information_schema.innodb_trx t JOIN information_schema.processlist p
             ON p.id = t.trx_mysql_thread_id WHERE p.db = '{}' AND t.trx_state = 'LOCK WAIT'",
            place.database
        );
        watch.until(&waits, |answer| answer == 1).await?;
        // Waits for ours, which waits for this one.
        sqlx::raw_sql("SELECT 1 FROM lockcore_ids WHERE id = 'a' FOR UPDATE")
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok::<_, super::place::Error>(())
    };
    let (grant, crossed) = tokio::join!(acquiring, crossing);
    crossed?;
    assert_eq!(dao.renew(&grant?).await?.lost, []);
    Ok(())
}

/// All connections are cut at once, as by a restart: what can be repeated is, the rest fails in doubt, once.
async fn a_cut_connection_is_replaced(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.builder().listen(false).open().await?;
    let held = take(&dao, ["a"]).await?;
    let mut sql = place.sql().await?;
    let cut = async |sql: &mut super::place::Sql| {
        let others = format!(
            "FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()",
            place.database
        );
        while sql.number(format!("SELECT COUNT(*) {others}")).await? > 0 {
            let one = sql.number(format!("SELECT IFNULL(MAX(id), 0) {others}")).await?;
            // It may be gone by now.
            let _ = sql.run(format!("KILL {one}")).await;
        }
        Ok::<_, super::place::Error>(())
    };
    cut(&mut sql).await?;
    assert_eq!(dao.renew(&held).await?.lost, [], "a renewal is repeated");
    cut(&mut sql).await?;
    assert_eq!(dao.release(&held).await?.lost, [], "so is a release");
    cut(&mut sql).await?;
    let asked = request(["a"]);
    let error = dao.acquire(&asked).await.expect_err("an acquire is not repeated: it may arrive late");
    assert!(error.in_doubt() && error.is_retryable(), "{error}");
    dao.withdraw(&asked, Withdraw::Undo).await?;
    take(&dao, ["a"]).await?;
    Ok(())
}

/// Another's transaction keeps all connections waiting.
async fn an_exhausted_pool_is_reported(kind: Kind) -> TestResult {
    // Both requests time out together, so that once in a while the second still gets the connection of the first.
    for round in 0..10 {
        let place = Place::new(kind).await?;
        place.open().await?;
        // The server waits for the row a second at least.
        let dao = place.builder().max_connections(1).timeout(Duration::from_millis(900)).open().await?;
        let held = take(&dao, ["a"]).await?;
        dao.release(&held).await?;
        let mut sql = place.sql().await?;
        let mut transaction = sql.0.begin().await?;
        sqlx::raw_sql("SELECT 1 FROM lockcore_ids FOR UPDATE").execute(&mut *transaction).await?;
        let (stuck, other) = (request(["a"]), request(["b"]));
        let (stuck, other) = tokio::join!(dao.acquire(&stuck), dao.acquire(&other));
        let stuck = stuck.expect_err("the row is locked");
        // On MariaDB the server gives it up first.
        let given_up = [BackendErrorKind::Timeout, BackendErrorKind::Busy].contains(&stuck.kind());
        assert!(stuck.in_doubt() && given_up, "{stuck}");
        let other = other.expect_err("the only connection is in use");
        transaction.rollback().await?;
        if !other.in_doubt() {
            assert!(other.is_retryable(), "{other}");
            take(&dao, ["b"]).await?;
            return Ok(());
        }
        assert!(round < 9, "sent each time: {other}");
    }
    Ok(())
}

async fn a_refused_connection_closes_no_other(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let mut sql = place.sql().await?;
    let (user, server) = (format!("u{}", &Uuid::new_v4().simple().to_string()[..16]), place.url());
    let limited = "IDENTIFIED BY 'hunter2' WITH MAX_USER_CONNECTIONS 6";
    sql.run(format!("CREATE USER {user}@'%' {limited}")).await?;
    sql.run(format!("GRANT ALL ON {}.* TO {user}@'%'", place.database)).await?;
    place.open().await?;
    let (_, behind) = server.split_once('@').ok_or("the URL has a user")?;
    let url = format!("mysql://{user}:hunter2@{behind}");
    let dao = Arc::new(place.builder().url(&*url).open().await?);
    dao.release(&take(&dao, ["a"]).await?).await?;
    let mut others = Vec::new();
    while let Ok(other) = MySqlConnection::connect(&url).await {
        others.push(other);
    }
    let newest = format!("SELECT MAX(id) FROM information_schema.processlist WHERE user = '{user}'");
    let before = sql.number(&newest).await?;
    let mut locker = place.sql().await?;
    locker.run("LOCK TABLES lockcore_ids WRITE").await?;
    steps::limit::keeps_what_there_is(&dao, async { locker.run("UNLOCK TABLES").await.map(drop) }).await?;
    // One that was refused may be listed for a moment, before as well as now; one that replaced another stays.
    let as_before =
        || async { (place.sql().await.ok()?.number(&newest).await.ok()? <= before).then_some(()) };
    eventually("no connection was replaced", as_before).await;
    Ok(())
}

async fn passwords_are_not_shown(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let url = place.url();
    let password = url.split([':', '@']).nth(2).unwrap_or_default().to_owned();
    let shown = format!("{:?} {dao:?} {:?}", place.builder(), dao.doctor().await?);
    assert!(password.len() < 4 || !shown.contains(&password), "{shown}");
    let wrong = url.replacen(&format!(":{password}@"), ":hunter2@", 1);
    let denied = place.builder().url(&*wrong).open().await.expect_err("a wrong password");
    assert_eq!(denied.kind(), lockcore::BackendErrorKind::Denied, "{denied}");
    let away = wrong.replace(place.server.address().as_str(), "127.0.0.1:1");
    let error = place.builder().url(away).open().await.expect_err("nothing listens there");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Unavailable);
    let shown = format!("{denied} {denied:?} {error} {error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    Ok(())
}

/// 10.3: what this process gives up goes on nowhere, however long the table is locked.
async fn the_server_gives_up_with_its_client(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    // The server counts whole seconds.
    let builder = place.builder().timeout(Duration::from_millis(1500)).listen(false);
    let dao = Arc::new(builder.open().await?);
    let (mut locker, mut sql) = (place.sql().await?, place.sql().await?);
    locker.run("LOCK TABLES lockcore_ids WRITE").await?;
    let waiting = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{}' AND command <> 'Sleep' \
         AND id <> CONNECTION_ID()",
        place.database
    );
    steps::giving_up::leaves_no_sessions(&dao, async || sql.number(&*waiting).await).await?;
    locker.run("UNLOCK TABLES").await?;
    sql.until(&waiting, |answer| answer == 0).await?;
    take(&*dao, ["a"]).await?;
    Ok(())
}

/// MySQL's usual authentication needs TLS, or an exchange that the driver has no sound code for: without TLS the
/// connection is refused, and the password stays here. MariaDB's needs neither.
async fn passwords_are_sent_over_tls_only(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    if kind != Kind::MySql {
        return Ok(());
    }
    let user = format!("u{}", &Uuid::new_v4().simple().to_string()[..16]);
    let mut sql = place.sql().await?;
    sql.run(format!("CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY 'hunter2'")).await?;
    sql.run(format!("GRANT ALL ON {}.* TO {user}@'%'", place.database)).await?;
    let url = place.url();
    let (_, behind) = url.split_once('@').ok_or("the URL has a user")?;
    let builder = |mode| {
        MysqlLockDao::<String, Uuid>::builder()
            .url(format!("mysql://{user}:hunter2@{behind}?ssl-mode={mode}"))
    };
    let refused = builder("DISABLED").open().await.expect_err("the password cannot be sent");
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));
    assert_eq!(refused.kind(), lockcore::BackendErrorKind::Misconfigured, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("this account needs TLS") && !text.contains("feature"), "{text}");
    builder("REQUIRED").open().await?;
    Ok(())
}

async fn a_damaged_schema_is_reported(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.builder().listen(false).open().await?;
    let mut sql = place.sql().await?;
    sql.run("DROP PROCEDURE lockcore_v1_acquire_one").await?;
    let error = dao.acquire(&request(["a"])).await.expect_err("the schema is damaged");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Misconfigured, "{error}");
    assert!(!error.in_doubt());
    Ok(())
}

async fn fences_rise_though_the_clock_does_not(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut other) = (place.open().await?, place.sql().await?);
    let sql = async |text: String| other.run(text).await;
    fences::rise_though_the_clock_does_not(&dao, sql, "lockcore_ids").await
}

/// The fence of a client that holds it now goes on being the id's, by which the application's statements check it.
async fn a_late_release_changes_no_fence(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let former = take(&dao, ["a"]).await?;
    assert_eq!(dao.release(&former).await?.lost, []);
    let held = take(&dao, ["a"]).await?;
    let (request, wakeup) = queue(&dao, ["a"]).await?;
    assert_eq!(dao.release(&former).await?.lost.len(), 1);
    let fence = place.sql().await?.number("SELECT fence FROM lockcore_ids").await?;
    assert_eq!(fence.cast_unsigned(), held.locks[0].granted.fence);
    assert_eq!(dao.release(&held).await?.lost, []);
    handed(&dao, &request, wakeup).await?;
    Ok(())
}

/// 3.7, 6: a release that finds a client waiting serves whose turn it is, no client while it is frozen, and tells what ended.
async fn a_release_serves_whose_turn_it_is(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    let nested = AcquireRequest { queue: true, nested: true, ..request(["a"]) };
    let Acquired::Queued { wakeup, .. } = dao.acquire(&nested).await? else {
        return Err("it is held".into());
    };
    let (second, behind) = queue(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &nested, wakeup).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &second, behind).await?;

    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    let target = Target::Id("a".to_owned());
    dao.freeze(&target, true).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    assert_eq!(dao.inspect(&target).await?.holders.len(), 0, "it is frozen");
    dao.freeze(&target, false).await?;
    let held = handed(&dao, &waits, wakeup).await?;

    queue(&dao, ["a"]).await?;
    place.sql().await?.run("UPDATE lockcore_claims SET until = until - lease - 1000 WHERE state = 0").await?;
    let lost = dao.release(&held).await?.lost;
    assert!(matches!(&lost[..], [lost] if lost.reason == LossReason::Expired), "{lost:?}");
    Ok(())
}

/// Messages as a proxy counts them: one there and one back for the acquire, and the same for the release.
async fn two_round_trips_however_many_ids(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let proxy = Proxy::start(&place.server.address()).await?;
    let through = place.url_through(proxy.address());
    let dao = MysqlLockDao::<String, Uuid>::builder().url(through).listen(false).open().await?;
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("id {number:03}")).collect();
        // At first statements are prepared, and rows made, and then it is kept.
        for round in 0..6 {
            let before = proxy.counts();
            let held = take(&dao, ids.clone()).await?;
            assert!(dao.release(&held).await?.lost.is_empty());
            let after = proxy.counts();
            if round > 2 {
                assert_eq!(after.connections, before.connections);
                // What is longer than a packet of the network may arrive in pieces.
                let (exact, most) = if count < 100 { (2, 4) } else { (4, 12) };
                let (there, back) = (after.requests - before.requests, after.replies - before.replies);
                assert!(
                    (2..=exact).contains(&there) && (2..=most).contains(&back),
                    "{count}: {there}, {back}"
                );
            }
        }
    }
    Ok(())
}

/// A connection belongs to the runtime that made it: one that is gone takes its own along, and no others.
async fn other_runtimes_have_other_connections(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
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

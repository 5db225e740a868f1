//! Waking by interruption: it reaches who it is meant for, no other, and nothing depends on it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{
    Claim, ClaimSet, LockDao, Mode, Severity,
    backend::{AcquireRequest, Acquired, Wake},
};
use lockcore_conformance::{
    judge::in_time,
    servers::{Kind, TestResult, Trial},
};

use sqlx::Connection;
use tokio::task::JoinSet;

use super::{
    place::{PATIENCE, Place, granted, handed, queue, request, take, told_to_ask},
    steps::waking,
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "waking::an_offer_is_pushed_to_another_process", an_offer_is_pushed_to_another_process),
        test(kind, "waking::a_lost_listener_is_replaced", a_lost_listener_is_replaced),
        test(kind, "waking::no_foreign_query_is_interrupted", no_foreign_query_is_interrupted),
        test(kind, "waking::nothing_depends_on_notifications", nothing_depends_on_notifications),
        test(kind, "waking::a_shared_connection_is_not_interrupted", a_shared_connection_is_not_interrupted),
        test(kind, "waking::a_process_looks_after_its_own_releases", a_process_looks_after_its_own_releases),
        test(kind, "waking::notifying_many_does_not_wait", notifying_many_does_not_wait),
        test(
            kind,
            "waking::dead_waiters_keep_no_request_from_what_is_free",
            dead_waiters_keep_no_request_from_what_is_free,
        ),
        test(kind, "waking::a_hand_over_cuts_no_other_lease_short", a_hand_over_cuts_no_other_lease_short),
        test(
            kind,
            "waking::a_set_that_is_locked_by_a_transaction_is_not_waited_for",
            a_set_that_is_locked_by_a_transaction_is_not_waited_for,
        ),
    ]
}

/// Not by the sign of life that comes every second: many hand-overs in less time than as many of those.
async fn an_offer_is_pushed_to_another_process(kind: Kind) -> TestResult {
    const TURNS: u32 = 20;
    let place = Place::new(kind).await?;
    let (one, two) = (place.open().await?, place.open().await?);
    let begun = Instant::now();
    for _ in 0..TURNS {
        let held = take(&one, ["a"]).await?;
        let (waits, wakeup) = queue(&two, ["a"]).await?;
        one.release(&held).await?;
        let held = handed(&two, &waits, wakeup).await?;
        two.release(&held).await?;
    }
    let took = begun.elapsed();
    in_time(took, Duration::from_secs(1) * TURNS / 2);
    Ok(())
}

/// 10.3: behind a proxy that shares connections of the server between its clients, a query of another client could be hit. What
/// each call sees of the connection it arrives on is as behind one; nothing is interrupted then, and waiters poll.
async fn a_shared_connection_is_not_interrupted(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    drop(place.open().await?);
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE interrupted (sessions TEXT)").await?;
    sql.run("DROP PROCEDURE lockcore_v1_wake").await?;
    sql.run(
        "CREATE PROCEDURE lockcore_v1_wake(p_wake LONGTEXT CHARACTER SET ascii) BEGIN \
         INSERT INTO interrupted VALUES (p_wake); CALL lockcore_v1_interrupt(p_wake); SELECT '' AS answer, p_wake AS to_wake; END",
    )
    .await?;
    for seen in [
        // Both clients share one, or either gets another one each time, or the name stayed with another one.
        "CAST('7 7' AS CHAR CHARACTER SET ascii)",
        "CAST(CONCAT(FLOOR(RAND() * 1000000000), ' 7') AS CHAR CHARACTER SET ascii)",
        "CAST(CONCAT(CONNECTION_ID(), ' 7') AS CHAR CHARACTER SET ascii)",
    ] {
        sql.run("DROP PROCEDURE IF EXISTS lockcore_v1_connection").await?;
        sql.run(format!(
            "CREATE PROCEDURE lockcore_v1_connection(p_session BIGINT) BEGIN SELECT {seen} AS answer, '' AS to_wake; END"
        ))
        .await?;
        let dao = place.open().await?;
        assert!(!dao.capabilities().push, "{seen}");
        let findings = dao.doctor().await?;
        let waking = findings.iter().find(|finding| finding.check == "waking").ok_or("no such check")?;
        assert!(
            waking.severity == Severity::Warning && waking.detail.contains("a proxy shares"),
            "{findings:?}"
        );
        let held = take(&dao, ["a"]).await?;
        let (waits, wakeup) = queue(&dao, ["a"]).await?;
        dao.release(&held).await?;
        let held = handed(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;
        assert_eq!(sql.number("SELECT COUNT(*) FROM interrupted").await?, 0, "{seen}");
    }
    Ok(())
}

/// 3.7: who died first in line for something free, since its set was not: no lease ends there for which any client would look.
async fn dead_waiters_keep_no_request_from_what_is_free(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    take(&dao, ["b"]).await?;
    let _dead = queue(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    sql.run(
        "INSERT INTO lockcore_sessions (session, ns, heartbeat) SELECT 4711, ns, 1 FROM lockcore_namespaces",
    )
    .await?;
    sql.run("UPDATE lockcore_claims SET session = 4711 WHERE wants = 2").await?;
    let held = handed(&dao, &waits, wakeup).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// L1: what is renewed while a release hands over to others is not taken for a grant from the future.
async fn a_hand_over_cuts_no_other_lease_short(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = Arc::new(place.open().await?);
    let (mut sql, mut in_the_way) = (place.sql().await?, place.sql().await?);
    let (held, other) = (take(&dao, ["a"]).await?, take(&dao, ["b"]).await?);
    let shared = |id: &str| Claim::shared(id.to_owned());
    let _first = queue(&dao, [shared("a")]).await?;
    let _second = queue(&dao, [shared("a"), shared("b")]).await?;
    // The release takes its time over the first.
    in_the_way.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    in_the_way.run("START TRANSACTION").await?;
    in_the_way.run("SELECT 1 FROM lockcore_claims WHERE state = 3 AND wants = 1 FOR UPDATE").await?;
    let releasing = tokio::spawn({
        let dao = dao.clone();
        async move { dao.release(&held).await }
    });
    let waits = format!(
        "SELECT COUNT(*) > 0 FROM information_schema.innodb_trx t JOIN information_schema.processlist p
         ON p.id = t.trx_mysql_thread_id WHERE p.db = '{}' AND t.trx_state = 'LOCK WAIT'",
        place.database
    );
    sql.until(&waits, |answer| answer == 1).await?;
    assert_eq!(dao.renew(&other).await?.lost, []);
    let until = "SELECT MAX(until) FROM lockcore_claims WHERE id = 'b' AND state = 0";
    let renewed = sql.number(until).await?;
    in_the_way.run("COMMIT").await?;
    assert_eq!(releasing.await??.lost, []);
    assert_eq!(sql.number(until).await?, renewed);
    Ok(())
}

/// The connections that listen for the DAOs of this place.
fn listeners(place: &Place) -> String {
    format!(
        "FROM information_schema.processlist WHERE db = '{}' AND info LIKE '%v1_await%' AND info NOT LIKE '%processlist%'",
        place.database
    )
}

async fn a_lost_listener_is_replaced(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for _ in 0..3 {
        let held = take(&dao, ["a"]).await?;
        let (waits, wakeup) = queue(&dao, ["a"]).await?;
        // In one look: between two calls it is none for a moment.
        let its_id = format!("SELECT COALESCE(MAX(id), 0) {}", listeners(&place));
        let listener = sql.until(&its_id, |id| id > 0).await?;
        sql.run(format!("KILL {listener}")).await?;
        let wakeup = told_to_ask(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;
        let held = handed(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;
    }
    Ok(())
}

/// A place of a session whose connection is gone, and whose connection id another query has by now: that query goes on.
async fn no_foreign_query_is_interrupted(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, silent) = (place.open().await?, place.builder().listen(false).open().await?);
    let mut bystander = place.sql().await?;
    let sleeping = tokio::spawn(async move { bystander.number("SELECT SLEEP(3)").await });
    let begun = Instant::now();
    let mut turns = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        let held = take(&dao, ["a"]).await?;
        // It listens to no client: no connection has its name.
        let (waits, wakeup) = queue(&silent, ["a"]).await?;
        dao.release(&held).await?;
        let held = handed(&silent, &waits, wakeup).await?;
        silent.release(&held).await?;
        turns += 1;
    }
    assert!(turns > 3, "{turns}");
    assert_eq!(sleeping.await??, 0, "it slept to its end");
    Ok(())
}

async fn a_process_looks_after_its_own_releases(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (listens, polls) = (place.open().await?, place.builder().listen(false).open().await?);
    waking::a_process_looks_after_its_own_releases(&listens, &polls).await
}

/// Without a listener everything works, a little later; and it is said.
async fn nothing_depends_on_notifications(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.builder().listen(false).open().await?;
    assert!(!dao.capabilities().push);
    let findings = dao.doctor().await?;
    assert!(findings.iter().any(|found| found.check == "waking" && found.severity == Severity::Warning));
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&dao, ["b"]).await?;
    let (behind, next) = queue(&dao, ["b"]).await?;
    let released = Instant::now();
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    in_time(released.elapsed(), Duration::from_secs(5));
    dao.release(&held).await?;
    let held = handed(&dao, &behind, next).await?;
    dao.release(&held).await?;
    Ok(())
}

/// One release wakes many processes, while others use the server for something else: MariaDB takes two seconds to
/// interrupt a `SLEEP` of many, and so long the releaser would wait, and offers would lapse.
async fn notifying_many_does_not_wait(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let holder = place.open().await?;
    let mut waiting = Vec::new();
    for _ in 0..12 {
        waiting.push(Arc::new(place.open().await?));
    }
    let mut sleepers = JoinSet::new();
    for _ in 0..4 {
        let mut sql = place.sql().await?;
        sleepers.spawn(async move {
            loop {
                sql.run("DO SLEEP(0.001)").await.expect("the server answers");
            }
        });
    }
    for _ in 0..10 {
        let held = take(&holder, ["a"]).await?;
        let mut places = Vec::new();
        for dao in &waiting {
            let claims = ClaimSet::new(["a"], Mode::Shared)?;
            let asked = AcquireRequest { claims, queue: true, ..request(["a"]) };
            let Acquired::Queued { wakeup, .. } = dao.acquire(&asked).await? else {
                return Err("not queued".into());
            };
            places.push((dao.clone(), asked, wakeup));
        }
        let begun = Instant::now();
        holder.release(&held).await?;
        let took = begun.elapsed();
        let mut turns = JoinSet::new();
        for (dao, asked, wakeup) in places {
            turns.spawn(async move {
                let held = handed(&dao, &asked, wakeup).await?;
                Ok::<_, super::place::Error>(dao.release(&held).await?)
            });
        }
        for turn in turns.join_all().await {
            assert_eq!(turn?.lost, []);
        }
        in_time(took, Duration::from_secs(1));
    }
    Ok(())
}

/// A client works on one id of a waiting set when the other one becomes free: the releaser does not wait for that, which
/// could deadlock, and grants nothing; the waiter is notified to ask.
async fn a_set_that_is_locked_by_a_transaction_is_not_waited_for(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    let (waits, mut wakeup) = queue(&dao, ["a", "b"]).await?;
    let mut sql = place.sql().await?;
    let mut transaction = sql.0.begin().await?;
    let lock = "SELECT 1 FROM lockcore_ids WHERE ns = 1 AND id = 'b' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut *transaction).await?;
    // It is answered while the transaction is still under way.
    dao.release(&held).await?;
    let told = tokio::time::timeout(PATIENCE, wakeup.recv()).await?;
    assert!(matches!(told, Wake::Recheck), "{told:?}");
    transaction.rollback().await?;
    let held = granted(&dao, &waits).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

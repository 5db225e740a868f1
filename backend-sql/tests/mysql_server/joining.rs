//! Beside the application's data: its own pool, its own transactions, writes that a former holder cannot make.

use std::time::Duration;

use lockcore::{BackendErrorKind, BreakMode, LockDao, Target, backend::AcquireRequest};
use lockcore_conformance::servers::{Kind, TestResult, Trial};
use lockcore_sql::MysqlLockDao;
use sqlx::{AssertSqlSafe, Connection, Executor, mysql::MySqlPoolOptions};
use uuid::Uuid;

use super::{
    place::{Place, granted, handed, locks_are_kept_without_the_pool, queue, request, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "joining::locks_on_the_applications_pool", locks_on_the_applications_pool),
        test(
            kind,
            "joining::renewals_need_no_connection_of_the_pool",
            renewals_need_no_connection_of_the_pool,
        ),
        test(kind, "joining::a_former_holders_write_changes_nothing", a_former_holders_write_changes_nothing),
        test(
            kind,
            "joining::no_takeover_during_a_guarded_transaction",
            no_takeover_during_a_guarded_transaction,
        ),
        test(kind, "joining::odd_sessions_change_nothing", odd_sessions_change_nothing),
        test(
            kind,
            "joining::a_session_with_a_clock_of_its_own_is_refused",
            a_session_with_a_clock_of_its_own_is_refused,
        ),
    ]
}

/// 5.6: every connection is borrowed, and given back as it was.
async fn locks_on_the_applications_pool(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let pool = MySqlPoolOptions::new().max_connections(2).connect(&place.url()).await?;
    let dao = MysqlLockDao::<String, Uuid>::builder().pool(pool.clone()).open().await?;
    assert!(dao.capabilities().push, "the pool's own options lead to the server");
    let mut transaction = pool.begin().await?;
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    dao.release(&held).await?;
    transaction.execute("SELECT 1").await?;
    transaction.commit().await?;
    // The pool has no other connections than its own, and all of them are usable.
    let (one, two) = (pool.acquire().await?, pool.acquire().await?);
    drop((one, two));
    assert!(pool.size() <= 2);
    Ok(())
}

/// The application has taken all of its pool while it holds a lock, and others wait for it: both is kept up.
async fn renewals_need_no_connection_of_the_pool(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let pool = MySqlPoolOptions::new().max_connections(1).connect(&place.url()).await?;
    let dao = MysqlLockDao::<String, Uuid>::builder().pool(pool.clone()).open().await?;
    let taken = || async { Ok(pool.begin().await?) };
    locks_are_kept_without_the_pool(dao, place.open().await?, taken).await
}

/// 3.10: the fence is compared in the statement of the write itself.
async fn a_former_holders_write_changes_nothing(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE account (id INT PRIMARY KEY, balance INT)").await?;
    sql.run("INSERT INTO account VALUES (7, 0)").await?;
    let check = dao.fence_check();
    let write = async |balance: i32, fence: u64| {
        let text = format!("UPDATE account SET balance = {balance} WHERE id = 7 AND {check}");
        let write =
            sqlx::query(AssertSqlSafe(text)).bind(&b"default"[..]).bind(&b"account/7"[..]).bind(fence as i64);
        let mut writer = place.sql().await?;
        Ok::<_, super::place::Error>(write.execute(&mut writer.0).await?.rows_affected())
    };
    let first = take(&dao, ["account/7"]).await?;
    let first_fence = first.locks[0].granted.fence;
    assert_eq!(write(1, first_fence).await?, 1);
    assert_eq!(write(9, first_fence - 1).await?, 0, "another fence");
    sql.run("UPDATE lockcore_ids SET until = until - lease").await?;
    assert_eq!(write(9, first_fence).await?, 0, "its lease is over, though no other came yet");
    let second = take(&dao, ["account/7"]).await?;
    let second_fence = second.locks[0].granted.fence;
    assert_eq!(write(9, first_fence).await?, 0, "a later holder was there");
    assert_eq!(write(2, second_fence).await?, 1);
    // With a waiter the holder stands in another table.
    let (waits, wakeup) = queue(&dao, ["account/7"]).await?;
    assert_eq!(write(3, second_fence).await?, 1);
    dao.break_lock(&Target::Id("account/7".to_owned()), second_fence, BreakMode::AfterLease, "me").await?;
    assert_eq!(write(9, second_fence).await?, 0, "its lock was broken");
    dao.release(&second).await?;
    assert_eq!(write(9, second_fence).await?, 0, "it was released");
    let third = handed(&dao, &waits, wakeup).await?;
    assert_eq!(write(4, third.locks[0].granted.fence).await?, 1);
    assert_eq!(sql.number("SELECT balance FROM account").await?, 4);
    Ok(())
}

/// What was checked stays true until the application's transaction ends.
async fn no_takeover_during_a_guarded_transaction(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE account (id INT PRIMARY KEY, balance INT)").await?;
    sql.run("INSERT INTO account VALUES (7, 0)").await?;
    let lasts = Duration::from_secs(2);
    let held = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(["a"]) }).await?;
    let fence = held.locks[0].granted.fence;
    let mut transaction = sql.0.begin().await?;
    let write = format!("UPDATE account SET balance = 1 WHERE {}", dao.fence_check());
    let write = sqlx::query(AssertSqlSafe(write)).bind(&b"default"[..]).bind(&b"a"[..]).bind(fence as i64);
    assert_eq!(write.execute(&mut *transaction).await?.rows_affected(), 1);
    let mut watch = place.sql().await?;
    // Its lease is over by the time that it is asked for: only the transaction is in the way.
    let over =
        format!("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) > {fence} + 2000000");
    watch.until(&over, |answer| answer == 1).await?;
    let other = place.open().await?;
    let taking =
        tokio::spawn(async move { take(&other, ["a"]).await.map(|grant| grant.locks[0].granted.fence) });
    let waits = format!(
        "SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE db = '{}' \
         AND (info LIKE 'UPDATE%fence%' OR info LIKE 'SELECT COUNT(*), MAX(i.fence)%')",
        place.database
    );
    watch.until(&waits, |answer| answer == 1).await?;
    assert!(!taking.is_finished(), "it waits for the end of the transaction");
    transaction.commit().await?;
    assert!(taking.await?? > fence);
    Ok(())
}

/// 2.7: a session whose clock was set ends no lease of others: it is refused.
async fn a_session_with_a_clock_of_its_own_is_refused(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    for clock in ["1000", "UNIX_TIMESTAMP() + 86400", "UNIX_TIMESTAMP() - 30"] {
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    let set = format!("SET SESSION timestamp = {clock}");
                    conn.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.map(drop)
                })
            })
            .connect(&place.url())
            .await?;
        let odd = MysqlLockDao::<String, Uuid>::builder().pool(pool).listen(false).open().await?;
        for ids in [["a"], ["b"]] {
            let refused = odd.acquire(&request(ids)).await.expect_err("its clock is wrong");
            assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
            assert!(refused.to_string().contains("timestamp") && !refused.in_doubt(), "{refused}");
        }
    }
    assert_eq!(dao.renew(&held).await?.lost, []);
    Ok(())
}

/// 2.7: neither the time zone of a session, nor its isolation level, nor its SQL mode matter.
async fn odd_sessions_change_nothing(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let pool = MySqlPoolOptions::new()
        .max_connections(2)
        .after_connect(|conn, _| {
            Box::pin(async move {
                conn.execute("SET SESSION time_zone = '-11:00'").await?;
                conn.execute("SET SESSION sql_mode = 'ANSI'").await?;
                conn.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE").await?;
                conn.execute("SET SESSION group_concat_max_len = 4").await.map(drop)
            })
        })
        .connect(&place.url())
        .await?;
    let odd = MysqlLockDao::<String, Uuid>::builder().pool(pool).listen(false).open().await?;
    // Twice: the first time, nothing is known of the server's clock, and its rows are not there.
    for ids in [vec!["a"], vec!["a", "b", "c"], vec!["a"], vec!["a", "b", "c"]] {
        let held = take(&dao, ids.clone()).await?;
        let lockcore::backend::Acquired::Refused(conflicts) = odd.acquire(&request(ids.clone())).await?
        else {
            return Err("granted to two".into());
        };
        assert_eq!(conflicts.len(), ids.len());
        dao.release(&held).await?;
        let taken = take(&odd, ids.clone()).await?;
        assert!(taken.locks[0].granted.fence > held.locks[0].granted.fence);
        // An hour, or eleven, would show.
        let ahead = taken.locks[0].granted.fence - held.locks[0].granted.fence;
        assert!(ahead < 600_000_000, "{ahead} us between two fences");
        assert!(dao.renew(&held).await?.lost.len() == ids.len());
        assert!(odd.release(&taken).await?.lost.is_empty());
    }
    Ok(())
}

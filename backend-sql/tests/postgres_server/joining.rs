//! Beside the application's data: its own pool, its own transactions, writes that a former holder cannot make.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, BreakMode, LockDao, Target, backend::AcquireRequest};
use lockcore_conformance::servers::{TestResult, Trial};
use lockcore_sql::PostgresLockDao;
use sqlx::{AssertSqlSafe, Connection, Executor, Row, postgres::PgPoolOptions};
use uuid::Uuid;

use super::{
    place::{Place, granted, handed, locks_are_kept_without_the_pool, queue, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("joining::locks_on_the_applications_pool", locks_on_the_applications_pool),
        test("joining::renewals_need_no_connection_of_the_pool", renewals_need_no_connection_of_the_pool),
        test("joining::a_former_holders_write_changes_nothing", a_former_holders_write_changes_nothing),
        test("joining::no_takeover_during_a_guarded_transaction", no_takeover_during_a_guarded_transaction),
        test("joining::another_isolation_level_is_refused", another_isolation_level_is_refused),
    ]
}

/// 5.6: every connection is borrowed, and given back as it was.
async fn locks_on_the_applications_pool() -> TestResult {
    let place = Place::new().await?;
    let pool = PgPoolOptions::new().max_connections(2).connect(&place.server.url()).await?;
    let dao =
        PostgresLockDao::<String, Uuid>::builder().pool(pool.clone()).schema(&*place.schema).open().await?;
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
async fn renewals_need_no_connection_of_the_pool() -> TestResult {
    let place = Place::new().await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&place.server.url()).await?;
    let builder = PostgresLockDao::<String, Uuid>::builder().pool(pool.clone()).schema(&*place.schema);
    let taken = || async { Ok(pool.begin().await?) };
    locks_are_kept_without_the_pool(builder.open().await?, place.open().await?, taken).await
}

/// 3.10: the fence is compared in the statement of the write itself.
async fn a_former_holders_write_changes_nothing() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE account (id int, balance int); INSERT INTO account VALUES (7, 0)").await?;
    let check = dao.fence_check();
    let write = |balance: i32, fence: u64| {
        format!(
            "UPDATE account SET balance = {balance} WHERE id = 7 AND {check}('default', 'account/7', {fence})"
        )
    };
    let first = take(&dao, ["account/7"]).await?;
    let first_fence = first.locks[0].granted.fence;
    assert_eq!(sql.run(write(1, first_fence)).await?, 1);
    assert_eq!(sql.run(write(9, first_fence - 1)).await?, 0, "another fence");
    sql.run("UPDATE lockcore_lock SET expires = expires - lease").await?;
    assert_eq!(sql.run(write(9, first_fence)).await?, 0, "its lease is over, though no other came yet");
    let second = take(&dao, ["account/7"]).await?;
    let second_fence = second.locks[0].granted.fence;
    assert_eq!(sql.run(write(9, first_fence)).await?, 0, "a later holder was there");
    assert_eq!(sql.run(write(2, second_fence)).await?, 1);
    dao.break_lock(&Target::Id("account/7".to_owned()), second_fence, BreakMode::AfterLease, "me").await?;
    assert_eq!(sql.run(write(9, second_fence)).await?, 0, "its lock was broken");
    dao.release(&second).await?;
    assert_eq!(sql.run(write(9, second_fence)).await?, 0, "it was released");
    assert_eq!(sql.number("SELECT balance FROM account").await?, 2);
    Ok(())
}

/// What was checked stays true until the application's transaction ends.
async fn no_takeover_during_a_guarded_transaction() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let check = dao.fence_check();
    let lasts = Duration::from_secs(2);
    let held = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(["a"]) }).await?;
    let mut transaction = sql.0.begin().await?;
    let ask = format!("SELECT {check}('default', 'a', {})", held.locks[0].granted.fence);
    let holds: bool = transaction.fetch_one(sqlx::raw_sql(AssertSqlSafe(ask))).await?.try_get(0)?;
    assert!(holds);
    let other = place.open().await?;
    let taking =
        tokio::spawn(async move { take(&other, ["a"]).await.map(|grant| grant.locks[0].granted.fence) });
    let mut watch = place.sql().await?;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' ||
        current_setting('search_path') || '%v1_acquire%'";
    // Its lease is over by the time that it is asked for: only the transaction is in the way.
    watch
        .until(
            "SELECT (expires <= date_part('epoch', clock_timestamp()) * 1000000)::int FROM lockcore_lock",
            1,
        )
        .await?;
    let waits = waits.replace("current_setting('search_path')", &format!("'{}'", place.schema));
    watch.until(&waits, 1).await.or_else(|error| if taking.is_finished() { Ok(()) } else { Err(error) })?;
    assert!(!taking.is_finished(), "it waits for the end of the transaction, or was refused before");
    transaction.commit().await?;
    assert!(taking.await?? > held.locks[0].granted.fence);
    Ok(())
}

/// The routines decide by what others committed; in another level they would decide by what was.
async fn another_isolation_level_is_refused() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    // The application's own pool, whose connections have one level at first, and another one later.
    let level = Arc::new(AtomicBool::new(true));
    let repeatable = level.clone();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .before_acquire(move |conn, _| {
            let level = if repeatable.load(Ordering::Relaxed) { "repeatable read" } else { "read committed" };
            Box::pin(async move {
                let set = format!("SET default_transaction_isolation TO '{level}'");
                conn.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.map(|_| true)
            })
        })
        .connect(&place.server.url())
        .await?;
    let builder = || {
        let builder = PostgresLockDao::<String, Uuid>::builder().pool(pool.clone());
        builder.schema(&*place.schema).listen(false)
    };
    let refused = builder().open().await.expect_err("it could not decide");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    assert!(refused.to_string().contains("repeatable read"), "{refused}");
    level.store(false, Ordering::Relaxed);
    let wrong = builder().open().await?;
    level.store(true, Ordering::Relaxed);
    let refused = wrong.acquire(&request(["a"])).await.expect_err("it cannot decide");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    assert!(refused.to_string().contains("repeatable read"), "{refused}");
    wrong.acquire(&AcquireRequest { queue: true, ..request(["a"]) }).await.expect_err("nor who waits");
    // Two of them, since who waits alone stands in the row that is released, which is all that has to be known then.
    let _waiting = [queue(&dao, ["a"]).await?, queue(&dao, ["a"]).await?];
    wrong.release(&held).await.expect_err("nor whose turn it is");
    assert!(
        wrong
            .doctor()
            .await?
            .iter()
            .any(|finding| finding.check == "isolation" && finding.detail.contains("repeatable"))
    );
    // A connection of our own does not depend on what the role or the database has as default.
    let mut sql = place.sql().await?;
    let user =
        sqlx::raw_sql("SELECT current_user::text").fetch_one(&mut sql.0).await?.try_get::<String, _>(0)?;
    sql.run(format!(
        "ALTER ROLE \"{user}\" IN DATABASE postgres SET default_transaction_isolation TO 'serializable'"
    ))
    .await?;
    let own = place.open().await;
    sql.run(format!("ALTER ROLE \"{user}\" IN DATABASE postgres RESET default_transaction_isolation"))
        .await?;
    let refused = own?.acquire(&request(["a"])).await?;
    assert!(matches!(refused, lockcore::backend::Acquired::Refused(_)), "{refused:?}");
    dao.release(&held).await?;
    Ok(())
}

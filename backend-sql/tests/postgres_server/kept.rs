//! Sets that are kept when they are freed, for the program that took them more than once: taking one again is one row.

use std::time::Duration;

use lockcore::{AcquireRequest, AttemptId, Grant, LockDao, LossReason, Target};
use lockcore_conformance::servers::{TestResult, Trial};
use sqlx::{AssertSqlSafe, Executor};
use uuid::Uuid;

use crate::{
    place::{Place, granted, request, sets, take},
    steps::kept::{self, fence, keep, names},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("kept::one_row_is_taken_again", || kept::one_row_is_taken_again(Place::new)),
        test("kept::others_take_what_is_free", || kept::others_take_what_is_free(Place::new)),
        test("kept::it_is_held_as_any_other", it_is_held_as_any_other),
        test("kept::what_is_over_is_not_renewed_or_freed", what_is_over_is_not_renewed_or_freed),
        test("kept::a_renewal_cuts_nothing_short", a_renewal_cuts_nothing_short),
        test("kept::only_what_is_free_is_taken_again", only_what_is_free_is_taken_again),
        test("kept::who_withdrew_does_not_get_it", || kept::who_withdrew_does_not_get_it(Place::new)),
        test("kept::an_abandoned_exchange_harms_nobody", || {
            kept::an_abandoned_exchange_harms_nobody(Place::new)
        }),
        test("kept::what_is_frozen_stays_so", || kept::what_is_frozen_stays_so(Place::new)),
        test("kept::it_is_swept_after_an_hour", it_is_swept_after_an_hour),
        test("kept::what_is_over_is_swept_with_its_fence", what_is_over_is_swept_with_its_fence),
        test("kept::what_others_want_is_left_alone", || kept::what_others_want_is_left_alone(Place::new)),
        test("kept::one_at_a_time_has_it", || kept::one_at_a_time_has_it(Place::new)),
    ]
}

async fn it_is_held_as_any_other() -> TestResult {
    let place = Place::new().await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TEMPORARY TABLE account (balance INT); INSERT INTO account VALUES (0)").await?;
    let holds = place.open().await?.fence_check();
    let text = format!("UPDATE account SET balance = balance + 1 WHERE {holds}('default', 'a', $1)");
    kept::it_is_held_as_any_other(&place, async |fence| {
        Ok(sql.0.execute(sqlx::query(AssertSqlSafe(&*text)).bind(fence)).await?.rows_affected())
    })
    .await
}

/// 2.2: a former grant of the same context, whose holder took it again since; a lease that is over; what is free.
async fn what_is_over_is_not_renewed_or_freed() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    let request = request(&ids);
    let mut former: Vec<Grant<String, Uuid>> = Vec::new();
    for round in 0..5 {
        let again = AcquireRequest { attempt: AttemptId::fresh(), ..request.clone() };
        let held = granted(&dao, &again).await?;
        if round < 4 {
            assert_eq!(dao.release(&held).await?.lost, []);
        }
        former.push(held);
    }
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_set WHERE fence > made").await?, 1);
    let held = former.pop().ok_or("taken five times")?;
    let made = sql.number("SELECT made FROM lockcore_set").await?;
    let attempt = sql.number("SELECT attempt FROM lockcore_set").await?;
    for former in &former {
        let (context, old) = (former.context, fence(former));
        // As if it had been taken as this set.
        let ids = "ARRAY['00', '01', '02']::bytea[]";
        let set = format!("'{context}', {ids}, {old}, 0, {made}, {attempt}, ''");
        sql.run(format!("CALL lockcore_v1_release_many('default', {set})")).await?;
        let fences = format!("array_fill({old}::int8, ARRAY[3])");
        let renewal = format!("'{context}', {ids}, {fences}, 1, 0, {made}, {attempt}, ''");
        sql.run(format!("CALL lockcore_v1_renew_kept('default', {renewal})")).await?;
        assert_eq!(dao.inspect(&Target::Id("00".to_owned())).await?.holders.len(), 1);
        assert_eq!(dao.renew(former).await?.lost.len(), 3);
        assert_eq!(dao.release(former).await?.lost.len(), 3);
    }
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&held).await?.lost, []);
    // Nor what is free and kept, whose lease was not over; nor what is over.
    for over in [false, true] {
        let (dao, others) = (place.open().await?, ["x", "y"].map(str::to_owned));
        sql.run(sets::PART_ALL).await?;
        keep(&dao, &mut sql, &others).await?;
        let held = take(&dao, &others).await?;
        let reason = match over {
            true => {
                sql.run("UPDATE lockcore_set SET expires = expires - lease - 1000 WHERE NOT parted").await?;
                LossReason::Expired
            }
            false => {
                assert_eq!(dao.release(&held).await?.lost, []);
                LossReason::Vanished
            }
        };
        for lost in [dao.renew(&held).await?.lost, dao.release(&held).await?.lost] {
            let reasons: Vec<_> = lost.iter().map(|lost| lost.reason).collect();
            assert_eq!(reasons, [reason; 2]);
        }
    }
    Ok(())
}

/// 1: whoever believes that it is.
async fn only_what_is_free_is_taken_again() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    keep(&dao, &mut sql, &ids).await?;
    let held = take(&dao, &ids).await?;
    let made = sql.number("SELECT made FROM lockcore_set").await?;
    let attempt = sql.number("SELECT attempt FROM lockcore_set").await?;
    for attempt in [attempt, attempt + 1] {
        let ids = "ARRAY['00', '01', '02']::bytea[]";
        let ask = format!("'default', 'other', 1, {ids}, 1000000, '', 0, 0, {made}, {attempt}");
        sql.run(format!("CALL lockcore_v1_acquire_kept({ask}, '')")).await?;
        let others = "SELECT count(*) FROM lockcore_set WHERE convert_from(context, 'UTF8') = 'other'";
        assert_eq!(sql.number(others).await?, 0);
        assert_eq!(dao.renew(&held).await?.lost, []);
    }
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// 2.7: nor does it prolong what was granted before the server's clock was set back.
async fn a_renewal_cuts_nothing_short() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    keep(&dao, &mut sql, &ids).await?;
    let mut held = take(&dao, &ids).await?;
    let expires = sql.number("SELECT expires FROM lockcore_set").await?;
    held.lease = Some(Duration::from_secs(1));
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(sql.number("SELECT expires FROM lockcore_set").await?, expires);
    sql.run("UPDATE lockcore_set SET expires = expires + 3600000000, since = since + 3600000000").await?;
    held.lease = Some(Duration::from_secs(60));
    assert_eq!(dao.renew(&held).await?.lost, []);
    let shown = dao.inspect(&Target::Id("00".to_owned())).await?;
    assert!(shown.holders[0].remaining <= Some(Duration::from_secs(60)), "{shown:?}");
    assert!(sql.number("SELECT max(expires) FROM lockcore_lock").await? < expires + 60_000_000);
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// What is taken again and again stays for an hour; what is not, goes.
async fn it_is_swept_after_an_hour() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    let last = keep(&dao, &mut sql, &ids).await?;
    let earlier = "UPDATE lockcore_lock SET lapses = lapses - 3500000000; UPDATE lockcore_set SET fence = fence - 3500000000";
    for _ in 0..2 {
        assert_eq!(dao.sweep(100, None).await?.removed, 0);
        assert_eq!(sql.number(sets::KEPT).await?, 1);
        sql.run(earlier).await?;
    }
    // It is held all that time.
    sql.run(format!("UPDATE lockcore_set SET fence = {last}")).await?;
    let held = take(&dao, &ids).await?;
    assert!(fence(&held) > last);
    sql.run("UPDATE lockcore_set SET fence = fence - 7200000000").await?;
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(
        sql.number("SELECT count(*) FROM lockcore_lock WHERE busy = 1").await?,
        3,
        "they say it themselves"
    );
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_set").await?, 1);
    sql.run("DELETE FROM lockcore_set; DELETE FROM lockcore_lock").await?;
    // It is free.
    let other = place.open().await?;
    keep(&other, &mut sql, &ids).await?;
    for _ in 0..3 {
        sql.run(earlier).await?;
    }
    dao.sweep(100, None).await?;
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_set").await?, 0);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0);
    let held = take(&other, &ids).await?;
    assert_eq!(other.release(&held).await?.lost, []);
    Ok(())
}

/// 2.9, 5: the sweep counts what it ends, and forgets no fence of it.
async fn what_is_over_is_swept_with_its_fence() -> TestResult {
    for batch in [1, 100] {
        let place = Place::new().await?;
        let (dao, mut sql) = (place.open().await?, place.sql().await?);
        let ids = names(3);
        keep(&dao, &mut sql, &ids).await?;
        let held = take(&dao, &ids).await?;
        sql.run("UPDATE lockcore_set SET expires = 1; UPDATE lockcore_lock SET lapses = 1").await?;
        let mut removed = 0;
        for _ in 0..6 {
            removed += dao.sweep(batch, None).await?.removed;
        }
        assert_eq!(removed, 3);
        assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0);
        assert!(sql.number("SELECT floor FROM lockcore_namespace").await? >= fence(&held));
        let again = take(&dao, &ids).await?;
        assert_eq!(dao.release(&again).await?.lost, []);
    }
    Ok(())
}

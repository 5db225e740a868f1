//! Sets that are kept when they are freed, for the program that took them more than once: taking one again is one row.

use std::time::Duration;

use lockcore::{AcquireRequest, ContextId, Grant, LockDao, LossReason, Target};
use lockcore_conformance::servers::{Kind, TestResult, Trial};
use sqlx::AssertSqlSafe;
use sqlx::Executor;
use uuid::Uuid;

use crate::{
    place::{Place, granted, request, sets, take},
    steps::kept::{self, fence, keep, names},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "kept::one_row_is_taken_again", |kind| {
            kept::one_row_is_taken_again(async move || Place::new(kind).await)
        }),
        test(kind, "kept::others_take_what_is_free", |kind| {
            kept::others_take_what_is_free(async move || Place::new(kind).await)
        }),
        test(kind, "kept::it_is_held_as_any_other", it_is_held_as_any_other),
        test(kind, "kept::what_is_over_is_not_renewed_or_freed", what_is_over_is_not_renewed_or_freed),
        test(kind, "kept::who_withdrew_does_not_get_it", |kind| {
            kept::who_withdrew_does_not_get_it(async move || Place::new(kind).await)
        }),
        test(kind, "kept::an_abandoned_exchange_harms_nobody", |kind| {
            kept::an_abandoned_exchange_harms_nobody(async move || Place::new(kind).await)
        }),
        test(kind, "kept::what_is_frozen_stays_so", |kind| {
            kept::what_is_frozen_stays_so(async move || Place::new(kind).await)
        }),
        test(kind, "kept::a_fence_that_is_no_good_is_chosen_anew", a_fence_that_is_no_good_is_chosen_anew),
        test(kind, "kept::a_fence_that_was_chosen_is_told", a_fence_that_was_chosen_is_told),
        test(kind, "kept::it_is_swept_after_an_hour", it_is_swept_after_an_hour),
        test(kind, "kept::what_is_over_is_swept_with_its_fence", what_is_over_is_swept_with_its_fence),
        test(kind, "kept::what_others_want_is_left_alone", |kind| {
            kept::what_others_want_is_left_alone(async move || Place::new(kind).await)
        }),
        test(kind, "kept::one_at_a_time_has_it", |kind| {
            kept::one_at_a_time_has_it(async move || Place::new(kind).await)
        }),
    ]
}

async fn it_is_held_as_any_other(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE account (balance INT); INSERT INTO account VALUES (0)").await?;
    let text =
        format!("UPDATE account SET balance = balance + 1 WHERE {}", place.open().await?.fence_check());
    kept::it_is_held_as_any_other(&place, async |fence| {
        let write = sqlx::query(AssertSqlSafe(&*text)).bind(&b"default"[..]).bind(&b"a"[..]).bind(fence);
        Ok(sql.0.execute(write).await?.rows_affected())
    })
    .await
}

/// 2.2: a former grant of the same context, whose holder took it again since.
async fn what_is_over_is_not_renewed_or_freed(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    let request = request(&ids);
    let mut former: Vec<Grant<String, Uuid>> = Vec::new();
    for round in 0..5 {
        let held =
            granted(&dao, &AcquireRequest { attempt: lockcore::AttemptId::fresh(), ..request.clone() })
                .await?;
        if round < 4 {
            assert_eq!(dao.release(&held).await?.lost, []);
        }
        former.push(held);
    }
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE number > fence").await?, 1);
    let held = former.pop().ok_or("taken five times")?;
    let set = sql.number("SELECT fence FROM lockcore_sets").await?;
    for former in &former {
        // As if it had been this one, and as if it had not.
        for kept in [set, fence(former)] {
            let context = former.context.stored();
            let old = fence(former);
            let whole = format!("'3030'',x''3031'',x''3032', {kept}");
            sql.run(format!("CALL lockcore_v1_release_set(1, '{context}', {old}, 3, {whole})")).await?;
            assert_eq!(dao.inspect(&Target::Id("00".to_owned())).await?.holders.len(), 1);
        }
        assert_eq!(dao.renew(former).await?.lost.len(), 3);
        assert_eq!(dao.release(former).await?.lost.len(), 3);
    }
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&held).await?.lost, []);
    // Nor what is free and kept; whose lease was not over.
    let (dao, others) = (place.open().await?, ["x", "y"].map(str::to_owned));
    keep(&dao, &mut sql, &others).await?;
    let held = take(&dao, &others).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    assert_eq!(sql.number(sets::KEPT).await?, 1);
    for lost in [dao.renew(&held).await?.lost, dao.release(&held).await?.lost] {
        let reasons: Vec<_> = lost.iter().map(|lost| lost.reason).collect();
        assert_eq!(reasons, [LossReason::Vanished; 2]);
    }
    Ok(())
}

async fn a_fence_that_was_chosen_is_told(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    // So that nothing that is proposed is above it.
    let last = keep(&dao, &mut sql, &ids).await? + 3_600_000_000;
    sql.run(format!("UPDATE lockcore_sets SET number = {last}")).await?;
    for next in 1..=2 {
        let held = take(&dao, &ids).await?;
        assert_eq!(fence(&held), last + next);
        assert_eq!(dao.release(&held).await?.lost, []);
        assert_eq!(sql.number(sets::KEPT).await?, 1);
    }
    Ok(())
}

/// 5: above all before, at least the store's clock, and no more than a little ahead of it; whatever is proposed.
async fn a_fence_that_is_no_good_is_chosen_anew(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let last = keep(&dao, &mut sql, &names(2)).await?;
    let set = sql.number("SELECT fence FROM lockcore_sets").await?;
    let made = sql.number("SELECT attempt FROM lockcore_sets").await?;
    let second = last / 1_000_000 + 60;
    sql.run(format!("SET timestamp = {second}")).await?;
    let clock = second * 1_000_000;
    let ask = |fence: i64, made: i64| {
        let set = format!("{fence}, {set}, {made}, '3030'',x''3031'");
        format!("CALL lockcore_v1_acquire_kept(1, 'c', 1, 2, 60000000, '', 0, 0, {set})")
    };
    for (proposed, number) in [
        (0, 0),
        (0, 1),
        (4000, 4000),
        (4000, 4001),
        (10_001, 4002),
        (10_000, 10_000),
        (5000, 10_001),
        (-1, 10_002),
    ] {
        sql.run(ask(clock + proposed, made)).await?;
        assert_eq!(sql.number("SELECT number FROM lockcore_sets").await? - clock, number, "{proposed}");
        assert_eq!(sql.number("SELECT since FROM lockcore_sets").await?, clock);
        assert_eq!(sql.number("SELECT until FROM lockcore_sets").await?, clock + 60_000_000);
        // It is held.
        sql.run(ask(clock + 10_000, made).replace("'c'", "'d'")).await?;
        assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE context = 'd'").await?, 0);
        let ids = "'3030'',x''3031'";
        let freed = format!("CALL lockcore_v1_release_set(1, 'c', {}, 2, {ids}, {set})", clock + number);
        assert_eq!(sql.run(freed).await?, 1);
    }
    // A set may get the fence of one that is gone.
    sql.run(ask(clock + 10_003, made + 1)).await?;
    assert_eq!(sql.number(sets::KEPT).await?, 0);
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE until > 0").await?, 0);
    Ok(())
}

/// Else the next one would have to make it anew.
async fn it_is_swept_after_an_hour(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    keep(&dao, &mut sql, &ids).await?;
    let later = |sql: &str| format!("UPDATE lockcore_{sql} - 3500000000");
    for _ in 0..3 {
        assert_eq!(dao.sweep(100, None).await?.removed, 0);
        assert_eq!(sql.number(sets::KEPT).await?, 1);
    }
    let held = take(&dao, &ids).await?;
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE number > fence").await?, 1);
    assert_eq!(dao.release(&held).await?.lost, []);
    // One that was kept, but not taken again since, too.
    let (other, pair) = (place.open().await?, ["x", "y"]);
    for _ in 0..2 {
        other.release(&take(&other, pair).await?).await?;
    }
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE number = fence AND until = 0").await?, 1);
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number(sets::KEPT).await?, 2);
    for column in ["sets SET number = number", "ids SET fence = fence", "sets SET fence = fence"] {
        sql.run(later(column)).await?;
    }
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number(sets::KEPT).await?, 2);
    for column in ["sets SET number = number", "ids SET fence = fence", "sets SET fence = fence"] {
        sql.run(later(column)).await?;
    }
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    for table in ["sets", "ids"] {
        dao.sweep(100, None).await?;
        assert_eq!(sql.number(format!("SELECT COUNT(*) FROM lockcore_{table}")).await?, 0, "{table}");
    }
    Ok(())
}

/// 5: the sweep leaves no id without the fence that its set had.
async fn what_is_over_is_swept_with_its_fence(kind: Kind) -> TestResult {
    for batch in [1, 100] {
        let place = Place::new(kind).await?;
        let (dao, mut sql) = (place.open().await?, place.sql().await?);
        let ids = names(3);
        keep(&dao, &mut sql, &ids).await?;
        let lasts = Duration::from_millis(100);
        let held = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(&ids) }).await?;
        let over = "SELECT MIN(until) <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM lockcore_sets";
        sql.until(over, |answer| answer == 1).await?;
        let mut removed = 0;
        for _ in 0..6 {
            removed += dao.sweep(batch, None).await?.removed;
        }
        assert_eq!(removed, 3);
        assert_eq!(sql.number("SELECT MIN(fence) FROM lockcore_ids").await?, fence(&held));
        assert_eq!(sql.number("SELECT SUM(extra) FROM lockcore_ids").await?, 0);
        // As long as another id may be of it.
        assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets WHERE parted = 1").await?, 1);
        let again = take(&dao, &ids).await?;
        assert_eq!(dao.release(&again).await?.lost, []);
    }
    Ok(())
}

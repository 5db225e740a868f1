//! Sets that are kept when they are freed, for the program that took them more than once: taking one again is one row.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{
    AcquireRequest, Acquired, BackendError, BreakMode, ContextId, Grant, LockDao, LossReason, Page,
    StoredContext, Target, Withdraw,
};
use lockcore_conformance::servers::{Kind, TestResult, Trial};
use sqlx::AssertSqlSafe;
use sqlx::Executor;
use uuid::Uuid;

use crate::{
    place::{Dao, Error, Place, Sql, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "kept::one_row_is_taken_again", one_row_is_taken_again),
        test(kind, "kept::others_take_what_is_free", others_take_what_is_free),
        test(kind, "kept::it_is_held_as_any_other", it_is_held_as_any_other),
        test(kind, "kept::what_is_over_is_not_renewed_or_freed", what_is_over_is_not_renewed_or_freed),
        test(kind, "kept::who_withdrew_does_not_get_it", who_withdrew_does_not_get_it),
        test(kind, "kept::an_abandoned_exchange_harms_nobody", an_abandoned_exchange_harms_nobody),
        test(kind, "kept::what_is_frozen_stays_so", what_is_frozen_stays_so),
        test(kind, "kept::a_fence_that_is_no_good_is_chosen_anew", a_fence_that_is_no_good_is_chosen_anew),
        test(kind, "kept::a_fence_that_was_chosen_is_told", a_fence_that_was_chosen_is_told),
        test(kind, "kept::it_is_swept_after_an_hour", it_is_swept_after_an_hour),
        test(kind, "kept::what_is_over_is_swept_with_its_fence", what_is_over_is_swept_with_its_fence),
        test(kind, "kept::what_others_want_is_left_alone", what_others_want_is_left_alone),
        test(kind, "kept::one_at_a_time_has_it", one_at_a_time_has_it),
    ]
}

/// The sets that are free and kept, of which nobody took a part.
const KEPT: &str = "SELECT COUNT(*) FROM lockcore_sets WHERE until = 0 AND parted = 0";

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:02}")).collect()
}

fn fence(grant: &Grant<String, Uuid>) -> i64 {
    grant.locks[0].granted.fence as i64
}

/// Takes and frees a set until it is kept, and again after that, so that its rows do not know its fence, which this is.
async fn keep(dao: &Dao, sql: &mut Sql, ids: &[String]) -> Result<i64, Error> {
    let mut last = 0;
    for _ in 0..4 {
        let held = take(dao, ids).await?;
        last = fence(&held);
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    assert_eq!(sql.number(KEPT).await?, 1);
    assert_eq!(sql.number("SELECT MAX(number) FROM lockcore_sets").await?, last);
    assert!(sql.number("SELECT MAX(fence) FROM lockcore_ids").await? < last);
    Ok(last)
}

/// 3.1: however many ids.
async fn one_row_is_taken_again(kind: Kind) -> TestResult {
    for size in [2, 16, 17, 40] {
        let place = Place::new(kind).await?;
        let (dao, mut sql) = (place.open().await?, place.sql().await?);
        let ids = names(size);
        let mut last = keep(&dao, &mut sql, &ids).await?;
        let rows = "SELECT SUM(CRC32(CONCAT_WS(',', id, fence, extra, until, attempt, context, session))) FROM lockcore_ids";
        let before = sql.number(rows).await?;
        for _ in 0..3 {
            let held = take(&dao, &ids).await?;
            assert!(held.locks.iter().all(|lock| lock.granted.fence as i64 == fence(&held)));
            assert!(fence(&held) > last);
            last = fence(&held);
            let until = sql.number("SELECT until FROM lockcore_sets").await?;
            assert_eq!(dao.renew(&held).await?.lost, []);
            assert!(sql.number("SELECT until FROM lockcore_sets").await? > until);
            assert_eq!(dao.release(&held).await?.lost, []);
            assert_eq!(dao.list(&Page::default()).await?.ids, []);
        }
        assert_eq!(sql.number(rows).await?, before, "no other row is written");
        assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_sets").await?, 1);
        // Other ids, in the same number, are another set.
        let others = names(size + 1).split_off(1);
        let other = take(&dao, &others).await?;
        assert_eq!(dao.list(&Page::default()).await?.ids.len(), size);
        assert_eq!(dao.inspect(&Target::Id(ids[0].clone())).await?.holders, []);
        assert_eq!(dao.release(&other).await?.lost, []);
    }
    Ok(())
}

/// 1, 5: whoever comes, whatever of it they take; all fences are above those before, also of what they left.
async fn others_take_what_is_free(kind: Kind) -> TestResult {
    let ids = names(20);
    let ways: [&[&str]; 5] = [&["00"], &["00", "01"], &["00", "new"], &["new", "newer", "19"], &[]];
    for way in ways {
        let place = Place::new(kind).await?;
        let (dao, other, mut sql) = (place.open().await?, place.open().await?, place.sql().await?);
        let last = keep(&dao, &mut sql, &ids).await?;
        let wanted = if way.is_empty() { ids.clone() } else { way.iter().map(|&id| id.to_owned()).collect() };
        let taken = take(&other, &wanted).await?;
        assert!(fence(&taken) > last);
        let refused = dao.acquire(&request(&ids)).await?;
        assert!(matches!(refused, Acquired::Refused(_)), "{refused:?} beside {taken:?}");
        assert_eq!(other.release(&taken).await?.lost, []);
        for id in &ids {
            let alone = take(&other, [id]).await?;
            assert!(fence(&alone) > last, "{id}");
            // Not since the clock is later.
            let known = format!("SELECT fence FROM lockcore_ids WHERE id = '{id}'");
            assert!(sql.number(known).await? >= last, "{id}");
            assert_eq!(other.release(&alone).await?.lost, []);
        }
        let held = take(&dao, &ids).await?;
        assert!(fence(&held) > last);
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

/// It is shown, guards writes, is broken, waited for and handed over; under the fence that it has.
async fn it_is_held_as_any_other(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = ["a", "b", "c"].map(str::to_owned);
    let [a, b, c] = ids.clone().map(Target::Id);
    sql.run("CREATE TABLE account (balance INT); INSERT INTO account VALUES (0)").await?;
    let text = format!("UPDATE account SET balance = balance + 1 WHERE {}", dao.fence_check());
    let mut write = async |fence: i64| {
        let write = sqlx::query(AssertSqlSafe(&*text)).bind(&b"default"[..]).bind(&b"a"[..]).bind(fence);
        Ok::<_, Error>(sql.0.execute(write).await?.rows_affected())
    };
    let mut of_rows = place.sql().await?;

    let last = keep(&dao, &mut of_rows, &ids).await?;
    let known = of_rows.number("SELECT MAX(fence) FROM lockcore_ids").await?;
    assert_eq!([write(last).await?, write(known).await?], [0, 0], "it is free");
    let held = take(&dao, &ids).await?;
    assert_eq!([write(fence(&held)).await?, write(last).await?, write(known).await?], [1, 0, 0]);
    let shown = dao.inspect(&a).await?.holders;
    assert_eq!(shown.len(), 1);
    assert_eq!(
        (&shown[0].context, shown[0].fence as i64),
        (&StoredContext::Known(held.context), fence(&held))
    );
    assert_eq!(dao.list(&Page::default()).await?.ids.len(), 3);
    let (waits, wakeup) = queue(&dao, ["b"]).await?;
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(write(fence(&held)).await?, 1);
    assert_eq!(dao.release(&held).await?.lost, []);
    let handed = handed(&dao, &waits, wakeup).await?;
    assert!(fence(&handed) > fence(&held));
    assert_eq!(dao.release(&handed).await?.lost, []);
    assert_eq!(write(fence(&held)).await?, 0);

    // Another program, which knows nothing of it.
    let (dao, other) = (place.open().await?, place.open().await?);
    keep(&dao, &mut of_rows, &ids).await?;
    let held = take(&dao, &ids).await?;
    assert_eq!(other.renew(&held).await?.lost, []);
    assert_eq!(dao.renew(&held).await?.lost, []);
    dao.break_lock(&b, held.locks[1].granted.fence, BreakMode::Now, "me").await?;
    let lost: Vec<_> = dao.renew(&held).await?.lost.into_iter().map(|lost| lost.target).collect();
    assert_eq!(lost, [b]);
    assert_eq!(dao.release_context(&held.context).await?, [a, c]);

    let dao = place.open().await?;
    keep(&dao, &mut of_rows, &ids).await?;
    assert_eq!(dao.release_context(&held.context).await?, []);
    let held = take(&dao, &ids).await?;
    assert_eq!(other.release(&held).await?.lost, []);
    let again = take(&dao, &ids).await?;
    assert!(fence(&again) > fence(&held));
    assert_eq!(dao.release_context(&again.context).await?.len(), 3);
    Ok(())
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
    assert_eq!(sql.number(KEPT).await?, 1);
    for lost in [dao.renew(&held).await?.lost, dao.release(&held).await?.lost] {
        let reasons: Vec<_> = lost.iter().map(|lost| lost.reason).collect();
        assert_eq!(reasons, [LossReason::Vanished; 2]);
    }
    Ok(())
}

/// 4.3: the withdrawal comes first.
async fn who_withdrew_does_not_get_it(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (other, mut sql) = (place.open().await?, place.sql().await?);
    let ids = names(3);
    for held in [false, true] {
        let dao = place.open().await?;
        keep(&dao, &mut sql, &ids).await?;
        let late = request(&ids);
        if held {
            // It is on its way twice.
            granted(&dao, &late).await?;
        }
        other.withdraw(&late, Withdraw::Undo).await?;
        let refused = dao.acquire(&late).await;
        assert!(!matches!(refused, Ok(Acquired::Granted(_))), "{refused:?}");
        assert_eq!(dao.inspect(&Target::Id("00".to_owned())).await?.holders, []);
        sql.run("DELETE FROM lockcore_sets").await?;
    }
    Ok(())
}

/// 4: a future that is dropped while it takes a kept set, or frees it.
async fn an_abandoned_exchange_harms_nobody(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let mut sql = place.sql().await?;
    let ids = names(3);
    let mut last = 0;
    for round in 0..20_u64 {
        let dao = place.open().await?;
        last = keep(&dao, &mut sql, &ids).await?.max(last);
        // Dropped before it is sent, on its way, or just about when the answer comes.
        let soon = Duration::from_micros(round * 97);
        let abandoned = request(&ids);
        if round % 2 == 0 {
            let _ = tokio::time::timeout(soon, dao.acquire(&abandoned)).await;
            dao.withdraw(&abandoned, Withdraw::Undo).await?;
        } else {
            let held = granted(&dao, &abandoned).await?;
            last = fence(&held);
            let _ = tokio::time::timeout(soon, dao.release(&held)).await;
            assert!(dao.release(&held).await?.failed.is_empty());
        }
        assert_eq!(dao.list(&Page::default()).await?.ids, []);
        let held = take(&dao, &ids).await?;
        assert!(fence(&held) > last);
        assert_eq!(dao.release(&held).await?.lost, []);
        sql.run("UPDATE lockcore_sets SET parted = 1").await?;
    }
    Ok(())
}

async fn what_is_frozen_stays_so(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, other, mut sql) = (place.open().await?, place.open().await?, place.sql().await?);
    let ids = names(3);
    let last = keep(&dao, &mut sql, &ids).await?;
    let frozen = Target::Id("01".to_owned());
    other.freeze(&frozen, true).await?;
    let refused = dao.acquire(&request(&ids)).await?;
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    other.freeze(&frozen, false).await?;
    let held = take(&dao, &ids).await?;
    assert!(fence(&held) > last);
    assert_eq!(dao.release(&held).await?.lost, []);
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
        assert_eq!(sql.number(KEPT).await?, 1);
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
    assert_eq!(sql.number(KEPT).await?, 0);
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
        assert_eq!(sql.number(KEPT).await?, 1);
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
    assert_eq!(sql.number(KEPT).await?, 2);
    for column in ["sets SET number = number", "ids SET fence = fence", "sets SET fence = fence"] {
        sql.run(later(column)).await?;
    }
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number(KEPT).await?, 2);
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

/// Two programs that take turns: parting the set each time would cost them more than they gain.
async fn what_others_want_is_left_alone(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (daos, mut sql) = ([place.open().await?, place.open().await?], place.sql().await?);
    let ids = names(3);
    let mut kept = 0;
    for round in 0..100 {
        let held = take(&daos[round % 2], &ids).await?;
        assert_eq!(daos[round % 2].release(&held).await?.lost, []);
        kept += sql.number(KEPT).await?;
    }
    assert!((1..10).contains(&kept), "{kept}");
    // Until the others are gone.
    for _ in 0..100 {
        daos[0].release(&take(&daos[0], &ids).await?).await?;
    }
    assert_eq!(sql.number(KEPT).await?, 1);
    Ok(())
}

/// 1, 5: of those who take again and again what overlaps, one has an id at a time, under a fence above all before.
async fn one_at_a_time_has_it(kind: Kind) -> TestResult {
    type Seen = HashMap<String, (bool, i64)>;
    const SETS: [&[&str]; 4] = [&["a", "b", "c"], &["c", "d"], &["b"], &["a", "b", "c"]];
    let place = Place::new(kind).await?;
    let seen = Arc::new(Mutex::new(Seen::new()));
    let mut programs = Vec::new();
    for (number, own) in SETS.into_iter().enumerate() {
        let (dao, seen) = (place.open().await?, seen.clone());
        programs.push(tokio::spawn(async move {
            let mut got = 0;
            while got < 60 {
                // The own set most of the time, so that it is kept.
                let ids = if got % 20 == 19 { SETS[(number + got / 20) % 4] } else { own };
                let request = request(ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>());
                let Acquired::Granted(granted) = dao.acquire(&request).await? else {
                    tokio::task::yield_now().await;
                    continue;
                };
                got += 1;
                let grant = Grant::new(request.context, request.claims, granted, request.lease);
                let mark = |held: bool| {
                    let mut seen = seen.lock().expect("nobody panicked");
                    for lock in &grant.locks {
                        let Target::Id(id) = &lock.target else { panic!("no id") };
                        let (was, last) = seen.entry(id.clone()).or_default();
                        assert_ne!(*was, held, "{id} under {}", lock.granted.fence);
                        let now = lock.granted.fence as i64;
                        assert!(if held { now > *last } else { now == *last }, "{id}: {now} after {last}");
                        (*was, *last) = (held, now);
                    }
                };
                mark(true);
                tokio::task::yield_now().await;
                mark(false);
                let lost = dao.release(&grant).await?.lost;
                assert_eq!(lost, []);
            }
            Ok::<_, BackendError>(())
        }));
    }
    for program in programs {
        program.await??;
    }
    Ok(())
}

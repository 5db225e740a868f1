//! Sets that are kept when they are freed, for the program that took them more than once: what both servers that keep them
//! promise.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{Acquired, BackendError, BreakMode, Grant, LockDao, Page, StoredContext, Target, Withdraw};
use lockcore_conformance::servers::TestResult;
use uuid::Uuid;

use super::{granted, handed, queue, request, take};
use crate::place::{Dao, Error, Place, Sql, sets};

pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:02}")).collect()
}

pub(crate) fn fence(grant: &Grant<String, Uuid>) -> i64 {
    grant.locks[0].granted.fence as i64
}

/// Takes and frees a set until it is kept, and again after that, so that its rows do not know its fence, which this is.
pub(crate) async fn keep(dao: &Dao, sql: &mut Sql, ids: &[String]) -> Result<i64, Error> {
    let mut last = 0;
    for _ in 0..4 {
        let held = take(dao, ids).await?;
        last = fence(&held);
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    assert_eq!(sql.number(sets::KEPT).await?, 1);
    assert_eq!(sql.number(sets::LAST).await?, last);
    assert!(sql.number(sets::KNOWN).await? < last);
    Ok(last)
}

/// 3.1: however many ids.
pub(crate) async fn one_row_is_taken_again(places: impl AsyncFn() -> Result<Place, Error>) -> TestResult {
    for size in [2, 16, 17, 40] {
        let place = places().await?;
        let (dao, mut sql) = (place.open().await?, place.sql().await?);
        let ids = names(size);
        let mut last = keep(&dao, &mut sql, &ids).await?;
        let before = sql.number(sets::ROWS).await?;
        for _ in 0..3 {
            let held = take(&dao, &ids).await?;
            assert!(held.locks.iter().all(|lock| lock.granted.fence as i64 == fence(&held)));
            assert!(fence(&held) > last);
            last = fence(&held);
            let until = sql.number(sets::UNTIL).await?;
            assert_eq!(dao.renew(&held).await?.lost, []);
            assert!(sql.number(sets::UNTIL).await? > until);
            assert_eq!(dao.release(&held).await?.lost, []);
            assert_eq!(dao.list(&Page::default()).await?.ids, []);
        }
        assert_eq!(sql.number(sets::ROWS).await?, before, "no other row is written");
        assert_eq!(sql.number(sets::COUNT).await?, 1);
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
pub(crate) async fn others_take_what_is_free(places: impl AsyncFn() -> Result<Place, Error>) -> TestResult {
    let ids = names(20);
    let ways: [&[&str]; 5] = [&["00"], &["00", "01"], &["00", "new"], &["new", "newer", "19"], &[]];
    for way in ways {
        let place = places().await?;
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
            let known = format!("{} WHERE id = '{id}'", sets::KNOWN);
            assert!(sql.number(known).await? >= last, "{id}");
            assert_eq!(other.release(&alone).await?.lost, []);
        }
        let held = take(&dao, &ids).await?;
        assert!(fence(&held) > last);
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

/// It is shown, guards writes, is broken, waited for and handed over; under the fence that it has. `write`: of `a`, tells how many
/// rows it changed.
pub(crate) async fn it_is_held_as_any_other(
    place: &Place,
    mut write: impl AsyncFnMut(i64) -> Result<u64, Error>,
) -> TestResult {
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let ids = ["a", "b", "c"].map(str::to_owned);
    let [a, b, c] = ids.clone().map(Target::Id);

    let last = keep(&dao, &mut sql, &ids).await?;
    let known = sql.number(sets::KNOWN).await?;
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
    keep(&dao, &mut sql, &ids).await?;
    let held = take(&dao, &ids).await?;
    assert_eq!(other.renew(&held).await?.lost, []);
    assert_eq!(dao.renew(&held).await?.lost, []);
    dao.break_lock(&b, held.locks[1].granted.fence, BreakMode::Now, "me").await?;
    let lost: Vec<_> = dao.renew(&held).await?.lost.into_iter().map(|lost| lost.target).collect();
    assert_eq!(lost, [b]);
    assert_eq!(dao.release_context(&held.context).await?, [a, c]);

    let dao = place.open().await?;
    keep(&dao, &mut sql, &ids).await?;
    assert_eq!(dao.release_context(&held.context).await?, []);
    let held = take(&dao, &ids).await?;
    assert_eq!(other.release(&held).await?.lost, []);
    let again = take(&dao, &ids).await?;
    assert!(fence(&again) > fence(&held));
    assert_eq!(dao.release_context(&again.context).await?.len(), 3);
    Ok(())
}

/// 4.3: the withdrawal comes first.
pub(crate) async fn who_withdrew_does_not_get_it(
    places: impl AsyncFn() -> Result<Place, Error>,
) -> TestResult {
    let place = places().await?;
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
        sql.run(sets::PART_ALL).await?;
    }
    Ok(())
}

/// 4: a future that is dropped while it takes a kept set, or frees it.
pub(crate) async fn an_abandoned_exchange_harms_nobody(
    places: impl AsyncFn() -> Result<Place, Error>,
) -> TestResult {
    let place = places().await?;
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
        sql.run(sets::PART_ALL).await?;
    }
    Ok(())
}

pub(crate) async fn what_is_frozen_stays_so(places: impl AsyncFn() -> Result<Place, Error>) -> TestResult {
    let place = places().await?;
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

/// Two programs that take turns: parting the set each time would cost them more than they gain.
pub(crate) async fn what_others_want_is_left_alone(
    places: impl AsyncFn() -> Result<Place, Error>,
) -> TestResult {
    let place = places().await?;
    let (daos, mut sql) = ([place.open().await?, place.open().await?], place.sql().await?);
    let ids = names(3);
    let mut kept = 0;
    for round in 0..100 {
        let held = take(&daos[round % 2], &ids).await?;
        assert_eq!(daos[round % 2].release(&held).await?.lost, []);
        kept += sql.number(sets::KEPT).await?;
    }
    assert!((1..10).contains(&kept), "{kept}");
    // Until the others are gone.
    for _ in 0..100 {
        daos[0].release(&take(&daos[0], &ids).await?).await?;
    }
    assert_eq!(sql.number(sets::KEPT).await?, 1);
    Ok(())
}

/// 1, 5: of those who take again and again what overlaps, one has an id at a time, under a fence above all before.
pub(crate) async fn one_at_a_time_has_it(places: impl AsyncFn() -> Result<Place, Error>) -> TestResult {
    type Seen = HashMap<String, (bool, i64)>;
    const SETS: [&[&str]; 4] = [&["a", "b", "c"], &["c", "d"], &["b"], &["a", "b", "c"]];
    let place = places().await?;
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

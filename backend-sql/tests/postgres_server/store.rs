//! What the tables do in rare states: a clock that is set back, rows swept, many waiters, large messages.

use std::{sync::Arc, time::Duration};

use lockcore::{AcquireRequest, Acquired, Claim, ConflictReason, LockDao};
use lockcore_conformance::servers::{TestResult, Trial};
use tokio::task::JoinSet;

use crate::{
    place::{Error, Place, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("store::a_grant_from_the_future_counts_from_now", a_grant_from_the_future_counts_from_now),
        test("store::a_sweep_forgets_no_fence", a_sweep_forgets_no_fence),
        test("store::an_expired_set_is_taken_over", an_expired_set_is_taken_over),
        test("store::a_large_set_is_handed_over", a_large_set_is_handed_over),
        test("store::more_waiters_than_one_step_serves", more_waiters_than_one_step_serves),
        test("store::usual_updates_stay_on_their_page", usual_updates_stay_on_their_page),
    ]
}

/// 2.7: as if the server's clock had been set back by an hour.
async fn a_grant_from_the_future_counts_from_now() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let hour = 3_600_000_000_i64;
    let held = take(&dao, ["a"]).await?;
    let shared = granted(&dao, &request([Claim::shared("s".to_owned())])).await?;
    let ahead = format!(
        "UPDATE lockcore_lock SET expires = expires + {hour}, since = since + {hour};
         UPDATE lockcore_holder SET expires = expires + {hour}, since = since + {hour}"
    );
    sql.run(ahead).await?;
    let Acquired::Refused(conflicts) = dao.acquire(&request(["a", "s"])).await? else {
        return Err("they are held".into());
    };
    for conflict in &conflicts {
        let ConflictReason::Held { holders, .. } = &conflict.reason else { return Err("held".into()) };
        assert!(holders[0].remaining <= Some(Duration::from_secs(60)), "{conflicts:?}");
    }
    assert_eq!(conflicts.len(), 2);
    // Renewed and released as if nothing had happened.
    assert_eq!((dao.renew(&held).await?.lost, dao.renew(&shared).await?.lost), (vec![], vec![]));
    assert_eq!((dao.release(&held).await?.lost, dao.release(&shared).await?.lost), (vec![], vec![]));
    Ok(())
}

/// 5: the row of an id is gone, and the clock behind its last fence: the next one is higher all the same.
async fn a_sweep_forgets_no_fence() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for ids in [&["a"][..], &["a", "b"], &["c"]] {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let held = take(&dao, ids.clone()).await?;
        dao.release(&held).await?;
        sql.run("UPDATE lockcore_lock SET fence = fence + 7200000000, lapses = 0").await?;
        let high = sql.number("SELECT max(fence) FROM lockcore_lock").await? as u64;
        dao.sweep(100, None).await?;
        assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0, "nobody uses them");
        let claims: Vec<_> = match ids.len() {
            1 if ids[0] == "c" => ids.iter().map(|id| Claim::shared(id.clone())).collect(),
            _ => ids.iter().map(|id| Claim::exclusive(id.clone())).collect(),
        };
        let held = granted(&dao, &request(claims)).await?;
        for lock in &held.locks {
            assert!(lock.granted.fence > high, "{} after {high}", lock.granted.fence);
        }
        dao.release(&held).await?;
    }
    Ok(())
}

/// A set of which some are expired, some free and some new, in one step; and undone if one is held.
async fn an_expired_set_is_taken_over() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let dead = take(&dao, ["a", "b", "c"]).await?;
    sql.run("UPDATE lockcore_lock SET expires = expires - lease - 1000 WHERE id IN ('a', 'b')").await?;
    let Acquired::Refused(conflicts) = dao.acquire(&request(["a", "b", "c", "d"])).await? else {
        return Err("c is held".into());
    };
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    // What was taken in passing was given back.
    let held = take(&dao, ["a", "b", "d"]).await?;
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&dead).await?.lost.len(), 2);
    take(&dao, ["c"]).await?;
    Ok(())
}

/// A notification has at most 8000 bytes.
async fn a_large_set_is_handed_over() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let ids = || (0..500).map(|number| format!("{number}")).collect::<Vec<_>>();
    let held = take(&dao, ["250"]).await?;
    let (waits, wakeup) = queue(&dao, ids()).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    assert_eq!(held.locks.len(), 500);
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// One release makes room for 300 who share.
async fn more_waiters_than_one_step_serves() -> TestResult {
    let place = Place::new().await?;
    let dao = Arc::new(place.builder().max_connections(8).connect().await?);
    let held = take(&dao, ["a"]).await?;
    let mut waiting = Vec::new();
    for _ in 0..300 {
        let asked = AcquireRequest { queue: true, ..request([Claim::shared("a".to_owned())]) };
        match dao.acquire(&asked).await? {
            Acquired::Queued { wakeup, .. } => waiting.push((asked, wakeup)),
            other => return Err(format!("{other:?}").into()),
        }
    }
    dao.release(&held).await?;
    // At once: an offer has to be confirmed within 2 s.
    let mut served = JoinSet::new();
    for (asked, wakeup) in waiting {
        let dao = dao.clone();
        served.spawn(async move {
            let held = handed(&dao, &asked, wakeup).await?;
            Ok::<_, Error>(dao.release(&held).await?)
        });
    }
    for released in served.join_all().await {
        assert!(released?.failed.is_empty());
    }
    Ok(())
}

/// Taking, renewing and releasing write no index: otherwise each would leave something to vacuum there.
async fn usual_updates_stay_on_their_page() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for _ in 0..100 {
        let held = take(&dao, ["a", "b"]).await?;
        dao.renew(&held).await?;
        dao.release(&held).await?;
    }
    // The statistics arrive when the connections that made them come to rest.
    sql.until(
        "SELECT (n_tup_upd >= 500)::int FROM pg_stat_user_tables WHERE relid = 'lockcore_lock'::regclass",
        1,
    )
    .await?;
    // Not all: as long as somebody's transaction sees old rows, a page may be full.
    let on_page = "SELECT 100 * n_tup_hot_upd / n_tup_upd FROM pg_stat_user_tables WHERE relid = 'lockcore_lock'::regclass";
    let on_page = sql.number(on_page).await?;
    assert!(on_page >= 75, "only {on_page} %");
    Ok(())
}

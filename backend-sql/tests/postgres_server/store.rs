//! What the tables do in rare states: a clock that is set back, rows swept, many waiters, large messages.

use std::{sync::Arc, time::Duration};

use lockcore::{
    Claim, ConflictReason, Grant, LockDao, LossReason, Target,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup, Withdraw},
};
use lockcore_conformance::{
    judge::LATE,
    servers::{TestResult, Trial},
};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    place::{Error, PATIENCE, Place, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("store::a_grant_from_the_future_counts_from_now", a_grant_from_the_future_counts_from_now),
        test("store::a_sweep_forgets_no_fence", a_sweep_forgets_no_fence),
        test("store::a_row_made_anew_knows_of_what_was_swept", a_row_made_anew_knows_of_what_was_swept),
        test("store::what_a_watcher_left_goes", what_a_watcher_left_goes),
        test("store::a_silent_waiter_is_handed_no_part", a_silent_waiter_is_handed_no_part),
        test("store::a_hand_over_cuts_no_other_lease_short", a_hand_over_cuts_no_other_lease_short),
        test("store::of_many_ids_each_is_looked_after", of_many_ids_each_is_looked_after),
        test("store::an_expired_set_is_taken_over", an_expired_set_is_taken_over),
        test("store::what_is_over_is_not_brought_back", what_is_over_is_not_brought_back),
        test("store::a_fence_alone_frees_nothing", a_fence_alone_frees_nothing),
        test("store::what_was_freed_in_passing_is_not_lost", what_was_freed_in_passing_is_not_lost),
        test("store::a_release_serves_whose_turn_it_is", a_release_serves_whose_turn_it_is),
        test("store::the_dead_are_passed_over", the_dead_are_passed_over),
        test("store::who_waits_for_one_id_is_looked_at_too", who_waits_for_one_id_is_looked_at_too),
        test("store::an_unconfirmed_offer_can_be_passed_on", an_unconfirmed_offer_can_be_passed_on),
        test("store::an_offer_is_confirmed_while_it_lasts", an_offer_is_confirmed_while_it_lasts),
        test("store::a_sweep_looks_at_the_lease", a_sweep_looks_at_the_lease),
        test("store::a_large_set_is_handed_over", a_large_set_is_handed_over),
        test("store::more_waiters_than_one_step_serves", more_waiters_than_one_step_serves),
        test("store::many_waiters_ask_again_less_often", many_waiters_ask_again_less_often),
        test("store::a_hand_over_does_not_read_the_queue", a_hand_over_does_not_read_the_queue),
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
    let single = [take(&dao, ["b"]).await?, take(&dao, ["c"]).await?];
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
    for (id, queue) in [("b", false), ("c", true)] {
        let (Acquired::Refused(conflicts) | Acquired::Queued { conflicts, .. }) =
            dao.acquire(&AcquireRequest { queue, ..request([id]) }).await?
        else {
            return Err("it is held".into());
        };
        let ConflictReason::Held { holders, .. } = &conflicts[0].reason else { return Err("held".into()) };
        assert!(holders[0].remaining <= Some(Duration::from_secs(60)), "{conflicts:?}");
    }
    for held in &single {
        assert_eq!(dao.release(held).await?.lost, []);
    }
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
        assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0, "not used");
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

/// 5: also if the row was made again by something else than a grant: a refused set, a freeze.
async fn a_row_made_anew_knows_of_what_was_swept() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for refused in [true, false] {
        let held = take(&dao, ["a"]).await?;
        dao.release(&held).await?;
        sql.run("UPDATE lockcore_lock SET fence = fence + 7200000000, lapses = 0").await?;
        let high = sql.number("SELECT max(fence) FROM lockcore_lock").await? as u64;
        dao.sweep(100, None).await?;
        assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0, "not used");
        if refused {
            let held = take(&dao, ["b"]).await?;
            assert!(matches!(dao.acquire(&request(["a", "b"])).await?, Acquired::Refused(_)));
            dao.release(&held).await?;
        } else {
            let target = Target::Id("a".to_owned());
            dao.freeze(&target, true).await?;
            dao.freeze(&target, false).await?;
        }
        let held = take(&dao, ["a"]).await?;
        assert!(held.locks[0].granted.fence > high, "{} after {high}", held.locks[0].granted.fence);
        dao.release(&held).await?;
    }
    Ok(())
}

/// 2.1, 3.7: of a set whose waiter gave no sign of life for a while, and then goes on, all places lapsed or none.
async fn a_silent_waiter_is_handed_no_part() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let (a, b) = (take(&dao, ["a"]).await?, take(&dao, ["b"]).await?);
    let (waits, _wakeup) = queue(&dao, ["a", "b"]).await?;
    let session = sql.number("SELECT session FROM lockcore_place LIMIT 1").await?;
    sql.run("UPDATE lockcore_place SET session = 4711").await?;
    dao.release(&a).await?;
    let a = take(&dao, ["a"]).await?;
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await? % 2, 0, "both or none");
    sql.run(format!("UPDATE lockcore_place SET session = {session}")).await?;
    let Acquired::Queued { wakeup, .. } = dao.acquire(&waits).await? else {
        return Err("both are held".into());
    };
    dao.release(&b).await?;
    let held = "SELECT count(*) FROM lockcore_lock WHERE id = 'b' AND busy & 1 = 1";
    assert_eq!(sql.number(held).await?, 0, "a is held, so that nothing is handed over");
    dao.release(&a).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// L1: what is renewed while a release hands over to others is not taken for a grant from the future.
async fn a_hand_over_cuts_no_other_lease_short() -> TestResult {
    let place = Place::new().await?;
    let dao = Arc::new(place.open().await?);
    let (mut sql, mut in_the_way) = (place.sql().await?, place.sql().await?);
    let (held, other) = (take(&dao, ["a"]).await?, take(&dao, ["b"]).await?);
    let shared = |id: &str| Claim::shared(id.to_owned());
    let _first = queue(&dao, [shared("a")]).await?;
    let _second = queue(&dao, [shared("a"), shared("b")]).await?;
    // The release takes its time over the first.
    in_the_way.run("BEGIN; SELECT FROM lockcore_place WHERE alone FOR UPDATE").await?;
    let releasing = tokio::spawn({
        let dao = dao.clone();
        async move { dao.release(&held).await }
    });
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%v1_release%'",
        place.schema
    );
    sql.until(&waits, 1).await?;
    assert_eq!(dao.renew(&other).await?.lost, []);
    let expires = "SELECT expires FROM lockcore_lock WHERE id = 'b'";
    let renewed = sql.number(expires).await?;
    in_the_way.run("COMMIT").await?;
    assert_eq!(releasing.await??.lost, []);
    assert_eq!(sql.number(expires).await?, renewed);
    Ok(())
}

/// 3.7: one process waits for many ids that are held together, and the holder of a few of them dies.
async fn of_many_ids_each_is_looked_after() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let claim = |number: u32| Claim::slots(format!("{number:03}"), 1);
    granted(&dao, &request((0..100).map(claim).collect::<Vec<_>>())).await?;
    let mut waiting = Vec::new();
    for number in 0..100 {
        waiting.push(queue(&dao, [claim(number)]).await?);
    }
    sql.run("UPDATE lockcore_holder SET expires = expires - lease - 1000 WHERE id IN ('000', '050', '099')")
        .await?;
    for number in [99, 50, 0] {
        let (waits, wakeup) = waiting.remove(number);
        handed(&dao, &waits, wakeup).await?;
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

/// 2.4 and 2.5: though no client has come by yet to remove it; and not what the same context took later.
async fn what_is_over_is_not_brought_back() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for ids in [&["a"][..], &["b", "c"]] {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        for claims in [Claim::exclusive as fn(String) -> Claim<String>, Claim::shared] {
            let asked = request(ids.iter().cloned().map(claims).collect::<Vec<_>>());
            let first = granted(&dao, &asked).await?;
            let over = "SET expires = expires - lease - 1000";
            sql.run(format!("UPDATE lockcore_lock {over}; UPDATE lockcore_holder {over}")).await?;
            let lost = dao.renew(&first).await?.lost;
            assert_eq!(lost.len(), ids.len());
            assert!(lost.iter().all(|lost| lost.reason == LossReason::Expired), "{lost:?}");
            let again = AcquireRequest { attempt: AttemptId::fresh(), ..asked };
            let second = granted(&dao, &again).await?;
            assert_eq!(dao.release(&first).await?.lost.len(), ids.len(), "an earlier grant");
            assert_eq!(dao.renew(&second).await?.lost, []);
            assert_eq!(dao.release(&second).await?.lost, []);
        }
    }
    Ok(())
}

/// 2.4: nor does it extend anything. A client that comes by the fences of others is still another.
async fn a_fence_alone_frees_nothing() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    for ids in [&["a"][..], &["b", "c"]] {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let held = take(&dao, ids.clone()).await?;
        let forged = Grant { context: Uuid::new_v4(), ..held.clone() };
        assert_eq!(dao.release(&forged).await?.lost.len(), ids.len());
        assert_eq!(dao.renew(&forged).await?.lost.len(), ids.len());
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

/// 2.4: a set of which a client waits for a part is not freed in the usual way; what was freed before that showed is held
/// again, and then freed, not told as lost. What is over is.
async fn what_was_freed_in_passing_is_not_lost() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let held = take(&dao, ["a", "b", "c"]).await?;
    let (waits, wakeup) = queue(&dao, ["b"]).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    dao.release(&handed(&dao, &waits, wakeup).await?).await?;
    let held = take(&dao, ["a", "b", "c"]).await?;
    sql.run("UPDATE lockcore_lock SET expires = expires - lease - 1000 WHERE id = 'b'").await?;
    let lost = dao.release(&held).await?.lost;
    assert!(matches!(&lost[..], [lost] if lost.reason == LossReason::Expired), "{lost:?}");
    take(&dao, ["a", "b", "c"]).await?;
    Ok(())
}

/// 3.7, 6: a release that finds a client waiting serves whose turn it is, no client while it is frozen, and tells what ended.
async fn a_release_serves_whose_turn_it_is() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let target = Target::Id("a".to_owned());
    let held = take(&dao, ["a"]).await?;
    let (first, wakeup) = queue(&dao, ["a"]).await?;
    let nested = AcquireRequest { queue: true, nested: true, ..request(["a"]) };
    let Acquired::Queued { wakeup: behind, .. } = dao.acquire(&nested).await? else {
        return Err("it is held".into());
    };
    dao.release(&held).await?;
    let given = sql.number("SELECT count(*) FROM lockcore_place WHERE handed AND ticket = (SELECT min(ticket) FROM lockcore_place)").await?;
    assert_eq!(given, 1, "who came first is served first, nested or not");
    let held = handed(&dao, &first, wakeup).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &nested, behind).await?;

    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    dao.freeze(&target, true).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    assert_eq!(dao.inspect(&target).await?.holders.len(), 0, "it is frozen");
    dao.freeze(&target, false).await?;
    let held = handed(&dao, &waits, wakeup).await?;

    queue(&dao, ["a"]).await?;
    sql.run("UPDATE lockcore_lock SET expires = expires - lease - 1000").await?;
    let lost = dao.release(&held).await?.lost;
    assert!(matches!(&lost[..], [lost] if lost.reason == LossReason::Expired), "{lost:?}");
    Ok(())
}

/// 3.7: a client that shows no sign of life holds no client back and is handed nothing, alone or with a set.
async fn the_dead_are_passed_over() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    // Their program is not there any more.
    let dies = "UPDATE lockcore_lock SET next_session = 4711 WHERE busy & 128 = 128; \
                UPDATE lockcore_place SET session = 4711 WHERE ticket = (SELECT max(ticket) FROM lockcore_place)";
    for (ids, theirs) in [(&["a"][..], &["a"][..]), (&["b", "c"], &["b"]), (&["d", "e"], &["d", "e"])] {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let theirs: Vec<String> = theirs.iter().map(ToString::to_string).collect();
        let held = take(&dao, ids.clone()).await?;
        let _dead = queue(&dao, theirs.clone()).await?;
        sql.run(dies).await?;
        let (waits, wakeup) = queue(&dao, theirs.clone()).await?;
        dao.release(&held).await?;
        let given = "SELECT count(*) FROM lockcore_place WHERE handed AND session <> 4711";
        assert_eq!(sql.number(given).await?, 1, "at once: {theirs:?}");
        let held = handed(&dao, &waits, wakeup).await?;
        dao.release(&held).await?;

        let held = take(&dao, ids).await?;
        let _dead = queue(&dao, theirs.clone()).await?;
        sql.run(dies).await?;
        dao.release(&held).await?;
        let held = take(&dao, theirs).await?;
        dao.release(&held).await?;
    }
    Ok(())
}

/// 2.2, 2.6, 2.7: the short way into a queue is for what another holds, and nothing else.
async fn who_waits_for_one_id_is_looked_at_too() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    take(&dao, ["a"]).await?;
    let withdrawn = AcquireRequest { queue: true, ..request(["a"]) };
    dao.withdraw(&withdrawn, Withdraw::Undo).await?;
    dao.acquire(&withdrawn).await.expect_err("it was withdrawn");
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await?, 0);

    let target = Target::Id("b".to_owned());
    take(&dao, ["b"]).await?;
    dao.freeze(&target, true).await?;
    let Acquired::Refused(conflicts) = dao.acquire(&request(["b"])).await? else {
        return Err("it is frozen".into());
    };
    assert!(matches!(conflicts[0].reason, ConflictReason::Frozen), "{conflicts:?}");

    let held = take(&dao, ["c"]).await?;
    let again = AcquireRequest { context: held.context, queue: true, ..request(["c"]) };
    granted(&dao, &again).await?;
    let (waits, _wakeup) = queue(&dao, ["c"]).await?;
    assert!(matches!(dao.acquire(&waits).await?, Acquired::Queued { .. }));
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await?, 1, "who asks again keeps the place");
    sql.run("UPDATE lockcore_lock SET expires = expires - lease - 1000 WHERE id = 'c'").await?;
    take(&dao, ["c"]).await.expect_err("the first in the queue has it");
    granted(&dao, &waits).await?;
    Ok(())
}

/// 3.8: an offer that is released before it was confirmed is gone, and is not told again; and who waits behind gets it.
async fn an_unconfirmed_offer_can_be_passed_on() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let held = take(&dao, ["a"]).await?;
    let (first, wakeup) = queue(&dao, ["a"]).await?;
    let (second, next) = queue(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let held = offered(&first, wakeup).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await?, 1, "the second's alone");
    assert_eq!(dao.release(&held).await?.lost.len(), 1, "it is the second's by now");
    let held = offered(&second, next).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await?, 0);
    assert_eq!(sql.number("SELECT busy FROM lockcore_lock").await?, 0, "nothing is left of it");
    Ok(())
}

/// 3.8: its renewal gives it a whole lease and ends its place, unless it is over or was broken.
async fn an_offer_is_confirmed_while_it_lasts() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for (change, lost) in [
        ("UPDATE lockcore_lock SET busy = busy", None),
        ("UPDATE lockcore_lock SET expires = expires - lease - 1000", Some(LossReason::Expired)),
        ("UPDATE lockcore_lock SET busy = busy | 64", Some(LossReason::Broken)),
    ] {
        let held = take(&dao, ["a"]).await?;
        let (waits, wakeup) = queue(&dao, ["a"]).await?;
        dao.release(&held).await?;
        let held = offered(&waits, wakeup).await?;
        sql.run(change).await?;
        let renewed = dao.renew(&held).await?;
        assert_eq!(renewed.lost.first().map(|lost| &lost.reason), lost.as_ref(), "{change}");
        if lost.is_none() {
            let lease = sql.number("SELECT lease FROM lockcore_lock WHERE busy & 97 = 1").await?;
            assert_eq!(u128::try_from(lease)?, held.lease.ok_or("finite")?.as_micros());
            assert_eq!(sql.number("SELECT count(*) FROM lockcore_place").await?, 0);
        }
        dao.release(&held).await?;
    }
    Ok(())
}

/// What is pushed to a waiter, as it is.
pub(crate) async fn offered(
    request: &AcquireRequest<String, Uuid>,
    mut wakeup: Wakeup,
) -> Result<Grant<String, Uuid>, Error> {
    match tokio::time::timeout(PATIENCE, wakeup.recv()).await? {
        Wake::Offer(offer) => {
            Ok(Grant::new(request.context, request.claims.clone(), offer.granted, request.lease))
        }
        other => Err(format!("{LATE}not offered: {other:?}").into()),
    }
}

/// 2.9: also where a row says too early that nothing of it lasts.
async fn a_sweep_looks_at_the_lease() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let alone = take(&dao, ["a", "b"]).await?;
    let shared = granted(&dao, &request([Claim::shared("s".to_owned())])).await?;
    let withdrawn = request(["w"]);
    dao.withdraw(&withdrawn, Withdraw::Undo).await?;
    sql.run("UPDATE lockcore_lock SET lapses = 0").await?;
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!((dao.renew(&alone).await?.lost, dao.renew(&shared).await?.lost), (vec![], vec![]));
    dao.acquire(&withdrawn).await.expect_err("the mark is still there");
    sql.run("UPDATE lockcore_lock SET lapses = 0, expires = 1; UPDATE lockcore_holder SET expires = 1; UPDATE lockcore_tombstone SET until = 1").await?;
    assert_eq!(dao.sweep(100, None).await?.removed, 4);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0);
    Ok(())
}

/// Programs of before marked ids that they watched, which sends these the general way.
async fn what_a_watcher_left_goes() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    dao.release(&take(&dao, ["a", "b"]).await?).await?;
    sql.run("UPDATE lockcore_lock SET busy = 512").await?;
    dao.release(&take(&dao, ["a"]).await?).await?;
    assert_eq!(sql.number("SELECT sum(busy)::int8 FROM lockcore_lock").await?, 512);
    sql.run("UPDATE lockcore_lock SET lapses = 0").await?;
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number("SELECT count(*) FROM lockcore_lock").await?, 0);
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
    let dao = Arc::new(place.builder().max_connections(8).open().await?);
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

/// Otherwise the requests of ten thousand waiters would keep the server from handing anything over.
async fn many_waiters_ask_again_less_often() -> TestResult {
    const WAITERS: usize = 400;
    let place = Place::new().await?;
    let dao = place.open().await?;
    let _held = take(&dao, ["a"]).await?;
    let mut rechecks = Vec::new();
    let mut wakeups = Vec::new();
    for _ in 0..WAITERS {
        match dao.acquire(&AcquireRequest { queue: true, ..request(["a"]) }).await? {
            Acquired::Queued { recheck, wakeup, .. } => {
                rechecks.extend(recheck);
                wakeups.push(wakeup);
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    assert_eq!((rechecks[0], rechecks[WAITERS - 1]), (Duration::from_secs(10), Duration::from_secs(20)));
    Ok(())
}

/// Otherwise a hand-over would take as long as its queue is.
async fn a_hand_over_does_not_read_the_queue() -> TestResult {
    const TURNS: i64 = 20;
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let mut held = take(&dao, ["a"]).await?;
    let mut waiting = Vec::new();
    for _ in 0..10 * TURNS {
        waiting.push(queue(&dao, ["a"]).await?);
    }
    for (turn, (waits, wakeup)) in waiting.drain(..TURNS as usize).enumerate() {
        dao.release(&held).await?;
        held = offered(&waits, wakeup).await?;
        if turn % 4 == 3 {
            dao.renew(&held).await?;
        }
    }
    // The statistics arrive when the connections that made them come to rest. Heartbeats read the queue, by another index.
    let turns = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'lockcore_place'::regclass";
    sql.until(turns, TURNS).await?;
    let read =
        "SELECT idx_tup_fetch FROM pg_stat_user_indexes WHERE indexrelid = 'lockcore_place_pkey'::regclass";
    let read = sql.number(read).await?;
    assert!(read < 10 * TURNS, "{read} places were read for {TURNS} turns");
    Ok(())
}

/// Taking, renewing and releasing write no index: otherwise each would leave something to vacuum there.
async fn usual_updates_stay_on_their_page() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for _ in 0..100 {
        for ids in [&["a"][..], &["b", "c"]] {
            let held = take(&dao, ids.iter().map(ToString::to_string).collect::<Vec<_>>()).await?;
            dao.renew(&held).await?;
            dao.release(&held).await?;
        }
    }
    let of = "FROM pg_stat_user_tables WHERE relid = 'lockcore_lock'::regclass";
    // The statistics arrive when the connections that made them come to rest.
    sql.until(&format!("SELECT (n_tup_upd >= 750)::int {of}"), 1).await?;
    // Not all: as long as any transaction sees old rows, a page may be full.
    let on_page = sql.number(format!("SELECT 100 * n_tup_hot_upd / n_tup_upd {of}")).await?;
    assert!(on_page >= 75, "only {on_page} %");
    Ok(())
}

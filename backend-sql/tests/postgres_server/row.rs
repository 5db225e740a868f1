//! Who waits alone stands in the row of the id: what that says to all others.

use std::time::Duration;

use lockcore::{
    BreakMode, Claim, LockDao, Page, Target,
    backend::{AcquireRequest, Wake, Withdraw, Withdrawn},
};
use lockcore_conformance::servers::{TestResult, Trial};

use super::{
    place::{Error, PATIENCE, Place, Sql, granted, handed, queue, request, take},
    store::offered,
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("row::two_alternating_holders_touch_nothing_else", two_alternating_holders_touch_nothing_else),
        test("row::a_later_request_is_served_later", a_later_request_is_served_later),
        test("row::an_offer_lasts_as_any_other", an_offer_lasts_as_any_other),
        test("row::a_lost_message_is_made_up_for", a_lost_message_is_made_up_for),
        test("row::the_end_of_a_lease_is_seen", the_end_of_a_lease_is_seen),
        test("row::a_withdrawn_request_is_not_served", a_withdrawn_request_is_not_served),
        test("row::administration_knows_it", administration_knows_it),
        test("row::a_repeated_request_keeps_its_turn", a_repeated_request_keeps_its_turn),
    ]
}

const STANDS: &str = "SELECT count(*) FROM lockcore_lock WHERE busy & 128 = 128";
const PLACES: &str = "SELECT count(*) FROM lockcore_place";

fn a() -> Target<String> {
    Target::Id("a".to_owned())
}

/// Whether nothing is left of the only id.
async fn is_free(sql: &mut Sql) -> Result<bool, Error> {
    Ok(sql.number("SELECT busy FROM lockcore_lock").await? == 0 && sql.number(PLACES).await? == 0)
}

async fn two_alternating_holders_touch_nothing_else() -> TestResult {
    let place = Place::new().await?;
    let daos = [place.open().await?, place.open().await?];
    let mut sql = place.sql().await?;
    let mut held = take(&daos[0], ["a"]).await?;
    for turn in 1..20 {
        let (waits, wakeup) = queue(&daos[turn % 2], ["a"]).await?;
        assert_eq!(sql.number(STANDS).await?, 1);
        assert_eq!(daos[(turn + 1) % 2].release(&held).await?.lost, []);
        let fence = held.locks[0].granted.fence;
        held = offered(&waits, wakeup).await?;
        assert!(held.locks[0].granted.fence > fence);
    }
    assert_eq!(daos[1].release(&held).await?.lost, []);
    assert_eq!(sql.number("SELECT is_called::int FROM lockcore_ticket").await?, 0, "no place was ever given");
    assert!(is_free(&mut sql).await?);
    Ok(())
}

/// 3.7: in the order of arrival, whatever they want and together with what.
async fn a_later_request_is_served_later() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    for behind in [
        request(["a"]),
        request(["a", "b"]),
        request([Claim::shared("a".to_owned())]),
        request([Claim::slots("a".to_owned(), 2)]),
    ] {
        let held = take(&dao, ["a"]).await?;
        let (first, wakeup) = queue(&dao, ["a"]).await?;
        assert_eq!(sql.number(STANDS).await?, 1);
        let behind = AcquireRequest { queue: true, ..behind };
        let lockcore::backend::Acquired::Queued { wakeup: next, .. } = dao.acquire(&behind).await? else {
            return Err("the id is held".into());
        };
        assert_eq!(sql.number(STANDS).await?, 0);
        dao.release(&held).await?;
        let held = offered(&first, wakeup).await?;
        dao.acquire(&AcquireRequest { queue: false, ..request(["a"]) }).await?;
        dao.release(&held).await?;
        let held = handed(&dao, &behind, next).await?;
        dao.release(&held).await?;
        assert_eq!(sql.number(PLACES).await?, 0);
    }
    // Who holds other locks obeys holders only.
    let held = take(&dao, ["a"]).await?;
    let (first, wakeup) = queue(&dao, ["a"]).await?;
    let nested = AcquireRequest { queue: true, nested: true, ..request(["a"]) };
    let lockcore::backend::Acquired::Queued { wakeup: sooner, .. } = dao.acquire(&nested).await? else {
        return Err("the id is held".into());
    };
    dao.release(&held).await?;
    let held = handed(&dao, &nested, sooner).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &first, wakeup).await?;
    dao.release(&held).await?;
    Ok(())
}

/// 3.8: for 2 s, unless it is confirmed, released or broken before.
async fn an_offer_lasts_as_any_other() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let guard = |fence: u64| format!("SELECT lockcore_v1_holds('default', 'a', {fence})::int");
    for end in ["confirmed", "over", "broken", "given up"] {
        let held = take(&dao, ["a"]).await?;
        let (waits, wakeup) = queue(&dao, ["a"]).await?;
        dao.release(&held).await?;
        let held = offered(&waits, wakeup).await?;
        let fence = held.locks[0].granted.fence;
        assert_eq!(sql.number("SELECT lease FROM lockcore_lock").await?, 2_000_000);
        assert_eq!(sql.number(guard(fence)).await?, 1, "also a guarded write relies on it");
        match end {
            "confirmed" => {
                assert_eq!(dao.renew(&held).await?.lost, []);
                assert_eq!(sql.number("SELECT lease FROM lockcore_lock WHERE busy = 1").await?, 60_000_000);
            }
            "over" => {
                sql.run("UPDATE lockcore_lock SET expires = expires - lease - 1000").await?;
                assert_eq!(dao.renew(&held).await?.lost.len(), 1);
                assert_eq!(sql.number(guard(fence)).await?, 0);
            }
            "broken" => {
                dao.break_lock(&a(), fence, BreakMode::AfterLease, "test").await?;
                assert_eq!(dao.renew(&held).await?.lost.len(), 1);
            }
            _ => {
                let left = dao.withdraw(&waits, Withdraw::Undo).await?;
                assert!(matches!(left, Withdrawn::Left), "{left:?}");
            }
        }
        dao.release(&held).await?;
        let next = take(&dao, ["a"]).await?;
        assert!(next.locks[0].granted.fence > fence);
        dao.release(&next).await?;
        sql.run("DELETE FROM lockcore_tombstone; UPDATE lockcore_lock SET busy = busy & ~16").await?;
        assert!(is_free(&mut sql).await?, "{end}");
    }
    Ok(())
}

/// 3.6: who handed it over did not get to tell it.
async fn a_lost_message_is_made_up_for() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let held = take(&dao, ["a"]).await?;
    let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
    // As the routine does, but without a message.
    let handed = "UPDATE lockcore_lock SET busy = 257, fence = fence + 1, context = next_context, attempt = next_attempt, \
                  owner = next_owner, lease = 2000000, expires = date_part('epoch', clock_timestamp()) * 1000000 + 2000000";
    sql.run(handed).await?;
    let told = tokio::time::timeout(Duration::from_secs(10), wakeup.recv()).await?;
    assert!(matches!(told, Wake::Recheck), "by the sign of life: {told:?}");
    let next = granted(&dao, &waits).await?;
    assert!(next.locks[0].granted.fence > held.locks[0].granted.fence);
    dao.release(&next).await?;
    assert!(is_free(&mut sql).await?);
    Ok(())
}

/// 3.7: a holder's death costs at most its lease; its waiter need not ask.
async fn the_end_of_a_lease_is_seen() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let short = AcquireRequest { lease: Some(Duration::from_millis(700)), ..request(["a"]) };
    let held = granted(&dao, &short).await?;
    let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
    // It is renewed once, so that the end is another than the one that was told first.
    assert_eq!(dao.renew(&held).await?.lost, []);
    // Long before it would ask again by itself.
    tokio::time::timeout(Duration::from_secs(8), wakeup.recv()).await?;
    let next = granted(&dao, &waits).await?;
    assert_eq!(dao.release(&held).await?.lost.len(), 1);
    let held = next;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// 3.7: by giving up, by an administrator, with its program.
async fn a_withdrawn_request_is_not_served() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    for way in ["withdraws", "is freed", "ends"] {
        let held = take(&dao, ["a"]).await?;
        let other = place.open().await?;
        let (waits, wakeup) = queue(&other, ["a"]).await?;
        match way {
            "withdraws" => {
                let left = other.withdraw(&waits, Withdraw::KeepIfGranted).await?;
                assert!(matches!(left, Withdrawn::Left), "{left:?}");
            }
            "is freed" => {
                dao.release_context(&waits.context).await?;
            }
            _ => {
                drop((other, wakeup));
                sql.until(
                    "SELECT count(*) FROM lockcore_session WHERE session IN \
                           (SELECT next_session FROM lockcore_lock)",
                    0,
                )
                .await?;
            }
        }
        dao.release(&held).await?;
        let held = take(&dao, ["a"]).await.map_err(|error| format!("{way}: {error}"))?;
        dao.release(&held).await?;
        assert!(is_free(&mut sql).await?, "{way}");
    }
    // And who gives up when it was handed over keeps it, if it wants to.
    let held = take(&dao, ["a"]).await?;
    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let held = offered(&waits, wakeup).await?;
    let kept = dao.withdraw(&waits, Withdraw::KeepIfGranted).await?;
    assert!(matches!(kept, Withdrawn::Holds(_)), "{kept:?}");
    assert_eq!(dao.renew(&held).await?.lost, []);
    Ok(())
}

/// 6: it is shown, and served when an administrator makes room; not while the id is frozen.
async fn administration_knows_it() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let held = take(&dao, ["a"]).await?;
    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    assert_eq!(dao.inspect(&a()).await?.waiters.len(), 1);
    sql.run("UPDATE lockcore_lock SET expires = 1").await?;
    let listed = dao.list(&Page::default()).await?.ids;
    assert_eq!((listed.len(), listed[0].holders.len(), listed[0].waiters.len()), (1, 0, 1), "{listed:?}");
    // That may be seen by the sign of life first.
    let held_by_next = handed(&dao, &waits, wakeup).await?;
    assert_eq!(dao.release(&held).await?.lost.len(), 1);

    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    assert_eq!(sql.number(STANDS).await?, 1);
    dao.break_lock(&a(), held_by_next.locks[0].granted.fence, BreakMode::Now, "test").await?;
    let held = handed(&dao, &waits, wakeup).await?;

    let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
    dao.freeze(&a(), true).await?;
    dao.release(&held).await?;
    assert_eq!(sql.number("SELECT busy & 1 FROM lockcore_lock").await?, 0, "it is free");
    assert_eq!(dao.inspect(&a()).await?.waiters.len(), 1);
    dao.freeze(&a(), false).await?;
    let told = tokio::time::timeout(PATIENCE, wakeup.recv()).await?;
    assert!(matches!(told, Wake::Offer(_)), "{told:?}");
    let held = granted(&dao, &waits).await?;

    // What was broken is freed by its holder, and then it is a client's turn.
    let (waits, wakeup) = queue(&dao, ["a"]).await?;
    dao.break_lock(&a(), held.locks[0].granted.fence, BreakMode::AfterLease, "test").await?;
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// 2.6: its turn is not over because it asked again.
async fn a_repeated_request_keeps_its_turn() -> TestResult {
    let place = Place::new().await?;
    let (dao, mut sql) = (place.open().await?, place.sql().await?);
    let held = take(&dao, ["a"]).await?;
    let (first, _wakeup) = queue(&dao, ["a"]).await?;
    let lockcore::backend::Acquired::Queued { wakeup, .. } = dao.acquire(&first).await? else {
        return Err("the id is held".into());
    };
    assert_eq!((sql.number(STANDS).await?, sql.number(PLACES).await?), (0, 1), "looked after as any other");
    let (second, next) = queue(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &first, wakeup).await?;
    dao.release(&held).await?;
    let held = handed(&dao, &second, next).await?;
    dao.release(&held).await?;
    assert!(is_free(&mut sql).await?);
    Ok(())
}

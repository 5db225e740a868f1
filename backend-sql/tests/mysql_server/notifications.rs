//! Which notifications a session gets, and which waiters are handed a lock: no dead one, nothing twice, nothing that is over.

use lockcore::{
    BackendErrorKind, LockDao, StoredContext, Target,
    backend::{AcquireRequest, Acquired, Wakeup, Withdraw},
};
use lockcore_conformance::servers::{Kind, TestResult, Trial};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::{
    place::{Dao, Error, Place, Sql, handed, queue, request, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "notifications::a_dead_waiter_is_handed_nothing", a_dead_waiter_is_handed_nothing),
        test(
            kind,
            "notifications::the_dead_in_a_row_are_handed_nothing",
            the_dead_in_a_row_are_handed_nothing,
        ),
        test(kind, "notifications::who_waits_in_a_row_can_give_up", who_waits_in_a_row_can_give_up),
        test(kind, "notifications::what_is_known_is_not_sent_again", what_is_known_is_not_sent_again),
        test(kind, "notifications::an_old_offer_is_not_sent", an_old_offer_is_not_sent),
        test(
            kind,
            "notifications::a_session_is_not_interrupted_while_it_looks",
            a_session_is_not_interrupted_while_it_looks,
        ),
        test(kind, "notifications::waiting_twice_is_one_place", waiting_twice_is_one_place),
        test(kind, "notifications::a_sweep_forgets_no_withdrawal", a_sweep_forgets_no_withdrawal),
        test(
            kind,
            "notifications::no_later_grant_lets_a_late_request_in",
            no_later_grant_lets_a_late_request_in,
        ),
    ]
}

/// A client that frees something hands it to the first in line that lives: by the short cut for one id, and in general.
async fn a_dead_waiter_is_handed_nothing(kind: Kind) -> TestResult {
    // A session that never sent a heartbeat: a waiter for one id alone is in its row.
    const DEAD: [&str; 2] = [
        "UPDATE lockcore_ids SET next_session = 7 WHERE extra = 2",
        "UPDATE lockcore_claims SET session = 7 WHERE state = 3",
    ];
    for ((ids, dead), changed) in [&["a"][..], &["a", "b"]].into_iter().zip(DEAD).zip([1, 2]) {
        let place = Place::new(kind).await?;
        let dao = place.open().await?;
        let mut sql = place.sql().await?;
        let held = take(&dao, ids).await?;
        let _dead = queue(&dao, ids).await?;
        assert_eq!(sql.run(dead).await?, changed);
        let (alive, wakeup) = queue(&dao, ["a"]).await?;
        dao.release(&held).await?;
        let now = dao.inspect(&Target::Id("a".to_owned())).await?;
        let holders: Vec<_> = now.holders.into_iter().map(|holder| holder.context).collect();
        assert_eq!(holders, [StoredContext::Known(alive.context)]);
        let held = handed(&dao, &alive, wakeup).await?;
        assert_eq!(dao.release(&held).await?.lost, []);
    }
    Ok(())
}

/// The same where no other waits, so that only the id's row knows; nor does it stay there.
async fn the_dead_in_a_row_are_handed_nothing(kind: Kind) -> TestResult {
    const DEAD: &str = "UPDATE lockcore_ids SET next_session = 7 WHERE extra = 2";
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let a = Target::Id("a".to_owned());
    let held = take(&dao, ["a"]).await?;
    let (waits, _wakeup) = queue(&dao, ["a"]).await?;
    let waiters = dao.inspect(&a).await?.waiters;
    assert_eq!(waiters.len(), 1);
    assert_eq!(waiters[0].context, StoredContext::Known(waits.context));
    assert_eq!(sql.run(DEAD).await?, 1);
    assert_eq!(dao.inspect(&a).await?.waiters, []);
    assert_eq!(dao.sweep(100, None).await?.removed, 1, "the place of the dead");
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_ids WHERE extra = 2").await?, 0);
    assert_eq!(dao.release(&held).await?.lost, []);
    let held = take(&dao, ["a"]).await?;
    let _dead = queue(&dao, ["a"]).await?;
    assert_eq!(sql.run(DEAD).await?, 1);
    dao.release(&held).await?;
    let now = dao.inspect(&a).await?;
    assert_eq!((now.holders, now.waiters), (vec![], vec![]));
    dao.release(&take(&dao, ["a"]).await?).await?;
    Ok(())
}

/// By its own withdrawal, by the release of its context, and when its session ends.
async fn who_waits_in_a_row_can_give_up(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let a = Target::Id("a".to_owned());
    for way in 0..3 {
        let held = take(&dao, ["a"]).await?;
        let other = place.open().await?;
        let (waits, _wakeup) = queue(&other, ["a"]).await?;
        assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_ids WHERE extra = 2").await?, 1);
        match way {
            0 => drop(other.withdraw(&waits, Withdraw::KeepIfGranted).await?),
            1 => assert_eq!(dao.release_context(&waits.context).await?, []),
            _ => drop(other),
        }
        // The last one tells the database by itself.
        let left = "SELECT (SELECT COUNT(*) FROM lockcore_ids WHERE extra = 2) \
                    + (SELECT COUNT(*) FROM lockcore_claims WHERE state >= 2)";
        sql.until(left, |left| left == 0).await?;
        assert_eq!(dao.inspect(&a).await?.waiters, []);
        assert_eq!(dao.release(&held).await?.lost, []);
        assert_eq!(dao.inspect(&a).await?.holders, []);
    }
    Ok(())
}

/// One that was handed over while no client listened, and the same of two; as their rows say, and moved from there.
const SETS: [(&[&str], bool); 4] =
    [(&["a"], false), (&["a", "b"], false), (&["a"], true), (&["a", "b"], true)];

async fn what_is_known_is_not_sent_again(kind: Kind) -> TestResult {
    for (ids, moved) in SETS {
        let mut offers = Offers::new(kind).await?;
        loop {
            let offered = offers.offered(ids, moved).await?;
            let notified = offers.notification("").await?;
            // On a busy machine they may be over by now.
            let all = ids.len() == notified.matches("\"lasts\"").count();
            let again = offers.notification(&known(&notified)).await?;
            drop(offered);
            if all {
                assert_eq!(again, "");
                break;
            }
        }
    }
    Ok(())
}

async fn an_old_offer_is_not_sent(kind: Kind) -> TestResult {
    for (ids, moved) in SETS {
        let mut offers = Offers::new(kind).await?;
        let _offered = offers.offered(ids, moved).await?;
        let over = match moved {
            true => "UPDATE lockcore_claims SET until = 1 WHERE notice = 1",
            false => "UPDATE lockcore_ids SET until = 1 WHERE session <> 0",
        };
        assert_eq!(offers.sql.run(over).await?, ids.len() as u64);
        assert_eq!(offers.notification("").await?, "");
    }
    Ok(())
}

/// The marks of what was notified.
fn known(notified: &str) -> String {
    let marks = notified.split("\"known\":\"").skip(1);
    marks.map(|behind| behind.split_once('"').unwrap_or_default().0).collect::<Vec<_>>().join(",")
}

type Waiting = (AcquireRequest<String, Uuid>, Wakeup);

/// Reads the notifications for a DAO that does not listen.
struct Offers {
    dao: Dao,
    place: Place,
    sql: Sql,
    /// Keeps it waiting.
    _other: Sql,
}

impl Offers {
    async fn new(kind: Kind) -> Result<Self, Error> {
        let place = Place::new(kind).await?;
        let dao = place.builder().listen(false).open().await?;
        let (sql, mut other) = (place.sql().await?, place.sql().await?);
        assert_eq!(other.number("SELECT GET_LOCK('lockcore:7', 5)").await?, 1);
        Ok(Offers { dao, place, sql, _other: other })
    }

    /// Has each of these ids handed over, and no client confirms it. What is returned waits no more when it is dropped.
    async fn offered(&mut self, ids: &[&str], moved: bool) -> Result<Vec<Waiting>, Error> {
        self.sql.run("DELETE FROM lockcore_claims").await?;
        self.sql.run("UPDATE lockcore_ids SET extra = 0, until = 0, session = 0").await?;
        // Another session's heartbeat looks after no offer.
        let other = self.place.builder().listen(false).open().await?;
        let mut waiting = Vec::new();
        for id in ids {
            let held = take(&other, [*id]).await?;
            let waits = queue(&self.dao, [*id]).await?;
            other.release(&held).await?;
            waiting.push(waits);
        }
        let rows = "SELECT COUNT(*) FROM lockcore_ids WHERE session <> 0 AND until > 0";
        assert_eq!(self.sql.number(rows).await?, ids.len() as i64);
        if moved {
            // As late as can be: nothing is from the future.
            self.sql.run("CALL lockcore_v1_move(1, '[[\"61\"],[\"62\"]]', 8000000000000000000)").await?;
            assert_eq!(self.sql.number(rows).await?, 0);
        }
        Ok(waiting)
    }

    async fn notification(&mut self, known: &str) -> Result<String, Error> {
        let session = "SELECT MAX(s) FROM (SELECT session AS s FROM lockcore_claims WHERE notice = 1 \
                       UNION SELECT session FROM lockcore_ids) offered";
        let session = self.sql.number(session).await?;
        // Without its name, so that it answers at once if there is something to tell.
        let call = format!("CALL lockcore_v1_await(1, {session}, 7, '{known}', 0, 1, 1)");
        let rows = sqlx::raw_sql(AssertSqlSafe(call)).fetch_all(&mut self.sql.0).await?;
        rows.iter().map(|row| Ok(row.try_get_unchecked::<String, _>(0)?)).collect()
    }
}

/// A client that was interrupted in vain looks without its session's name, so that no client that interrupts it keeps it from getting to
/// the end; and then has it, once.
async fn a_session_is_not_interrupted_while_it_looks(kind: Kind) -> TestResult {
    const NAMED: &str = "SELECT IS_USED_LOCK('lockcore:8') IS NOT NULL";
    const LOOKS: &str = "SELECT COUNT(*) FROM information_schema.processlist \
                         WHERE db = DATABASE() AND state LIKE 'Waiting for table%'";
    let place = Place::new(kind).await?;
    let _dao = place.open().await?;
    let (mut listens, mut blocks, mut sees) = (place.sql().await?, place.sql().await?, place.sql().await?);
    assert_eq!(listens.number("SELECT GET_LOCK('lockcore:8', 5)").await?, 1);
    assert_eq!(blocks.number("SELECT GET_LOCK('lockcore:7', 5)").await?, 1);
    for unnamed in [1, 0] {
        blocks.run("LOCK TABLES lockcore_claims WRITE").await?;
        let look =
            async { listens.run(format!("CALL lockcore_v1_await(1, 8, 7, '', 0, 1, {unnamed})")).await };
        let see = async {
            sees.until(LOOKS, |looks| looks == 1).await?;
            assert_eq!(sees.number(NAMED).await?, 1 - unnamed);
            blocks.run("UNLOCK TABLES").await
        };
        tokio::try_join!(look, see)?;
        assert_eq!(sees.number(NAMED).await?, 1, "it goes on listening");
    }
    listens.run("DO RELEASE_LOCK('lockcore:8')").await?;
    assert_eq!(sees.number(NAMED).await?, 0);
    Ok(())
}

/// A client that asks again has the place it had, also behind another who came meanwhile.
async fn waiting_twice_is_one_place(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let held = take(&dao, ["a"]).await?;
    let (first, _told_to_ask) = queue(&dao, ["a"]).await?;
    let (second, _next) = queue(&dao, ["a"]).await?;
    let Acquired::Queued { wakeup, .. } = dao.acquire(&first).await? else {
        return Err("not queued".into());
    };
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_claims WHERE state = 3").await?, 2);
    dao.release(&held).await?;
    let held = handed(&dao, &first, wakeup).await?;
    let now = dao.inspect(&Target::Id("a".to_owned())).await?;
    assert_eq!(now.waiters.len(), 1);
    dao.release(&held).await?;
    let held = handed(&dao, &second, _next).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// The row of an id that was only ever withdrawn from is one that the sweep could do without; but if others then take the
/// id, and free it, the usual way to take it has nothing else to see the withdrawal by.
async fn a_sweep_forgets_no_withdrawal(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let late = request(["a"]);
    dao.withdraw(&late, Withdraw::Undo).await?;
    dao.sweep(100, None).await?;
    let held = take(&dao, ["a"]).await?;
    dao.release(&held).await?;
    let refused = dao.acquire(&late).await.err().ok_or("it was granted")?;
    assert_eq!(refused.kind(), BackendErrorKind::Withdrawn);
    // In line, too.
    let held = take(&dao, ["a"]).await?;
    let _waits = queue(&dao, ["a"]).await?;
    let late = AcquireRequest { queue: true, ..late };
    let refused = dao.acquire(&late).await.err().ok_or("it has a place")?;
    assert_eq!(refused.kind(), BackendErrorKind::Withdrawn);
    dao.release(&held).await?;
    Ok(())
}

/// 2.6: however often its ids were taken and released since the withdrawal. Sets that stayed sets when they were released,
/// to be taken again, let one in.
async fn no_later_grant_lets_a_late_request_in(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    for ids in [&["a"][..], &["a", "b"]] {
        let late = request(ids);
        dao.withdraw(&late, Withdraw::Undo).await?;
        for _ in 0..4 {
            let held = take(&dao, ids).await?;
            assert_eq!(dao.release(&held).await?.lost, []);
            let refused = dao.acquire(&late).await.err().ok_or("it was granted")?;
            assert_eq!(refused.kind(), BackendErrorKind::Withdrawn);
        }
    }
    Ok(())
}

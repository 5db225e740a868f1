//! Sets: all of one, or nothing, whatever happens to single ids of it.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockcore::{BreakMode, Grant, LockDao, Mode, Page, StoredContext, Target, backend::AcquireRequest};
use lockcore_conformance::servers::{Kind, TestResult, Trial};
use sqlx::{AssertSqlSafe, Executor};

use super::{
    place::{Error, Place, Sql, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "sets::a_set_is_shown_and_broken", a_set_is_shown_and_broken),
        test(kind, "sets::a_part_that_has_a_waiter", a_part_that_has_a_waiter),
        test(kind, "sets::a_part_is_renewed_by_itself", a_part_is_renewed_by_itself),
        test(kind, "sets::several_grants_are_renewed_as_one", several_grants_are_renewed_as_one),
        test(kind, "sets::what_was_taken_meanwhile_is_seen", what_was_taken_meanwhile_is_seen),
        test(kind, "sets::one_that_was_taken_over_is_not_renewed", one_that_was_taken_over_is_not_renewed),
        test(
            kind,
            "sets::of_many_requests_for_new_ids_one_gets_them",
            of_many_requests_for_new_ids_one_gets_them,
        ),
        test(kind, "sets::a_guarded_write_knows_sets", a_guarded_write_knows_sets),
        test(kind, "sets::what_is_over_is_swept", what_is_over_is_swept),
        test(kind, "sets::what_a_watcher_left_is_swept", what_a_watcher_left_is_swept),
        test(
            kind,
            "sets::one_that_is_renewed_meanwhile_is_not_swept",
            one_that_is_renewed_meanwhile_is_not_swept,
        ),
    ]
}

/// The lease of an id is over.
const OVER: &str = "SELECT MIN(until) <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM lockcore_ids \
                    WHERE until > 0";
const ROWS: &str = "SELECT COUNT(*) FROM lockcore_ids WHERE until > 0";
const CLAIMS: &str = "SELECT COUNT(*) FROM lockcore_claims";

/// How many ids are held by their rows, and how many claims there are.
async fn counts(sql: &mut Sql) -> Result<[i64; 2], Error> {
    Ok([sql.number(ROWS).await?, sql.number(CLAIMS).await?])
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:02}")).collect()
}

async fn a_set_is_shown_and_broken(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a", "b"]).await?;
    let fence = held.locks[0].granted.fence;
    let (a, b) = (Target::Id("a".to_owned()), Target::Id("b".to_owned()));
    let shown = dao.inspect(&a).await?.holders;
    assert_eq!(shown.len(), 1);
    assert_eq!(
        (&shown[0].context, shown[0].mode, shown[0].fence),
        (&StoredContext::Known(held.context), Mode::Exclusive, fence)
    );
    assert_eq!(dao.list(&Page::default()).await?.ids.len(), 2);
    dao.break_lock(&a, fence, BreakMode::Now, "me").await?;
    assert_eq!(dao.inspect(&a).await?.holders, []);
    assert_eq!(dao.inspect(&b).await?.holders.len(), 1);
    let lost = dao.renew(&held).await?.lost;
    assert_eq!(lost.iter().map(|lost| &lost.target).collect::<Vec<_>>(), [&a]);
    assert_eq!(dao.release_context(&held.context).await?, [b]);
    assert_eq!(dao.list(&Page::default()).await?.ids, []);
    // All of a set that no other has to do with.
    let held = take(&dao, ["a", "b", "c"]).await?;
    assert_eq!(dao.release_context(&held.context).await?.len(), 3);
    assert_eq!(dao.renew(&held).await?.lost.len(), 3);
    dao.release(&take(&dao, ["a", "b", "c"]).await?).await?;
    Ok(())
}

/// Then the rest is still held, and all of it is renewed and freed as before.
async fn a_part_that_has_a_waiter(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    for _ in 0..2 {
        let held = take(&dao, ["a", "b", "c"]).await?;
        let (waits, wakeup) = queue(&dao, ["b"]).await?;
        assert_eq!(counts(&mut sql).await?, [3, 0], "it waits in the row");
        assert_eq!(dao.renew(&held).await?.lost, []);
        let (others, other_wakeup) = queue(&dao, ["a", "c"]).await?;
        assert_eq!(dao.release(&held).await?.lost, []);
        let b = handed(&dao, &waits, wakeup).await?;
        let others = handed(&dao, &others, other_wakeup).await?;
        for grant in [b, others] {
            assert_eq!(dao.release(&grant).await?.lost, []);
        }
        assert_eq!(counts(&mut sql).await?, [0, 0]);
    }
    Ok(())
}

/// What is renewed of a grant is renewed, and what is freed of it is free, and nothing else.
async fn a_part_is_renewed_by_itself(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    // Longer than a machine may stall: some of it is renewed before that.
    let lasts = Duration::from_secs(5);
    let short = AcquireRequest { lease: Some(lasts), ..request(["a", "b", "c"]) };
    let held = granted(&dao, &short).await?;
    let part = |range: std::ops::Range<usize>| {
        let mut part = held.clone();
        part.locks = part.locks[range].to_vec();
        part
    };
    let longer = Grant { lease: Some(Duration::from_secs(60)), ..part(0..2) };
    assert_eq!(dao.renew(&longer).await?.lost, []);
    let over = format!(
        "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) > {} + 5000000",
        held.locks[0].granted.fence
    );
    sql.until(&over, |answer| answer == 1).await?;
    dao.release(&take(&dao, ["c"]).await?).await?;
    assert_eq!(dao.release(&part(0..1)).await?.lost, []);
    dao.release(&take(&dao, ["a"]).await?).await?;
    assert_eq!(dao.renew(&part(1..2)).await?.lost, []);
    assert_eq!(dao.release(&held).await?.lost.len(), 2);
    dao.release(&take(&dao, ["a", "b", "c"]).await?).await?;
    Ok(())
}

/// What was taken one by one is renewed as one, wherever it stands; but not what is over.
async fn several_grants_are_renewed_as_one(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let lasts = Duration::from_millis(100);
    let over = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(["a"]) }).await?;
    let also = |id: &str| AcquireRequest { context: over.context, nested: true, ..request([id]) };
    let mut all = granted(&dao, &also("b")).await?;
    all.locks.extend(granted(&dao, &also("c")).await?.locks);
    let _places = [queue(&dao, ["c"]).await?, queue(&dao, ["c"]).await?];
    let until = "SELECT MAX(until) FROM (SELECT until FROM lockcore_ids WHERE id = 'b' UNION ALL \
                 SELECT until FROM lockcore_claims WHERE id = 'b') b";
    let before = sql.number(until).await?;
    assert_eq!(sql.number(CLAIMS).await?, 3, "one of them is beside its waiters");
    assert_eq!(dao.renew(&all).await?.lost, []);
    assert!(sql.number(until).await? > before);
    let is_over = "SELECT until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM lockcore_ids \
                   WHERE id = 'a'";
    sql.until(is_over, |answer| answer == 1).await?;
    let mut with_over = all.clone();
    with_over.locks.extend(over.locks.clone());
    let lost: Vec<_> = dao.renew(&with_over).await?.lost.into_iter().map(|lost| lost.target).collect();
    assert_eq!(lost, [Target::Id("a".to_owned())]);
    dao.release(&take(&dao, ["a"]).await?).await?;
    assert_eq!(dao.release(&all).await?.lost, []);
    Ok(())
}

/// 2.1: a set whose row came after this one's statement began to read such rows, but is older. With few ids, and with many.
async fn what_was_taken_meanwhile_is_seen(kind: Kind) -> TestResult {
    for more in [0, 20] {
        let place = Place::new(kind).await?;
        let daos = [place.open().await?, place.open().await?];
        let wanted: Vec<_> = ["a", "b", "d"].map(str::to_owned).into_iter().chain(names(more)).collect();
        // Of a set that is free, so that its row is looked for; and ids that are there.
        for ids in [&wanted, &names(2), &["d".to_owned(), "e".to_owned()].to_vec()] {
            daos[0].release(&take(&daos[0], ids).await?).await?;
        }
        let b = take(&daos[0], ["b"]).await?;
        daos[0].release(&b).await?;
        let waits = waiting(&place);
        let mut watch = place.sql().await?;
        let [mut of_b, mut of_e] = [place.sql().await?, place.sql().await?];
        for (sql, id) in [(&mut of_b, "b"), (&mut of_e, "e")] {
            sql.run("BEGIN").await?;
            sql.run(format!("SELECT id FROM lockcore_ids WHERE ns = 1 AND id = '{id}' FOR UPDATE")).await?;
        }
        let [one, two] = daos;
        // It has its fence, and waits for its last id; then the other one waits for its second.
        let first = tokio::spawn(async move { take(&one, ["d", "e"]).await });
        watch.until(&waits, |count| count == 1).await?;
        let second = tokio::spawn(async move { two.acquire(&request(wanted)).await });
        watch.until(&waits, |count| count == 2).await?;
        of_e.run("COMMIT").await?;
        let held = first.await??;
        of_b.run("COMMIT").await?;
        let second = second.await??;
        assert!(matches!(second, lockcore::backend::Acquired::Refused(_)), "{second:?} beside {held:?}");
    }
    Ok(())
}

/// 2.3: its lease was over when another took one of its ids, or a sweep freed it. A renewal that came in time, by the
/// clock with which its statement began, but gets to the row only now, must not bring the set back.
async fn one_that_was_taken_over_is_not_renewed(kind: Kind) -> TestResult {
    let many = names(20);
    for ways in 0..5 {
        let place = Place::new(kind).await?;
        let dao = place.open().await?;
        let mut sql = place.sql().await?;
        // So that all rows but that of `new` are there.
        dao.release(&take(&dao, &many).await?).await?;
        let lasts = Duration::from_millis(100);
        let held = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(["00", "x"]) }).await?;
        let fence = held.locks[0].granted.fence;
        let until = sql.number("SELECT MAX(until) FROM lockcore_ids").await?;
        sql.until(OVER, |answer| answer == 1).await?;
        let others = match ways {
            0 => take(&dao, ["00"]).await?,
            1 => take(&dao, ["00", "01"]).await?,
            2 => take(&dao, &many).await?,
            3 => take(&dao, ["00", "new"]).await?,
            _ => {
                // The other one stays.
                assert_eq!(dao.sweep(1, None).await?.removed, 1);
                take(&dao, ["00"]).await?
            }
        };
        sql.run(format!("SET timestamp = ({until} - 1000) / 1000000")).await?;
        let context = lockcore::ContextId::stored(&held.context);
        sql.run(format!(
            "CALL lockcore_v1_renew(1, '{context}', '[[\"3030\",{fence}],[\"78\",{fence}]]', 2, 60000000)"
        ))
        .await?;
        sql.run("SET timestamp = 0").await?;
        let holders = dao.inspect(&Target::Id("00".to_owned())).await?.holders;
        assert_eq!(
            holders.iter().map(|holder| &holder.context).collect::<Vec<_>>(),
            [&StoredContext::Known(others.context)]
        );
        let lost: Vec<_> = dao.renew(&held).await?.lost.into_iter().map(|lost| lost.target).collect();
        assert!(lost.contains(&Target::Id("00".to_owned())), "{lost:?}");
        assert_eq!(dao.release(&others).await?.lost, []);
    }
    Ok(())
}

/// 2.1: all of a set, or nothing, also while others make the rows of its ids.
async fn of_many_requests_for_new_ids_one_gets_them(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let daos = [place.open().await?, place.open().await?, place.open().await?];
    let mut won = 0;
    for round in 0..50 {
        let sets = match round % 2 {
            0 => [vec![1, 2], vec![2, 3], vec![1, 3]],
            _ => [vec![1], vec![1, 2], vec![1]],
        };
        let asked = daos.iter().zip(sets).map(async |(dao, set)| {
            let request = request(set.iter().map(|number| format!("{round} {number}")).collect::<Vec<_>>());
            Ok::<_, Error>(match dao.acquire(&request).await? {
                lockcore::backend::Acquired::Granted(granted) => {
                    Some((dao, Grant::new(request.context, request.claims, granted, request.lease)))
                }
                _ => None,
            })
        });
        let granted: Vec<_> = try_join_all(asked).await?.into_iter().flatten().collect();
        assert!(granted.len() <= 1, "{granted:?}");
        for (dao, grant) in granted {
            won += 1;
            assert_eq!(dao.release(&grant).await?.lost, []);
        }
    }
    assert!(won >= 25, "of 50 rounds {won}");
    Ok(())
}

/// 2.3: its lease was over when the sweep looked, but not any more when the sweep has it.
async fn one_that_is_renewed_meanwhile_is_not_swept(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (dao, sweeper) = (place.open().await?, place.open().await?);
    let [mut renewal, mut watch] = [place.sql().await?, place.sql().await?];
    let lasts = Duration::from_millis(100);
    let held = granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(["a", "b"]) }).await?;
    watch.until(OVER, |answer| answer == 1).await?;
    renewal.run("BEGIN").await?;
    renewal
        .run("UPDATE lockcore_ids SET lease = 60000000, until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + lease")
        .await?;
    assert_eq!(sweeper.sweep(10, None).await?.removed, 0, "it waits for no row");
    renewal.run("COMMIT").await?;
    assert_eq!(sweeper.sweep(10, None).await?.removed, 0);
    assert_eq!(dao.inspect(&Target::Id("a".to_owned())).await?.holders.len(), 1);
    assert_eq!(dao.renew(&held).await?.lost, []);
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// How many transactions wait for a row.
fn waiting(place: &Place) -> String {
    format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
         ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = '{}'",
        place.database
    )
}

async fn a_guarded_write_knows_sets(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("CREATE TABLE account (balance INT); INSERT INTO account VALUES (0)").await?;
    let text = format!("UPDATE account SET balance = balance + 1 WHERE {}", dao.fence_check());
    let mut write = async |fence: u64| {
        let write = sqlx::query(AssertSqlSafe(&*text));
        let write = write.bind(&b"default"[..]).bind(&b"a"[..]).bind(fence as i64);
        Ok::<_, Error>(sql.0.execute(write).await?.rows_affected())
    };
    let held = take(&dao, ["a", "b"]).await?;
    let fence = held.locks[0].granted.fence;
    assert_eq!((write(fence).await?, write(fence - 1).await?), (1, 0));
    dao.release(&held).await?;
    assert_eq!(write(fence).await?, 0, "it was released");
    Ok(())
}

/// Programs of before noted in `claims` which session watches an id, by which it goes the general way.
async fn what_a_watcher_left_is_swept(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    dao.release(&take(&dao, ["a"]).await?).await?;
    sql.run("UPDATE lockcore_ids SET extra = 1").await?;
    let columns = "ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since, session";
    sql.run(&format!(
        "INSERT INTO lockcore_claims ({columns}) SELECT ns, 'a', 4, 7, '', 1, 0, 0, 0, '', '', 0, 1, 1, 7 FROM lockcore_namespaces"
    ))
    .await?;
    dao.release(&take(&dao, ["a"]).await?).await?;
    assert_eq!(sql.number("SELECT CAST(extra AS SIGNED) FROM lockcore_ids").await?, 1);
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_claims").await?, 0);
    assert_eq!(sql.number("SELECT CAST(extra AS SIGNED) FROM lockcore_ids").await?, 0);
    Ok(())
}

/// Counted by its locks; what was freed is no lock that is over.
async fn what_is_over_is_swept(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let lasts = Duration::from_millis(100);
    granted(&dao, &AcquireRequest { lease: Some(lasts), ..request(names(20)) }).await?;
    // Before the others in the order in which they are looked through.
    dao.release(&take(&dao, ["!", "!!"]).await?).await?;
    let held = take(&dao, ["c", "d"]).await?;
    sql.until(OVER, |answer| answer == 1).await?;
    assert_eq!(dao.sweep(20, None).await?.removed, 20);
    assert_eq!(dao.sweep(20, None).await?.removed, 0);
    assert_eq!(counts(&mut sql).await?, [2, 0]);
    assert_eq!(dao.release(&held).await?.lost, []);
    // After an hour nothing is left of what was freed.
    let ago = "UPDATE lockcore_ids SET fence = fence - 4000000000";
    assert_eq!(sql.run(ago).await?, 24);
    assert_eq!(dao.sweep(100, None).await?.removed, 0);
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_ids").await?, 0);
    Ok(())
}

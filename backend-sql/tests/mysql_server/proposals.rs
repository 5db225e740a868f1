//! Fences that the taker proposes.

use lockcore::LockDao;
use lockcore_conformance::servers::{Kind, TestResult, Trial};

use crate::{
    place::{Error, Place, Sql, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "proposals::only_a_good_one_is_taken", only_a_good_one_is_taken),
        test(kind, "proposals::whoever_takes_makes_good_ones", whoever_takes_makes_good_ones),
    ]
}

/// One id, few, many: each has a routine of its own.
const SIZES: [usize; 3] = [1, 2, 17];

fn names(size: usize) -> Vec<String> {
    (0..size).map(|number| format!("{number:02}")).collect()
}

/// Asks for them in the name of `c`.
fn asks(ids: &[String], fence: i64) -> String {
    let hex = |id: &String| id.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let n = ids.len();
    match ids {
        [id] => format!("CALL lockcore_v1_acquire_one(1, 'c', 1, '{id}', 60000000, '', 0, 0, {fence})"),
        [one, other] => format!(
            "CALL lockcore_v1_acquire_few(1, 'c', 1, {n}, 60000000, '', 0, 0, {fence}, '{one}', '{other}'{})",
            ", NULL".repeat(14)
        ),
        _ => format!(
            "CALL lockcore_v1_acquire_many(1, 'c', 1, {n}, 60000000, '', 0, 0, {fence}, '{}')",
            ids.iter().map(hex).collect::<Vec<_>>().join("'',x''")
        ),
    }
}

/// Asks and frees again; the fence, which is that of all.
async fn fence_of(sql: &mut Sql, ids: &[String], proposed: i64) -> Result<i64, Error> {
    sql.run(asks(ids, proposed)).await?;
    assert_eq!(sql.number("SELECT COUNT(DISTINCT fence) FROM lockcore_ids").await?, 1);
    let fence = sql.number("SELECT MAX(fence) FROM lockcore_ids").await?;
    let freed = if let [id] = ids {
        sql.run(format!("CALL lockcore_v1_release_one(1, 'c', '{id}', {fence})")).await?
    } else {
        sql.run(format!("CALL lockcore_v1_release_set(1, 'c', {fence}, {}, '', NULL)", ids.len())).await?
    };
    assert_eq!(freed, 1, "in one row");
    Ok(fence)
}

/// 5: a fence is above all before, at least the store's clock, and no more than a little ahead of it; whatever is proposed.
async fn only_a_good_one_is_taken(kind: Kind) -> TestResult {
    for size in SIZES {
        let place = Place::new(kind).await?;
        let dao = place.open().await?;
        let ids = names(size);
        dao.release(&take(&dao, &ids).await?).await?;
        let mut sql = place.sql().await?;
        let mut second = 1 + sql.number("SELECT CAST(UNIX_TIMESTAMP() AS SIGNED)").await?;
        for (ahead, good) in [(0, true), (-1, false), (10_000, true), (10_001, false), (3_600_000_000, false)]
        {
            second += 1;
            sql.run(format!("SET timestamp = {second}")).await?;
            let clock = second * 1_000_000;
            let fence = fence_of(&mut sql, &ids, clock + ahead).await?;
            assert_eq!(fence, if good { clock + ahead } else { clock }, "{size} ids, {ahead} us ahead");
        }
        second += 1;
        sql.run(format!("SET timestamp = {second}")).await?;
        let clock = second * 1_000_000;
        for (proposed, fence) in
            [(5000, 5000), (5000, 5001), (5001, 5002), (4000, 5003), (5004, 5004), (0, 5005)]
        {
            assert_eq!(fence_of(&mut sql, &ids, clock + proposed).await? - clock, fence, "{size} ids");
        }
    }
    Ok(())
}

/// Else all of them would be asked for twice within the server.
async fn whoever_takes_makes_good_ones(kind: Kind) -> TestResult {
    for size in SIZES {
        let place = Place::new(kind).await?;
        let dao = place.open().await?;
        let mut sql = place.sql().await?;
        let table = if size == 1 { "ids" } else { "sets" };
        let (mut last, mut good) = (0, 0);
        for _ in 0..100 {
            let held = take(&dao, names(size)).await?;
            let ahead = sql.number(format!("SELECT fence - since FROM lockcore_{table}")).await?;
            assert!(ahead <= 10_000, "{ahead}");
            // What the server chooses is its clock, read before the row is written.
            good += i64::from(ahead > 0);
            let fence = held.locks[0].granted.fence;
            assert!(fence > last);
            last = fence;
            assert_eq!(dao.release(&held).await?.lost, []);
        }
        assert!(good > 0, "{size} ids");
    }
    Ok(())
}

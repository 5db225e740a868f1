//! Who is served when a client ahead has to go on waiting, and that no client waits for the safety net.

use std::time::{Duration, Instant};

use lockcore::{
    BreakMode, Claim, ClaimSet, Grant, LockDao, Mode, Target,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Wakeup, Withdraw},
};
use lockcore_conformance::{
    PATIENCE, refusing::a_store_that_refuses_for_good_ends_a_sleeping_wait, servers::Trial,
};
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;
type Request = AcquireRequest<String, Uuid>;

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "handing_over",
        slots_with_a_larger_limit_pass_a_stuck_waiter_and_no_others,
        several_shared_claims_pass_one_stuck_waiter,
        no_way_of_freeing_leaves_it_to_the_safety_net,
        more_than_one_transaction_serves_are_served_at_once,
        an_offer_from_elsewhere_beside_what_is_held_is_found_by_asking,
        asking_again_never_shortens_a_lease,
        what_is_refused_for_good_ends_a_wait
    ]
    .into_iter()
    .map(Trial::of_liveness)
    .collect()
}

async fn slots_with_a_larger_limit_pass_a_stuck_waiter_and_no_others() {
    let dao = memory().await;
    let first = take(&dao, [Claim::exclusive("a")]).await;
    take(&dao, [Claim::exclusive("b")]).await;
    let (_, mut stuck) = queue(&dao, [Claim::slots("a", 2), Claim::exclusive("b")]).await;
    let (_, mut same) = queue(&dao, [Claim::slots("a", 2)]).await;
    let (_, mut larger) = queue(&dao, [Claim::slots("a", 3)]).await;
    let (_, mut shared) = queue(&dao, [Claim::shared("a")]).await;
    dao.release(&first).await.expect("an answer");
    assert!(is_offered(&mut larger).await);
    assert!(!is_offered(&mut stuck).await && !is_offered(&mut same).await && !is_offered(&mut shared).await);
}

async fn several_shared_claims_pass_one_stuck_waiter() {
    let dao = memory().await;
    let first = take(&dao, [Claim::exclusive("a")]).await;
    take(&dao, [Claim::exclusive("b")]).await;
    let (_, mut stuck) = queue(&dao, [Claim::shared("a"), Claim::exclusive("b")]).await;
    let (_, mut second) = queue(&dao, [Claim::shared("a")]).await;
    let (_, mut third) = queue(&dao, [Claim::shared("a")]).await;
    dao.release(&first).await.expect("an answer");
    assert!(is_offered(&mut second).await && is_offered(&mut third).await && !is_offered(&mut stuck).await);
}

/// The tables are gone while one waits.
async fn what_is_refused_for_good_ends_a_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let dao = Dao::open(&file).await.expect("a store");
    let refuse = async || {
        let other = rusqlite::Connection::open(&file)?;
        other.busy_timeout(PATIENCE)?;
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'lockcore%'";
        let names =
            other.prepare(tables)?.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        assert!(!names.is_empty());
        for name in names {
            other.execute_batch(&format!("DROP TABLE {name}"))?;
        }
        Ok(())
    };
    a_store_that_refuses_for_good_ends_a_sleeping_wait(dao, refuse).await.expect("it ends");
}

/// Every way of freeing an id serves its waiter itself: the look at the table comes after 250 ms.
async fn no_way_of_freeing_leaves_it_to_the_safety_net() {
    let target = Target::Id("a".to_owned());
    for way in ["release", "break", "thaw", "withdraw", "release_context"] {
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let dao = memory().await;
            let mut holder = None;
            match way {
                "thaw" => dao.freeze(&target, true).await.expect("an answer"),
                _ => holder = Some(take(&dao, [Claim::shared("a")]).await),
            }
            let ahead = match way {
                "withdraw" => Some(queue(&dao, [Claim::exclusive("a")]).await),
                _ => None,
            };
            let wanted = if ahead.is_some() { Claim::shared("a") } else { Claim::exclusive("a") };
            let (_, mut wakeup) = queue(&dao, [wanted]).await;
            let begun = Instant::now();
            match (way, &holder, &ahead) {
                ("release", Some(grant), _) => drop(dao.release(grant).await.expect("an answer")),
                ("break", Some(grant), _) => {
                    let fence = grant.locks[0].granted.fence;
                    dao.break_lock(&target, fence, BreakMode::Now, "a test").await.expect("an answer");
                }
                ("withdraw", _, Some((request, _))) => {
                    dao.withdraw(request, Withdraw::KeepIfGranted).await.expect("an answer");
                }
                ("release_context", Some(grant), _) => {
                    dao.release_context(&grant.context).await.expect("an answer");
                }
                _ => dao.freeze(&target, false).await.expect("an answer"),
            }
            assert!(matches!(wakeup.recv().await, Wake::Offer(_)), "{way}");
            fastest = fastest.min(begun.elapsed());
        }
        assert!(fastest < Duration::from_millis(100), "{way} took {fastest:?}");
    }
}

/// One transaction hands over 64 sets at most; the rest follows before the next operation on the thread.
async fn more_than_one_transaction_serves_are_served_at_once() {
    let dao = memory().await;
    let held = take(&dao, [Claim::exclusive("a")]).await;
    let mut waiting = Vec::new();
    for _ in 0..600 {
        waiting.push(queue(&dao, [Claim::shared("a")]).await);
    }
    dao.release(&held).await.expect("an answer");
    let found = LockDao::<String, Uuid>::inspect(&dao, &Target::Id("a".to_owned())).await.expect("an answer");
    assert_eq!((found.holders.len(), found.waiters.len()), (600, 0));
}

/// What its context held before is no part of an offer as another process wrote it: the waiter asks for the whole.
async fn an_offer_from_elsewhere_beside_what_is_held_is_found_by_asking() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (here, there) = (open(&folder).await, open(&folder).await);
    let held = take(&there, [Claim::exclusive("b")]).await;
    let mut first = request([Claim::exclusive("a")], false);
    let whole = first.lease.replace(Duration::from_secs(20));
    assert!(matches!(here.acquire(&first).await.expect("an answer"), Acquired::Granted(_)));
    first.lease = whole;
    let both = ClaimSet::new([Claim::exclusive("a"), Claim::exclusive("b")], Mode::Exclusive).expect("valid");
    (first.attempt, first.claims, first.queue) = (AttemptId::fresh(), both, true);
    let Acquired::Queued { mut wakeup, .. } = here.acquire(&first).await.expect("an answer") else {
        panic!("the other one holds b")
    };
    there.release(&held).await.expect("an answer");
    assert!(
        matches!(wakeup.recv().await, Wake::Recheck),
        "an offer of both, though one lock was handed over"
    );
    let found =
        LockDao::<String, Uuid>::inspect(&here, &Target::Id("a".to_owned())).await.expect("an answer");
    assert!(found.holders[0].remaining <= Some(Duration::from_secs(20)), "not confirmed: {found:?}");
    let Acquired::Granted(granted) = here.acquire(&first).await.expect("an answer") else {
        panic!("it was handed over")
    };
    assert_eq!(granted.len(), 2);
}

/// A context that asks again for less time does not lose what it was promised before.
async fn asking_again_never_shortens_a_lease() {
    let dao = memory().await;
    let mut asks = request([Claim::exclusive("a")], false);
    dao.acquire(&asks).await.expect("an answer");
    (asks.attempt, asks.lease) = (AttemptId::fresh(), Some(Duration::from_millis(20)));
    assert!(matches!(dao.acquire(&asks).await.expect("an answer"), Acquired::Granted(_)));
    let found = LockDao::<String, Uuid>::inspect(&dao, &Target::Id("a".to_owned())).await.expect("an answer");
    assert!(found.holders[0].remaining > Some(Duration::from_secs(30)), "{found:?}");
}

async fn open(folder: &tempfile::TempDir) -> Dao {
    Dao::open(folder.path().join("locks.db")).await.expect("the file can be opened")
}

async fn memory() -> Dao {
    Dao::open(":memory:").await.expect("a database in memory")
}

async fn take<const N: usize>(dao: &Dao, claims: [Claim<&str>; N]) -> Grant<String, Uuid> {
    let request = request(claims, false);
    match dao.acquire(&request).await.expect("an answer") {
        Acquired::Granted(granted) => Grant::new(request.context, request.claims, granted, request.lease),
        other => panic!("not granted: {other:?}"),
    }
}

async fn queue<const N: usize>(dao: &Dao, claims: [Claim<&str>; N]) -> (Request, Wakeup) {
    let request = request(claims, true);
    match dao.acquire(&request).await.expect("an answer") {
        Acquired::Queued { wakeup, .. } => (request, wakeup),
        other => panic!("not queued: {other:?}"),
    }
}

fn request<const N: usize>(claims: [Claim<&str>; N], queue: bool) -> Request {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(claims, Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue,
        nested: false,
        detached: false,
    }
}

/// Whether an offer has arrived: what serves a waiter of this DAO tells it before the call returns.
async fn is_offered(wakeup: &mut Wakeup) -> bool {
    matches!(tokio::time::timeout(Duration::from_millis(20), wakeup.recv()).await, Ok(Wake::Offer(_)))
}

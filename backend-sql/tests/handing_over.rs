//! Who is served when somebody ahead has to go on waiting, and that nobody waits for the safety net.

use std::time::{Duration, Instant};

use lockcore::{
    AcquireRequest, Acquired, AttemptId, BreakMode, Claim, ClaimSet, Grant, LockDao, Mode, Target, Wake,
    Wakeup, Withdraw,
};
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;
type Request = AcquireRequest<String, Uuid>;

#[tokio::test]
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

#[tokio::test]
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

/// Every way of freeing an id serves its waiter itself: the look at the table comes after 250 ms.
#[tokio::test]
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

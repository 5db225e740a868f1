//! Undoing a try brings back what the context held before.

use std::time::Duration;

use lockcore::{
    Claim, ClaimSet, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId, Withdraw, Withdrawn},
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;
type Request = AcquireRequest<String, Uuid>;

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "withdrawing",
        an_undone_stronger_mode_gives_back_the_weaker_lock,
        permits_that_were_granted_meanwhile_are_not_given_back,
        what_was_replaced_does_not_come_back_after_a_release
    ]
}

async fn an_undone_stronger_mode_gives_back_the_weaker_lock() {
    let (dao, context) = (memory().await, Uuid::new_v4());
    let (weak, _) = take(&dao, context, Claim::shared("a")).await;
    let (strong, request) = take(&dao, context, Claim::exclusive("a")).await;
    assert_eq!(dao.renew(&weak).await.expect("an answer").lost.len(), 1, "it was replaced");
    assert_eq!(dao.withdraw(&request, Withdraw::Undo).await.expect("an answer"), Withdrawn::Left);
    assert_eq!(dao.renew(&weak).await.expect("an answer").lost, []);
    assert_eq!(dao.renew(&strong).await.expect("an answer").lost.len(), 1);
    let (other, _) = take(&dao, Uuid::new_v4(), Claim::shared("a")).await;
    for grant in [&weak, &other] {
        assert_eq!(dao.release(grant).await.expect("an answer").lost, []);
    }
    take(&dao, Uuid::new_v4(), Claim::exclusive("a")).await;
}

async fn permits_that_were_granted_meanwhile_are_not_given_back() {
    let (dao, context) = (memory().await, Uuid::new_v4());
    let (three, _) = take(&dao, context, Claim::slots("a", 3).permits(3)).await;
    let (_, request) = take(&dao, context, Claim::slots("a", 3)).await;
    take(&dao, Uuid::new_v4(), Claim::slots("a", 3).permits(2)).await;
    dao.withdraw(&request, Withdraw::Undo).await.expect("an answer");
    assert_eq!(dao.renew(&three).await.expect("an answer").lost.len(), 1, "two of them are another's");
    let inspected = dao.inspect(&lockcore::Target::Id("a".to_owned())).await.expect("an answer");
    let mut permits: Vec<u32> = inspected.holders.iter().flat_map(|holder| holder.permits.clone()).collect();
    permits.sort_unstable();
    permits.dedup();
    assert_eq!(permits.len(), 2);
}

async fn what_was_replaced_does_not_come_back_after_a_release() {
    let (dao, context) = (memory().await, Uuid::new_v4());
    let (weak, _) = take(&dao, context, Claim::shared("a")).await;
    let (strong, _) = take(&dao, context, Claim::exclusive("a")).await;
    assert_eq!(dao.release(&strong).await.expect("an answer").lost, []);
    let (_, request) = take(&dao, context, Claim::exclusive("a")).await;
    dao.withdraw(&request, Withdraw::Undo).await.expect("an answer");
    assert_eq!(dao.renew(&weak).await.expect("an answer").lost.len(), 1);
    take(&dao, Uuid::new_v4(), Claim::exclusive("a")).await;
}

async fn memory() -> Dao {
    Dao::open(":memory:").await.expect("a database in memory")
}

async fn take(dao: &Dao, context: Uuid, claim: Claim<&str>) -> (Grant<String, Uuid>, Request) {
    let request = AcquireRequest {
        context,
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([claim], Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    };
    match dao.acquire(&request).await.expect("an answer") {
        Acquired::Granted(granted) => {
            (Grant::new(context, request.claims.clone(), granted, request.lease), request)
        }
        other => panic!("not granted: {other:?}"),
    }
}

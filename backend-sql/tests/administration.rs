//! Listing: the global lock comes first, ids follow by bytes, pages go on where the last one ended.

use std::time::Duration;

use lockcore::{
    Claim, ClaimSet, LockDao, Mode, Page, Target,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    tests!["administration", pages_list_the_global_lock_and_every_id_once_by_bytes]
}

async fn pages_list_the_global_lock_and_every_id_once_by_bytes() {
    let dao = SqliteLockDao::<String, Uuid>::open(":memory:").await.expect("a database in memory");
    let ids = ["a\0", "a", "B", "a ", "b\u{301}"];
    let request = AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(
            ids.map(|id| Claim::exclusive(id.to_owned())).into_iter().chain([Claim::global()]),
            Mode::Exclusive,
        )
        .expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    };
    assert!(matches!(dao.acquire(&request).await.expect("an answer"), Acquired::Granted(_)));
    dao.freeze(&Target::Id("frozen".to_owned()), true).await.expect("an answer");
    let mut listed = Vec::new();
    let mut page = Page { after: None, limit: 2 };
    loop {
        let listing = dao.list(&page).await.expect("an answer");
        assert!(listing.ids.len() <= 2);
        listed.extend(listing.ids.into_iter().map(|id| id.target.expect("one of ours")));
        match listing.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    let mut expected: Vec<_> = ids.into_iter().chain(["frozen"]).map(str::to_owned).collect();
    expected.sort();
    let expected: Vec<_> = [Target::Global].into_iter().chain(expected.into_iter().map(Target::Id)).collect();
    assert_eq!(listed, expected);
}

//! Listing: the global lock comes first, ids follow by bytes, pages go on where the last one ended.

use std::time::Duration;

use lockcore::{
    Claim, ClaimSet, LockDao, Mode, Page, Severity, Target,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "administration",
        pages_list_the_global_lock_and_every_id_once_by_bytes,
        a_log_that_a_reader_lets_grow_is_reported,
    ]
}

async fn a_log_that_a_reader_lets_grow_is_reported() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = SqliteLockDao::<String, Uuid>::open(&file).await.expect("the file can be opened");
    let severity = async || {
        let findings = dao.doctor().await.expect("an answer");
        findings.iter().find(|finding| finding.check == "log").expect("it is looked at").severity
    };
    assert_eq!(severity().await, Severity::Ok);
    // In a process of its own it would be as another program's: here nothing is closed before the end.
    let reader = rusqlite::Connection::open(&file).expect("it can be read");
    reader.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").expect("a snapshot");
    let target = Target::Id("a".to_owned());
    let log = folder.path().join("locks.db-wal");
    while std::fs::metadata(&log).expect("it is there").len() <= 17 << 20 {
        dao.freeze(&target, true).await.expect("an answer");
        dao.freeze(&target, false).await.expect("an answer");
    }
    assert_eq!(severity().await, Severity::Warning);
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

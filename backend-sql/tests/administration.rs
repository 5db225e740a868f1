//! Listing: the global lock comes first, ids follow by bytes, pages go on where the last one ended.

use std::{sync::Arc, time::Duration};

use lockcore::{
    Claim, ClaimSet, LockDao, Mode, Page, Severity, Target,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::{Caller, servers::Trial};
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "administration",
        pages_list_the_global_lock_and_every_id_once_by_bytes,
        a_log_that_a_reader_lets_grow_is_reported,
        what_a_watcher_of_an_earlier_program_noted_is_no_claim,
        a_release_leaves_nothing_of_what_its_lock_replaced,
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

/// Programs of before noted in the table who watches an id.
async fn what_a_watcher_of_an_earlier_program_noted_is_no_claim() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = Arc::new(SqliteLockDao::<String, Uuid>::open(&file).await.expect("the file can be opened"));
    let [one, two] = [(); 2].map(|()| Caller::new(dao.clone(), Duration::from_secs(60)));
    one.free(&one.take(["a"]).await).await;
    // In a process of its own it would be as another program's: here nothing is closed before the end.
    let raw = rusqlite::Connection::open(&file).expect("it is a file");
    let notes = || {
        raw.query_row("SELECT count(*) FROM lockcore_claims WHERE state = 4", [], |row| row.get::<_, i64>(0))
    };
    let columns =
        "ns, id, state, number, context, attempt, mode, permits, cap, indexes, in_use, owner, lease, boot,
        renewed, since, session, detached";
    raw.execute_batch(&format!(
        "INSERT INTO lockcore_claims ({columns}) SELECT ns, CAST('a' AS BLOB), 4, 7, x'', 0, 0, 0, 0, x'', 0, '', 0, 0, 0, 1, 7, 0
         FROM lockcore_namespaces"
    ))
    .expect("a row as it was written");
    assert_eq!(dao.list(&Page::default()).await.expect("an answer").ids, []);
    let held = one.take(["a"]).await;
    let mut place = two.queue(["a"]).await;
    one.free(&held).await;
    two.free(&place.granted().await).await;
    assert_eq!(notes(), Ok(1));
    assert_eq!(dao.sweep(100, None).await.expect("an answer").removed, 1);
    assert_eq!(notes(), Ok(0));
}

async fn a_release_leaves_nothing_of_what_its_lock_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = Arc::new(SqliteLockDao::<String, Uuid>::open(&file).await.expect("the file can be opened"));
    let caller = Caller::new(dao, Duration::from_secs(3600));
    caller.take([Claim::shared("a")]).await;
    let stronger = caller.take([Claim::exclusive("a")]).await;
    caller.free(&stronger).await;
    // In a process of its own it would be as another program's: here nothing is closed before the end.
    let raw = rusqlite::Connection::open(&file).expect("it is a file");
    let rows = raw.query_row("SELECT count(*) FROM lockcore_claims", [], |row| row.get::<_, i64>(0));
    assert_eq!(rows, Ok(0));
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

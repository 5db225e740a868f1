//! Opening: settings, files that cannot be used, schemas of other versions, a file that is replaced.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use lockcore::{
    BackendError, BackendErrorKind, ClaimSet, Grant, LockDao, LossReason, Mode, Page, Severity, Target,
    backend::{AcquireRequest, Acquired, AttemptId, StoreVersion},
};
use lockcore_conformance::{eventually, judge::in_time, servers::Trial, versions};
use lockcore_sql::{SqliteBuilder, SqliteLockDao, Synchronous, sqlite::schema_sql};
use rusqlite::Connection;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "opening",
        every_bad_setting_is_refused_by_name_and_value,
        a_file_that_cannot_be_used_is_a_misconfiguration,
        every_failure_names_the_file_and_the_reason,
        a_new_file_is_its_owners_alone,
        without_creating_nothing_of_an_applications_file_is_changed,
        reading_leaves_nothing_behind,
        a_newer_schema_under_an_open_connection_is_noticed,
        two_versions_share_a_file,
        a_newer_schema_is_refused_and_a_missing_one_too_if_none_may_be_made,
        opening_waits_for_a_writer_before_the_file_is_in_wal,
        the_printed_schema_is_what_is_needed,
        what_is_missing_of_the_tables_is_made_again,
        namespaces_and_prefixes_are_apart,
        a_memory_database_is_private,
        a_foreign_write_lock_is_reported_as_busy_in_time,
        a_file_that_was_replaced_is_noticed_and_opened_anew,
        the_doctor_finds_a_fresh_file_in_order,
        a_lock_from_the_future_lasts_its_lease_from_now_and_no_longer
    ]
}

async fn every_bad_setting_is_refused_by_name_and_value() {
    let cases: [(SqliteBuilder<String, Uuid>, &str); 7] = [
        (Dao::builder(), r#"path: """#),
        // SQLite would take these for URIs, which may turn off its locks.
        (Dao::builder().path("file:x.db"), r#"path: "file:x.db""#),
        (Dao::builder().path("file:///x.db?nolock=1"), r#"path: "file:///x.db?nolock=1""#),
        (Dao::builder().path(":memory:").namespace(""), r#"namespace: """#),
        (Dao::builder().path(":memory:").table_prefix("Locks;"), r#"table_prefix: "Locks;""#),
        (Dao::builder().path(":memory:").table_prefix("sqlite_x"), r#"table_prefix: "sqlite_x""#),
        (Dao::builder().path(":memory:").busy_timeout(Duration::ZERO), r#"busy_timeout: "0ns""#),
    ];
    for (builder, expected) in cases {
        let error = builder.open().await.expect_err("it is refused");
        assert_eq!(error.kind(), BackendErrorKind::BadSetting);
        let message = error.to_string();
        assert!(message.contains("sqlite: ") && message.contains(expected), "{message}");
    }
}

async fn a_file_that_cannot_be_used_is_a_misconfiguration() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("notes.txt");
    fs::write(&text, "This is no database, but it is long enough to be taken for one.".repeat(50))
        .expect("a file");
    assert_eq!(kind(Dao::open(&text).await), BackendErrorKind::Misconfigured);
    assert_eq!(
        kind(Dao::open(folder.path().join("missing/locks.db")).await),
        BackendErrorKind::Misconfigured
    );
    assert_eq!(kind(Dao::open(folder.path()).await), BackendErrorKind::Misconfigured);
    let missing = folder.path().join("locks.db");
    assert_eq!(
        kind(Dao::builder().path(&missing).create(false).open().await),
        BackendErrorKind::Misconfigured
    );
    assert!(!missing.exists());
}

/// By the system, where it is the system that refuses.
async fn every_failure_names_the_file_and_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("notes.txt");
    fs::write(&text, "no database ".repeat(500)).expect("a file");
    let missing = folder.path().join("missing.db");
    let inside = folder.path().join("missing/locks.db");
    let none = "No such file or directory";
    let no_folder = format!("the folder {} does not exist", folder.path().join("missing").display());
    let cases = [
        (Dao::builder().path(&text), &*text, "not a database"),
        (Dao::builder().path(&missing).create(false), &*missing, none),
        (Dao::builder().path(&inside), &*inside, &no_folder),
        (Dao::builder().path(&inside).create(false), &*inside, &no_folder),
        (Dao::builder().path(folder.path()), folder.path(), "directory"),
    ];
    for (builder, path, reason) in cases {
        let message = builder.open().await.expect_err("it cannot be used").to_string();
        let expected = format!("sqlite: {}: ", path.display());
        assert!(message.starts_with(&expected) && message.contains(reason), "{message}");
    }
    let dao = Dao::builder().path(folder.path().join("locks.db")).busy_timeout(Duration::from_millis(1));
    let dao = dao.open().await.expect("a new file");
    let other = Connection::open(folder.path().join("locks.db")).expect("the same file");
    other.execute_batch("BEGIN IMMEDIATE").expect("there is no other writer");
    let message = dao.acquire(&request("a")).await.expect_err("it is busy").to_string();
    assert!(message.contains("locks.db: another process kept the write lock"), "{message}");
}

#[cfg(unix)]
async fn a_new_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a temporary folder");
    let dao = open(&folder.path().join("locks.db")).await;
    take(&dao, "a").await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let file = fs::metadata(folder.path().join(name)).expect("it is there");
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
    }
    // To share it, create it beforehand.
    let shared = folder.path().join("shared.db");
    fs::write(&shared, "").expect("a file");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o660)).expect("it is ours");
    open(&shared).await;
    let file = fs::metadata(&shared).expect("it is there");
    assert_eq!(file.permissions().mode() & 0o777, 0o660);
}

async fn without_creating_nothing_of_an_applications_file_is_changed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("theirs.db");
    Connection::open(&file).expect("a file").execute_batch("CREATE TABLE theirs (x)").expect("a table");
    let before = fs::read(&file).expect("it can be read");
    let error = Dao::builder().path(&file).create(false).open().await.expect_err("no schema");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(fs::read(&file).expect("it can be read") == before, "it was changed");
}

/// Administration looks at what is there, under a name that may be misspelt.
async fn reading_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = open(&file).await;
    take(&dao, "a").await;
    let database = Connection::open(&file).expect("the same file");
    let rows = || -> (i64, i64) {
        let count =
            "SELECT (SELECT count(*) FROM lockcore_namespaces), (SELECT count(*) FROM lockcore_sessions)";
        database.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("tables of ours")
    };
    assert_eq!(rows(), (1, 1));
    for (namespace, ids) in [("default", 1), ("misspelt", 0)] {
        let builder = Dao::builder().path(&file).namespace(namespace).create(false);
        let reader: Dao = builder.open().await.expect("it is there");
        let listing = reader.list(&Page { after: None, limit: 10 }).await.expect("an answer");
        assert_eq!(listing.ids.len(), ids, "{namespace}");
        let inspected = reader.inspect(&Target::Id("a".to_owned())).await.expect("an answer");
        assert_eq!(inspected.holders.len(), ids, "{namespace}");
        assert_eq!(rows(), (1, 1), "{namespace}");
        drop(reader);
        assert_eq!(rows(), (1, 1), "{namespace}");
    }
}

async fn a_newer_schema_under_an_open_connection_is_noticed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = open(&file).await;
    let grant = take(&dao, "a").await;
    let database = Connection::open(&file).expect("the same file");
    database
        .execute("UPDATE lockcore_schema SET version = 1000, oldest_program = 1000", [])
        .expect("a table of ours");
    let error = failure(&dao, &grant).await;
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("version 1000"), "{error}");
}

/// 10.4: programs of two versions at the same time, forward and back; one that was open notices that it may no longer.
async fn two_versions_share_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let open = async |program: StoreVersion| {
        if program.version == 2 {
            // What a later version may do to a table that the statements of this one use. It is opened twice.
            let database = Connection::open(&file).expect("a file");
            database.busy_timeout(Duration::from_secs(10)).expect("it can be set");
            let _ = database.execute("ALTER TABLE lockcore_claims ADD COLUMN later INTEGER", []);
        }
        Dao::builder().path(&file).program_version(program).open().await
    };
    for old in versions::forward_and_back(open).await {
        eventually("it is refused", || async {
            let refused = old.list(&Page::default()).await.err()?;
            assert!(refused.to_string().contains("newer program"), "{refused}");
            Some(())
        })
        .await;
    }
}

async fn a_newer_schema_is_refused_and_a_missing_one_too_if_none_may_be_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    Connection::open(&file).expect("a file").execute_batch("CREATE TABLE theirs (x)").expect("a table");
    let error = Dao::builder().path(&file).create(false).open().await.expect_err("no schema");
    assert!(error.to_string().contains("the schema has version 0"), "{error}");
    drop(Dao::open(&file).await.expect("it is made"));
    let database = Connection::open(&file).expect("a file");
    database
        .execute("UPDATE lockcore_schema SET version = 1000, oldest_program = 1000", [])
        .expect("a table of ours");
    let error = Dao::open(&file).await.expect_err("it is newer");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("version 1000"), "{error}");
}

/// SQLite does not wait by itself where it changes the journal mode.
async fn opening_waits_for_a_writer_before_the_file_is_in_wal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let other = Connection::open(&file).expect("a file");
    other.execute_batch("BEGIN IMMEDIATE; CREATE TABLE theirs (x)").expect("there is no other writer");
    let path = file.clone();
    let opening = tokio::spawn(async move { Dao::open(path).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!opening.is_finished(), "{:?}", opening.await);
    other.execute_batch("COMMIT").expect("it can go on");
    take(&opening.await.expect("it ends").expect("it waited"), "a").await;
}

async fn the_printed_schema_is_what_is_needed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    Connection::open(&file).expect("a file").execute_batch(&schema_sql("app_")).expect("valid SQL");
    let dao =
        Dao::builder().path(&file).table_prefix("app_").create(false).open().await.expect("it is there");
    take(&dao, "a").await;
    dao.migrate().await.expect("it is current");
}

/// As after a restore of some tables: the version alone does not say that all is there.
async fn what_is_missing_of_the_tables_is_made_again() {
    for drop in [
        "DROP TABLE lockcore_withdrawn",
        "DROP TABLE lockcore_claims",
        "DROP INDEX lockcore_claims_by_attempt",
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("locks.db");
        drop_in(&file, drop).await;
        let error = Dao::builder().path(&file).create(false).open().await.expect_err(drop);
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
        assert!(error.to_string().contains("some of its tables are missing"), "{error}");
        let dao = open(&file).await;
        let grant = take(&dao, "a").await;
        dao.release(&grant).await.expect("an answer");
        Dao::builder().path(&file).create(false).open().await.expect("it is complete");
    }
}

async fn drop_in(file: &Path, statement: &str) {
    std::mem::drop(open(file).await);
    Connection::open(file).expect("a file").execute_batch(statement).expect("it is there");
}

async fn namespaces_and_prefixes_are_apart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let one = Dao::open(&file).await.expect("a new file");
    let namespace = Dao::builder().path(&file).namespace("two").open().await.expect("another namespace");
    let prefix = Dao::builder().path(&file).table_prefix("two_").open().await.expect("other tables");
    for dao in [&one, &namespace, &prefix] {
        take(dao, "a").await;
    }
}

async fn a_memory_database_is_private() {
    let one = Dao::open(":memory:").await.expect("a database in memory");
    let two = Dao::open(":memory:").await.expect("another one");
    take(&one, "a").await;
    take(&two, "a").await;
    let capabilities = one.capabilities();
    assert!(!capabilities.shared_store && !capabilities.dead_holders, "{capabilities:?}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let capabilities = open(&folder.path().join("locks.db")).await.capabilities();
    assert!(capabilities.shared_store && capabilities.dead_holders, "{capabilities:?}");
}

async fn a_foreign_write_lock_is_reported_as_busy_in_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let timeout = Duration::from_secs(2);
    let dao = Dao::builder().path(&file).busy_timeout(timeout).open().await.expect("a new file");
    let stopped = Connection::open(&file).expect("the same file");
    stopped.execute_batch("BEGIN IMMEDIATE").expect("there is no other writer");
    let (begun, one, two) = (Instant::now(), request("a"), request("b"));
    // The second waits behind the first, and its time counts all the same.
    let (first, second) = tokio::join!(dao.acquire(&one), dao.acquire(&two));
    let elapsed = begun.elapsed();
    for error in [first.expect_err("it is busy"), second.expect_err("it is busy")] {
        assert_eq!(
            (error.kind(), error.in_doubt(), error.is_retryable()),
            (BackendErrorKind::Busy, false, true)
        );
    }
    assert!(elapsed >= timeout && elapsed < timeout * 19 / 10, "{elapsed:?}");
    stopped.execute_batch("COMMIT").expect("it can go on");
    take(&dao, "a").await;
}

async fn a_file_that_was_replaced_is_noticed_and_opened_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = Dao::open(&file).await.expect("a new file");
    let grant = take(&dao, "a").await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(folder.path().join(format!("locks.db{suffix}")));
    }
    let other = Dao::open(&file).await.expect("another file");
    take(&other, "b").await;
    let deadline = Instant::now() + Duration::from_secs(10);
    let lost = loop {
        match dao.renew(&grant).await {
            Ok(renewed) if !renewed.lost.is_empty() => break renewed.lost,
            Ok(_) => assert!(Instant::now() < deadline, "it goes on in the file that was removed"),
            // A step that found it out itself.
            Err(error) => {
                assert_eq!((error.kind(), error.is_retryable()), (BackendErrorKind::Unavailable, true));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(lost[0].reason, LossReason::Vanished);
    assert!(matches!(dao.acquire(&request("b")).await.expect("an answer"), Acquired::Refused(_)));
}

async fn the_doctor_finds_a_fresh_file_in_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let dao = Dao::builder().path(&file).synchronous(Synchronous::Full).open().await.expect("a new file");
    let findings = dao.doctor().await.expect("it can be looked at");
    assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:#?}");
    assert!(
        findings.iter().any(|finding| finding.check == "synchronous" && finding.detail.starts_with("FULL"))
    );
}

async fn a_lock_from_the_future_lasts_its_lease_from_now_and_no_longer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let hour = Duration::from_secs(3600);
    let ahead = Dao::builder().path(&file).pretend_ahead(hour).open().await.expect("a new file");
    let mut short = request("a");
    short.lease = Some(Duration::from_millis(300));
    short.detached = true;
    let acquired = ahead.acquire(&short).await.expect("an answer");
    assert!(matches!(acquired, Acquired::Granted(_)));
    let dao = open(&file).await;
    let begun = Instant::now();
    let wanted = request("a");
    while !matches!(dao.acquire(&wanted).await.expect("an answer"), Acquired::Granted(_)) {
        in_time(begun.elapsed(), Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
}

async fn open(file: &Path) -> Dao {
    Dao::open(file).await.expect("the file can be opened")
}

async fn take(dao: &Dao, id: &str) -> Grant<String, Uuid> {
    let request = request(id);
    match dao.acquire(&request).await.expect("an answer") {
        Acquired::Granted(granted) => Grant::new(request.context, request.claims, granted, request.lease),
        other => panic!("not granted: {other:?}"),
    }
}

fn request(id: &str) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

/// The error with which renewals fail sooner or later.
async fn failure(dao: &Dao, grant: &Grant<String, Uuid>) -> BackendError {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match dao.renew(grant).await {
            Ok(_) => assert!(Instant::now() < deadline, "it goes on in a file that it must not use"),
            Err(error) => return error,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn kind(opened: Result<Dao, BackendError>) -> BackendErrorKind {
    opened.expect_err("it cannot be used").kind()
}

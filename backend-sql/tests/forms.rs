//! The two forms of locking a namespace keep out of each other's reach; and what locking by statements needs of a user.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind, LockDao};
use lockcore_cell::{Cell, Written};
use lockcore_conformance::{
    eventually,
    servers::{self, ANSWERS, Kind, TestResult, Trial, trial},
};
use lockcore_sql::{MysqlBuilder, MysqlLockDao, PostgresBuilder, PostgresLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use uuid::Uuid;

use crate::steps::take;

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = vec![
        trial(Kind::Postgres, "forms::a_wait_ends_by_a_notification", a_wait_ends_by_a_notification),
        trial(Kind::Postgres, "forms::a_role_that_may_create_nothing", a_role_that_may_create_nothing),
        trial(
            Kind::Postgres,
            "forms::the_time_is_as_wide_as_clocks_differ",
            the_time_is_as_wide_as_clocks_differ,
        ),
    ];
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb] {
        all.extend([
            trial(kind, "forms::the_other_form_is_refused", move || the_other_form_is_refused(kind)),
            trial(kind, "forms::of_a_race_one_form_is_left", move || of_a_race_one_form_is_left(kind)),
            trial(kind, "forms::odd_names_of_namespaces", move || odd_names_of_namespaces(kind)),
            trial(kind, "forms::what_is_for_one_form_is_refused_by_the_other", move || for_one_form(kind)),
        ]);
    }
    for kind in [Kind::MySql, Kind::MariaDb] {
        all.push(trial(kind, "forms::a_user_who_may_create_nothing", move || {
            a_user_who_may_create_nothing(kind)
        }));
    }
    all
}

/// Nodes with clocks of their own answer within the difference: each bound is half of it off.
async fn the_time_is_as_wide_as_clocks_differ() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let (url, namespace) = (server.url(), Uuid::new_v4().to_string());
    let difference = Duration::from_secs(20);
    let cells = postgres(&url, &namespace).clock_difference(difference).cells().await?;
    let now = cells.now().await?;
    assert!(now.lo + 20_000_000 <= now.hi && now.hi < now.lo + 40_000_000, "{now:?}");
    // The server's own time is about in the middle.
    let exact = postgres(&url, &namespace).cells().await?.now().await?;
    assert!(now.lo + 5_000_000 < exact.lo && exact.hi + 5_000_000 < now.hi, "{exact:?} in {now:?}");
    Ok(())
}

/// The form in which a namespace is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Routines,
    Statements,
}

use Form::{Routines, Statements};

fn postgres(url: &str, namespace: &str) -> PostgresBuilder<String, Uuid> {
    PostgresLockDao::builder().url(url).namespace(namespace).timeout(ANSWERS).max_connections(2)
}

fn mysql(url: &str, namespace: &str) -> MysqlBuilder<String, Uuid> {
    MysqlLockDao::builder().url(url).namespace(namespace).timeout(ANSWERS).max_connections(2)
}

/// Opens a namespace in a form, takes and frees an id in it.
async fn open(
    kind: Kind,
    url: &str,
    namespace: &str,
    form: Form,
    administration: bool,
) -> Result<(), BackendError> {
    match (kind, form) {
        (Kind::Postgres, Routines) => {
            used(&postgres(url, namespace).administration(administration).open().await?).await
        }
        (Kind::Postgres, Statements) => {
            let builder = postgres(url, namespace).administration(administration);
            used(&builder.open_without_routines().await?).await
        }
        (_, Routines) => used(&mysql(url, namespace).administration(administration).open().await?).await,
        (_, Statements) => {
            let builder = mysql(url, namespace).administration(administration);
            used(&builder.open_without_routines().await?).await
        }
    }
}

async fn used(dao: &impl LockDao<String, Uuid>) -> Result<(), BackendError> {
    let id = Uuid::new_v4().to_string();
    let held = take(dao, [&*id]).await.expect("the id is free");
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// Checks that the namespace is refused by its name, with the form that it is locked in.
fn is_refused(opened: Result<(), BackendError>, namespace: &str, by: Form) {
    let refused = opened.expect_err("it is locked in another form");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    let by = format!("{by:?}").to_lowercase();
    let named = format!("the namespace {namespace:?} is locked by {by}");
    assert!(refused.to_string().contains(&named), "{refused}");
    assert!(refused.to_string().contains("routines=no"), "{refused}");
}

async fn the_other_form_is_refused(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    for (first, other) in [(Routines, Statements), (Statements, Routines)] {
        let (url, namespace) = (server.url(), format!("form {}", Uuid::new_v4()));
        open(kind, &url, &namespace, first, false).await?;
        for administration in [false, true] {
            is_refused(open(kind, &url, &namespace, other, administration).await, &namespace, first);
        }
        open(kind, &url, &namespace, first, false).await?;
        // Another namespace is not concerned.
        open(kind, &url, &format!("{namespace} 2"), other, false).await?;
    }
    Ok(())
}

async fn of_a_race_one_form_is_left(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    // The tables are there.
    open(kind, &server.url(), &format!("form {}", Uuid::new_v4()), Routines, false).await?;
    open(kind, &server.url(), &format!("form {}", Uuid::new_v4()), Statements, false).await?;
    let mut won = Vec::new();
    for _ in 0..6 {
        let namespace = format!("form {}", Uuid::new_v4());
        let openings = (0..6).map(|number| {
            let (url, namespace) = (server.url(), namespace.clone());
            let form = if number % 2 == 0 { Routines } else { Statements };
            tokio::spawn(async move { (form, open(kind, &url, &namespace, form, false).await) })
        });
        let openings: Vec<_> = openings.collect();
        let mut opened = Vec::new();
        let mut refused = Vec::new();
        for opening in openings {
            match opening.await? {
                (form, Ok(())) => opened.push(form),
                (form, Err(error)) => refused.push((form, error)),
            }
        }
        let winner = *opened.first().expect("one form is left");
        assert_eq!(opened, [winner; 3], "all of one form, and none of the other: {refused:?}");
        for (form, error) in refused {
            assert_ne!(form, winner);
            is_refused(Err(error), &namespace, winner);
        }
        won.push(winner);
    }
    assert!(won.len() == 6, "{won:?}");
    Ok(())
}

/// Namespaces that look alike to collations, quoting or patterns are different ones.
async fn odd_names_of_namespaces(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    let run = Uuid::new_v4().simple().to_string();
    let names =
        ["a", "A", "a ", "\u{e4}", "a'", "a%", "a_", "a\\", "a\0", "%61"].map(|name| format!("{run}{name}"));
    for name in &names {
        let url = server.url();
        match kind {
            Kind::Postgres => {
                let dao = postgres(&url, name).open_without_routines().await?;
                let held = take(&dao, ["x"]).await?;
                assert_eq!(held.locks.len(), 1, "{name:?} shares a lock with another");
            }
            _ => {
                let dao = mysql(&url, name).open_without_routines().await?;
                let held = take(&dao, ["x"]).await?;
                assert_eq!(held.locks.len(), 1, "{name:?} shares a lock with another");
            }
        }
    }
    // It has to fit into a key.
    let long = "\u{e4}".repeat(100);
    let refused = open(kind, &server.url(), &long, Statements, false).await.expect_err("it is too long");
    assert_eq!(refused.kind(), BackendErrorKind::BadSetting, "{refused}");
    assert!(refused.to_string().contains("namespace: "), "{refused}");
    Ok(())
}

/// Settings that have a meaning without routines only are refused with them, by name, as are those out of bounds.
async fn for_one_form(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    let url = server.url();
    let (short, long) = (Duration::from_secs(1), Duration::from_secs(61));
    let refused = |opened: Result<(), BackendError>, named: &str| {
        let refused = opened.expect_err(named);
        assert_eq!(refused.kind(), BackendErrorKind::BadSetting, "{refused}");
        assert!(refused.to_string().contains(named), "{refused}");
    };
    match kind {
        Kind::Postgres => {
            let builder = || postgres(&url, "n");
            refused(builder().clock_difference(short).open().await.map(drop), "clock_difference: \"1s\"");
            refused(builder().serializable(true).open().await.map(drop), "isolation: \"serializable\"");
            let opened = builder().clock_difference(long).open_without_routines().await;
            refused(opened.map(drop), "clock_difference: \"61s\"");
            let opened = builder().timeout(Duration::ZERO).open_without_routines().await;
            refused(opened.map(drop), "timeout: \"0ns\"");
            let opened = builder().timeout(Duration::from_secs(3601)).open_without_routines().await;
            refused(opened.map(drop), "timeout: \"3601s\"");
        }
        _ => {
            let builder = || mysql(&url, "n");
            refused(builder().clock_difference(short).open().await.map(drop), "clock_difference: \"1s\"");
            refused(builder().serializable(true).open().await.map(drop), "isolation: \"serializable\"");
            let opened = builder().clock_difference(long).open_without_routines().await;
            refused(opened.map(drop), "clock_difference: \"61s\"");
            let opened = builder().timeout(Duration::from_secs(3601)).open_without_routines().await;
            refused(opened.map(drop), "timeout: \"3601s\"");
        }
    }
    Ok(())
}

/// Checks an error that says what to create.
fn says_what_to_create(refused: &BackendError) {
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    assert!(refused.to_string().contains("lockctl migrate --print sql"), "{refused}");
}

async fn a_role_that_may_create_nothing() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let mut sql = PgConnection::connect(&server.url()).await?;
    let mut run = async |text: String| sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut sql).await;
    let role = format!("n{}", Uuid::new_v4().simple());
    run(format!("CREATE ROLE {role} LOGIN PASSWORD 'no secret'")).await?;
    run(format!("CREATE SCHEMA {role}")).await?;
    run(format!("GRANT USAGE ON SCHEMA {role} TO {role}")).await?;
    let url = format!("postgres://{role}:no%20secret@{}/postgres", server.address());
    let builder = || postgres(&url, "app").schema(&*role);
    for migrate in [true, false] {
        let refused =
            builder().migrate(migrate).open_without_routines().await.expect_err("there is no table");
        says_what_to_create(&refused);
        assert!(!format!("{refused:?}").contains("no secret"), "{refused:?}");
    }
    // The printed schema makes all of it.
    run(lockcore_sql::postgres::statements_schema_sql(&role, "lockcore_")).await?;
    let tables = format!("{role}.lockcore_cell, {role}.lockcore_form");
    run(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")).await?;
    for migrate in [true, false] {
        used(&builder().migrate(migrate).open_without_routines().await?).await?;
    }
    // One that may create tables in its schema, and no schema.
    run(format!("GRANT CREATE ON SCHEMA {role} TO {role}")).await?;
    used(&builder().table_prefix("own_").open_without_routines().await?).await?;
    run(format!("DROP SCHEMA {role} CASCADE")).await?;
    run(format!("DROP OWNED BY {role}")).await?;
    run(format!("DROP ROLE {role}")).await?;
    Ok(())
}

async fn a_user_who_may_create_nothing(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    let mut sql = MySqlConnection::connect(&server.url()).await?;
    let (_, database) =
        server.url().rsplit_once('/').map(|(url, name)| (url.to_owned(), name.to_owned())).ok_or("one")?;
    let mut run = async |text: String| sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut sql).await;
    let (user, prefix) = (
        format!("n{}", &Uuid::new_v4().simple().to_string()[..20]),
        format!("n{}_", Uuid::new_v4().simple()),
    );
    run(format!("CREATE USER {user}@'%' IDENTIFIED BY 'no secret'")).await?;
    // A right on a table that is not there needs one to create it, too; this one lets the user see the database.
    run(format!("GRANT SHOW VIEW ON {database}.* TO {user}@'%'")).await?;
    let url = format!("mysql://{user}:no%20secret@{}/{database}", server.address());
    let builder = || mysql(&url, "app").table_prefix(&*prefix);
    for migrate in [true, false] {
        let refused =
            builder().migrate(migrate).open_without_routines().await.expect_err("there is no table");
        assert!(!format!("{refused:?}").contains("no secret"), "{refused:?}");
        says_what_to_create(&refused);
    }
    run(lockcore_sql::mysql::statements_schema_sql(&prefix)).await?;
    for table in ["cell", "form"] {
        run(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{prefix}{table} TO {user}@'%'"))
            .await?;
    }
    for migrate in [true, false] {
        used(&builder().migrate(migrate).open_without_routines().await?).await?;
    }
    run(format!("DROP TABLE {database}.{prefix}cell, {database}.{prefix}form")).await?;
    run(format!("DROP USER {user}@'%'")).await?;
    Ok(())
}

/// A wait for a cell ends when another process has written it, by what that tells; a write of what is known already ends none.
async fn a_wait_ends_by_a_notification() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let namespace = format!("wakes {}", Uuid::new_v4());
    let (one, two) = (
        postgres(&server.url(), &namespace).cells().await?,
        postgres(&server.url(), &namespace).cells().await?,
    );
    let mut at = None;
    for round in 0..5 {
        let known = at;
        let cells = [("table".to_owned(), known), ("id/61".to_owned(), None)];
        let written = eventually("a wait ends", async || {
            let write = async {
                // Until it listens it looks; in later rounds it has listened for long.
                tokio::time::sleep(Duration::from_millis(if round == 0 { 500 } else { 50 })).await;
                two.replace("table", known.as_ref(), format!("{round}").into_bytes().into()).await
            };
            let (written, ()) = futures_util::future::join(write, one.changed(&cells)).await;
            match written {
                Ok(Written::Done(version)) => Some(version),
                other => panic!("{other:?}"),
            }
        });
        at = Some(written.await);
    }
    Ok(())
}

//! The schema: printed or made, under any names, in the right version, used by those that may.

use lockcore::{BackendErrorKind, BreakMode, LockDao, Page, Severity, Target, backend::StoreVersion};
use lockcore_conformance::{
    servers::{Kind, TestResult, Trial},
    versions,
};
use lockcore_sql::{
    MysqlLockDao,
    mysql::{Flavor, schema_sql},
};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    place::{Error, Place, handed, queue, request, take},
    test,
};

pub(crate) fn tests(kind: Kind) -> Vec<Trial> {
    vec![
        test(kind, "schema::any_names_will_do", any_names_will_do),
        test(kind, "schema::a_printed_schema_is_enough", a_printed_schema_is_enough),
        test(kind, "schema::what_is_missing_is_made_again", what_is_missing_is_made_again),
        test(kind, "schema::many_programs_start_at_once", many_programs_start_at_once),
        test(
            kind,
            "schema::a_user_with_the_right_to_execute_can_use_it",
            a_user_with_the_right_to_execute_can_use_it,
        ),
        test(
            kind,
            "schema::a_user_without_the_right_to_create_gets_an_error",
            a_user_without_the_right_to_create_gets_an_error,
        ),
        test(kind, "schema::a_made_up_list_of_ids_is_refused", a_made_up_list_of_ids_is_refused),
        test(kind, "schema::another_version_is_refused", another_version_is_refused),
        test(kind, "schema::two_versions_share_a_store", two_versions_share_a_store),
        test(kind, "schema::administration_creates_nothing", administration_creates_nothing),
        test(kind, "schema::an_error_says_where", an_error_says_where),
        test(kind, "schema::settings_are_checked", settings_are_checked),
    ]
}

/// Names that need quoting, and ones that would end a quotation.
async fn any_names_will_do(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    for prefix in ["x`; DROP TABLE y; -- ", "A b'c\"", "{ids}{set} %s été "] {
        let builder = || place.builder().table_prefix(prefix);
        let dao = builder().open().await?;
        // All new, and there already.
        for many in [1, 2, 40, 1, 2, 40] {
            let held = take(&dao, (0..many).map(|n| format!("{many} {n}"))).await?;
            assert_eq!(dao.release(&held).await?.lost, []);
        }
        // Made once, used again.
        let again = builder().migrate(false).open().await?;
        let held = take(&again, ["a"]).await?;
        assert_eq!(again.renew(&held).await?.lost, []);
    }
    Ok(())
}

/// A user of the routines gets nothing else done by them: text that is no list of ids is never part of a statement.
async fn a_made_up_list_of_ids_is_refused(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    let held = take(&dao, ["a", "b"]).await?;
    let mut sql = place.sql().await?;
    for list in [
        "[[\"61\",2,0,0],[\"62\",2,0,0]",
        "[[\"61\",2,0,0]] OR 1 = 1",
        "61',x'62') OR id IN (x'",
        "[[\"6G\",2,0,0],[\"61\",2,0,0]]",
        "",
    ] {
        let list = list.replace('\'', "''");
        for call in [
            format!("CALL lockcore_v1_release(1, 'other', '{list}', 2)"),
            format!("CALL lockcore_v1_acquire(1, 'other', 1, '{list}', 2, 1, 1000000, '', 0, 0)"),
            format!("CALL lockcore_v1_acquire(1, 'other', 1, '{list}', 2, 0, 1000000, '', 0, 0)"),
        ] {
            // Refused, or answered with what is not held, or is held by `held`.
            let _ = sql.run(&call).await;
            assert_eq!(dao.renew(&held).await?.lost, [], "{call}");
        }
    }
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_ids").await?, 2, "nothing was locked");
    Ok(())
}

async fn a_printed_schema_is_enough(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let refused = place.builder().migrate(false).open().await.expect_err("there is no schema");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    let flavor = if kind == Kind::MySql { Flavor::MySql } else { Flavor::MariaDb };
    let mut sql = place.sql().await?;
    // It can be run again.
    for _ in 0..2 {
        // What the command line client makes of it.
        for statement in schema_sql("lockcore_", flavor).split("\n//\n") {
            let statement = statement.trim_start_matches("DELIMITER //\n").trim();
            if !statement.starts_with("DELIMITER") {
                sql.run(statement).await?;
            }
        }
    }
    let dao = place.builder().migrate(false).open().await?;
    let held = take(&dao, ["a"]).await?;
    dao.migrate().await?;
    assert_eq!(dao.renew(&held).await?.lost, [], "migrating what is current changes nothing");
    let findings = dao.doctor().await?;
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error), "{findings:?}");
    Ok(())
}

/// As after a restore of the tables alone, which is what `mysqldump` writes by itself: the version does not say that all is there.
async fn what_is_missing_is_made_again(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let flavor = if kind == Kind::MySql { Flavor::MySql } else { Flavor::MariaDb };
    let printed = schema_sql("lockcore_", flavor);
    let all: Vec<_> = printed.split("\n//\n").filter(|text| text.starts_with("DROP PROCEDURE")).collect();
    let mut sql = place.sql().await?;
    for (drop, named) in [
        (all, "lockcore_v1_"),
        (vec!["DROP PROCEDURE lockcore_v1_renew"], "lockcore_v1_renew"),
        (vec!["DROP TABLE lockcore_tombstones"], "lockcore_tombstones"),
    ] {
        for way in ["opening", "migrating"] {
            let open = place.builder().open().await?;
            for statement in &drop {
                sql.run(*statement).await?;
            }
            let refused = place.builder().migrate(false).open().await.expect_err("it is incomplete");
            assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
            assert!(refused.to_string().contains("the schema is incomplete"), "{refused}");
            assert!(refused.to_string().contains(named), "{refused}");
            let found = open.doctor().await?;
            let is_it = |finding: &lockcore::Finding| {
                finding.check == "schema" && finding.severity == Severity::Error
            };
            assert!(found.iter().any(is_it), "{found:?}");
            let dao = match way {
                "opening" => place.builder().open().await?,
                _ => {
                    open.migrate().await?;
                    open
                }
            };
            let held = take(&dao, ["a", "b"]).await?;
            assert_eq!(dao.renew(&held).await?.lost, [], "{way}");
            assert_eq!(dao.release(&held).await?.lost, [], "{way}");
        }
        place.builder().migrate(false).open().await?;
    }
    Ok(())
}

async fn many_programs_start_at_once(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let mut starts = JoinSet::new();
    for _ in 0..8 {
        starts.spawn(place.builder().listen(false).timeout(std::time::Duration::from_secs(30)).open());
    }
    for dao in starts.join_all().await {
        let dao = dao?;
        let held = take(&dao, ["a"]).await?;
        dao.release(&held).await?;
    }
    Ok(())
}

/// A user with a password, and the URL of the database as seen by it.
async fn user(place: &Place) -> Result<(String, String), Error> {
    let user = format!("u{}", &Uuid::new_v4().simple().to_string()[..16]);
    place.sql().await?.run(format!("CREATE USER {user}@'%' IDENTIFIED BY 'hunter2'")).await?;
    let url = place.url();
    let (_, behind) = url.split_once('@').ok_or("the URL has a user")?;
    Ok((format!("mysql://{user}:hunter2@{behind}"), user))
}

/// It has no right but to execute, and is not who made the routines; all its processes wake each other all the same.
async fn a_user_with_the_right_to_execute_can_use_it(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let (url, user) = user(&place).await?;
    let builder = || place.builder().url(&*url);
    let denied = builder().open().await.expect_err("it may not even look");
    assert_eq!(denied.kind(), BackendErrorKind::Denied, "{denied}");
    assert!(!format!("{denied} {denied:?}").contains("hunter2"));
    let mut sql = place.sql().await?;
    sql.run(format!("GRANT EXECUTE ON {}.* TO {user}@'%'", place.database)).await?;
    let (dao, other) = (builder().open().await?, builder().open().await?);
    assert!(dao.capabilities().push && other.capabilities().push, "{:?}", dao.doctor().await?);
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = queue(&other, ["b"]).await?;
    dao.release(&held).await?;
    let held = handed(&other, &waits, wakeup).await?;
    other.sweep(10, None).await?;
    other.release(&held).await?;
    other.migrate().await?;
    Ok(())
}

async fn a_user_without_the_right_to_create_gets_an_error(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let (url, user) = user(&place).await?;
    place.sql().await?.run(format!("GRANT EXECUTE ON {}.* TO {user}@'%'", place.database)).await?;
    let builder = place.builder().url(url);
    let denied = builder.open().await.expect_err("it may not create");
    assert_eq!(denied.kind(), BackendErrorKind::Denied, "{denied}");
    Ok(())
}

async fn another_version_is_refused(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("UPDATE lockcore_schema SET version = 99, oldest_program = 2").await?;
    let refused = place.builder().open().await.expect_err("it is newer");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured);
    let said = refused.to_string();
    assert!(said.contains("version 99") && said.contains("newer program"), "{said}");
    assert!(!refused.in_doubt());
    sql.run("UPDATE lockcore_schema SET version = 0, oldest_program = 0").await?;
    let older = place.builder().migrate(false).open().await.expect_err("it is older");
    assert_eq!(older.kind(), BackendErrorKind::Misconfigured);
    place.open().await?;
    assert_eq!(sql.number("SELECT MAX(version) FROM lockcore_schema").await?, 1);
    Ok(())
}

/// 10.4: programs of two versions at the same time, forward and back.
async fn two_versions_share_a_store(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let mut sql = place.sql().await?;
    let open = async |program: StoreVersion| {
        // What a later version may do to a table that the routines of this one use.
        if program.version == 2 {
            let mut sql = place.sql().await.expect("it answers");
            let column = "ALTER TABLE lockcore_ids ADD COLUMN later BIGINT NULL";
            // It is opened twice.
            let _ = sql.run(column).await;
        }
        place.builder().program_version(program).open().await
    };
    let old = versions::forward_and_back(open).await;
    assert_eq!(sql.number("SELECT SUM(version * 10 + oldest_program) FROM lockcore_schema").await?, 33);
    // A program that was open notices it with the next connection that it makes.
    let newest = "SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST
         WHERE DB = DATABASE() AND ID <> CONNECTION_ID()";
    loop {
        let id = sql.number(newest).await?;
        if id == 0 {
            break;
        }
        // It may have ended by itself.
        let _ = sql.run(format!("KILL {id}")).await;
    }
    for old in old {
        // The first finds its connection cut.
        let _ = old.acquire(&request(["a"])).await;
        let refused = old.acquire(&request(["a"])).await.expect_err("the store is for newer programs");
        assert!(refused.to_string().contains("newer program"), "{refused}");
    }
    Ok(())
}

/// 10.6: neither schema nor sessions nor namespaces; and what is there can be looked at and changed.
async fn administration_creates_nothing(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    let builder = || place.builder().administration(true).migrate(true).listen(true);
    let missing = builder().open().await.expect_err("there is no schema");
    assert_eq!(missing.kind(), BackendErrorKind::Misconfigured, "{missing}");
    assert!(missing.to_string().contains("there is no schema"), "{missing}");
    let mut sql = place.sql().await?;
    let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()";
    assert_eq!(sql.number(tables).await?, 0);
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    let sessions = "SELECT COUNT(*) FROM lockcore_sessions";
    let before = sql.number(sessions).await?;
    let admin = builder().open().await?;
    assert_eq!(admin.list(&Page::default()).await?.ids.len(), 1);
    assert_eq!(sql.number(sessions).await?, before);
    let findings = admin.doctor().await?;
    let waking = findings.iter().find(|finding| finding.check == "waking");
    assert_eq!(waking.map(|finding| finding.severity), Some(Severity::Ok), "{findings:?}");
    assert_eq!(sql.number(sessions).await?, before);
    let fence = held.locks[0].granted.fence;
    admin.break_lock(&Target::Id("a".to_owned()), fence, BreakMode::Now, "me").await?;
    take(&dao, ["a"]).await?;
    let elsewhere = builder().namespace("not used").open().await?;
    assert_eq!(elsewhere.list(&Page::default()).await?.ids.len(), 0);
    assert_eq!(elsewhere.sweep(10, None).await?.removed, 0);
    assert_eq!(sql.number("SELECT COUNT(*) FROM lockcore_namespaces").await?, 1);
    Ok(())
}

/// 10.6: which server, and what the system said; never the password.
async fn an_error_says_where(kind: Kind) -> TestResult {
    let refused =
        MysqlLockDao::<String, Uuid>::builder().url("mysql://me:hunter2@127.0.0.1:1/app").open().await;
    let refused = refused.expect_err("nothing listens there");
    let said = refused.to_string();
    assert!(said.starts_with("mysql at 127.0.0.1:1: ") && said.contains("refused"), "{said}");
    assert!(!format!("{said} {refused:?}").contains("hunter2"), "{said}");
    // The same of a step.
    let place = Place::new(kind).await?;
    let dao = place.open().await?;
    place.sql().await?.run("DROP PROCEDURE lockcore_v1_inspect").await?;
    let failed = dao.inspect(&Target::Id("a".to_owned())).await.expect_err("the routine is missing");
    let said = failed.to_string();
    assert!(said.contains(&place.server.address()) && said.contains("does not exist"), "{said}");
    Ok(())
}

async fn settings_are_checked(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    for (builder, key) in [
        (place.builder().table_prefix("x".repeat(41)), "table_prefix"),
        (place.builder().table_prefix("a\0b"), "table_prefix"),
        (place.builder().table_prefix("\u{1F512}"), "table_prefix"),
        (place.builder().namespace(""), "namespace"),
        (place.builder().namespace("n".repeat(256)), "namespace"),
        (place.builder().max_connections(0), "max_connections"),
        (place.builder().timeout(std::time::Duration::ZERO), "timeout"),
        (place.builder().url("mysql://me:hunter2@host:port/x"), "url"),
        (place.builder().url("mysql://me:hunter2@host"), "url"),
    ] {
        let shown = format!("{builder:?}");
        let refused = builder.open().await.expect_err(key);
        assert_eq!(refused.kind(), BackendErrorKind::BadSetting, "{refused}");
        let said = refused.to_string();
        assert!(said.starts_with(&format!("mysql: {key}: ")), "{said}");
        assert!(!format!("{said} {refused:?} {shown}").contains("hunter2"), "{said}");
    }
    Ok(())
}

//! The schema: printed or made, under any names, in the right version, used by those that may.

use lockcore::{BackendErrorKind, BreakMode, LockDao, Page, Severity, Target, backend::StoreVersion};
use lockcore_conformance::{
    servers::{TestResult, Trial},
    versions,
};
use lockcore_sql::{PostgresLockDao, postgres::schema_sql};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    place::{Error, Place, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("schema::any_names_will_do", any_names_will_do),
        test("schema::a_printed_schema_is_enough", a_printed_schema_is_enough),
        test("schema::what_is_missing_is_made_again", what_is_missing_is_made_again),
        test("schema::many_programs_start_at_once", many_programs_start_at_once),
        test(
            "schema::a_user_without_the_right_to_create_can_use_it",
            a_user_without_the_right_to_create_can_use_it,
        ),
        test(
            "schema::a_user_without_the_right_to_create_gets_an_error",
            a_user_without_the_right_to_create_gets_an_error,
        ),
        test("schema::another_version_is_refused", another_version_is_refused),
        test("schema::two_versions_share_a_store", two_versions_share_a_store),
        test("schema::administration_creates_nothing", administration_creates_nothing),
        test("schema::an_error_says_where", an_error_says_where),
        test("schema::settings_are_checked", settings_are_checked),
    ]
}

/// Names that need quoting, and ones that would end a quotation.
async fn any_names_will_do() -> TestResult {
    let place = Place::new().await?;
    let run = Uuid::new_v4().simple().to_string();
    for (schema, prefix) in [
        (format!("A b\"c{}", &run[..8]), "x'; DROP TABLE y; --".to_owned()),
        (format!("$f${}", &run[..8]), "end $f$; $$".to_owned()),
        (format!("été{}", &run[..8]), "{lock}{v1_now} %s".to_owned()),
    ] {
        let builder = || place.builder().schema(&*schema).table_prefix(&*prefix);
        let dao = builder().open().await?;
        let held = take(&dao, ["a", "b"]).await?;
        assert_eq!(dao.release(&held).await?.lost, []);
        // Made once, used again.
        let again = builder().migrate(false).open().await?;
        let held = take(&again, ["a"]).await?;
        assert_eq!(again.renew(&held).await?.lost, []);
    }
    Ok(())
}

async fn a_printed_schema_is_enough() -> TestResult {
    let place = Place::new().await?;
    let refused = place.builder().migrate(false).open().await.expect_err("there is no schema");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    let mut sql = place.sql().await?;
    sql.run(schema_sql(&place.schema, "lockcore_")).await?;
    // It can be run again.
    sql.run(schema_sql(&place.schema, "lockcore_")).await?;
    let dao = place.builder().migrate(false).open().await?;
    let held = take(&dao, ["a"]).await?;
    dao.migrate().await?;
    assert_eq!(dao.renew(&held).await?.lost, [], "migrating what is current changes nothing");
    assert!(dao.doctor().await?.iter().all(|finding| finding.severity < Severity::Error));
    Ok(())
}

/// As after a restore of the tables alone: the version does not say that all is there.
async fn what_is_missing_is_made_again() -> TestResult {
    let place = Place::new().await?;
    let dao = place.open().await?;
    let mut sql = place.sql().await?;
    let schema = &place.schema;
    let all_routines = format!(
        "DO $$ DECLARE r regprocedure; BEGIN FOR r IN SELECT oid FROM pg_proc WHERE pronamespace = '\"{schema}\"'::regnamespace
         LOOP EXECUTE 'DROP ROUTINE ' || r || ' CASCADE'; END LOOP; END $$"
    );
    let table = format!("DROP TABLE \"{schema}\".lockcore_tombstone");
    for (drop, named) in [(all_routines, "lockcore_v1_"), (table, "lockcore_tombstone")] {
        for way in ["opening", "migrating"] {
            sql.run(drop.clone()).await?;
            let refused = place.builder().migrate(false).open().await.expect_err("it is incomplete");
            assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
            assert!(refused.to_string().contains("the schema is incomplete"), "{refused}");
            assert!(refused.to_string().contains(named), "{refused}");
            let found = dao.doctor().await?;
            let is_it = |finding: &&lockcore::Finding| {
                finding.check == "schema" && finding.severity == Severity::Error
            };
            assert!(found.iter().any(|finding| is_it(&finding)), "{found:?}");
            match way {
                "opening" => std::mem::drop(place.builder().open().await?),
                _ => dao.migrate().await?,
            }
            let held = take(&dao, ["a", "b"]).await?;
            assert_eq!(dao.release(&held).await?.lost, [], "{way}");
        }
        place.builder().migrate(false).open().await?;
    }
    Ok(())
}

async fn many_programs_start_at_once() -> TestResult {
    let place = Place::new().await?;
    let mut starts = JoinSet::new();
    for _ in 0..8 {
        starts.spawn(place.builder().listen(false).open());
    }
    for dao in starts.join_all().await {
        let dao = dao?;
        let held = take(&dao, ["a"]).await?;
        dao.release(&held).await?;
    }
    Ok(())
}

/// A role with a password, and the URL of the server as seen by it.
async fn role(place: &Place) -> Result<(String, String), Error> {
    let role = format!("role_{}", Uuid::new_v4().simple());
    place.sql().await?.run(format!("CREATE ROLE {role} LOGIN PASSWORD 'hunter2'")).await?;
    let url = place.server.url();
    let (_, behind) = url.split_once('@').ok_or("the URL has a user")?;
    Ok((format!("postgres://{role}:hunter2@{behind}"), role))
}

async fn a_user_without_the_right_to_create_can_use_it() -> TestResult {
    let place = Place::new().await?;
    place.open().await?;
    let (url, role) = role(&place).await?;
    let schema = &place.schema;
    let builder = || place.builder().url(&*url).schema(&**schema);
    let denied = builder().open().await.expect_err("it may not even look");
    assert_eq!(denied.kind(), BackendErrorKind::Denied, "{denied}");
    assert!(!format!("{denied} {denied:?}").contains("hunter2"));
    place
        .sql()
        .await?
        .run(format!(
            "GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};"
        ))
        .await?;
    let dao = builder().open().await?;
    let held = take(&dao, ["a", "b"]).await?;
    let (waits, wakeup) = super::place::queue(&dao, ["b"]).await?;
    dao.release(&held).await?;
    let held = super::place::handed(&dao, &waits, wakeup).await?;
    dao.sweep(10, None).await?;
    dao.release(&held).await?;
    dao.migrate().await?;
    Ok(())
}

async fn a_user_without_the_right_to_create_gets_an_error() -> TestResult {
    let place = Place::new().await?;
    let (url, _) = role(&place).await?;
    let builder = place.builder().url(url);
    let denied = builder.open().await.expect_err("it may not create");
    assert_eq!(denied.kind(), BackendErrorKind::Denied, "{denied}");
    Ok(())
}

async fn another_version_is_refused() -> TestResult {
    let place = Place::new().await?;
    place.open().await?;
    let mut sql = place.sql().await?;
    sql.run("UPDATE lockcore_schema SET version = 99, oldest_program = 2").await?;
    let refused = place.builder().open().await.expect_err("it is newer");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured);
    let said = refused.to_string();
    assert!(
        said.contains("version 99") && said.contains(&place.schema) && said.contains("newer program"),
        "{said}"
    );
    assert!(!refused.in_doubt());
    sql.run("UPDATE lockcore_schema SET version = 0, oldest_program = 0").await?;
    let older = place.builder().migrate(false).open().await.expect_err("it is older");
    assert_eq!(older.kind(), BackendErrorKind::Misconfigured);
    place.open().await?;
    assert_eq!(sql.number("SELECT max(version) FROM lockcore_schema").await?, 1);
    Ok(())
}

/// 10.4: programs of two versions at the same time, forward and back.
async fn two_versions_share_a_store() -> TestResult {
    let place = Place::new().await?;
    let mut sql = place.sql().await?;
    let open = async |program: StoreVersion| {
        // What a later version may do to a table that the routines of this one use.
        if program.version == 2 {
            let column = "ALTER TABLE lockcore_lock ADD COLUMN IF NOT EXISTS later int8; \
                          ALTER TABLE lockcore_holder ADD COLUMN IF NOT EXISTS later int8";
            place.sql().await.expect("it answers").run(column).await.expect("it can be added");
        }
        // So that their connections can be told from others'.
        let options: PgConnectOptions = place.server.url().parse().expect("it is one");
        let builder = place.builder().connect_options(options.application_name(&place.schema));
        builder.program_version(program).open().await
    };
    let old = versions::forward_and_back(open).await;
    assert_eq!(sql.number("SELECT max(version) FROM lockcore_schema").await?, 3);
    // The printed schema of an old program makes nothing older again.
    sql.run(schema_sql(&place.schema, "lockcore_")).await?;
    assert_eq!(sql.number("SELECT sum(version * 10 + oldest_program) FROM lockcore_schema").await?, 33);
    // A program that was open notices it with the next connection that it makes.
    sql.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = current_schema()",
    )
    .await?;
    for old in old {
        // The first finds its connection cut.
        let _ = old.acquire(&request(["a"])).await;
        let refused = old.acquire(&request(["a"])).await.expect_err("the store is for newer programs");
        assert!(refused.to_string().contains("newer program"), "{refused}");
    }
    Ok(())
}

/// 10.6: neither schema nor sessions; and what is there can be looked at and changed.
async fn administration_creates_nothing() -> TestResult {
    let place = Place::new().await?;
    let builder = || place.builder().administration(true).migrate(true).listen(true);
    let missing = builder().open().await.expect_err("there is no schema");
    assert_eq!(missing.kind(), BackendErrorKind::Misconfigured, "{missing}");
    assert!(missing.to_string().contains("there is no schema"), "{missing}");
    let mut sql = place.sql().await?;
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{}'", place.schema);
    assert_eq!(sql.number(&schemas).await?, 0);
    let dao = place.open().await?;
    let held = take(&dao, ["a"]).await?;
    let sessions = "SELECT count(*) FROM lockcore_session";
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
    Ok(())
}

/// 10.6: which server, and what the system said; never the password.
async fn an_error_says_where() -> TestResult {
    let refused =
        PostgresLockDao::<String, Uuid>::builder().url("postgres://me:hunter2@127.0.0.1:1/app").open().await;
    let refused = refused.expect_err("nothing listens there");
    let said = refused.to_string();
    assert!(said.starts_with("postgres at 127.0.0.1:1: ") && said.contains("refused"), "{said}");
    assert!(!format!("{said} {refused:?}").contains("hunter2"), "{said}");
    // The same of a step.
    let place = Place::new().await?;
    let dao = place.open().await?;
    place.sql().await?.run("ALTER FUNCTION lockcore_v1_acquire_one RENAME TO gone").await?;
    let failed = dao.acquire(&request(["a"])).await.expect_err("the routine is missing");
    let said = failed.to_string();
    assert!(said.contains(&place.server.address()) && said.contains("does not exist"), "{said}");
    Ok(())
}

async fn settings_are_checked() -> TestResult {
    let place = Place::new().await?;
    for (builder, key) in [
        (place.builder().schema(""), "schema"),
        (place.builder().table_prefix("x".repeat(41)), "table_prefix"),
        (place.builder().table_prefix("a\0b"), "table_prefix"),
        (place.builder().namespace(""), "namespace"),
        (place.builder().namespace("n".repeat(256)), "namespace"),
        (place.builder().max_connections(0), "max_connections"),
        (place.builder().timeout(std::time::Duration::ZERO), "timeout"),
        (place.builder().url("postgres://me:hunter2@host:port/x"), "url"),
        (place.builder().listen_url("hunter2"), "listen_url"),
    ] {
        let shown = format!("{builder:?}");
        let refused = builder.open().await.expect_err(key);
        assert_eq!(refused.kind(), BackendErrorKind::BadSetting, "{refused}");
        let said = refused.to_string();
        assert!(said.starts_with(&format!("postgres: {key}: ")), "{said}");
        assert!(!format!("{said} {refused:?} {shown}").contains("hunter2"), "{said}");
    }
    Ok(())
}

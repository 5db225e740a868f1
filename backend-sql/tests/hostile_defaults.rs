//! Whatever the server's defaults are: the steps of a DAO under one odd setting after the other, from the server's own list.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockcore::{
    Claim, LockDao, Page, Target,
    backend::{Acquired, Withdraw},
};
use lockcore_conformance::{
    PATIENCE,
    servers::{self, Kind, Server, TestResult, Trial, trial},
};
use lockcore_sql::{MysqlBuilder, MysqlLockDao, PostgresLockDao};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, Row};
use uuid::Uuid;

use crate::steps::{Error, granted, handed, queue, request, take};

/// What is meant to refuse what is done here: writes, and, where a log of rows is replayed, all statements that it has not.
const REFUSES: [&str; 4] =
    ["default_transaction_read_only", "require_row_format", "transaction_read_only", "tx_read_only"];

/// How many settings are odd at once. If something fails then, each of them is tried alone.
const AT_ONCE: usize = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let name = "hostile_defaults::no_default_breaks_a_step";
    vec![
        trial(Kind::Postgres, name, postgres),
        trial(Kind::MySql, name, || mysql(Kind::MySql)),
        trial(Kind::MariaDb, name, || mysql(Kind::MariaDb)),
    ]
}

/// A setting and its odd value.
type Setting = (String, String);

async fn postgres() -> TestResult {
    let server = servers::shared(Kind::Postgres).await?;
    let mut sql = PgConnection::connect(&server.url()).await?;
    // Those that make the server write to its log change nothing else; those of TCP act on a network; those of a transaction
    // are no defaults.
    let all = "SELECT name, vartype, coalesce(min_val, ''), coalesce(array_to_string(enumvals, ','), ''), coalesce(reset_val, '') \
               FROM pg_settings WHERE context = 'user' AND name !~ '^(log_|debug_print|trace_|tcp_|transaction_)' ORDER BY name";
    let mut settings = Vec::new();
    for row in sqlx::raw_sql(all).fetch_all(&mut sql).await? {
        let text = |column: usize| row.try_get::<String, _>(column);
        let (name, kind, least, words, usual) = (text(0)?, text(1)?, text(2)?, text(3)?, text(4)?);
        let values = match &*kind {
            "bool" => vec!["on".to_owned(), "off".to_owned()],
            "enum" => words.split(',').map(str::to_owned).collect(),
            // Of limits the least is often none, and one the least that there is.
            "integer" | "real" => vec![least, "1".to_owned()],
            _ => Vec::new(),
        };
        settings
            .extend(values.into_iter().filter(|value| *value != usual).map(|value| (name.clone(), value)));
    }
    let odd = [
        ("datestyle", "German, DMY"),
        ("default_tablespace", "nowhere"),
        ("default_text_search_config", "simple"),
        ("plpgsql.extra_errors", "all"),
        ("plpgsql.extra_warnings", "all"),
        ("search_path", ""),
        ("search_path", "nowhere"),
        ("timezone", "Pacific/Apia"),
    ];
    settings.extend(odd.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let tried = stream::iter(groups(settings)).map(async |group| {
        let mut failed = Vec::new();
        for part in parts(&group, of_role(&server, &group).await) {
            let done = of_role(&server, std::slice::from_ref(&part)).await;
            failed.extend(judged(part, done));
        }
        failed
    });
    outcome(tried.buffer_unordered(4).collect::<Vec<_>>().await.concat())
}

/// Uses a schema of a role's own that has these defaults, as far as the server accepts them.
async fn of_role(server: &Server, settings: &[Setting]) -> Result<(), Error> {
    let role = format!("h{}", Uuid::new_v4().simple());
    let mut sql = PgConnection::connect(&server.url()).await?;
    let mut run = async |text: String| sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut sql).await;
    run(format!("CREATE ROLE {role} LOGIN PASSWORD 'no secret'")).await?;
    run(format!("CREATE SCHEMA {role} AUTHORIZATION {role}")).await?;
    for (name, value) in settings {
        // Not each value that is listed is possible everywhere.
        let _ = run(format!("ALTER ROLE {role} SET {name} TO '{value}'")).await;
    }
    let done = with_role(server, &role).await;
    run(format!("DROP OWNED BY {role} CASCADE")).await?;
    run(format!("DROP ROLE {role}")).await?;
    done
}

/// Makes the schema by this role, and uses it.
async fn with_role(server: &Server, role: &str) -> Result<(), Error> {
    let builder = || PostgresLockDao::<String, Uuid>::builder().schema(role).timeout(servers::ANSWERS);
    let url = format!("postgres://{role}:no%20secret@{}/postgres", server.address());
    in_time(async {
        let odd = builder().url(&*url).open().await?;
        let plain = builder().url(server.url()).open().await?;
        exercise(&odd, &plain, "").await?;
        let builder = || builder().namespace("statements");
        let odd = builder().url(url).open_without_routines().await?;
        let plain = builder().url(server.url()).open_without_routines().await?;
        exercise(&odd, &plain, "").await
    })
    .await
}

async fn mysql(kind: Kind) -> TestResult {
    // `init_connect` is the whole server's.
    let server = Server::start_for_many(kind).await?;
    let mut sql = MySqlConnection::connect(&server.url()).await?;
    let mut run = async |text: String| sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut sql).await;
    let (_, database) = server
        .url()
        .rsplit_once('/')
        .map(|(url, name)| (url.to_owned(), name.to_owned()))
        .ok_or("it names one")?;
    // An ordinary user: no other is subject to it.
    run("CREATE USER odd@'%' IDENTIFIED BY 'no secret'".to_owned()).await?;
    run(format!("GRANT ALL ON {database}.* TO odd@'%'")).await?;
    let url = format!("mysql://odd:no%20secret@{}/{database}", server.address());
    let builder = || MysqlLockDao::<String, Uuid>::builder().timeout(servers::ANSWERS);
    let plain = builder().url(server.url()).open().await?;
    let of_statements = || builder().namespace("statements");
    let plain_by_statements = of_statements().url(server.url()).open_without_routines().await?;
    let possible = settings_of_mysql(&url).await?;
    if kind == Kind::MySql {
        run("SET GLOBAL init_connect = 'SET SESSION max_execution_time = 1'".to_owned()).await?;
        run("CREATE USER poor@'%' IDENTIFIED BY 'no secret'".to_owned()).await?;
        run(format!("GRANT SELECT ON {database}.* TO poor@'%'")).await?;
        let poor = url.replace("odd:", "poor:");
        a_select_waits_as_long_as_any_request(&server, builder().url(poor)).await?;
    }
    let mut number = 0;
    let mut of_user = async |settings: &[Setting]| {
        number += 1;
        let list: Vec<_> = settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let init = format!("SET SESSION {}", list.join(", ")).replace('\'', "''");
        run(format!("SET GLOBAL init_connect = '{init}'")).await?;
        in_time(async {
            let odd = builder().url(&*url).open().await?;
            exercise(&odd, &plain, &number.to_string()).await?;
            let odd = of_statements().url(&*url).open_without_routines().await?;
            exercise(&odd, &plain_by_statements, &number.to_string()).await
        })
        .await
    };
    let mut failed = Vec::new();
    for group in groups(possible) {
        for part in parts(&group, of_user(&group).await) {
            let done = of_user(std::slice::from_ref(&part)).await;
            failed.extend(judged(part, done));
        }
    }
    outcome(failed)
}

/// Without the right to call routines the version is read by a `SELECT`. It waits for a table that is locked, for longer than a
/// limit of the session's would let it.
async fn a_select_waits_as_long_as_any_request(
    server: &Server,
    builder: MysqlBuilder<String, Uuid>,
) -> Result<(), Error> {
    let mut holder = MySqlConnection::connect(&server.url()).await?;
    sqlx::raw_sql("LOCK TABLES lockcore_schema WRITE").execute(&mut holder).await?;
    let opening = tokio::spawn(builder.open());
    let mut watch = MySqlConnection::connect(&server.url()).await?;
    let waits = "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.processlist \
                 WHERE user = 'poor' AND time >= 1 AND state LIKE 'Waiting for table%'";
    let seen = async {
        loop {
            let row = sqlx::raw_sql(waits).fetch_one(&mut watch).await?;
            if row.try_get_unchecked::<String, _>(0)? != "0" {
                return Ok::<_, Error>(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(seen).await?;
    sqlx::raw_sql("UNLOCK TABLES").execute(&mut holder).await?;
    // What it may not call it cannot use; that is all.
    drop(opening.await?);
    Ok(())
}

/// What a session of this user may set, and to what.
async fn settings_of_mysql(url: &str) -> Result<Vec<Setting>, Error> {
    let mut sql = MySqlConnection::connect(url).await?;
    let mut settings = Vec::new();
    for row in sqlx::raw_sql("SHOW SESSION VARIABLES").fetch_all(&mut sql).await? {
        let (name, usual): (String, String) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        let values = match &*usual {
            "ON" => vec!["0"],
            "OFF" => vec!["1"],
            number if number.parse::<f64>().is_ok() => vec!["0", "1"],
            _ => Vec::new(),
        };
        let odd = values.into_iter().filter(|value| *value != usual);
        settings.extend(odd.map(|value| (name.clone(), value.to_owned())));
    }
    let odd = [
        ("block_encryption_mode", "'aes-256-cbc'"),
        ("character_set_results", "latin1"),
        ("collation_connection", "latin1_german2_ci"),
        ("collation_connection", "utf8mb4_bin"),
        ("completion_type", "'CHAIN'"),
        ("completion_type", "'RELEASE'"),
        ("default_storage_engine", "MyISAM"),
        ("default_tmp_storage_engine", "MyISAM"),
        ("internal_tmp_mem_storage_engine", "MEMORY"),
        ("lc_messages", "'de_DE'"),
        ("lc_time_names", "'de_DE'"),
        ("session_track_system_variables", "'*'"),
        ("session_track_transaction_info", "'CHARACTERISTICS'"),
        ("sql_mode", "''"),
        ("sql_mode", "'ANSI'"),
        ("sql_mode", "'NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION'"),
        ("sql_mode", "'ORACLE'"),
        ("sql_mode", "'TRADITIONAL'"),
        ("time_zone", "'-11:00'"),
        ("timestamp", "1000"),
        ("timestamp", "UNIX_TIMESTAMP() + 86400"),
        ("transaction_isolation", "'READ-UNCOMMITTED'"),
        ("transaction_isolation", "'SERIALIZABLE'"),
        ("tx_isolation", "'READ-UNCOMMITTED'"),
        ("tx_isolation", "'SERIALIZABLE'"),
        ("use_secondary_engine", "'OFF'"),
    ];
    settings.extend(odd.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut possible = Vec::new();
    for (name, value) in settings {
        let mut probe = MySqlConnection::connect(url).await?;
        let set = format!("SET SESSION {name} = {value}");
        // Some of those that can be set end the session.
        if sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut probe).await.is_ok() {
            possible.push((name, value));
        }
    }
    Ok(possible)
}

async fn in_time(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    tokio::time::timeout(PATIENCE, work).await?
}

/// Groups of settings with different names; those of which each has to be alone.
fn groups(settings: Vec<Setting>) -> Vec<Vec<Setting>> {
    assert!(settings.len() > 100, "only {} settings", settings.len());
    let mut groups: Vec<Vec<Setting>> = Vec::new();
    for (name, value) in settings {
        let is_alone = |name: &str| REFUSES.contains(&name);
        let group = groups.iter_mut().find(|group| {
            !is_alone(&name)
                && group.len() < AT_ONCE
                && group.iter().all(|(other, _)| *other != name && !is_alone(other))
        });
        match group {
            Some(group) => group.push((name, value)),
            None => groups.push(vec![(name, value)]),
        }
    }
    groups
}

/// What has to be tried alone.
fn parts(group: &[Setting], done: Result<(), Error>) -> Vec<Setting> {
    if done.is_ok() && group.len() > 1 { Vec::new() } else { group.to_vec() }
}

fn judged((name, value): Setting, done: Result<(), Error>) -> Option<String> {
    match (done, REFUSES.contains(&&*name)) {
        (Err(error), false) => Some(format!("{name} = {value}: {error}")),
        (Ok(()), true) if value != "off" => Some(format!("{name} = {value} is not respected")),
        _ => None,
    }
}

fn outcome(failed: Vec<String>) -> TestResult {
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// Does what there is to do with a DAO on connections with an odd setting, beside one with the usual settings.
async fn exercise(
    odd: &impl LockDao<String, Uuid>,
    plain: &impl LockDao<String, Uuid>,
    prefix: &str,
) -> Result<(), Error> {
    // What sorts or compares only the beginning would take them for one.
    let [a, b, c] = ["a", "b", "c"].map(|id| format!("{prefix}{}{id}", "/an/object".repeat(50)));
    let both = || [a.clone(), b.clone()];
    let held = take(plain, both()).await?;
    let Acquired::Refused(conflicts) = odd.acquire(&request(both())).await? else {
        return Err("granted to two".into());
    };
    ensure(conflicts.len() == 2, "a conflict for each")?;
    ensure(plain.release(&held).await?.lost.is_empty(), "it was held")?;
    let taken = take(odd, both()).await?;
    let (before, after) = (held.locks[0].granted.fence, taken.locks[0].granted.fence);
    ensure((before + 1..before + 600_000_000).contains(&after), "the fence goes by the clock")?;
    let Acquired::Refused(_) = plain.acquire(&request([&*a])).await? else {
        return Err("granted to another".into());
    };
    ensure(odd.renew(&taken).await?.lost.is_empty(), "it is renewed")?;
    // One waits in the row of the id, others in the queue.
    let (waits, wakeup) = queue(plain, [&*a]).await?;
    ensure(odd.release(&taken).await?.lost.is_empty(), "it was held")?;
    let held = handed(plain, &waits, wakeup).await?;
    let (waits, wakeup) = queue(odd, [&*a]).await?;
    let (waits_for_both, next) = queue(odd, both()).await?;
    ensure(plain.release(&held).await?.lost.is_empty(), "it was held")?;
    let held = handed(odd, &waits, wakeup).await?;
    ensure(odd.release(&held).await?.lost.is_empty(), "it was handed over")?;
    let held = handed(odd, &waits_for_both, next).await?;
    ensure(odd.release(&held).await?.lost.is_empty(), "both were handed over")?;
    let withdrawn = request(both());
    odd.withdraw(&withdrawn, Withdraw::Undo).await?;
    ensure(odd.acquire(&withdrawn).await.is_err(), "it was withdrawn")?;
    for claim in [Claim::shared(c.clone()), Claim::slots(c.clone(), 2)] {
        let [mine, theirs] = [request([claim.clone()]), request([claim])];
        let (mine, theirs) = (granted(odd, &mine).await?, granted(plain, &theirs).await?);
        let Acquired::Refused(_) = odd.acquire(&request([&*c])).await? else {
            return Err("two hold it".into());
        };
        let (waits, wakeup) = queue(odd, [&*c]).await?;
        ensure(odd.renew(&mine).await?.lost.is_empty(), "it is renewed")?;
        ensure(odd.release(&mine).await?.lost.is_empty(), "it was held")?;
        ensure(plain.release(&theirs).await?.lost.is_empty(), "it was held by the other")?;
        let held = handed(odd, &waits, wakeup).await?;
        ensure(odd.release(&held).await?.lost.is_empty(), "it was handed over")?;
    }
    let target = Target::Id(c.clone());
    let held = take(odd, [&*c]).await?;
    ensure(odd.inspect(&target).await?.holders.len() == 1, "it is shown")?;
    ensure(!odd.list(&Page::default()).await?.ids.is_empty(), "it is listed")?;
    ensure(odd.release_context(&held.context).await?.len() == 1, "the context held it")?;
    odd.freeze(&target, true).await?;
    odd.freeze(&target, false).await?;
    odd.sweep(100, Some(Duration::ZERO)).await?;
    odd.doctor().await?;
    Ok(())
}

fn ensure(so: bool, what: &str) -> Result<(), Error> {
    if so { Ok(()) } else { Err(format!("not so: {what}").into()) }
}

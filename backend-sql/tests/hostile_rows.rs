//! Rows that others wrote into an SQLite file: no value of a column makes a step panic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lockcore::{BreakMode, Claim, Grant, LockDao, Mode, Page, Target, backend::Withdraw};
use lockcore_conformance::{Caller, servers::Trial};
use lockcore_sql::SqliteLockDao;
use rusqlite::Connection;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

/// Values by the type of their column, as they stand in SQL.
const VALUES: [(&str, &[&str]); 3] = [
    ("INTEGER", &["-9223372036854775808", "-1", "0", "1", "3", "255", "4294967296", "9223372036854775807"]),
    (
        "BLOB",
        &["x''", "x'00'", "x'ff'", "x'ffffffffffffffffff'", "x'0102030405060708090a'", "zeroblob(5000)"],
    ),
    ("TEXT", &["''", "'-1'", "char(0)", "'\u{1f512}'", "printf('%.5000c', 'x')"]),
];

pub(crate) fn trials() -> Vec<Trial> {
    tests!["hostile_rows", no_value_of_a_column_makes_a_step_panic]
        .into_iter()
        .map(Trial::in_own_process)
        .collect()
}

async fn no_value_of_a_column_makes_a_step_panic() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("locks.db");
    let dao: Arc<Dao> =
        Arc::new(SqliteLockDao::builder().path(&path).open().await.expect("it can be opened"));
    let [one, two] = [(); 2].map(|()| Caller::new(dao.clone(), Duration::from_secs(60)));
    let held = one.take(["a", "b"]).await;
    let _place = two.queue(["a", "c"]).await;
    let undone = two.request(["d"]);
    two.withdraw(&undone, Withdraw::Undo).await;
    let other = two.take(["e"]).await;
    let fence = other.locks[0].granted.fence;
    dao.break_lock(&id("e"), fence, BreakMode::Now, "me").await.expect("it is held");
    dao.freeze(&id("f"), true).await.expect("it can be frozen");

    let file = Connection::open(&path).expect("it is a file");
    file.busy_timeout(Duration::from_secs(10)).expect("it can be set");
    file.execute("ATTACH ? AS saved", [folder.path().join("saved.db").display().to_string()])
        .expect("attached");
    let columns = columns(&file);
    for table in tables(&file) {
        file.execute_batch(&format!("CREATE TABLE saved.{table} AS SELECT * FROM main.{table}"))
            .expect("saved");
    }
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = panics.clone();
    // The hook is that of all tests of a process.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, SeqCst);
        usual(panic);
    }));
    let mut cases = 0;
    for (table, column, kind) in &columns {
        let values = VALUES.iter().find(|(of, _)| of == kind).map(|(_, values)| *values);
        for value in values.unwrap_or_else(|| panic!("{table}.{column} is {kind}")) {
            // Some break a constraint of the table: then the file has only as much of it as it admits.
            let changed = file.execute(&format!("UPDATE OR IGNORE main.{table} SET {column} = {value}"), []);
            every_step(&dao, &one, &two, &held, &undone.context).await;
            assert_eq!(panics.load(SeqCst), 0, "{table}.{column} = {value}");
            cases += usize::from(changed.is_ok_and(|rows| rows > 0));
            restore(&file);
        }
    }
    assert!(cases > 200, "only {cases} cases");
    // What is as it was works as it did.
    one.keep(&held).await;
    one.free(&held).await;
}

fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

fn tables(file: &Connection) -> Vec<String> {
    let sql = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
    let mut tables = file.prepare(sql).expect("valid SQL");
    tables.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("names")
}

/// All columns, each with its table and type.
fn columns(file: &Connection) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for table in tables(file) {
        let mut columns = file.prepare(&format!("PRAGMA main.table_info({table})")).expect("valid SQL");
        let found = columns.query_map([], |row| Ok((table.clone(), row.get(1)?, row.get(2)?))).expect("rows");
        all.extend(found.map(|column| column.expect("a column")));
    }
    all
}

fn restore(file: &Connection) {
    let restore = |table: String| {
        format!("DELETE FROM main.{table}; INSERT INTO main.{table} SELECT * FROM saved.{table};")
    };
    let all: String = tables(file).into_iter().map(restore).collect();
    file.execute_batch(&format!("BEGIN IMMEDIATE; {all} COMMIT")).expect("restored");
}

/// Every step, whatever becomes of it.
async fn every_step(
    dao: &Dao,
    one: &Caller<Dao>,
    two: &Caller<Dao>,
    held: &Grant<String, Uuid>,
    context: &Uuid,
) {
    for target in ["a", "b", "c", "d", "e", "f"] {
        drop(dao.inspect(&id(target)).await);
    }
    drop(dao.list(&Page::default()).await);
    for mode in [Mode::Shared, Mode::Exclusive, Mode::Slots { permits: 2, limit: 3 }] {
        for caller in [one, two] {
            let request = caller.request(["a", "b", "c", "f"].map(|name| Claim { target: id(name), mode }));
            drop(dao.acquire(&request).await);
            drop(dao.withdraw(&request, Withdraw::Undo).await);
        }
    }
    drop(dao.renew(held).await);
    drop(dao.break_lock(&id("a"), held.locks[0].granted.fence, BreakMode::AfterLease, "me").await);
    drop(dao.sweep(10, None).await);
    drop(dao.freeze(&id("f"), false).await);
    drop(dao.release(held).await);
    drop(dao.release_context(context).await);
}

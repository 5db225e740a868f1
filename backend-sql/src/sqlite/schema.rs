//! The tables: made and migrated when the database is opened.

use rusqlite::params;

use super::{
    error::StoreError,
    statements::{self, SCHEMA_VERSION},
    store::{Store, run},
};

/// The SQL that makes the tables, for those who may not let a program do it. `prefix` is as in
/// [`SqliteBuilder::table_prefix`](super::SqliteBuilder::table_prefix).
pub fn schema_sql(prefix: &str) -> String {
    format!(
        "{}INSERT INTO {prefix}schema (version) SELECT {SCHEMA_VERSION} \
         WHERE NOT EXISTS (SELECT 1 FROM {prefix}schema);\n",
        statements::schema(prefix)
    )
}

/// Refuses tables that are missing or those of a newer program.
pub(super) fn require(store: &Store<'_>) -> Result<(), StoreError> {
    if check(version(store)?)? {
        return Ok(());
    }
    let advice = "call `migrate`, or open it with `create`";
    Err(StoreError::Schema { found: 0, known: SCHEMA_VERSION, advice })
}

/// Makes the tables where they are missing, and refuses those of a newer program.
///
/// Any number of processes may do this at once: the write lock lets the first one work and the others
/// find it done.
pub(super) fn ensure(store: &Store<'_>) -> Result<(), StoreError> {
    if check(version(store)?)? {
        return Ok(());
    }
    run(&store.sql.begin)?;
    let made = make(store);
    if made.is_err() {
        store.abandon();
    }
    made
}

/// The version of the tables that are there, 0 for none.
pub(super) fn version(store: &Store<'_>) -> Result<i64, StoreError> {
    let there: bool = store.sql.has_schema.get()?.query_row([], |row| row.get(0))?;
    if !there {
        return Ok(0);
    }
    Ok(store.sql.schema_version.get()?.query_row([], |row| row.get(0))?)
}

fn make(store: &Store<'_>) -> Result<(), StoreError> {
    // Version 0 is nothing; a later version adds its step from each version before.
    if !check(version(store)?)? {
        store.opened.conn.execute_batch(&statements::schema(&store.opened.settings.table_prefix))?;
        run(&store.sql.clear_version)?;
        store.sql.write_version.get()?.execute(params![SCHEMA_VERSION])?;
    }
    run(&store.sql.commit)
}

/// Whether the tables of this version are current; those of a newer program are refused.
fn check(found: i64) -> Result<bool, StoreError> {
    if found > SCHEMA_VERSION {
        let advice = "a newer program migrated it, update this one";
        return Err(StoreError::Schema { found, known: SCHEMA_VERSION, advice });
    }
    Ok(found == SCHEMA_VERSION)
}

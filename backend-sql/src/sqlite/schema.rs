//! The tables: made and migrated when the database is opened.

use lockcore::{StoreFit, StoreVersion};
use rusqlite::params;

use super::{
    error::StoreError,
    statements::{self, VERSION},
    store::{Store, run},
};

/// The SQL that makes the tables, for those who may not let a program do it. `prefix` is as in
/// [`SqliteBuilder::table_prefix`](super::SqliteBuilder::table_prefix).
pub fn schema_sql(prefix: &str) -> String {
    let StoreVersion { version, oldest_program } = VERSION;
    format!(
        "{}INSERT INTO {prefix}schema (version, oldest_program) SELECT {version}, {oldest_program} \
         WHERE NOT EXISTS (SELECT 1 FROM {prefix}schema);\n",
        statements::schema(prefix)
    )
}

/// Refuses tables that are missing or older, and those that are for newer programs.
pub(super) fn require(store: &Store<'_>) -> Result<(), StoreError> {
    let found = version(store)?;
    if fit(store, found)? == StoreFit::Ready {
        return Ok(());
    }
    let advice = "call `migrate`, or open it with `create`";
    let (found, known) = (found.map_or(0, |found| found.version), store.opened.settings.program.version);
    Err(StoreError::Schema { found, known, advice })
}

/// Makes the tables where they are missing or older, and refuses those that are for newer programs.
///
/// Any number of processes may do this at once: the write lock lets the first one work and the others
/// find it done.
pub(super) fn ensure(store: &Store<'_>) -> Result<(), StoreError> {
    if fit(store, version(store)?)? == StoreFit::Ready {
        return Ok(());
    }
    run(&store.sql.begin)?;
    let made = make(store);
    if made.is_err() {
        store.abandon();
    }
    made
}

/// Reads the version of the tables that are there, `None` for none.
pub(super) fn version(store: &Store<'_>) -> Result<Option<StoreVersion>, StoreError> {
    let there: bool = store.sql.has_schema.get()?.query_row([], |row| row.get(0))?;
    if !there {
        return Ok(None);
    }
    let numbers = store.sql.schema_version.get()?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(version), Some(oldest_program)) = numbers else { return Ok(None) };
    Ok(Some(StoreVersion { version, oldest_program }))
}

fn make(store: &Store<'_>) -> Result<(), StoreError> {
    // A later version adds its step from each version before.
    let found = version(store)?;
    if fit(store, found)? == StoreFit::Migrate {
        let StoreVersion { version, oldest_program } = store.opened.settings.program.after_migration(found);
        store.opened.conn.execute_batch(&statements::schema(&store.opened.settings.table_prefix))?;
        run(&store.sql.clear_version)?;
        store.sql.write_version.get()?.execute(params![version, oldest_program])?;
    }
    run(&store.sql.commit)
}

/// Compares this program with the tables.
pub(super) fn fit(store: &Store<'_>, found: Option<StoreVersion>) -> Result<StoreFit, StoreError> {
    Ok(store.opened.settings.program.fit(found)?)
}

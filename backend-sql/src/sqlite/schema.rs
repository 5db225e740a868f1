//! The tables: made and migrated when the database is opened.

use lockcore::backend::{StoreFit, StoreVersion};
use rusqlite::params;

use super::{
    error::StoreError,
    opened::Opened,
    statements::{self, VERSION},
};

/// Returns the SQL that makes the tables, for those who may not let a program do it. `prefix` is as in
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
pub(super) fn require(opened: &Opened) -> Result<(), StoreError> {
    let found = version(opened)?;
    if fit(opened, found)? == StoreFit::Ready {
        return Ok(());
    }
    let advice = match found.is_some_and(|found| found.version == opened.settings.program.version) {
        true => "but some of its tables are missing: call `migrate`, or open it with `create`",
        false => "call `migrate`, or open it with `create`",
    };
    let (found, known) = (found.map_or(0, |found| found.version), opened.settings.program.version);
    Err(StoreError::Schema { found, known, advice })
}

/// Makes the tables where they are missing or older, and refuses those that are for newer programs.
///
/// Any number of processes may do this at once: the write lock lets the first one work and the others
/// find it done.
pub(super) fn ensure(opened: &Opened) -> Result<(), StoreError> {
    if fit(opened, version(opened)?)? == StoreFit::Ready {
        return Ok(());
    }
    opened.run(&opened.sql.begin)?;
    let made = make(opened);
    if made.is_err() {
        opened.roll_back();
    }
    made
}

/// Reads the version of the tables that are there, `None` for none.
pub(super) fn version(opened: &Opened) -> Result<Option<StoreVersion>, StoreError> {
    let Opened { conn, sql, .. } = opened;
    let there: bool = conn.prepare_cached(&sql.has_schema)?.query_row([], |row| row.get(0))?;
    if !there {
        return Ok(None);
    }
    let mut version = conn.prepare_cached(&sql.schema_version)?;
    let numbers = version.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(version), Some(oldest_program)) = numbers else { return Ok(None) };
    Ok(Some(StoreVersion { version, oldest_program }))
}

fn make(opened: &Opened) -> Result<(), StoreError> {
    let Opened { conn, sql, settings, .. } = opened;
    // A later version adds its step from each version before.
    let found = version(opened)?;
    if fit(opened, found)? == StoreFit::Migrate {
        let StoreVersion { version, oldest_program } = settings.program.after_migration(found);
        conn.execute_batch(&statements::schema(&settings.table_prefix))?;
        opened.run(&sql.clear_version)?;
        conn.prepare_cached(&sql.write_version)?.execute(params![version, oldest_program])?;
    }
    opened.run(&sql.commit)
}

/// Compares this program with the tables; some may be missing, as after a restore of a part of them.
pub(super) fn fit(opened: &Opened, found: Option<StoreVersion>) -> Result<StoreFit, StoreError> {
    let program = opened.settings.program;
    let fit = program.fit(found)?;
    let is_ours = found.is_some_and(|found| found.version == program.version);
    Ok(if fit == StoreFit::Ready && is_ours && !is_complete(opened)? { StoreFit::Migrate } else { fit })
}

fn is_complete(opened: &Opened) -> Result<bool, StoreError> {
    let schema = statements::schema(&opened.settings.table_prefix);
    let made = schema.split("IF NOT EXISTS ").skip(1).filter_map(|made| made.split(' ').next());
    let made: Vec<_> = made.map(|name| format!("'{name}'")).collect();
    let count = format!("SELECT count(*) FROM sqlite_master WHERE name IN ({})", made.join(", "));
    let there: i64 = opened.conn.prepare_cached(&count)?.query_row([], |row| row.get(0))?;
    Ok(usize::try_from(there) == Ok(made.len()))
}

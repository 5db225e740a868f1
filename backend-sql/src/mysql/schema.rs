//! The schema: tables and routines, for any names and either server.

use std::borrow::Cow;

use lockcore::{
    MAX_CONTEXT_BYTES, MAX_ID_BYTES, MAX_OWNER_BYTES,
    backend::{StoreFit, StoreVersion},
    protocol,
};
use sqlx::{AssertSqlSafe, Row};

use super::{
    error::{self, failed},
    flavor::Flavor,
    link::Link,
};
use crate::server::{
    ServerError, store_version,
    template::{self, Filling},
};

/// The version of what is below.
pub(super) const VERSION: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// The texts, in the order in which they are needed: statements, each ended by a line `//`. `{name}` stands for the
/// quoted name of a table or routine, or for one of the [`PIECES`] or [`numbers`](number).
const TEXTS: &[&str] = &[
    FORM,
    include_str!("schema/tables.sql"),
    include_str!("schema/rules.sql"),
    include_str!("schema/serve.sql"),
    include_str!("schema/acquire.sql"),
    include_str!("schema/release.sql"),
    include_str!("schema/watch.sql"),
    include_str!("schema/admin.sql"),
];

/// The table that both forms have.
const FORM: &str = include_str!("schema/form.sql");

/// The table of those who lock by statements.
const CELL: &str = include_str!("schema/cell.sql");

/// Pieces that occur more than once, and may occur in each other. A piece goes from `-- {its name}` up to an empty
/// line.
const PIECES: &str = include_str!("schema/pieces.sql");

/// Returns the text of a piece.
fn piece(name: &str, flavor: Flavor) -> Option<Cow<'static, str>> {
    if let Some(number) = number(name) {
        return Some(number.to_string().into());
    }
    if name == "for update of i" {
        return Some(flavor.for_update_of_i().into());
    }
    let head = format!("-- {{{name}}}");
    let piece = PIECES.split("\n\n").find(|piece| piece.starts_with(&head))?;
    Some(template::without_comments(piece).trim_end().into())
}

/// Returns a time of the protocol, in microseconds, or a bound, in bytes.
fn number(name: &str) -> Option<u128> {
    let duration = match name {
        "offer" => protocol::OFFER,
        "heartbeat" => protocol::HEARTBEAT,
        "heartbeat lasts" => protocol::HEARTBEAT_LASTS,
        "tombstone" => protocol::TOMBSTONE,
        "longest context" => return Some(MAX_CONTEXT_BYTES as u128),
        "longest id" => return Some(MAX_ID_BYTES as u128),
        "longest owner" => return Some(MAX_OWNER_BYTES as u128),
        _ => return None,
    };
    Some(duration.as_micros())
}

/// The names of the tables and routines, all in the connection's database.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Names { prefix: prefix.to_owned() }
    }

    /// The name of a table or routine, quoted.
    pub(super) fn quoted(&self, name: &str) -> String {
        format!("`{}{name}`", self.prefix.replace('`', "``"))
    }

    /// See [`MysqlLockDao::fence_check`](super::MysqlLockDao::fence_check).
    pub(super) fn fence_check(&self) -> String {
        // Nothing of it depends on the flavor.
        self.fill("{fence check}", Flavor::MySql)
    }

    /// Returns the text with all pieces and names in it.
    fn fill(&self, text: &str, flavor: Flavor) -> String {
        template::fill(text, &|word| {
            is_word(word).then(|| match piece(word, flavor) {
                Some(piece) => Filling::Piece(piece),
                None => Filling::Name(self.quoted(word)),
            })
        })
    }

    /// The statements that make all of it, but for the routines that `keeps` wants as they are.
    fn statements(&self, flavor: Flavor, program: StoreVersion, keeps: impl Fn(&str) -> bool) -> Vec<String> {
        let mut statements = vec![format!("SET SESSION sql_mode = '{SQL_MODE}'")];
        for text in TEXTS {
            for statement in text.split("\n//\n").map(str::trim).filter(|text| !text.is_empty()) {
                if let Some(routine) = routine(statement) {
                    let name = self.quoted(routine);
                    if keeps(&name) {
                        continue;
                    }
                    statements.push(format!("DROP PROCEDURE IF EXISTS {name}"));
                }
                statements.push(self.fill(template::without_comments(statement), flavor));
            }
        }
        // The numbers never decrease.
        let StoreVersion { version, oldest_program } = program;
        let write = format!(
            "INSERT INTO {{schema}} (version, oldest_program) SELECT {version}, GREATEST({oldest_program}, \
             (SELECT IFNULL(MAX(s.oldest_program), 0) FROM {{schema}} s)) \
             ON DUPLICATE KEY UPDATE oldest_program = GREATEST({{schema}}.oldest_program, {oldest_program})"
        );
        statements.push(self.fill(&write, flavor));
        let newest = "(SELECT n.version FROM (SELECT MAX(s.version) AS version FROM {schema} s) n)";
        statements.push(self.fill(&format!("DELETE FROM {{schema}} WHERE version < {newest}"), flavor));
        statements
    }
}

/// The mode with which the routines are compiled, whatever the server's default is.
const SQL_MODE: &str = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION";

fn is_word(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b' ';
    !text.is_empty() && text.bytes().all(word)
}

/// The routine that a statement makes.
fn routine(statement: &str) -> Option<&str> {
    let (_, behind) = statement.split_once("CREATE PROCEDURE {")?;
    behind.split_once('}').map(|(name, _)| name)
}

/// Returns the whole schema as SQL for the server's own command line client, for those who run their own migrations. It
/// creates what is missing and replaces the routines, so that it can be run again, but not after a newer one, nor while
/// programs use the locks: a routine is missing for a moment. A user of the locks needs `EXECUTE` on the routines, and
/// nothing else; the account that runs this has to stay, for the routines run with its rights.
pub fn schema_sql(table_prefix: &str, flavor: Flavor) -> String {
    let mut sql = String::from("DELIMITER //\n");
    for statement in Names::new(table_prefix).statements(flavor, VERSION, |_| false) {
        sql.push_str(&statement);
        sql.push_str("\n//\n");
    }
    sql.push_str("DELIMITER ;\n");
    sql
}

/// Returns what is needed to lock by statements, without routines, as SQL: it creates what is missing. Users need
/// `SELECT, INSERT, UPDATE, DELETE` on the two tables.
pub fn statements_schema_sql(table_prefix: &str) -> String {
    let mut sql = String::new();
    for statement in statements(&Names::new(table_prefix)) {
        sql.push_str(&statement);
        sql.push_str(";\n");
    }
    sql
}

/// Returns the statements of [`statements_schema_sql`] one by one. They do not depend on the flavor.
pub(super) fn statements(names: &Names) -> [String; 2] {
    [FORM, CELL].map(|text| {
        let text = text.trim_end().trim_end_matches("//").trim_end();
        names.fill(template::without_comments(text), Flavor::MySql)
    })
}

/// Creates or migrates the schema; of several programs at once one does it.
pub(super) async fn migrate(
    names: &Names,
    flavor: Flavor,
    program: StoreVersion,
    fit: impl Fn(Option<StoreVersion>) -> Result<StoreFit, ServerError>,
    link: &mut Link,
) -> Result<(), ServerError> {
    // DDL commits by itself: a lock of the session's keeps the others out, and the version is written last.
    let lock = format!(
        "LEFT(CONCAT('lockcore migrates ', SHA2(CONCAT(DATABASE(), {}), 256)), 64)",
        literal(&names.prefix)
    );
    let locked = link.text(&format!("SELECT CAST(GET_LOCK({lock}, 30) AS CHAR)")).await?;
    if locked.as_deref() != Some("1") {
        let what = "another program has been migrating the schema for 30 s".to_owned();
        return Err(ServerError::Misconfigured { backend: flavor.name(), what });
    }
    let done = migrate_alone(names, flavor, program, fit, link).await;
    let unlocked = link.text(&format!("SELECT CAST(RELEASE_LOCK({lock}) AS CHAR)")).await;
    done.and(unlocked.map(drop))
}

async fn migrate_alone(
    names: &Names,
    flavor: Flavor,
    program: StoreVersion,
    fit: impl Fn(Option<StoreVersion>) -> Result<StoreFit, ServerError>,
    link: &mut Link,
) -> Result<(), ServerError> {
    let found = version(names, link).await?;
    if fit(found)? == StoreFit::Ready {
        let is_ours = found.is_some_and(|found| found.version == program.version);
        if !is_ours || missing(names, link).await?.is_empty() {
            return Ok(());
        }
    }
    let mode = link.text("SELECT CAST(@@SESSION.sql_mode AS CHAR)").await?.unwrap_or_default();
    let done = make(names, flavor, program, found.is_some(), link).await;
    let restored = link.text(&format!("SET SESSION sql_mode = {}", literal(&mode))).await;
    done.and(restored.map(drop))
}

/// Makes what is missing. Of a schema that is `complete` the routines stay as they are: programs of its version are calling
/// them, and their names say of which version they are.
async fn make(
    names: &Names,
    flavor: Flavor,
    program: StoreVersion,
    complete: bool,
    link: &mut Link,
) -> Result<(), ServerError> {
    let kept = if complete { names_of("ROUTINE", link).await? } else { Vec::new() };
    for statement in names.statements(flavor, program, |name| kept.iter().any(|kept| kept == name)) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(link.raw()).await.map_err(failed)?;
    }
    Ok(())
}

/// Lists the tables and routines that are not there. A user of the routines may see no table.
pub(super) async fn missing(names: &Names, link: &mut Link) -> Result<Vec<String>, ServerError> {
    let mut missing = Vec::new();
    for (kind, create) in [("ROUTINE", "CREATE PROCEDURE {"), ("TABLE", "CREATE TABLE IF NOT EXISTS {")] {
        // Some servers keep the names of tables in lower case.
        let there: Vec<_> = names_of(kind, link).await?.iter().map(|name| name.to_lowercase()).collect();
        let made = TEXTS.iter().flat_map(|text| text.split(create).skip(1));
        let made: Vec<_> = made.filter_map(|behind| Some(names.quoted(behind.split_once('}')?.0))).collect();
        let (found, absent): (Vec<_>, Vec<_>) =
            made.into_iter().partition(|name| there.contains(&name.to_lowercase()));
        if kind == "ROUTINE" || !found.is_empty() {
            missing.extend(absent);
        }
    }
    Ok(missing)
}

/// Lists the tables or routines of the database that this user may see, quoted.
async fn names_of(kind: &str, link: &mut Link) -> Result<Vec<String>, ServerError> {
    let all = format!(
        "SELECT CAST({kind}_NAME AS CHAR) FROM information_schema.{kind}S WHERE {kind}_SCHEMA = DATABASE()"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(all)).fetch_all(link.raw()).await.map_err(failed)?;
    let name = |row: &sqlx::mysql::MySqlRow| {
        let name: &str = row.try_get_unchecked(0).map_err(failed)?;
        Ok(format!("`{}`", name.replace('`', "``")))
    };
    rows.iter().map(name).collect()
}

/// Reads the version that is there; `None` if there is none, or if it was only begun.
pub(super) async fn version(names: &Names, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
    let found = match link.text(&format!("CALL {}()", names.quoted("version"))).await {
        // No such routine, or none that this user may see: it may be half made, or made by a user who gave no rights.
        Err(error) if error::is_missing_routine(&error) => {
            let read = format!(
                "SELECT CAST(CONCAT_WS(' ', IFNULL(MAX(version), 0), IFNULL(MAX(oldest_program), 0)) AS CHAR) FROM {}",
                names.quoted("schema")
            );
            match link.text(&read).await {
                Err(error) if error::is_missing_table(&error) => return Ok(None),
                found => found?,
            }
        }
        found => found?,
    };
    let found = found.unwrap_or_default();
    let numbers: Option<Vec<i64>> = found.split(' ').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some([0, _]) => Ok(None),
        Some([version, oldest_program]) => store_version("mysql", *version, *oldest_program).map(Some),
        _ => Err(ServerError::Answer { backend: "mysql", what: format!("{found:?}") }),
    }
}

/// Text as a literal; hexadecimal, so that no quoting depends on the session.
pub(super) fn literal(text: &str) -> String {
    if text.is_empty() {
        return "''".to_owned();
    }
    let hex: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
    format!("CONVERT(0x{hex} USING utf8mb4)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_they_are() {
        let names = Names::new("x`; DROP ");
        let filled = names.fill("SELECT '{}' FROM {ids} {", Flavor::MySql);
        assert_eq!(filled, "SELECT '{}' FROM `x``; DROP ids` {");
    }

    #[test]
    fn every_piece_is_known() {
        for flavor in [Flavor::MySql, Flavor::MariaDb] {
            let sql = schema_sql("p_", flavor);
            let made = |name: &str| {
                ["CREATE PROCEDURE", "CREATE TABLE IF NOT EXISTS"]
                    .iter()
                    .any(|create| sql.contains(&format!("{create} `p_{name}`")))
            };
            for word in sql.split("`p_").skip(1).filter_map(|behind| behind.split('`').next()) {
                assert!(made(word), "{word} is no table or routine");
            }
            assert_eq!(sql.contains("UPDATE OF i"), flavor == Flavor::MySql);
        }
    }
}

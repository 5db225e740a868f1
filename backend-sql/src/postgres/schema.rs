//! The schema: tables and routines, for any names.

use std::{borrow::Cow, time::Duration};

use lockcore::{
    backend::{StoreFit, StoreVersion},
    protocol,
};
use sqlx::{AssertSqlSafe, Row};

use super::{
    error::{failed, is_made},
    link::Link,
};
use crate::server::{
    ServerError, store_version,
    template::{self, Filling},
};

/// The version of what is below.
pub(super) const VERSION: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// The texts, in the order in which they are needed. `{name}` stands for the quoted name of a table or routine, `{name!}`
/// for the same without the schema, `{name'}` for the same inside of single quotes; `{$}` stands for the quotes around a
/// routine, other words for one of the [`PIECES`].
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

/// Parts that stand in several texts, and in each other; the file says how they are written.
const PIECES: &str = include_str!("schema/pieces.sql");

fn piece(name: &str) -> Option<&'static str> {
    let head = format!("-- {{{name}}}: ");
    let piece = PIECES.split("\n\n").find(|piece| piece.starts_with(&head))?;
    Some(template::without_comments(piece).trim_end())
}

/// Words that look like functions and are part of the language.
const SYNTAX: [&str; 4] = ["coalesce", "greatest", "least", "nullif"];

/// Names the functions of the server by their schema: where `search_path` has another one before it, that one's functions of
/// the same names, the clock's among them, would be called. A setting of each routine instead would cost some hundredths of what
/// it does.
pub(super) fn qualified(text: &str) -> String {
    let mut qualified = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('(') {
        let is_of_name =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let ahead = before.trim_end_matches(is_of_name);
        let name = &before[ahead.len()..];
        // `unnest` of several arrays is part of the language too.
        let is_syntax = SYNTAX.contains(&name) || name == "unnest" && has_several(behind);
        let is_function = !name.is_empty() && !is_syntax && !ahead.ends_with(['.', '\'']);
        let schema = if is_function { "pg_catalog." } else { "" };
        qualified.extend([ahead, schema, name, "("]);
        rest = behind;
    }
    qualified + rest
}

/// Returns whether there are several arguments before the closing parenthesis.
fn has_several(arguments: &str) -> bool {
    let mut depth = 0;
    for letter in arguments.chars() {
        match letter {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => return false,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

fn number(name: &str) -> Option<Cow<'static, str>> {
    let micros = |time: Duration| Some(time.as_micros().to_string().into());
    match name {
        "OFFER" => return micros(protocol::OFFER),
        "HEARTBEAT_LASTS" => return micros(protocol::HEARTBEAT_LASTS),
        "TOMBSTONE_LASTS" => return micros(protocol::TOMBSTONE),
        _ => {}
    }
    let head = format!("-- {{{name}}} = ");
    let (value, _) = PIECES.lines().find_map(|line| line.strip_prefix(&head)?.split_once(':'))?;
    Some(value.into())
}

/// The names of the tables and routines.
#[derive(Clone, Debug)]
pub(super) struct Names {
    schema: String,
    prefix: String,
}

impl Names {
    pub(super) fn new(schema: &str, prefix: &str) -> Self {
        Names { schema: schema.to_owned(), prefix: prefix.to_owned() }
    }

    /// Returns the full name of a table or routine, quoted.
    pub(super) fn quoted(&self, name: &str) -> String {
        format!("{}.{}", quote(&self.schema), quote(&format!("{}{name}", self.prefix)))
    }

    /// Fills pieces and names in.
    fn fill(&self, text: &str) -> String {
        template::fill(&qualified(text), &|word| match piece(word)
            .map(|text| qualified(text).into())
            .or_else(|| number(word))
        {
            Some(piece) => Some(Filling::Piece(piece)),
            None => self.named(word).map(Filling::Name),
        })
    }

    /// Makes the quotes around the routines: a tag that no name contains.
    fn tag(&self) -> String {
        let mut tag = "$f$".to_owned();
        while self.schema.contains(&tag) || self.prefix.contains(&tag) {
            tag.insert(1, 'f');
        }
        tag
    }

    /// Returns what stands for a name.
    fn named(&self, token: &str) -> Option<String> {
        if token == "$" {
            return Some(self.tag());
        }
        let name = token.trim_end_matches(['!', '\'']);
        if name.is_empty() || !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')) {
            return None;
        }
        Some(match token.strip_prefix(name) {
            Some("") => self.quoted(name),
            Some("!") => quote(&format!("{}{name}", self.prefix)),
            Some("'") => self.quoted(name).replace('\'', "''"),
            _ => return None,
        })
    }
}

/// Quotes any text as the name of something in the database.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the whole schema as SQL, for those who run their own migrations: it creates what is missing and replaces the
/// routines, so that it can be run again, but not after a newer one. Users of the locks need `USAGE` on the schema, `EXECUTE` on the routines and
/// `SELECT, INSERT, UPDATE, DELETE` on the tables.
pub fn schema_sql(schema: &str, table_prefix: &str) -> String {
    sql(&Names::new(schema, table_prefix), VERSION)
}

/// Returns what is needed to lock by statements, without routines, as SQL: it creates what is missing. Users need `USAGE` on the schema
/// and `SELECT, INSERT, UPDATE, DELETE` on the two tables.
pub fn statements_schema_sql(schema: &str, table_prefix: &str) -> String {
    let mut sql = String::new();
    let names = Names::new(schema, table_prefix);
    for statement in create_schema(&names).into_iter().chain(tables_of_statements(&names)) {
        sql.push_str(&statement);
        sql.push_str(";\n");
    }
    sql
}

fn tables_of_statements(names: &Names) -> [String; 2] {
    [FORM, CELL].map(|text| names.fill(text).trim_end().trim_end_matches(';').to_owned())
}

/// Creates the schema, unless it is the one that is in every database.
fn create_schema(names: &Names) -> Option<String> {
    (names.schema != "public").then(|| format!("CREATE SCHEMA IF NOT EXISTS {}", quote(&names.schema)))
}

/// Creates what is missing to lock by statements.
pub(super) async fn make_for_statements(names: &Names, link: &mut Link) -> Result<(), ServerError> {
    let name = names.schema.replace('\'', "''");
    let find = format!("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{name}'");
    let found = sqlx::raw_sql(AssertSqlSafe(find)).fetch_optional(link.raw()).await.map_err(failed)?;
    // IF NOT EXISTS would need the right to create schemas though it is there.
    let schema = create_schema(names).filter(|_| found.is_none());
    for statement in schema.into_iter().chain(tables_of_statements(names)) {
        match link.run(AssertSqlSafe(statement)).await {
            Err(error) if is_made(&error) => {}
            made => made?,
        }
    }
    Ok(())
}

fn sql(names: &Names, program: StoreVersion) -> String {
    // IF NOT EXISTS would need the right to create schemas though it is there.
    let (tag, text, name) = (names.tag(), names.schema.replace('\'', "''"), quote(&names.schema));
    let mut sql = format!(
        "DO {tag} BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{text}') THEN\n  \
         CREATE SCHEMA {name};\nEND IF; END {tag};\n"
    );
    for text in TEXTS {
        sql.push_str(&names.fill(text));
        sql.push('\n');
    }
    let StoreVersion { version, oldest_program } = program;
    // The numbers never decrease.
    sql.push_str(&names.fill(&format!(
        "INSERT INTO {{schema}} (version, oldest_program)\n  \
         SELECT {version}, greatest({oldest_program}, max(oldest_program)) FROM {{schema}}\n  \
         ON CONFLICT (version) DO UPDATE SET oldest_program = excluded.oldest_program;\n\
         DELETE FROM {{schema}} WHERE version < (SELECT max(version) FROM {{schema}});\n"
    )));
    sql
}

/// Creates or migrates the schema, as one transaction `within` a time; of several programs at once one does it.
pub(super) async fn migrate(
    names: &Names,
    program: StoreVersion,
    fit: impl Fn(Option<StoreVersion>) -> Result<StoreFit, ServerError>,
    within: Duration,
    link: &mut Link,
) -> Result<(), ServerError> {
    // The connection is dropped if this does not come to its end, and so is the transaction. The lock is the
    // transaction's, so that it fits poolers.
    link.run(AssertSqlSafe(format!(
        "BEGIN; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = 0; \
         SET LOCAL idle_in_transaction_session_timeout = 0",
        within.as_millis()
    )))
    .await?;
    link.run("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('lockcore'))").await?;
    let found = version(names, link).await?;
    let is_ours = found.is_some_and(|found| found.version == program.version);
    if fit(found)? == StoreFit::Migrate || is_ours && !missing(names, link).await?.is_empty() {
        link.run(AssertSqlSafe(sql(names, program))).await?;
    }
    link.run("COMMIT").await
}

/// Lists the tables, sequences and routines that are not there.
pub(super) async fn missing(names: &Names, link: &mut Link) -> Result<Vec<String>, ServerError> {
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let made = TEXTS.iter().flat_map(|text| text.split("\nCREATE ").skip(1)).filter_map(|made| {
        let (kind, rest) = made.split_once('{')?;
        let (name, _) = rest.split_once('}')?;
        let name = literal(&format!("{}{name}", names.prefix));
        let is_routine = kind.starts_with("OR REPLACE");
        (!kind.starts_with("INDEX")).then(|| format!("({name}, {is_routine})"))
    });
    let made: Vec<_> = made.collect();
    let (made, schema) = (made.join(", "), literal(&names.schema));
    let find = format!(
        "SELECT made.name FROM (VALUES {made}) made (name, is_routine) WHERE CASE WHEN is_routine \
         THEN NOT EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
           WHERE n.nspname = {schema}::pg_catalog.name AND p.proname = made.name::pg_catalog.name) \
         ELSE NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
           WHERE n.nspname = {schema}::pg_catalog.name AND c.relname = made.name::pg_catalog.name) END"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(find)).fetch_all(link.raw()).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// Reads the version of the schema; `None` if there is no schema.
pub(super) async fn version(names: &Names, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
    let table = names.quoted("schema").replace('\'', "''");
    let exists = format!("SELECT pg_catalog.to_regclass('{table}') IS NOT NULL");
    let row = sqlx::raw_sql(AssertSqlSafe(exists)).fetch_one(link.raw()).await.map_err(failed)?;
    if !row.try_get::<bool, _>(0).map_err(failed)? {
        return Ok(None);
    }
    let read = names.fill("SELECT max(version)::int8, max(oldest_program)::int8 FROM {schema}");
    let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_one(link.raw()).await.map_err(failed)?;
    let number = |column: usize| row.try_get::<Option<i64>, _>(column).map_err(failed);
    match (number(0)?, number(1)?) {
        (Some(version), Some(oldest_program)) => store_version("postgres", version, oldest_program).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_known() {
        let sql = schema_sql("s", "p_");
        let word =
            |(at, _): &(usize, &str)| sql[at + 1..].starts_with(|next: char| next.is_ascii_alphabetic());
        assert_eq!(sql.match_indices('{').find(word), None, "what is in braces stands for something");
        for head in PIECES.lines().filter_map(|line| line.strip_prefix("-- {")) {
            let (name, _) = head.split_once('}').expect("a name, and what it is");
            assert!(piece(name).is_some_and(|piece| !piece.is_empty()) || number(name).is_some(), "{name}");
            assert!(!sql.contains(&format!("p_{name}\"")), "{name} was taken for a table");
        }
    }

    #[test]
    fn functions_of_the_server_are_named_by_their_schema() {
        for (text, expected) in [
            ("abs(v_now - x)", "pg_catalog.abs(v_now - x)"),
            ("greatest(max(a), (b))", "greatest(pg_catalog.max(a), (b))"),
            (
                "FROM unnest(a) x, unnest(a, b) AS u (a, b)",
                "FROM pg_catalog.unnest(a) x, unnest(a, b) AS u (a, b)",
            ),
            ("{v1_enter}(pg_catalog.length(x), '(')", "{v1_enter}(pg_catalog.length(x), '(')"),
        ] {
            assert_eq!(qualified(text), expected);
        }
        let sql = schema_sql("s", "p_");
        for (at, _) in sql.match_indices("clock_timestamp(") {
            assert!(sql[..at].ends_with("pg_catalog."), "{}", &sql[at.saturating_sub(80)..at + 20]);
        }
    }

    #[test]
    fn names_are_quoted_whatever_they_are() {
        let names = Names::new("a\"b", "x'; DROP ");
        assert_eq!(
            names.fill("SELECT '{}' FROM {lock} {"),
            "SELECT '{}' FROM \"a\"\"b\".\"x'; DROP lock\" {"
        );
    }
}

//! All SQL text of this database.

use lockcore::backend::StoreVersion;

/// The version of the tables below; see [`schema`].
pub(super) const VERSION: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// Values of `claims.state`. Holders sort before waiters, because the table is read in this order.
pub(super) mod state {
    /// Was held until its context asked for another mode; comes back if that is undone.
    pub(in crate::sqlite) const REPLACED: i64 = -1;
    /// Held.
    pub(in crate::sqlite) const HELD: i64 = 0;
    /// Handed over to a waiter that has not confirmed it yet: held, for a short lease.
    pub(in crate::sqlite) const OFFERED: i64 = 1;
    /// Waiting, by a caller that already holds locks and so obeys no queue.
    pub(in crate::sqlite) const NESTED: i64 = 2;
    /// Waiting in the queue.
    pub(in crate::sqlite) const QUEUED: i64 = 3;
    // 4 is no claim: earlier programs note so that they watch an id. It excludes nothing, and is swept with its session.
}

/// The tables, for names that begin with `prefix`.
///
/// One table has both who holds and who waits, clustered by id: everything about an id is one seek away,
/// and taking or freeing it touches one page. `number` is a holder's fence or a waiter's ticket, both
/// drawn from `namespaces.fence`. The indexes are of waiters and offers only, so that taking and
/// freeing without contention keeps none. `sessions.beat` is a session's last heartbeat, `withdrawn` has the tombstones:
/// files of version 1 are in use, so that the names of tables and columns stay.
pub(super) fn schema(prefix: &str) -> String {
    format!(
        "\
CREATE TABLE IF NOT EXISTS {prefix}schema (
  version INTEGER NOT NULL,
  oldest_program INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {prefix}namespaces (
  ns INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  fence INTEGER NOT NULL DEFAULT 0,
  swept_boot INTEGER NOT NULL DEFAULT 0,
  swept_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS {prefix}sessions (
  session INTEGER PRIMARY KEY AUTOINCREMENT,
  ns INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  space TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start INTEGER NOT NULL,
  beat INTEGER NOT NULL,
  version TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {prefix}claims (
  ns INTEGER NOT NULL,
  id BLOB NOT NULL,
  state INTEGER NOT NULL,
  number INTEGER NOT NULL,
  context BLOB NOT NULL,
  attempt INTEGER NOT NULL,
  mode INTEGER NOT NULL,
  permits INTEGER NOT NULL,
  cap INTEGER NOT NULL,
  indexes BLOB NOT NULL,
  in_use INTEGER NOT NULL,
  owner TEXT NOT NULL,
  lease INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  renewed INTEGER NOT NULL,
  since INTEGER NOT NULL,
  session INTEGER NOT NULL,
  detached INTEGER NOT NULL,
  broken INTEGER NOT NULL DEFAULT 0,
  replaces INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, id, state, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {prefix}claims_by_attempt ON {prefix}claims (ns, context, attempt) WHERE state > 1;
CREATE INDEX IF NOT EXISTS {prefix}claims_by_session ON {prefix}claims (session, state) WHERE state > 0;
CREATE INDEX IF NOT EXISTS {prefix}claims_by_mode ON {prefix}claims (ns, id, state, mode, cap, number) WHERE state > 1;
CREATE TABLE IF NOT EXISTS {prefix}frozen (
  ns INTEGER NOT NULL,
  id BLOB NOT NULL,
  PRIMARY KEY (ns, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {prefix}withdrawn (
  ns INTEGER NOT NULL,
  context BLOB NOT NULL,
  attempt INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  until INTEGER NOT NULL,
  PRIMARY KEY (ns, context, attempt)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {prefix}breaks (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  ns INTEGER NOT NULL,
  id BLOB NOT NULL,
  fence INTEGER NOT NULL,
  context BLOB NOT NULL,
  breaker TEXT NOT NULL,
  at INTEGER NOT NULL,
  freed INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS {prefix}breaks_by_id ON {prefix}breaks (ns, id, number);
"
    )
}

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// The text of every statement, for one prefix. The connection keeps them prepared, by their text.
        #[derive(Debug)]
        pub(super) struct Statements {
            $($(#[$doc])* pub(super) $name: String,)*
        }

        impl Statements {
            /// The statements for tables whose names begin with `prefix`.
            pub(super) fn new(prefix: &str) -> Self {
                Statements { $($name: $text.replace("{p}", prefix),)* }
            }

            /// All of them, by name.
            #[cfg(test)]
            fn all(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($name), self.$name.as_str()),)*]
            }
        }
    };
}

statements! {
    begin = "BEGIN IMMEDIATE";
    begin_reading = "BEGIN";
    commit = "COMMIT";
    rollback = "ROLLBACK";

    // Schema, namespace and session.
    has_schema = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{p}schema')";
    schema_version = "SELECT max(version), max(oldest_program) FROM {p}schema";
    clear_version = "DELETE FROM {p}schema";
    write_version = "INSERT INTO {p}schema (version, oldest_program) VALUES (?1, ?2)";
    add_namespace = "INSERT INTO {p}namespaces (name) VALUES (?1) ON CONFLICT DO NOTHING";
    namespace = "SELECT ns FROM {p}namespaces WHERE name = ?1";
    add_session = "INSERT INTO {p}sessions (ns, boot, space, pid, start, beat, version)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    remove_session = "DELETE FROM {p}sessions WHERE session = ?1";
    session = "SELECT boot, space, pid, start, beat FROM {p}sessions WHERE session = ?1";
    sessions = "SELECT session, version FROM {p}sessions WHERE ns = ?1";
    heartbeat = "UPDATE {p}sessions SET beat = ?2 WHERE session = ?1";

    /// Selects what could be in the way of a request apart from its ids.
    gate = "SELECT EXISTS (SELECT 1 FROM {p}withdrawn WHERE ns = ?1 AND context = ?2 AND attempt = ?3),
        EXISTS (SELECT 1 FROM {p}frozen WHERE ns = ?1)";
    /// `rules::next_fence`, for fences and for tickets.
    next_number = "UPDATE {p}namespaces SET fence = max(fence + 1, ?2) WHERE ns = ?1 RETURNING fence";

    // Holders.
    /// Selects all claims of an id, holders first. It is read up to the first waiter.
    holders = "SELECT state, number, context, attempt, mode, permits, cap, indexes, owner, lease, boot, renewed,
        since, session, detached, broken, replaces FROM {p}claims WHERE ns = ?1 AND id = ?2 ORDER BY state, number";
    hold = "INSERT INTO {p}claims (ns, id, state, number, context, attempt, mode, permits, cap, indexes, in_use,
        owner, lease, boot, renewed, since, session, detached, replaces)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
    /// Keeps the lock of a context that asks again.
    keep = "UPDATE {p}claims SET state = 0, lease = ?5, renewed = ?6, session = ?7, detached = ?8, boot = ?9
        WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    replace = "UPDATE {p}claims SET state = -1 WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    replaced = "SELECT state, number, context, attempt, mode, permits, cap, indexes, owner, lease, boot, renewed,
        since, session, detached, broken, replaces FROM {p}claims
        WHERE ns = ?1 AND id = ?2 AND state = -1 AND number = ?3";
    restore = "UPDATE {p}claims SET state = 0 WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    rebase = "UPDATE {p}claims SET renewed = ?5, boot = ?6 WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    remove = "DELETE FROM {p}claims WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    /// The usual release: held, not over, and in place of nothing. Of one state: with `IN` it would cost twice as much.
    free = "DELETE FROM {p}claims WHERE ns = ?1 AND id = ?2 AND state = ?7 AND number = ?3 AND context = ?4
        AND boot = ?5 AND renewed <= ?6 AND renewed + lease > ?6 AND replaces = 0";
    /// The usual renewal: held, confirmed, not broken, not over, and not made shorter.
    extend = "UPDATE {p}claims SET lease = ?7, renewed = ?6
        WHERE ns = ?1 AND id = ?2 AND state = 0 AND number = ?3 AND context = ?4
        AND boot = ?5 AND renewed <= ?6 AND renewed + lease > ?6 AND renewed + lease <= ?6 + ?7 AND broken = 0";
    /// The usual confirmation of an offer. Apart from renewals, as it writes the row's key.
    confirm = "UPDATE {p}claims SET state = 0, lease = ?7, renewed = ?6
        WHERE ns = ?1 AND id = ?2 AND state = 1 AND number = ?3 AND context = ?4
        AND boot = ?5 AND renewed <= ?6 AND renewed + lease > ?6 AND renewed + lease <= ?6 + ?7 AND broken = 0";

    // Waiters.
    any_waiter = "SELECT EXISTS (SELECT 1 FROM {p}claims INDEXED BY {p}claims_by_attempt
        WHERE ns = ?1 AND state > 1)";
    wait = "INSERT INTO {p}claims (ns, id, state, number, context, attempt, mode, permits, cap, indexes, in_use,
        owner, lease, boot, renewed, since, session, detached)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, x'', 0, ?10, ?11, 0, 0, ?12, ?13, ?14)";
    place = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims INDEXED BY {p}claims_by_attempt
        WHERE ns = ?1 AND context = ?2 AND attempt = ?3 AND state > 1 LIMIT 1";
    /// The whole set of a waiter.
    wanted = "SELECT id, mode, permits, cap FROM {p}claims INDEXED BY {p}claims_by_attempt
        WHERE ns = ?1 AND context = ?2 AND attempt = ?3 AND state > 1 ORDER BY id";
    leave = "DELETE FROM {p}claims INDEXED BY {p}claims_by_attempt
        WHERE ns = ?1 AND context = ?2 AND attempt = ?3 AND state > 1";
    leave_session = "DELETE FROM {p}claims INDEXED BY {p}claims_by_session
        WHERE session = ?1 AND state > 1 AND state > 0 RETURNING id, number";
    move_place = "UPDATE {p}claims INDEXED BY {p}claims_by_attempt SET session = ?4, lease = ?5
        WHERE ns = ?1 AND context = ?2 AND attempt = ?3 AND state > 1 AND session <> ?4";
    /// The first earlier waiter that a claim may not pass: the opposite of `rules::passes`.
    blocker = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims
        WHERE ns = ?1 AND id = ?2 AND state IN (2, 3) AND number < ?3
        AND NOT (?4 = 0 AND mode = 0 OR ?4 = 1 AND mode = 1 AND cap < ?5) ORDER BY number LIMIT 1";
    count_blockers = "SELECT count(*) FROM {p}claims
        WHERE ns = ?1 AND id = ?2 AND state IN (2, 3) AND number < ?3
        AND NOT (?4 = 0 AND mode = 0 OR ?4 = 1 AND mode = 1 AND cap < ?5)";
    next_nested = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims WHERE ns = ?1 AND id = ?2 AND state = 2 AND number > ?3 ORDER BY number LIMIT 1";
    next_queued = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims WHERE ns = ?1 AND id = ?2 AND state = 3 AND number > ?3 ORDER BY number LIMIT 1";
    /// Behind a shared claim that has to wait: only shared ones may pass.
    next_shared = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims INDEXED BY {p}claims_by_mode
        WHERE ns = ?1 AND id = ?2 AND state = 3 AND state > 1 AND mode = 0 AND cap = 0 AND number > ?3
        ORDER BY number LIMIT 1";
    /// Behind slots that have to wait: only slots with a limit above `?4` may pass.
    next_slots = "SELECT state, number, context, attempt, mode, permits, cap, owner, lease, session, detached
        FROM {p}claims INDEXED BY {p}claims_by_mode
        WHERE ns = ?1 AND id = ?2 AND state = 3 AND state > 1 AND mode = 1 AND cap > ?4 AND number > ?3
        ORDER BY number LIMIT 1";
    offers = "SELECT context, attempt, id, number, mode, permits, cap, indexes, in_use, lease, boot, renewed, since
        FROM {p}claims INDEXED BY {p}claims_by_session
        WHERE session = ?1 AND state = 1 AND state > 0 ORDER BY context, attempt, id";

    count_places = "SELECT count(*) FROM {p}claims INDEXED BY {p}claims_by_session
        WHERE session = ?1 AND state IN (2, 3) AND state > 0";
    places = "SELECT DISTINCT context, attempt FROM {p}claims INDEXED BY {p}claims_by_session
        WHERE session = ?1 AND state IN (2, 3) AND state > 0";

    // Tombstones of withdrawn attempts.
    add_tombstone = "INSERT INTO {p}withdrawn (ns, context, attempt, boot, until) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT DO UPDATE SET boot = excluded.boot, until = excluded.until";

    // Administration.
    next_id = "SELECT min(id) FROM (
        SELECT * FROM (SELECT id FROM {p}claims WHERE ns = ?1 AND id > ?2 ORDER BY id LIMIT 1)
        UNION ALL SELECT * FROM (SELECT id FROM {p}frozen WHERE ns = ?1 AND id > ?2 ORDER BY id LIMIT 1))";
    waiters = "SELECT context, owner, mode, permits, cap, since, session FROM {p}claims
        WHERE ns = ?1 AND id = ?2 AND state IN (2, 3) ORDER BY number";
    is_frozen = "SELECT EXISTS (SELECT 1 FROM {p}frozen WHERE ns = ?1 AND id = ?2)";
    freeze = "INSERT INTO {p}frozen (ns, id) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    thaw = "DELETE FROM {p}frozen WHERE ns = ?1 AND id = ?2";
    mark_broken = "UPDATE {p}claims SET broken = 1 WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4";
    record_break = "INSERT INTO {p}breaks (ns, id, fence, context, breaker, at, freed)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    trim_breaks = "DELETE FROM {p}breaks WHERE ns = ?1 AND id = ?2 AND number NOT IN (
        SELECT number FROM {p}breaks WHERE ns = ?1 AND id = ?2 ORDER BY number DESC LIMIT ?3)";
    breaks = "SELECT context, fence, breaker, at, freed FROM {p}breaks WHERE ns = ?1 AND id = ?2 ORDER BY number";
    was_broken = "SELECT EXISTS (SELECT 1 FROM {p}breaks WHERE ns = ?1 AND id = ?2 AND fence = ?3)";
    forget_breaks = "DELETE FROM {p}breaks WHERE ns = ?1 AND at < ?2";
    of_context = "SELECT id, state, number, lease, boot, renewed, since FROM {p}claims WHERE ns = ?1 AND context = ?2";

    // Sweeping.
    swept = "SELECT swept_at FROM {p}namespaces WHERE ns = ?1";
    set_swept = "UPDATE {p}namespaces SET swept_boot = ?2, swept_at = ?3 WHERE ns = ?1";
    all_claims = "SELECT id, state, number, session, detached, lease, boot, renewed, since FROM {p}claims WHERE ns = ?1";
    remove_unchanged = "DELETE FROM {p}claims WHERE ns = ?1 AND id = ?2 AND state = ?3 AND number = ?4
        AND session = ?5 AND renewed = ?6";
    /// Those that have had their time, and those of an earlier boot, which none of this one is as far ahead as.
    stale_tombstones = "SELECT context, attempt FROM {p}withdrawn
        WHERE ns = ?1 AND (until <= ?3 OR boot <> ?2 AND until > ?5) LIMIT ?4";
    remove_tombstone = "DELETE FROM {p}withdrawn WHERE ns = ?1 AND context = ?2 AND attempt = ?3";
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn every_statement_is_valid_for_any_prefix() {
        let db = Connection::open_in_memory().expect("a database in memory");
        db.execute_batch(&schema("x_")).expect("the schema is valid");
        for (name, text) in Statements::new("x_").all() {
            db.prepare(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Nothing on the way of a lone acquire, release or hand-off may read a whole table or sort.
    #[test]
    fn no_statement_of_the_hot_paths_scans() {
        let db = Connection::open_in_memory().expect("a database in memory");
        db.execute_batch(&schema("")).expect("the schema is valid");
        let cold =
            ["all_claims", "of_context", "sessions", "stale_tombstones", "forget_breaks", "has_schema"];
        let setup = ["schema_version", "clear_version", "namespace"];
        for (name, text) in Statements::new("").all() {
            if cold.contains(&name) || setup.contains(&name) || !text.contains("WHERE") {
                continue;
            }
            let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {text}")).expect("valid");
            let details = plan.raw_query().mapped(|row| row.get::<_, String>(3));
            for detail in details {
                let detail = detail.expect("a plan");
                let whole = detail.starts_with("SCAN ")
                    && !detail.contains("CONSTANT ROW")
                    && !detail.contains("subquery");
                assert!(!whole, "{name}: {detail}");
            }
        }
    }
}

//! The schema: tables and routines, for any names and either server.

use std::borrow::Cow;

use lockcore::{StoreFit, StoreVersion};
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
/// quoted name of a table or routine, `{name as text}` for that as a literal, other words for one of the [`PIECES`].
const TEXTS: &[&str] = &[
    include_str!("schema/tables.sql"),
    include_str!("schema/handoff.sql"),
    include_str!("schema/acquire.sql"),
    include_str!("schema/withdraw.sql"),
    include_str!("schema/release.sql"),
    include_str!("schema/together.sql"),
    include_str!("schema/session.sql"),
    include_str!("schema/admin.sql"),
    include_str!("schema/sweep.sql"),
];

/// What is said more than once. They may stand in each other.
const PIECES: &[(&str, &str)] = &[
    // The set that a routine works on: position from 1, id, then mode, permits and limit, or the fence.
    // Many ids are put together by columns, `GROUP_CONCAT('["', j.id, ..)`, and many rows are changed by `INSERT .. SELECT ..
    // ON DUPLICATE KEY UPDATE`: for what a function makes of a long text, and for the keys of what a joined `UPDATE` is going to
    // change, MariaDB makes a file each time, which takes milliseconds.
    (
        "set",
        "JSON_TABLE(p_set, '$[*]' COLUMNS (n FOR ORDINALITY, id VARCHAR(2048) CHARACTER SET ascii PATH '$[0]', \
         a BIGINT PATH '$[1]', b BIGINT PATH '$[2]', c BIGINT PATH '$[3]')) j",
    ),
    // Rows of ids that are found by their keys: to think about the other indexes takes a tenth of a statement.
    ("row", "{ids} FORCE INDEX (PRIMARY)"),
    // The cursors of `v1_serve`.
    (
        "cursors",
        "JSON_TABLE(v_cursors, '$[*]' COLUMNS (n FOR ORDINALITY, id VARCHAR(2048) CHARACTER SET ascii PATH '$[0]', \
         line INT PATH '$[1]', after BIGINT PATH '$[2]', mode INT PATH '$[3]', above BIGINT PATH '$[4]')) c",
    ),
    // The places of an attempt, by the index: the optimizer would lock its way through a whole namespace.
    ("places", "{claims} w FORCE INDEX (by_attempt)"),
    ("of attempt p", "w.attempt = p_attempt AND w.context = p_context AND w.ns = p_ns AND w.state >= 2"),
    ("of attempt v", "w.attempt = v_attempt AND w.context = v_context AND w.ns = p_ns AND w.state >= 2"),
    // What a release names, if it is held.
    (
        "held by p",
        "ns = p_ns AND id = p_id AND state = 0 AND number = p_fence AND context = p_context AND until > v_now \
         AND until - lease <= v_now AND replaces = 0",
    ),
    // Who holds `i`, if that is not over, as part of `reply::Against`.
    (
        "holder of i",
        "IF(i.until > p_now, CONCAT('[[\"', HEX(i.context), '\",\"', HEX(i.owner), '\",2,0,0,', i.fence, ',', \
         i.until - p_now, ']]'), NULL)",
    ),
    // To be the first who waits for what the row's holder alone has to do with; the row is locked.
    (
        "wait in row",
        "UPDATE {row} SET extra = 2, next_context = p_context, next_attempt = p_attempt, next_owner = p_owner, \
         next_lease = p_lease, next_ticket = p_now, next_session = p_session WHERE ns = p_ns AND id = p_id AND extra = 0 \
         AND until > p_now AND until - lease <= p_now AND context <> p_context",
    ),
    (
        "queued",
        "CONCAT('{\"q\":1,\"now\":', p_now, ',\"end\":', v_end, ',\"c\":[{\"p\":0,\"h\":', v_holder, \
         ',\"n\":1,\"u\":1}]}')",
    ),
    // The session that begins to wait gave a sign of life just now; or does so.
    (
        "fresh",
        "EXISTS (SELECT 1 FROM {sessions} WHERE session = p_session AND beat BETWEEN p_now - 1000000 AND p_now)",
    ),
    (
        "be fresh",
        "INSERT INTO {sessions} (session, ns, beat) VALUES (p_session, p_ns, p_now) ON DUPLICATE KEY UPDATE beat = p_now",
    ),
    // The holder frees the row's id, and nobody else has to do with it.
    (
        "free in row",
        "UPDATE {row} SET until = 0, session = 0 WHERE ns = p_ns AND id = p_id AND context = p_context \
         AND fence = p_fence AND extra = 0 AND until > {clock}",
    ),
    // It does, and whoever waits in the row gets it: `LAST_INSERT_ID` is the session that is to be told. No `EXISTS`, which
    // MySQL turns into a join, whose assignments it makes in any order.
    (
        "hand over in row",
        "UPDATE {row} SET fence = GREATEST(fence + 1, {clock}), context = next_context, attempt = next_attempt, \
         owner = next_owner, lease = LEAST(next_lease, 2000000), since = {clock}, until = since + lease, \
         session = LAST_INSERT_ID(next_session), next_session = 0, extra = 0 WHERE ns = p_ns AND id = p_id \
         AND context = p_context AND fence = p_fence AND extra = 2 AND until > {clock} AND until - lease <= {clock} \
         AND (SELECT s.beat FROM {sessions} s WHERE s.session = next_session) \
         BETWEEN {clock} - 3000000 AND {clock} + 3000000",
    ),
    // The mark of the attempt, if it was withdrawn. What is read by `IF EXISTS` or `SET` is locked; `SELECT ... INTO` and
    // what an `UPDATE` or `INSERT` reads are not.
    ("mark", "SELECT 1 FROM {marks} m WHERE m.ns = p_ns AND m.context = p_context AND m.attempt = p_attempt"),
    // Microseconds since 1970, whatever the session's time zone.
    ("clock", "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"),
    // The fence that the caller proposed is at least the clock, as all are, and not far ahead of it.
    ("fence is due", "p_fence BETWEEN {clock} AND {clock} + {ahead}"),
    ("ahead", "10000"),
    // All or nothing: with a statement that found each of its ids, that is it; unless another set was taken under this fence.
    (
        "taken if all",
        "IF ROW_COUNT() = p_n THEN {be a set} p_fence, fence); IF ROW_COUNT() = 1 THEN COMMIT; LEAVE body; END IF; END IF; ROLLBACK",
    ),
    (
        "be a set",
        "INSERT IGNORE INTO {sets} (ns, ids, context, attempt, taker, owner, lease, until, since, fence, number) VALUES \
         (p_ns, p_n, p_context, p_attempt, p_attempt, p_owner, p_lease, {clock} + p_lease, {clock},",
    ),
    // It has to be tried again if another set was taken under this fence.
    (
        "be this set",
        "{be a set} v_fence, fence); IF ROW_COUNT() = 0 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, \
         MESSAGE_TEXT = 'two sets under one fence'; END IF",
    ),
    // Rows that are there stay as they are, and are locked; then `LAST_INSERT_ID` is 1.
    ("unless there", "ON DUPLICATE KEY UPDATE fence = IF(LAST_INSERT_ID(1) = 1, {ids}.fence, 0)"),
    // The set that `i` was taken with. A fence alone may be had again by a set that comes when this one is gone.
    ("of set g", "g.ns = i.ns AND g.fence = i.fence AND g.attempt = i.attempt"),
    // There is none any more. Read with a lock: a set that was taken after the statement began is not seen otherwise, but
    // its rows are. One whose lease is over is still there, and has to be parted before anybody takes over: a renewal may
    // have begun in time, and come to its row only then.
    ("set of i is gone", "(SELECT g.fence FROM {sets} g WHERE {of set g} LOCK IN SHARE MODE) IS NULL"),
    // All that was taken together, if nobody else has to do with any of it.
    (
        "whole set of p",
        "ns = p_ns AND number = p_fence AND context = p_context AND ids = p_n AND parted = 0 AND until > {clock} \
         AND until - lease <= {clock}",
    ),
    // That of a kept set is the last one of all its ids.
    ("fence as of q", "GREATEST({ids}.fence, IFNULL(q.number, 0))"),
    // What the context holds of a set, in the row of the id and elsewhere.
    (
        "own row i",
        "i.ns = p_ns AND i.id = UNHEX(j.id) AND i.context = p_context AND i.fence = j.a AND i.until > v_now",
    ),
    (
        "own claim o",
        "o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0 AND o.number = j.a AND o.context = p_context \
         AND o.until > v_now AND o.broken = 0",
    ),
    // Its lease is over, or it was freed and parted.
    ("set is over", "(g.until <= v_now AND (g.until > 0 OR g.parted = 1))"),
    // The lease is over of who holds `i` in its row, or as of `g`, if that is there.
    (
        "row is over",
        "(i.extra = 0 AND i.until > 0 AND i.until <= v_now OR i.extra = 3 AND IFNULL({set is over}, 1))",
    ),
    // What is between two ids in `p_ids`: in hexadecimal, so that with a bit before and behind it is a list of literals. If
    // somebody made it up, it holds something else that is no digit.
    ("between ids", "''',x'''"),
    // These ids as a set, wanted exclusively; or held under one fence.
    ("p_ids wanted", "CONCAT('[[\"', REPLACE(p_ids, {between ids}, '\",2,0,0],[\"'), '\",2,0,0]]')"),
    (
        "p_ids held",
        "CONCAT('[[\"', REPLACE(p_ids, {between ids}, CONCAT('\",', p_fence, '],[\"')), '\",', p_fence, ']]')",
    ),
    ("are ids", "UNHEX(REPLACE(p_ids, {between ids}, '')) IS NOT NULL"),
    // The first of the words, and the others.
    ("word", "SUBSTRING_INDEX(p_words, ' ', 1)"),
    ("behind", "SUBSTRING(p_words, LOCATE(' ', p_words) + 1)"),
    // Later than every time, and more than all permits.
    ("never", "9000000000000000000"),
    ("hour", "3600000000"),
    // How long a sign of life counts.
    ("alive s", "s.beat BETWEEN v_now - 3000000 AND v_now + 3000000"),
    ("alive s p_now", "s.beat BETWEEN p_now - 3000000 AND p_now + 3000000"),
    // Nobody holds the row's id, waits for it or froze it, by the time taken before it was locked.
    ("free", "{ids}.extra = 0 AND {ids}.until <= v_now AND {ids}.fence < v_now"),
    // `rules::again`: holding `o` is as much as is wanted.
    ("keeps o", "(o.mode >= j.a AND NOT (o.mode = 1 AND j.a = 1 AND o.permits <> j.b))"),
    // `rules::passes`: a claim may pass the earlier waiter `e`.
    ("j passes e", "(e.mode = 0 AND j.a = 0 OR e.mode = 1 AND j.a = 1 AND e.cap < j.c)"),
    ("claim passes e", "(e.mode = 0 AND v_mode = 0 OR e.mode = 1 AND v_mode = 1 AND e.cap < v_cap)"),
    // Of what a session waits for: where a lease is over, and where somebody waits who gives no sign of life, if nobody holds
    // that exclusively.
    (
        "ended",
        "FROM {claims} w FORCE INDEX (by_session) STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id \
         AND h.state = 0 AND h.until <= v_now WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2",
    ),
    (
        "ended in row",
        "FROM {ids} w FORCE INDEX (by_next) WHERE w.next_session = p_session AND w.ns = p_ns AND w.until <= v_now",
    ),
    (
        "silent",
        "FROM {sessions} s STRAIGHT_JOIN {claims} e FORCE INDEX (by_session) ON e.session = s.session AND e.ns = p_ns \
         AND e.state >= 2 STRAIGHT_JOIN {claims} w ON w.ns = e.ns AND w.id = e.id AND w.state IN (2, 3) \
         AND w.session = p_session WHERE s.ns = p_ns AND NOT ({alive s}) AND NOT EXISTS (SELECT 1 FROM {claims} h \
         WHERE h.ns = e.ns AND h.id = e.id AND h.state = 0 AND h.mode = 2)",
    ),
    // What is held, as `reply::Given`.
    (
        "given",
        "CONCAT('[', o.mode, ',', o.permits, ',', o.cap, ',', o.number, ',', (SELECT IF(SUM(h.permits) > 0, \
         SUM(h.permits), COUNT(*)) FROM {claims} h WHERE h.ns = o.ns AND h.id = o.id AND h.state = 0), ',', \
         IF(o.indexes = '', '[]', o.indexes), ']')",
    ),
    // What is handed over of one id, as `reply::Handed`, and its mark: an attempt is told of something at a time but once.
    (
        "offer",
        "CONCAT('{\"c\":\"', HEX(o.context), '\",\"a\":', o.attempt, ',\"at\":', o.since, ',\"lasts\":', o.lease, \
         ',\"i\":\"', HEX(o.id), '\",\"g\":[', {given}, ']}')",
    ),
    ("mark of o", "CONCAT(o.attempt, ':', IF(o.told = 1, o.since, o.until))"),
    // The same of what stands in the row.
    (
        "offer in row",
        "CONCAT('{\"c\":\"', HEX(i.context), '\",\"a\":', i.attempt, ',\"at\":', i.since, ',\"lasts\":', i.lease, \
         ',\"i\":\"', HEX(i.id), '\",\"g\":[[2,0,0,', i.fence, ',1,[]]]}')",
    ),
    ("mark of i", "CONCAT(i.attempt, ':', i.since)"),
    (
        "offered in row",
        "FROM {ids} i FORCE INDEX (by_session) WHERE i.session = p_session AND i.ns = p_ns AND i.until > v_now",
    ),
    (
        "from given",
        "FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0 \
         AND o.context = p_context",
    ),
    // Who waits in the row gives signs of life.
    ("next is alive", "EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = i.next_session AND {alive s})"),
    // Somebody holds, waits for or froze `i`.
    (
        "shown",
        "(i.until > v_now OR i.extra = 3 AND EXISTS (SELECT 1 FROM {sets} g WHERE {of set g} AND g.until > v_now) OR i.extra = 2 AND {next is alive} OR i.extra = 1 AND (i.frozen = 1 OR EXISTS (\
         SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0 AND h.until > v_now) OR EXISTS (SELECT 1 FROM {claims} w \
         JOIN {sessions} s ON s.session = w.session AND {alive s} WHERE w.ns = p_ns AND w.id = i.id \
         AND w.state IN (2, 3))))",
    ),
    // All of it, as `reply::Inspected`.
    (
        "inspected",
        "CONCAT('{\"i\":\"', HEX(i.id), '\",\"h\":[', IF(i.until > 0, IF(i.until > v_now, CONCAT('[\"', \
         HEX(i.context), '\",\"', HEX(i.owner), '\",2,0,0,', i.fence, ',', i.since, ',', i.lease, ',', \
         LEAST(i.until - v_now, i.lease), ',0,[]]'), ''), IF(i.extra = 3, IFNULL((SELECT CONCAT('[\"', HEX(g.context), \
         '\",\"', HEX(g.owner), '\",2,0,0,', g.number, ',', g.since, ',', g.lease, ',', LEAST(g.until - v_now, g.lease), \
         ',0,[]]') FROM {sets} g WHERE {of set g} AND g.until > v_now), ''), \
         IFNULL((SELECT GROUP_CONCAT('[\"', HEX(h.context), \
         '\",\"', HEX(h.owner), '\",', h.mode, ',', h.permits, ',', h.cap, ',', h.number, ',', h.since, ',', h.lease, \
         ',', LEAST(h.until - v_now, h.lease), ',', h.broken, ',', IF(h.indexes = '', '[]', h.indexes), ']' \
         ORDER BY h.number) FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0 AND h.until > v_now), \
         ''))), '],\"w\":[', IF(i.extra = 2, IF({next is alive}, CONCAT('[\"', HEX(i.next_context), '\",\"', \
         HEX(i.next_owner), '\",2,0,0,', i.next_ticket, ']'), ''), IFNULL((SELECT GROUP_CONCAT('[\"', \
         HEX(w.context), '\",\"', HEX(w.owner), '\",', w.mode, ',', w.permits, ',', w.cap, ',', w.since, ']' ORDER BY w.number) FROM {claims} w \
         JOIN {sessions} s ON s.session = w.session AND {alive s} WHERE w.ns = p_ns AND w.id = i.id \
         AND w.state IN (2, 3)), '')), '],\"f\":', i.frozen, ',\"b\":[', IFNULL((SELECT GROUP_CONCAT('[\"', \
         HEX(b.context), '\",', b.fence, ',\"', HEX(b.breaker), '\",', b.at, ',', b.freed, ']' ORDER BY b.number) \
         FROM {breaks} b WHERE b.ns = p_ns AND b.id = i.id), ''), ']}')",
    ),
];

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
        let condition = "EXISTS (SELECT 1 FROM {namespaces} n STRAIGHT_JOIN {ids} i ON i.ns = n.ns \
             WHERE n.name = ? AND i.id = ? AND ? = IF(i.extra = 3, (\
             SELECT g.number FROM {sets} g WHERE {of set g} AND g.until > {clock} LOCK IN SHARE MODE), \
             IF(i.until > {clock} OR EXISTS (\
             SELECT 1 FROM {claims} c WHERE c.ns = i.ns AND c.id = i.id AND c.state = 0 AND c.number = i.fence \
             AND c.mode = 2 AND c.broken = 0 AND c.until > {clock} LOCK IN SHARE MODE), i.fence, NULL)) \
             LOCK IN SHARE MODE)";
        // Nothing of it depends on the flavor.
        self.fill(condition, Flavor::MySql)
    }

    /// The text with all pieces and names in it.
    fn fill(&self, text: &str, flavor: Flavor) -> String {
        template::fill(text, &|word| {
            is_word(word).then(|| match (piece(word, flavor), word.strip_suffix(" as text")) {
                (Some(piece), _) => Filling::Piece(piece),
                (None, Some(table)) => Filling::Name(literal(&self.quoted(table))),
                (None, None) => Filling::Name(self.quoted(word)),
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

/// How many ids have parameters of their own; more come as a list of which a statement is made. Counted on MariaDB:
/// to make a statement takes as many instructions as 24 parameters, be they used or not; and most sets are small.
pub(super) const FEW: usize = 16;

/// What the routines are compiled with, whatever the server's default is.
const SQL_MODE: &str = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION";

fn piece(word: &str, flavor: Flavor) -> Option<Cow<'static, str>> {
    let each_of_few =
        |of_one: fn(usize) -> String| (1..=FEW).map(of_one).collect::<Vec<_>>().join(", ").into();
    Some(match word {
        "for update of i" => flavor.for_update_of_i().into(),
        "asked once" => flavor.asked_once()[0].into(),
        "asked" => flavor.asked_once()[1].into(),
        "execute" => flavor.execute().into(),
        "few" => each_of_few(|n| format!("p_{n}")),
        "few parameters" => each_of_few(|n| format!("p_{n} VARBINARY(1024)")),
        "few in hex" => each_of_few(|n| format!("HEX(p_{n})")),
        _ => PIECES.iter().find(|(name, _)| *name == word)?.1.into(),
    })
}

fn is_word(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b' ';
    !text.is_empty() && text.bytes().all(word)
}

/// The routine that a statement makes.
fn routine(statement: &str) -> Option<&str> {
    let (_, behind) = statement.split_once("CREATE PROCEDURE {")?;
    behind.split_once('}').map(|(name, _)| name)
}

/// The whole schema as SQL for the server's own command line client, for those who run their own migrations. It creates
/// what is missing and replaces the routines, so that it can be run again, but not after a newer one, nor while programs use
/// the locks: a routine is missing for a moment. A user of the locks needs `EXECUTE` on the
/// routines, and nothing else; whoever runs this has to keep an account, for the routines run with its rights.
pub fn schema_sql(table_prefix: &str, flavor: Flavor) -> String {
    let mut sql = String::from("DELIMITER //\n");
    for statement in Names::new(table_prefix).statements(flavor, VERSION, |_| false) {
        sql.push_str(&statement);
        sql.push_str("\n//\n");
    }
    sql.push_str("DELIMITER ;\n");
    sql
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
        return Ok(());
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
    let mut kept = Vec::new();
    if complete {
        let all = "SELECT CAST(ROUTINE_NAME AS CHAR) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()";
        for row in sqlx::raw_sql(all).fetch_all(link.raw()).await.map_err(failed)? {
            let name: &str = row.try_get_unchecked(0).map_err(failed)?;
            kept.push(format!("`{}`", name.replace('`', "``")));
        }
    }
    for statement in names.statements(flavor, program, |name| kept.iter().any(|kept| kept == name)) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(link.raw()).await.map_err(failed)?;
    }
    Ok(())
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
            for (name, _) in PIECES {
                assert!(!sql.contains(&format!("p_{name}`")), "{name} was taken for a table");
            }
            assert!(!sql.contains("{set"), "a piece is not filled in");
            assert_eq!(sql.contains("UPDATE OF i"), flavor == Flavor::MySql);
        }
    }
}

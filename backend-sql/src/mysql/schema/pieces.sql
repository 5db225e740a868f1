-- Fragments of SQL that occur more than once; the template puts them in place of `{name}`. A piece goes from the line with its
-- name up to an empty line. Names in capitals are values of columns and flags.

-- {IN_ROW}: extra: the row of the id says all of it: its holder, if `until` > 0.
0

-- {IN_CLAIMS}: extra: holders and waiters are rows of `claims`; `until` is 0.
1

-- {ONE_WAITS}: extra: as IN_ROW; and one waiter, for this id alone and exclusively, is in next_...
2

-- {HELD}: claims.state: a holder.
0

-- {REPLACED}: claims.state: was held until its context asked for another mode; comes back if that is withdrawn.
1

-- {WAITS_NESTED}: claims.state: waits, and obeys holders only.
2

-- {WAITS}: claims.state: waits in the queue.
3

-- {WATCHED}: claims.state: what programs of before left that were notified of changes, which none is now.
4

-- {WAITING}: claims.state: both kinds of waiters.
2, 3

-- {SHARED}: mode.
0

-- {SLOTS}: mode.
1

-- {EXCLUSIVE}: mode.
2

-- {OFFERED}: claims.notice: the session is to be notified that the id was handed to its waiter.
1

-- {TURN}: claims.notice: the session is to be notified that its waiter should ask again.
2

-- {QUEUE}: flag of an acquire: wait in the queue if it cannot be granted.
1

-- {NESTED}: flag of an acquire: its context holds other locks, so it does not obey the queue.
2

-- {DONE}: in place of a state in `v_cursors` of `v1_serve`.
9

-- {most handed over}: in one transaction; the next waiter asks by itself.
256

-- {never}: later than every time, and more than all permits.
9000000000000000000

-- {hour}: in microseconds.
3600000000

-- {clock}: microseconds since 1970, whatever the session's time zone. The same in all of a statement.
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))

-- {begin}: every transaction. READ COMMITTED: each statement sees what was committed before it began.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION

-- {undo on error}: rolls back, so that an error means that nothing was done.
DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END

-- {long lists}: GROUP_CONCAT truncates at 1024 bytes by default.
IF @@session.group_concat_max_len < 16777216 THEN SET SESSION group_concat_max_len = 16777216; END IF

-- {set}: the set that a routine works on, `[["id in hexadecimal", a, b, c], ..]`, in the order of the ids: n is the position
-- from 1; a, b, c are mode, permits and limit, or a is the fence. MariaDB makes a temporary file for each function of a long text,
-- and for each joined UPDATE: so lists are built by GROUP_CONCAT, and rows changed by INSERT .. ON DUPLICATE KEY UPDATE.
JSON_TABLE(p_set, '$[*]' COLUMNS (n FOR ORDINALITY, id VARCHAR(2048) CHARACTER SET ascii PATH '$[0]',
    a BIGINT PATH '$[1]', b BIGINT PATH '$[2]', c BIGINT PATH '$[3]')) j

-- {ids of set}: their rows.
{set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id)

-- {lock rows}: in the order of the ids.
SELECT COUNT(*) INTO v_rows FROM {ids of set} {for update of i}

-- {lock or make rows}: the same, also of ids that have no row yet.
INSERT INTO {ids} (ns, id, born) SELECT p_ns, UNHEX(j.id), {clock} FROM {set} ON DUPLICATE KEY UPDATE fence = {ids}.fence

-- {holders of set}: all of them.
{set} STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state = {HELD}

-- {own of set}: what the context holds of it, as the left side of a join.
LEFT JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD} AND o.context = p_context

-- {row}: rows of ids found by their keys; considering the other indexes takes a tenth of a statement.
{ids} FORCE INDEX (PRIMARY)

-- {cursors}: of `v1_serve`.
JSON_TABLE(v_cursors, '$[*]' COLUMNS (n FOR ORDINALITY, id VARCHAR(2048) CHARACTER SET ascii PATH '$[0]',
    line INT PATH '$[1]', after BIGINT PATH '$[2]', mode INT PATH '$[3]', above BIGINT PATH '$[4]')) c

-- {places}: the waiting rows of the attempt, by the index: the optimizer might lock a whole namespace.
{claims} w FORCE INDEX (by_attempt)

-- {own places}: the condition for that.
w.attempt = p_attempt AND w.context = p_context AND w.ns = p_ns AND w.state IN ({WAITING})

-- {free}: the row says that no one holds the id or waits for it, and no withdrawn attempt may still arrive.
extra = {IN_ROW} AND until <= {clock} AND tombstone <= {clock} AND session = 0

-- {own row}: the context holds the row's id under this fence.
context = p_context AND fence = p_fence AND until > {clock}

-- {free in row}: releases an id that no one else waits for.
UPDATE {row} SET until = 0, session = 0 WHERE ns = p_ns AND id = p_id AND {own row} AND extra = {IN_ROW}

-- {hand over in row}: releases an id to the waiter in the row, if its session is alive; LAST_INSERT_ID() is that session. No EXISTS,
-- which MySQL turns into a join, whose assignments it makes in any order.
UPDATE {row} SET fence = GREATEST(fence + 1, {clock}), context = next_context, attempt = next_attempt,
        owner = next_owner, lease = LEAST(next_lease, {offer}), since = {clock}, until = since + lease,
        session = LAST_INSERT_ID(next_session), next_session = 0, extra = {IN_ROW}
      WHERE ns = p_ns AND id = p_id AND {own row} AND extra = {ONE_WAITS} AND until - lease <= {clock}
        AND (SELECT s.heartbeat FROM {sessions} s WHERE s.session = next_session)
          BETWEEN {clock} - {heartbeat lasts} AND {clock} + {heartbeat lasts}

-- {held by p}: what a release names, if it is held in `claims`.
ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence AND context = p_context AND until > now_us
        AND until - lease <= now_us AND replaces = 0

-- {held in row}: the context holds the id of `j` by its row, under the fence `j.a`. For INSERT .. SELECT .. ON DUPLICATE KEY UPDATE.
({ids}.context = p_context AND {ids}.fence = j.a AND {ids}.until > {clock})

-- {all changed}: by INSERT .. ON DUPLICATE KEY UPDATE, which counts a changed row twice, and all others at most once.
ROW_COUNT() = 2 * p_n

-- {renew claims}
INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since)
      SELECT p_ns, UNHEX(j.id), {HELD}, j.a, '', 0, 0, 0, 0, '', '', 0, 0, 0 FROM {set} {own of set} AND o.number = j.a
        WHERE o.until > now_us AND NOT o.broken
      ON DUPLICATE KEY UPDATE lease = GREATEST(p_lease, LEAST({claims}.until - now_us, {claims}.lease)),
        until = now_us + {claims}.lease, notice = 0, session = 0

-- {lost j}: what a grant lost, as `[position, 0 expired / 1 broken / 2 vanished]`.
CONCAT('[', j.n - 1, ',', IF(o.until <= now_us, 0, IF(o.broken OR EXISTS (SELECT 1 FROM {breaks} b WHERE b.ns = p_ns
        AND b.id = UNHEX(j.id) AND b.fence = j.a), 1, 2)), ']')

-- {own tombstone}: of the attempt, if it was withdrawn. What IF EXISTS or SET reads is locked; SELECT .. INTO reads without a lock.
SELECT 1 FROM {tombstones} t WHERE t.ns = p_ns AND t.context = p_context AND t.attempt = p_attempt

-- {LETS IN}: what `v1_weigh` says of a set that can be granted, as a condition.
NOT REGEXP '[HFQBUV]'

-- {alive s}: the session sent a heartbeat lately.
s.heartbeat BETWEEN now_us - {heartbeat lasts} AND now_us + {heartbeat lasts}

-- {silent w}: the session of the waiter `w` did not; behind `FROM {claims} w`.
LEFT JOIN {sessions} s ON s.session = w.session AND {alive s}
          WHERE w.ns = p_ns AND w.id = v_id AND w.state IN ({WAITING}) AND s.session IS NULL

-- {next is alive}: the session of the waiter in the row `i` did.
EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = i.next_session AND {alive s})

-- {keep alive}: a session that begins to wait sends a heartbeat, unless it did so lately: requests of one process would wait for
-- each other's commits.
SELECT EXISTS (SELECT 1 FROM {sessions} WHERE session = p_session AND heartbeat BETWEEN now_us - {heartbeat} AND now_us)
    INTO v_recent;
  IF NOT v_recent THEN
    INSERT INTO {sessions} (session, ns, heartbeat) VALUES (p_session, p_ns, now_us)
      ON DUPLICATE KEY UPDATE heartbeat = now_us;
  END IF

-- {wait in row}: become the only waiter for an id that another context holds; its row is locked.
UPDATE {row} SET extra = {ONE_WAITS}, next_context = p_context, next_attempt = p_attempt, next_owner = p_owner,
        next_lease = p_lease, next_ticket = now_us, next_session = p_session
      WHERE ns = p_ns AND id = p_id AND extra = {IN_ROW} AND until > now_us AND until - lease <= now_us
        AND context <> p_context

-- {next ticket}: behind all that wait for `i`.
1 + GREATEST(
        IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id AND c.state = {WAITS_NESTED}
          ORDER BY c.number DESC LIMIT 1), 0),
        IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id AND c.state = {WAITS}
          ORDER BY c.number DESC LIMIT 1), 0))

-- {queued}: the answer to a waiter for one id; v_holder is who holds it.
CONCAT('{"q":1,"now":', now_us, ',"end":', v_end, ',"c":[{"p":0,"h":', v_holder, ',"n":1,"u":1}]}')

-- {holder of i}: who holds it by its row, as part of `reply::Against`.
IF(i.until > now_us, CONCAT('[["', HEX(i.context), '","', HEX(i.owner), '",{EXCLUSIVE},0,0,', i.fence, ',',
        i.until - now_us, ']]'), NULL)

-- {keeps o}: `rules::again`: holding `o` is as much as is wanted.
(o.mode >= j.a AND NOT (o.mode = {SLOTS} AND j.a = {SLOTS} AND o.permits <> j.b))

-- {j passes e}: `rules::passes`: a claim may pass the earlier waiter `e`.
(e.mode = {SHARED} AND j.a = {SHARED} OR e.mode = {SLOTS} AND j.a = {SLOTS} AND e.cap < j.c)

-- {waiters before j}: that it may not pass and whose sessions are alive.
{claims} e STRAIGHT_JOIN {sessions} s ON s.session = e.session AND {alive s}
        WHERE e.ns = p_ns AND e.id = UNHEX(j.id) AND e.state IN ({WAITING}) AND e.number < p_ticket AND NOT {j passes e}

-- {given}: what is held, as `reply::Given`.
CONCAT('[', o.mode, ',', o.permits, ',', o.cap, ',', o.number, ',', (SELECT IF(SUM(h.permits) > 0, SUM(h.permits), COUNT(*))
        FROM {claims} h WHERE h.ns = o.ns AND h.id = o.id AND h.state = {HELD}), ',', IF(o.indexes = '', '[]', o.indexes), ']')

-- {offer of o}: what was handed over of one id, as `reply::Handed`.
CONCAT('{"c":"', HEX(o.context), '","a":', o.attempt, ',"at":', o.since, ',"lasts":', o.lease, ',"i":"', HEX(o.id),
          '","g":[', {given}, ']}')

-- {mark of o}: identifies a notice, so that it is sent only once.
CONCAT(o.attempt, ':', IF(o.notice = {OFFERED}, o.since, o.until))

-- {offer of i}: the same of what the row of an id says.
CONCAT('{"c":"', HEX(i.context), '","a":', i.attempt, ',"at":', i.since, ',"lasts":', i.lease, ',"i":"', HEX(i.id),
          '","g":[[{EXCLUSIVE},0,0,', i.fence, ',1,[]]]}')

-- {mark of i}
CONCAT(i.attempt, ':', i.since)

-- {offered in rows}: of the session.
FROM {ids} i FORCE INDEX (by_session) WHERE i.session = p_session AND i.ns = p_ns AND i.until > now_us

-- {noticed claims}: those of which the session is to be notified.
{claims} o FORCE INDEX (by_session) WHERE o.session = p_session AND o.notice IN ({OFFERED}, {TURN}) AND o.ns = p_ns

-- {ended}: ids that the session waits for, on which a lease ended.
FROM {claims} w FORCE INDEX (by_session) STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = {HELD}
        AND h.until <= now_us WHERE w.session = p_session AND w.ns = p_ns AND w.state IN ({WAITING})

-- {ended in rows}
FROM {ids} w FORCE INDEX (by_next) WHERE w.next_session = p_session AND w.ns = p_ns AND w.until <= now_us

-- {behind the silent}: ids that the session waits for behind a session without heartbeats, and that no one holds exclusively.
FROM {sessions} s STRAIGHT_JOIN {claims} e FORCE INDEX (by_session) ON e.session = s.session AND e.ns = p_ns
        AND e.state IN ({WAITING}) STRAIGHT_JOIN {claims} w ON w.ns = e.ns AND w.id = e.id AND w.state IN ({WAITING})
        AND w.session = p_session
      WHERE s.ns = p_ns AND NOT ({alive s}) AND NOT EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = e.ns AND h.id = e.id
        AND h.state = {HELD} AND h.mode = {EXCLUSIVE})

-- {over i}: the lease of the row's only holder is over.
(i.extra = {IN_ROW} AND i.until > 0 AND i.until <= now_us)

-- {unused i}: no one holds it, its fence may be forgotten, and no tombstone can be needed.
(i.extra = {IN_ROW} AND i.until = 0 AND i.fence < now_us - {hour} AND i.tombstone <= now_us)

-- {shown}: `i` is held, waited for or frozen.
(i.until > now_us OR i.extra = {ONE_WAITS} AND {next is alive} OR i.extra = {IN_CLAIMS} AND (i.frozen = 1
        OR EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD} AND h.until > now_us)
        OR EXISTS (SELECT 1 FROM {claims} w JOIN {sessions} s ON s.session = w.session AND {alive s}
          WHERE w.ns = p_ns AND w.id = i.id AND w.state IN ({WAITING}))))

-- {inspected}: all of `i`, as `reply::Inspected`.
CONCAT('{"i":"', HEX(i.id), '","h":[',
        IF(i.until > now_us, CONCAT('["', HEX(i.context), '","', HEX(i.owner), '",{EXCLUSIVE},0,0,', i.fence, ',', i.since, ',',
          i.lease, ',', LEAST(i.until - now_us, i.lease), ',0,[]]'), ''),
        IFNULL((SELECT GROUP_CONCAT('["', HEX(h.context), '","', HEX(h.owner), '",', h.mode, ',', h.permits, ',', h.cap, ',',
          h.number, ',', h.since, ',', h.lease, ',', LEAST(h.until - now_us, h.lease), ',', h.broken, ',',
          IF(h.indexes = '', '[]', h.indexes), ']' ORDER BY h.number) FROM {claims} h
          WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD} AND h.until > now_us), ''),
        '],"w":[',
        IF(i.extra = {ONE_WAITS} AND {next is alive}, CONCAT('["', HEX(i.next_context), '","', HEX(i.next_owner),
          '",{EXCLUSIVE},0,0,', i.next_ticket, ']'), ''),
        IFNULL((SELECT GROUP_CONCAT('["', HEX(w.context), '","', HEX(w.owner), '",', w.mode, ',', w.permits, ',', w.cap, ',',
          w.since, ']' ORDER BY w.number) FROM {claims} w JOIN {sessions} s ON s.session = w.session AND {alive s}
          WHERE w.ns = p_ns AND w.id = i.id AND w.state IN ({WAITING})), ''),
        '],"f":', i.frozen, ',"b":[',
        IFNULL((SELECT GROUP_CONCAT('["', HEX(b.context), '",', b.fence, ',"', HEX(b.breaker), '",', b.at, ',', b.freed, ']'
          ORDER BY b.number) FROM {breaks} b WHERE b.ns = p_ns AND b.id = i.id), ''),
        ']}')

-- {word}: the first of the words of a batch.
SUBSTRING_INDEX(p_words, ' ', 1)

-- {rest}: the others.
SUBSTRING(p_words, LOCATE(' ', p_words) + 1)

-- {fence check}: see `MysqlLockDao::fence_check`.
EXISTS (SELECT 1 FROM {namespaces} n STRAIGHT_JOIN {ids} i ON i.ns = n.ns WHERE n.name = ? AND i.id = ?
    AND i.fence = ? AND (i.until > {clock} OR EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = i.ns AND c.id = i.id
      AND c.state = {HELD} AND c.number = i.fence AND c.mode = {EXCLUSIVE} AND c.broken = 0 AND c.until > {clock}
      LOCK IN SHARE MODE)) LOCK IN SHARE MODE)

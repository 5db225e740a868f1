-- Parts of the routines that stand in several of them, and the numbers that they share. `{name}` in a text stands for what
-- is named here; a function instead would cost more than most of what it does. A piece goes from `-- {its name}: ` up to an
-- empty line, a number is `-- {ITS_NAME} = value: meaning`. {OFFER}, {HEARTBEAT_LASTS} and {TOMBSTONE_LASTS} come from
-- `lockcore::protocol`, in microseconds.

-- What `lock.busy` says of an id:
-- {HELD} = 1: held exclusively, by this row.
-- {HOLDERS} = 2: there are rows in `holder`.
-- {PLACES} = 4: there may be rows in `place` that wait.
-- {FROZEN} = 8: granted to no new context.
-- {TOMBSTONES} = 16: there are rows in `tombstone`.
-- {OFFERED} = 32: the exclusive holder has not confirmed its offer, and has a row in `place` with `handed`.
-- {BROKEN} = 64: the exclusive lock was broken.
-- {WAITER_IN_ROW} = 128: one waiter is in the columns next_.., and no other waits.
-- {OFFERED_IN_ROW} = 256: as OFFERED, of a waiter that was in the row, and has no place.
-- {WATCHED} = 512: left by programs of before that were notified of changes, which none is now; {v1_settle} clears it.
-- {EXCLUSIVE} = ({HELD} | {OFFERED} | {BROKEN} | {OFFERED_IN_ROW}): all that is said of the exclusive holder.
-- {UNCONFIRMED} = ({OFFERED} | {OFFERED_IN_ROW}): either offer.
-- {WAITERS} = ({PLACES} | {WAITER_IN_ROW}): there may be waiters.
-- {IN_USE} = ({HELD} | {HOLDERS} | {FROZEN}): whatever keeps others from the id, the queue aside.

-- Bits of p_flags, as `flag` in engine.rs:
-- {QUEUE} = 1: take a place in the queue.
-- {NESTED} = 2: the caller holds other locks, and obeys no queue.
-- {EXACTLY} = 2: a renewal cuts a longer lease short.
-- {KEEP} = 4: a withdrawal keeps what was granted.
-- {ASYNC} = 8: commit asynchronously.

-- {clock}: microseconds since 1970.
(date_part('epoch', clock_timestamp()) * 1000000)::int8

-- {be async}: what the transaction does may reach the disk after the answer.
v_set := set_config('synchronous_commit', 'off', true)

-- {by index}: plans a routine, and all that it calls, once and by the indexes. A plan that was made while a table was small
-- would otherwise read all of it until it is analyzed. Tied to the routine, because a session may be another client's next.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off

-- {by key}: as much of that as rows need that are found by their whole keys; each setting costs a hundredth of the usual case.
SET enable_seqscan = off

-- {set by index}: the same up to the end of the transaction, for a procedure that commits and can have no such clause.
set_config('plan_cache_mode', 'force_generic_plan', true) || set_config('enable_seqscan', 'off', true)
    || set_config('enable_bitmapscan', 'off', true) || set_config('jit', 'off', true)

-- {set by key}: likewise.
set_config('enable_seqscan', 'off', true)

-- {lock rows}: of p_ids, in their order; those that are missing are not made.
PERFORM FROM unnest(p_ids) WITH ORDINALITY AS u (id, at)
    CROSS JOIN LATERAL (SELECT FROM {lock} k WHERE k.ns = p_ns AND k.id = u.id FOR UPDATE) AS l

-- {holder in row}: the exclusive holder, as the beginning of an entry of `reply::Against`.
format('"%s","%s",2,0,0,%s', encode(context, 'hex'), encode(owner, 'hex'), fence)

-- {send heartbeat}: seldom, so that the requests of one program do not wait for each other's commits.
INSERT INTO {session} AS s (session, heartbeat) VALUES (p_session, v_now)
      ON CONFLICT (session) DO UPDATE SET heartbeat = excluded.heartbeat

-- {is fresh}: the heartbeat of p_session need not be sent for a while.
EXISTS (SELECT FROM {session} s WHERE s.session = p_session AND abs(v_now - s.heartbeat) < {HEARTBEAT_LASTS} / 2)

-- {waited for}: the ids for which p_session waits.
SELECT p.id FROM {place} p WHERE p.session = p_session AND NOT p.handed AND p.ns = p_ns UNION SELECT unnest(p_ids)

-- {offer of caller}: a place of p_context with an offer that is not confirmed; what follows it says for which ids. Found by its
-- context: `||` keeps the planner from the index by ids, in which an id has an entry for each of its waiters.
handed AND context = p_context AND ns || '' = p_ns AND id || ''

-- {held by caller}: by the row, as far as its other columns say.
id = p_id AND ns = p_ns AND fence = p_fence AND context = p_context AND replaces = 0 AND expires > v_now

-- {held by another}: likewise, and so in the caller's way.
id = p_id AND ns = p_ns AND context <> p_context AND expires > v_now AND expires - lease <= v_now

-- {variables of release}: of the next three.
v_busy int4;
  v_channel text;
  v_offer text;
  v_set text := {set by key}

-- {free in row}: the usual release of one id: held exclusively, without waiters.
UPDATE {lock} SET busy = 0 WHERE busy & ~{OFFERED_IN_ROW} = {HELD} AND {held by caller}

-- {hand over in row}: releases to the waiter in the row, if its session is alive. Then `v_offer` is to be sent to `v_channel`;
-- else that is NULL, and nothing was done. The clock is read again because {free in row} may have waited for the row.
v_now := {clock};
  UPDATE {lock} l SET fence = greatest(fence + 1, v_now), since = v_now, lease = least(next_lease, {OFFER}),
    expires = v_now + least(next_lease, {OFFER}), attempt = next_attempt,
    busy = busy & {TOMBSTONES} | {HELD} | {OFFERED_IN_ROW}, context = next_context, owner = next_owner,
    lapses = CASE WHEN lapses >= v_now + {OFFER} THEN lapses ELSE v_now + 8 * {OFFER} END
    WHERE busy & ~({OFFERED_IN_ROW} | {TOMBSTONES}) = {HELD} | {WAITER_IN_ROW} AND {held by caller}
      AND EXISTS (SELECT FROM {session} s
        WHERE s.session = l.next_session AND abs(v_now - s.heartbeat) <= {HEARTBEAT_LASTS})
    RETURNING 'lockcore_' || next_session, {offer in row} INTO v_channel, v_offer

-- {offer in row}: the notification for the waiter that became the holder.
format('{"o":[{"c":"%s","a":%s,"at":%s,"lasts":%s,"g":[[2,0,0,%s,1,[]]]}]}', encode(l.context, 'hex'), l.attempt, l.since,
      l.lease, l.fence)

-- {hand over to place}: the same where there are places, an unconfirmed offer, or tombstones: if the head of the queue wants
-- this id alone and exclusively, and its session is alive, or if the queue is empty; then `v_channel` is empty. If it is NULL
-- nothing was freed. Without it a hand-over takes 1.8 times as long among 64 waiters, and 2.5 times among 10 000.
v_channel := NULL;
  -- Locks the row, for the next statements.
  UPDATE {lock} SET busy = busy WHERE busy & ~({PLACES} | {TOMBSTONES} | {OFFERED}) = {HELD} AND {held by caller}
    RETURNING busy INTO v_busy;
  IF FOUND AND current_setting('transaction_isolation') = 'read committed' THEN
    IF v_busy & {OFFERED} <> 0 THEN
      -- A waiter that releases its offer before it confirmed it is not notified any more.
      DELETE FROM {place} WHERE {offer of caller} = p_id;
    END IF;
    IF v_busy & {PLACES} <> 0 THEN
      -- To lock the row may have taken time.
      v_now := {clock};
      WITH w AS (
        UPDATE {place} p SET handed = true WHERE p.ctid = (SELECT q.ctid FROM {place} q
            WHERE q.id = p_id AND q.ns = p_ns AND NOT q.handed ORDER BY q.line, q.ticket LIMIT 1)
          AND p.line = 1 AND p.mode = 2 AND p.alone
          AND EXISTS (SELECT FROM {session} s
            WHERE s.session = p.session AND abs(v_now - s.heartbeat) <= {HEARTBEAT_LASTS})
          RETURNING p.context, p.attempt, p.session, p.owner, least(p.lease, {OFFER}) AS lasts)
      UPDATE {lock} l SET fence = greatest(fence + 1, v_now), expires = v_now + w.lasts, lease = w.lasts, since = v_now,
        attempt = w.attempt, busy = v_busy & ({PLACES} | {TOMBSTONES}) | {HELD} | {OFFERED}, context = w.context,
        owner = w.owner, lapses = CASE WHEN lapses >= v_now + w.lasts THEN lapses ELSE v_now + 8 * w.lasts END
        FROM w WHERE l.id = p_id AND l.ns = p_ns
        RETURNING 'lockcore_' || w.session, {offer in row} INTO v_channel, v_offer;
    END IF;
    IF v_channel IS NULL THEN
      UPDATE {lock} SET busy = busy & {TOMBSTONES} WHERE id = p_id AND ns = p_ns
        AND (v_busy & {PLACES} = 0
          OR NOT EXISTS (SELECT FROM {place} p WHERE p.id = p_id AND p.ns = p_ns AND NOT p.handed));
      IF FOUND THEN
        v_channel := '';
      END IF;
    END IF;
  END IF

-- {notify}: sends what v_notify has: channels, and behind each its message.
FOR i IN 1 .. cardinality(v_notify) / 2 LOOP
      v_set := pg_notify(v_notify[2 * i - 1], v_notify[2 * i]);
    END LOOP

-- {commit handed}: commits what was freed and handed over, durably. The notifications that follow go asynchronously: one in a
-- durable commit lets only one commit at a time reach the disk.
IF p_flags & {ASYNC} <> 0 THEN
      {be async};
    END IF;
    COMMIT;
    {be async};
    -- So that a lock timeout is always before the commit.
    IF current_setting('lock_timeout') <> '0' THEN
      v_set := set_config('lock_timeout', '0', true);
    END IF

-- {free async}: a lock that no waiter takes over need not be on the disk before the answer, if the settings allow that.
IF p_flags <> 0 THEN
      {be async};
    END IF

-- {publish}: one or the other, and the notifications.
IF cardinality(v_notify) = 0 THEN
    {free async};
  ELSE
    {commit handed};
    {notify};
  END IF

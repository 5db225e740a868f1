-- Frees all that a context holds, and removes it from every queue. Reads the whole namespace.
CREATE OR REPLACE FUNCTION {v1_release_context}(p_ns bytea, p_context bytea) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8;
  v_ids bytea[];
  v_freed bytea[];
  v_locked bytea[];
  v_notify text[];
  v_set text;
BEGIN
  SELECT array_agg(DISTINCT x.id ORDER BY x.id) INTO v_ids FROM (
    SELECT id FROM {lock} WHERE ns = p_ns AND lapses >= 0
      AND (busy & {HELD} <> 0 AND context = p_context OR busy & {WAITER_IN_ROW} <> 0 AND next_context = p_context)
    UNION ALL SELECT id FROM {holder} WHERE ns = p_ns AND context = p_context
    UNION ALL SELECT id FROM {place} WHERE ns = p_ns AND context = p_context) x;
  IF v_ids IS NULL THEN
    RETURN '[]';
  END IF;
  PERFORM {v1_lock}(p_ns, v_ids);
  v_now := {v1_now}();
  PERFORM {v1_tidy}(p_ns, v_ids, v_now);
  DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND id = ANY (v_ids);
  WITH inline AS (
    UPDATE {lock} SET busy = busy & ~{EXCLUSIVE}
      WHERE ns = p_ns AND id = ANY (v_ids) AND busy & {HELD} <> 0 AND context = p_context
      RETURNING id),
  others AS (
    DELETE FROM {holder} WHERE ns = p_ns AND id = ANY (v_ids) AND context = p_context RETURNING id, state)
  SELECT array_agg(DISTINCT x.id ORDER BY x.id) INTO v_freed
    FROM (SELECT id FROM inline UNION ALL SELECT id FROM others WHERE state >= 0) x;
  PERFORM {v1_settle}(p_ns, v_ids);
  SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, v_ids, v_now, v_ids) AS s;
  {notify};
  RETURN (SELECT coalesce('["' || string_agg(encode(u.id, 'hex'), '","' ORDER BY u.id) || '"]', '[]')
    FROM unnest(v_freed) AS u (id));
END {$};

-- Describes one id, as `reply::Inspected`. Changes nothing. NULL if it is not shown in lists.
CREATE OR REPLACE FUNCTION {v1_known}(p_ns bytea, p_id bytea, p_listed boolean) RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {v1_now}();
  v_held text;
  v_waits text;
  v_breaks text;
  v_frozen boolean;
BEGIN
  SELECT string_agg(json_build_array(encode(x.context, 'hex'), encode(x.owner, 'hex'), x.mode, x.permits, x.cap, x.fence,
      x.since, x.lease, least(x.expires - v_now, x.lease), x.broken::int4, x.indexes)::text, ',' ORDER BY x.fence)
    INTO v_held FROM (
      SELECT context, owner, 2 AS mode, 0::int8 AS permits, 0::int8 AS cap, fence, since, lease, expires,
        busy & {BROKEN} <> 0 AS broken, '{}'::int8[] AS indexes FROM {lock}
        WHERE ns = p_ns AND id = p_id AND busy & {HELD} <> 0 AND expires > v_now
      UNION ALL SELECT context, owner, mode, permits, cap, fence, since, lease, expires, broken, indexes FROM {holder}
        WHERE ns = p_ns AND id = p_id AND state >= 0 AND expires > v_now) x;
  SELECT string_agg(json_build_array(encode(p.context, 'hex'), encode(p.owner, 'hex'), p.mode, p.permits, p.cap,
      p.since)::text, ',' ORDER BY p.ticket)
    INTO v_waits FROM (
      SELECT context, owner, mode, permits, cap, since, ticket, session FROM {place}
        WHERE ns = p_ns AND id = p_id AND NOT handed
      UNION ALL SELECT next_context, next_owner, 2, 0, 0, next_since, 0, next_session FROM {lock}
        WHERE ns = p_ns AND id = p_id AND busy & {WAITER_IN_ROW} <> 0) p
    WHERE {v1_is_alive}(p.session, v_now);
  SELECT busy & {FROZEN} <> 0 INTO v_frozen FROM {lock} WHERE ns = p_ns AND id = p_id;
  IF p_listed AND v_held IS NULL AND v_waits IS NULL AND v_frozen IS NOT TRUE THEN
    RETURN NULL;
  END IF;
  SELECT string_agg(json_build_array(encode(b.context, 'hex'), b.fence, encode(b.breaker, 'hex'), b.at,
      b.freed::int4)::text, ',' ORDER BY b.at)
    INTO v_breaks FROM {break} b WHERE b.ns = p_ns AND b.id = p_id;
  RETURN format('{"i":"%s","h":[%s],"w":[%s],"f":%s,"b":[%s]}', encode(p_id, 'hex'), v_held, v_waits,
    coalesce(v_frozen, false)::int4, v_breaks);
END {$};

CREATE OR REPLACE FUNCTION {v1_inspect}(p_ns bytea, p_id bytea) RETURNS text LANGUAGE sql
  {by index} AS {$}
  SELECT {v1_known}(p_ns, p_id, false)
{$};

-- Lists a page of ids behind p_after; from the beginning, with the empty id of the global lock, if the limit is negative.
CREATE OR REPLACE FUNCTION {v1_list}(p_ns bytea, p_after bytea, p_limit int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {v1_now}();
  v_listed text;
  v_known text;
  v_last bytea;
  v_count int8 := 0;
  r record;
BEGIN
  FOR r IN SELECT id FROM {lock} WHERE ns = p_ns AND (id > p_after OR p_limit < 0)
    AND busy & ({IN_USE} | {WAITERS}) <> 0 AND NOT (busy & ({IN_USE} | {WAITERS}) = {HELD} AND expires <= v_now) ORDER BY id LOOP
    IF v_count = abs(p_limit) THEN
      RETURN format('{"ids":[%s],"next":"%s"}', v_listed, encode(v_last, 'hex'));
    END IF;
    v_known := {v1_known}(p_ns, r.id, true);
    IF v_known IS NOT NULL THEN
      v_listed := concat_ws(',', v_listed, v_known);
      v_last := r.id;
      v_count := v_count + 1;
    END IF;
  END LOOP;
  RETURN format('{"ids":[%s],"next":null}', v_listed);
END {$};

-- Breaks the lock held under a fence; at once, if p_now is 1. Of one id the last 16 breaks are kept.
CREATE OR REPLACE FUNCTION {v1_break_lock}(p_ns bytea, p_id bytea, p_fence int8, p_now int8, p_by bytea)
  RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8;
  v_locked bytea[];
  v_notify text[] := '{}';
  v_left int8;
  v_broken boolean;
  v_context bytea;
  v_set text;
BEGIN
  PERFORM FROM {lock} WHERE ns = p_ns AND id = p_id FOR UPDATE;
  v_now := {v1_now}();
  PERFORM {v1_tidy}(p_ns, ARRAY[p_id], v_now);
  SELECT expires - v_now, busy & {BROKEN} <> 0, context INTO v_left, v_broken, v_context FROM {lock}
    WHERE ns = p_ns AND id = p_id AND busy & {HELD} <> 0 AND fence = p_fence;
  IF FOUND THEN
    UPDATE {lock} SET busy = CASE WHEN p_now = 1 THEN busy & ~{EXCLUSIVE} ELSE busy | {BROKEN} END WHERE ns = p_ns AND id = p_id;
  ELSE
    SELECT expires - v_now, broken, context INTO v_left, v_broken, v_context FROM {holder}
      WHERE ns = p_ns AND id = p_id AND fence = p_fence AND state >= 0;
    IF NOT FOUND THEN
      RETURN '{"left":null}';
    END IF;
    IF p_now = 1 THEN
      DELETE FROM {holder} WHERE ns = p_ns AND id = p_id AND fence = p_fence;
    ELSE
      UPDATE {holder} SET broken = true WHERE ns = p_ns AND id = p_id AND fence = p_fence;
    END IF;
  END IF;
  IF p_now = 1 OR NOT v_broken THEN
    INSERT INTO {break} (ns, id, fence, context, breaker, at, freed)
      VALUES (p_ns, p_id, p_fence, v_context, p_by, v_now, p_now = 1) ON CONFLICT DO NOTHING;
    DELETE FROM {break} WHERE ns = p_ns AND id = p_id AND at < (
      SELECT b.at FROM {break} b WHERE b.ns = p_ns AND b.id = p_id ORDER BY b.at DESC OFFSET 15 LIMIT 1);
  END IF;
  IF p_now = 1 THEN
    DELETE FROM {place} WHERE ns = p_ns AND id = p_id AND handed AND context = v_context;
  END IF;
  PERFORM {v1_settle}(p_ns, ARRAY[p_id]);
  IF p_now <> 1 THEN
    RETURN format('{"left":%s}', greatest(v_left, 1));
  END IF;
  SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, ARRAY[p_id], v_now, ARRAY[p_id]) AS s;
  {notify};
  RETURN '{"left":0}';
END {$};

-- Freezes an id, or thaws it and serves its waiters.
CREATE OR REPLACE FUNCTION {v1_freeze}(p_ns bytea, p_id bytea, p_frozen int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8;
  v_locked bytea[];
  v_notify text[] := '{}';
  v_set text;
BEGIN
  PERFORM {v1_lock}(p_ns, ARRAY[p_id]);
  v_now := {v1_now}();
  UPDATE {lock} SET busy = CASE WHEN p_frozen = 1 THEN busy | {FROZEN} ELSE busy & ~{FROZEN} END WHERE ns = p_ns AND id = p_id;
  PERFORM {v1_settle}(p_ns, ARRAY[p_id]);
  IF p_frozen <> 1 THEN
    PERFORM {v1_tidy}(p_ns, ARRAY[p_id], v_now);
    SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, ARRAY[p_id], v_now, ARRAY[p_id]) AS s;
    {notify};
  END IF;
  RETURN '';
END {$};

-- Removes at most p_batch locks, places and tombstones that are over, and rows of ids that are not used; with p_within not
-- negative only if the namespace was not swept within so many microseconds. Waits for no lock, and no fence is forgotten:
-- the namespace's floor remembers the highest.
CREATE OR REPLACE FUNCTION {v1_sweep}(p_ns bytea, p_batch int8, p_within int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {v1_now}();
  v_swept int8;
  v_over tid[];
  v_busy bytea[];
  v_locked bytea[];
  v_notify text[] := '{}';
  v_floor int8;
  v_more_floor int8;
  v_removed int8 := 0;
  v_count int8;
  v_looked int8 := 0;
  v_reached int8;
  v_set text;
BEGIN
  -- Of sweeps at the same time one does it.
  INSERT INTO {namespace} (ns, floor, swept, reached) VALUES (p_ns, 0, 0, 0) ON CONFLICT (ns) DO NOTHING;
  SELECT swept, reached INTO v_swept, v_reached FROM {namespace} WHERE ns = p_ns FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR (p_within >= 0 AND v_swept <= v_now AND v_now - v_swept < p_within) THEN
    {be async};
    RETURN '{"removed":0,"more":0,"elsewhere":1}';
  END IF;
  v_now := {v1_now}();
  SELECT array_agg(x.ctid) FILTER (WHERE x.over), array_agg(x.id) FILTER (WHERE NOT x.over),
    count(*) FILTER (WHERE x.over AND x.busy & {HELD} <> 0), count(*), max(x.fence), max(x.lapses)
    INTO v_over, v_busy, v_removed, v_looked, v_floor, v_reached FROM (
      SELECT l.ctid, l.id, l.fence, l.busy, l.lapses,
        l.busy & ~({HELD} | {BROKEN}) = 0 AND (l.busy & {HELD} = 0 OR l.expires <= v_now) AS over
        FROM {lock} l WHERE l.ns = p_ns AND l.lapses <= v_now AND l.lapses >= v_reached AND l.lapses >= 0
        ORDER BY l.lapses LIMIT p_batch FOR UPDATE SKIP LOCKED) x;
  IF v_looked < p_batch THEN
    v_reached := 0;
  END IF;
  IF v_busy IS NOT NULL THEN
    -- These need a closer look: there are others than an exclusive holder whose lease is over.
    SELECT count(*) INTO v_count FROM {lock}
      WHERE ns = p_ns AND id = ANY (v_busy) AND busy & {HELD} <> 0 AND expires <= v_now;
    v_removed := v_removed + v_count;
    -- They go below, with the places of the waiters that were handed them.
    SELECT count(*) INTO v_count FROM {holder} WHERE ns = p_ns AND id = ANY (v_busy) AND expires <= v_now;
    v_removed := v_removed + v_count;
    WITH gone AS (DELETE FROM {tombstone} WHERE ns = p_ns AND id = ANY (v_busy) AND until <= v_now RETURNING 1)
      SELECT count(*) INTO v_count FROM gone;
    v_removed := v_removed + v_count;
    -- Of a set all or none, as in {v1_serve}.
    WITH gone AS (DELETE FROM {place} p WHERE p.ns = p_ns AND p.id = ANY (v_busy)
        AND NOT {v1_is_alive}(p.session, v_now) AND (p.alone OR NOT EXISTS (SELECT FROM {place} o
          WHERE o.ns = p_ns AND o.context = p.context AND o.attempt = p.attempt AND o.id <> ALL (v_busy))) RETURNING 1)
      SELECT count(*) INTO v_count FROM gone;
    v_removed := v_removed + v_count;
    PERFORM {v1_tidy}(p_ns, v_busy, v_now);
    PERFORM {v1_settle}(p_ns, v_busy);
    SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, v_busy, v_now, v_busy) AS s;
    -- What goes on is looked at again when it lapses.
    UPDATE {lock} l SET lapses = least(9000000000000000000, greatest(v_now + 60000000, l.expires,
        (SELECT max(h.expires) FROM {holder} h WHERE h.ns = p_ns AND h.id = l.id),
        (SELECT max(t.until) FROM {tombstone} t WHERE t.ns = p_ns AND t.id = l.id))) + 1000000
      WHERE l.ns = p_ns AND l.id = ANY (v_busy) AND l.busy <> 0;
    WITH gone AS (DELETE FROM {lock} WHERE ns = p_ns AND id = ANY (v_busy) AND busy = 0 RETURNING fence)
      SELECT max(fence) INTO v_more_floor FROM gone;
    v_floor := greatest(v_floor, v_more_floor);
  END IF;
  -- Their rows are locked, so that they are where they were found.
  DELETE FROM {lock} WHERE ctid = ANY (v_over) AND ns = p_ns AND busy & ~({HELD} | {BROKEN}) = 0
    AND (busy & {HELD} = 0 OR expires <= v_now);
  IF v_looked < p_batch THEN
    -- Room is left: of those that lapse next, whose lease is over already. Bounded, for most of them may go on.
    WITH gone AS (
      DELETE FROM {lock} WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM {lock} k WHERE k.ctid = ANY (ARRAY(
          SELECT x.ctid FROM (
            SELECT l.ctid, l.busy, l.expires FROM {lock} l WHERE l.ns = p_ns AND l.lapses > v_now AND l.lapses >= 0
              ORDER BY l.lapses LIMIT 1000) x
            WHERE x.busy = {HELD} AND x.expires <= v_now LIMIT p_batch - v_looked))
          AND k.ns = p_ns AND k.busy = {HELD} AND k.expires <= v_now FOR UPDATE SKIP LOCKED))
        RETURNING fence)
    SELECT count(*), max(fence) INTO v_count, v_more_floor FROM gone;
    v_removed := v_removed + v_count;
    v_looked := v_looked + v_count;
    v_floor := greatest(v_floor, v_more_floor);
  END IF;
  IF v_looked < p_batch THEN
    DELETE FROM {break} WHERE ns = p_ns AND at < v_now - 604800000000;
    DELETE FROM {session} WHERE heartbeat < v_now - 3600000000;
  END IF;
  UPDATE {namespace} SET swept = v_now, floor = greatest(floor, coalesce(v_floor, 0)), reached = v_reached
    WHERE ns = p_ns;
  IF cardinality(v_notify) = 0 THEN
    {be async};
  END IF;
  {notify};
  RETURN format('{"removed":%s,"more":%s,"elsewhere":0}', least(v_removed, p_batch), (v_looked >= p_batch)::int4);
END {$};

-- For the application's own statements: reports whether the lock of an id is held under a fence, exclusively, now; and if so,
-- no other context gets it before the application's transaction ends (which therefore has to be short: a renewal waits for it, too).
-- In the WHERE of a write it makes the write of a former holder change nothing:
--   UPDATE account SET balance = $1 WHERE id = 7 AND lockcore_v1_holds('default', 'account/7', $2)
CREATE OR REPLACE FUNCTION {v1_holds}(p_namespace text, p_id text, p_fence int8) RETURNS boolean
  LANGUAGE plpgsql VOLATILE AS {$}
DECLARE
  v_ns bytea := convert_to(p_namespace, 'UTF8');
  v_id bytea := convert_to(p_id, 'UTF8');
BEGIN
  PERFORM FROM {lock} WHERE ns = v_ns AND id = v_id AND busy & ({HELD} | {BROKEN}) = {HELD} AND fence = p_fence FOR SHARE;
  -- The clock is read after the lock: that may have waited for a renewal.
  RETURN FOUND AND EXISTS (SELECT FROM {lock} WHERE ns = v_ns AND id = v_id AND busy & ({HELD} | {BROKEN}) = {HELD}
    AND fence = p_fence AND expires > {clock});
END {$};

-- A session with waiters shows that it is alive. What has ended of the ids for which it waits goes to the next waiters. p_ids,
-- p_contexts, p_attempts: its waiters in rows.
CREATE OR REPLACE FUNCTION {v1_heartbeat}(
  p_ns bytea, p_session int8, p_probe int8, p_ids bytea[], p_contexts bytea[], p_attempts int8[])
  RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {v1_now}();
  v_ids bytea[];
  v_locked bytea[];
  v_notify text[] := '{}';
  v_next int8;
  v_turns text;
  v_set text;
BEGIN
  {send heartbeat};
  IF p_probe >= 0 THEN
    PERFORM pg_notify(format('lockcore_%s', p_session), format('{"probe":%s}', p_probe));
  END IF;
  -- What is not held exclusively, with a lease that lasts, may be due to a waiter.
  SELECT array_agg(x.id) INTO v_ids FROM (
    SELECT l.id FROM {lock} l WHERE l.ns = p_ns
      AND l.id IN ({waited for})
      AND (l.busy & {HELD} = 0 OR l.expires <= v_now OR l.expires - l.lease > v_now)
      -- First where something has ended; then at random, so that of many ids that are held together each is looked at.
      ORDER BY l.busy & ({HELD} | {HOLDERS}) = {HOLDERS} AND NOT EXISTS (SELECT FROM {holder} h WHERE h.ns = p_ns AND h.id = l.id
        AND (h.expires <= v_now OR h.expires - h.lease > v_now)), random() LIMIT 64 FOR UPDATE SKIP LOCKED) x;
  IF v_ids IS NOT NULL THEN
    v_now := {v1_now}();
    PERFORM {v1_tidy}(p_ns, v_ids, v_now);
    SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, v_ids, v_now, v_ids) AS s;
  END IF;
  IF cardinality(v_notify) = 0 THEN
    {be async};
  END IF;
  SELECT least(min(CASE WHEN l.busy & {HELD} <> 0 THEN l.expires END),
    min((SELECT min(h.expires) FROM {holder} h WHERE h.ns = p_ns AND h.id = l.id AND l.busy & {HOLDERS} <> 0))) - v_now
    INTO v_next FROM {lock} l WHERE l.ns = p_ns
    AND l.id IN ({waited for});
  SELECT string_agg(format('["%s",%s]', encode(x.context, 'hex'), x.attempt), ',') INTO v_turns FROM (
    SELECT p.context, p.attempt FROM {place} p WHERE p.session = p_session AND p.handed AND p.ns = p_ns
    UNION ALL SELECT l.context, l.attempt FROM unnest(p_ids, p_contexts, p_attempts) AS u (id, context, attempt)
      JOIN {lock} l ON l.id = u.id AND l.ns = p_ns
      WHERE l.busy & {OFFERED_IN_ROW} <> 0 AND l.context = u.context AND l.attempt = u.attempt) x;
  {notify};
  RETURN format('{"now":%s,"next":%s,"t":[%s]}', v_now, coalesce(v_next::text, 'null'), v_turns);
END {$};

-- Ends a session: removes its places. Its waiters in rows are passed over without heartbeats.
CREATE OR REPLACE FUNCTION {v1_leave}(p_ns bytea, p_session int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_ids bytea[];
  v_locked bytea[];
  v_notify text[] := '{}';
  v_set text;
BEGIN
  SELECT array_agg(DISTINCT id ORDER BY id) INTO v_ids FROM {place} WHERE session = p_session AND ns = p_ns;
  IF v_ids IS NOT NULL THEN
    PERFORM {v1_lock}(p_ns, v_ids);
    PERFORM {v1_tidy}(p_ns, v_ids, {v1_now}());
    DELETE FROM {place} WHERE session = p_session AND ns = p_ns AND id = ANY (v_ids);
    PERFORM {v1_settle}(p_ns, v_ids);
    SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, v_ids, {v1_now}(), v_ids) AS s;
    {notify};
  END IF;
  -- At the end: whatever locks ids locks the session after them.
  DELETE FROM {session} WHERE session = p_session;
  RETURN '';
END {$};

-- Acquiring and withdrawing. The answers are described in `reply`.

-- Takes one id exclusively. Most of what the usual case costs is here: each parameter, each operator in a statement and each
-- expression beside it is some hundredths of that.
CREATE OR REPLACE FUNCTION {v1_acquire_one}(
  p_ns bytea, p_context bytea, p_attempt int8, p_id bytea, p_lease int8, p_owner bytea, p_flags int8, p_session int8)
  RETURNS text LANGUAGE plpgsql
  {by key} AS {$}
DECLARE
  -- Before the row is locked: a lease that counts from here ends no later than its holder believes.
  v_now int8 := {clock};
  v_expires int8 := v_now + p_lease;
  v_set text;
  v_answer text;
BEGIN
  -- An id that is free, or whose lease is over, with nothing else in the way: all of that is in the row, of which the condition
  -- sees the state that it locks. A row without a fence was made for something else: it does not know of what was swept.
  UPDATE {lock} SET fence = v_now, expires = v_expires, lease = p_lease, since = v_now, attempt = p_attempt, replaces = 0,
    busy = {HELD}, context = p_context, owner = p_owner,
    lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_expires + 7 * p_lease END
    WHERE id = p_id AND ns = p_ns AND fence > 0 AND fence < v_now AND (busy = 0 OR busy = {HELD} AND expires <= v_now);
  IF NOT FOUND THEN
    INSERT INTO {lock} (id, ns, lapses, replaces, lease, fence, expires, since, attempt, busy, context, owner)
      VALUES (p_id, p_ns, v_expires + 7 * p_lease, 0, p_lease, v_now, v_expires, v_now, p_attempt, {HELD}, p_context, p_owner)
      ON CONFLICT (id, ns) DO NOTHING;
    IF NOT FOUND THEN
      v_answer := {v1_wait_one}(p_ns, p_context, p_attempt, p_id, p_lease, p_owner, p_flags, p_session);
      IF v_answer IS NOT NULL THEN
        RETURN v_answer;
      END IF;
      RETURN {v1_acquire}(p_ns, p_context, p_attempt, ARRAY[p_id], ARRAY[2::int8], ARRAY[0::int8], ARRAY[0::int8], p_lease, p_owner, p_flags,
        p_session);
    ELSIF EXISTS (SELECT FROM {namespace} n WHERE n.ns = p_ns AND n.floor >= v_now) THEN
      -- The clock was set back behind what was swept.
      UPDATE {lock} SET busy = 0, fence = (SELECT n.floor FROM {namespace} n WHERE n.ns = p_ns) WHERE id = p_id AND ns = p_ns;
      RETURN {v1_acquire}(p_ns, p_context, p_attempt, ARRAY[p_id], ARRAY[2::int8], ARRAY[0::int8], ARRAY[0::int8], p_lease, p_owner, p_flags,
        p_session);
    END IF;
  END IF;
  IF p_flags & {ASYNC} <> 0 THEN
    {be async};
  END IF;
  RETURN 'G' || v_now;
END {$};

-- Waits for one id, or refuses it, if the only conflict is another exclusive holder. The first who waits
-- does so in the row. NULL in any other case; then nothing was done, but that the row may have PLACES, which costs its next
-- release a look. Neither a refusal nor a place in the queue has to survive a crash: a waiter asks again.
CREATE OR REPLACE FUNCTION {v1_wait_one}(
  p_ns bytea, p_context bytea, p_attempt int8, p_id bytea, p_lease int8, p_owner bytea, p_flags int8, p_session int8)
  RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_in_row boolean := false;
  v_left int8;
  v_fresh boolean;
  v_set text;
  v_holder text;
  v_expires int8;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN NULL;
  END IF;
  IF p_flags & {QUEUE} = 0 THEN
    SELECT {holder in row}, expires INTO v_holder, v_expires FROM {lock}
      WHERE busy & ({IN_USE} | {TOMBSTONES}) = {HELD} AND {held by another} FOR UPDATE;
  ELSE
    IF p_flags & {NESTED} = 0 THEN
      UPDATE {lock} SET busy = busy | {WAITER_IN_ROW}, next_attempt = p_attempt, next_lease = p_lease, next_since = v_now,
        next_session = p_session, next_context = p_context, next_owner = p_owner
        WHERE busy & ({IN_USE} | {WAITERS} | {TOMBSTONES}) = {HELD} AND {held by another}
        RETURNING {holder in row}, expires, {is fresh} INTO v_holder, v_expires, v_fresh;
      v_in_row := FOUND;
    END IF;
    IF v_holder IS NULL THEN
      UPDATE {lock} SET busy = busy | {PLACES}
        WHERE busy & ({IN_USE} | {WAITER_IN_ROW} | {TOMBSTONES}) = {HELD} AND {held by another}
        RETURNING {holder in row}, expires INTO v_holder, v_expires;
    END IF;
  END IF;
  IF v_holder IS NULL THEN
    RETURN NULL;
  END IF;
  -- That may have waited for the row.
  v_now := {clock};
  v_left := v_expires - v_now;
  IF v_left <= 0 THEN
    RETURN NULL;
  END IF;
  IF p_flags & {QUEUE} = 0 THEN
    {be async};
    RETURN format('{"c":[{"p":0,"h":[[%s,%s]],"n":1,"u":1}]}', v_holder, v_left);
  END IF;
  IF NOT v_in_row THEN
    INSERT INTO {place} (ns, id, line, ticket, alone, context, attempt, mode, permits, cap, owner, lease, since, session)
      SELECT p_ns, p_id, CASE WHEN p_flags & {NESTED} = 0 THEN 1 ELSE 0 END, nextval('{ticket'}'), true, p_context, p_attempt,
        2, 0, 0, p_owner, p_lease, v_now, p_session
        WHERE NOT EXISTS (SELECT FROM {place} p WHERE p.context = p_context AND p.attempt = p_attempt AND p.ns = p_ns)
      RETURNING {is fresh} INTO v_fresh;
    IF v_fresh IS NULL THEN
      -- It has a place already.
      RETURN NULL;
    END IF;
  END IF;
  {be async};
  IF NOT v_fresh THEN
    {send heartbeat};
  END IF;
  RETURN format('{"q":%s,"c":[{"p":0,"h":[[%s,%s]],"n":1,"u":1}],"end":%s}', CASE WHEN v_in_row THEN 2 ELSE 1 END, v_holder,
    v_left, v_left);
END {$};

-- Takes any set; exclusively if p_modes is NULL. What decides is read in later statements than the one that locks the rows: a
-- statement that waited for a lock sees the other tables as they were before.
CREATE OR REPLACE FUNCTION {v1_acquire}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[],
  p_lease int8, p_owner bytea, p_flags int8, p_session int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {clock};
  v_count int8;
  v_busy int4;
  v_ticket int8;
  v_freed bytea[];
  v_locked bytea[] := p_ids;
  v_notify text[] := '{}';
  v_stances int4[];
  v_conflicts text;
  v_given text;
  v_ends int8;
  v_set text;
BEGIN
  IF p_flags & {ASYNC} <> 0 THEN
    {be async};
  END IF;
  IF p_modes IS NULL THEN
    -- The usual case in one statement, as in {v1_acquire_one}. It locks the rows in the order of p_ids.
    INSERT INTO {lock} AS l
      (id, ns, lapses, replaces, lease, fence, expires, since, attempt, busy, context, owner)
      SELECT u.id, p_ns, v_now + 8 * p_lease, 0, p_lease, v_now, v_now + p_lease, v_now, p_attempt, {HELD}, p_context, p_owner
        FROM unnest(p_ids) AS u (id)
      ON CONFLICT (id, ns) DO UPDATE SET fence = excluded.fence, expires = excluded.expires, lease = excluded.lease,
        since = excluded.since, attempt = excluded.attempt, replaces = 0, busy = {HELD}, context = excluded.context,
        owner = excluded.owner, lapses = CASE WHEN l.lapses >= excluded.expires THEN l.lapses ELSE excluded.lapses END
        WHERE l.fence < excluded.fence AND (l.busy = 0 OR l.busy = {HELD} AND l.expires <= excluded.since);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    -- A clock that was set back may be behind what was swept.
    IF v_count = cardinality(p_ids) AND NOT EXISTS (SELECT FROM {namespace} n WHERE n.ns = p_ns AND n.floor >= v_now) THEN
      RETURN 'G' || v_now;
    END IF;
    IF v_count > 0 THEN
      -- Not all: what was taken is given back. No other transaction has seen it; but the row may be new, and what was swept above it.
      UPDATE {lock} SET busy = 0, fence = greatest(fence, (SELECT n.floor FROM {namespace} n WHERE n.ns = p_ns))
        WHERE id = ANY (p_ids) AND ns = p_ns AND busy = {HELD} AND fence = v_now AND attempt = p_attempt AND context = p_context;
    END IF;
    p_modes := array_fill(2, ARRAY[cardinality(p_ids)]);
    p_permits := array_fill(0, ARRAY[cardinality(p_ids)]);
    p_limits := p_permits;
  END IF;
  PERFORM {v1_lock}(p_ns, p_ids);
  v_now := {v1_now}();
  SELECT bit_or(busy) INTO v_busy FROM {lock} WHERE ns = p_ns AND id = ANY (p_ids);
  IF v_busy & {TOMBSTONES} <> 0 AND EXISTS (SELECT FROM {tombstone} t WHERE t.ns = p_ns AND t.id = p_ids[1]
    AND t.context = p_context AND t.attempt = p_attempt AND t.until > v_now) THEN
    {be async};
    RETURN '{"w":1}';
  END IF;
  -- What expired leases left goes to those who waited for it first.
  v_freed := {v1_tidy}(p_ns, p_ids, v_now);
  IF v_busy & {WAITERS} <> 0 THEN
    SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, p_ids, v_now, p_ids) AS s;
    SELECT ticket INTO v_ticket FROM {place}
      WHERE ns = p_ns AND context = p_context AND attempt = p_attempt AND NOT handed LIMIT 1;
  END IF;
  SELECT w.stances, w.conflicts INTO v_stances, v_conflicts FROM {v1_weigh}(p_ns, p_context, p_ids, p_modes, p_permits,
    p_limits, coalesce(v_ticket, 9223372036854775807), p_flags & {NESTED} <> 0, v_now) AS w;
  IF v_conflicts IS NULL THEN
    v_given := {v1_grant}(p_ns, p_context, p_attempt, p_ids, p_modes, p_permits, p_limits, v_stances, p_lease, p_owner,
      0, v_now);
    -- The place, also one that says that it was handed over.
    DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND attempt = p_attempt;
    IF v_busy & {WAITERS} <> 0 AND 2 = ANY (v_stances) THEN
      -- There is more room for others than before.
      SELECT s.p_locked, v_notify || s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, p_ids, v_now, v_locked) AS s;
    END IF;
    PERFORM {v1_settle}(p_ns, p_ids);
    {notify};
    RETURN format('{"g":[%s]}', v_given);
  END IF;
  -- A stronger mode never waits: two who share an id and both want it alone would wait for ever.
  IF p_flags & {QUEUE} <> 0 AND NOT (2 = ANY (v_stances) OR 3 = ANY (v_stances)) THEN
    IF v_ticket IS NULL THEN
      v_ticket := nextval('{ticket'}');
      INSERT INTO {place}
        (ns, id, line, ticket, alone, context, attempt, mode, permits, cap, owner, lease, since, session)
        SELECT p_ns, u.id, CASE WHEN p_flags & {NESTED} = 0 THEN 1 ELSE 0 END, v_ticket, cardinality(p_ids) = 1, p_context,
          p_attempt, u.mode, u.permits, u.cap, p_owner, p_lease, v_now, p_session
          FROM unnest(p_ids, p_modes, p_permits, p_limits) AS u (id, mode, permits, cap);
      UPDATE {lock} SET busy = busy | {PLACES} WHERE ns = p_ns AND id = ANY (p_ids) AND busy & {PLACES} = 0;
    ELSE
      -- It belongs to the session that asked last, which is notified.
      UPDATE {place} SET session = p_session, lease = p_lease
        WHERE ns = p_ns AND context = p_context AND attempt = p_attempt AND (session, lease) <> (p_session, p_lease);
    END IF;
    IF NOT {is fresh} THEN
      {send heartbeat};
    END IF;
    SELECT least(min(l.expires) FILTER (WHERE l.busy & {HELD} <> 0),
      CASE WHEN bit_or(l.busy) & {HOLDERS} <> 0 THEN (SELECT min(h.expires) FROM {holder} h
        WHERE h.ns = p_ns AND h.id = ANY (p_ids) AND h.state >= 0) END) - v_now
      INTO v_ends FROM {lock} l WHERE l.ns = p_ns AND l.id = ANY (p_ids);
    v_given := format('{"q":1,"c":[%s],"end":%s}', v_conflicts, coalesce(v_ends::text, 'null'));
  ELSE
    v_given := format('{"c":[%s]}', v_conflicts);
  END IF;
  IF cardinality(v_notify) = 0 THEN
    -- Nothing was granted: neither a refusal nor a place in the queue has to survive a crash.
    {be async};
  END IF;
  IF cardinality(v_freed) > 0 THEN
    PERFORM {v1_settle}(p_ns, p_ids);
  END IF;
  {notify};
  RETURN v_given;
END {$};

-- Takes ids exclusively, each by a request of its own, in the order of the ids, in one transaction. The answer has a line for
-- each.
CREATE OR REPLACE FUNCTION {v1_acquire_batch}(
  p_ns bytea, p_contexts bytea[], p_attempts int8[], p_ids bytea[], p_leases int8[], p_owners bytea[], p_flags int8[],
  p_session int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  -- What a durable commit is here.
  v_commit text := current_setting('synchronous_commit');
  v_durable boolean := false;
  v_answers text[] := '{}';
  v_set text;
BEGIN
  -- A request that has to wait longer for its row does that alone, so that the others need not wait for it.
  v_set := set_config('lock_timeout', '20', true);
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_answers[i] := {v1_acquire_one}(p_ns, p_contexts[i], p_attempts[i], p_ids[i], p_leases[i], p_owners[i], p_flags[i],
      p_session);
    IF current_setting('synchronous_commit') = 'off' THEN
      -- This one need not survive; whether the others have to is decided for each.
      v_set := set_config('synchronous_commit', v_commit, true);
    ELSE
      v_durable := true;
    END IF;
  END LOOP;
  IF NOT v_durable THEN
    {be async};
  END IF;
  RETURN array_to_string(v_answers, E'\n');
END {$};

-- Ends an attempt.
CREATE OR REPLACE FUNCTION {v1_withdraw}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[],
  p_lease int8, p_flags int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8;
  v_until int8;
  v_modes int8[] := coalesce(p_modes, array_fill(2::int8, ARRAY[cardinality(p_ids)]));
  v_permits int8[] := coalesce(p_permits, array_fill(0::int8, ARRAY[cardinality(p_ids)]));
  v_limits int8[] := coalesce(p_limits, array_fill(0::int8, ARRAY[cardinality(p_ids)]));
  v_stances int4[];
  v_any boolean;
  v_given text;
  v_locked bytea[];
  v_notify text[];
  r record;
  v_set text;
BEGIN
  IF p_flags & {ASYNC} <> 0 THEN
    {be async};
  END IF;
  PERFORM {v1_lock}(p_ns, p_ids);
  v_now := {v1_now}();
  PERFORM {v1_tidy}(p_ns, p_ids, v_now);
  DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND attempt = p_attempt;
  v_any := EXISTS (SELECT FROM {lock} WHERE ns = p_ns AND id = ANY (p_ids) AND busy & {HELD} <> 0
      AND context = p_context AND attempt = p_attempt)
    OR EXISTS (SELECT FROM {holder} WHERE ns = p_ns AND id = ANY (p_ids) AND state >= 0
      AND context = p_context AND attempt = p_attempt);
  IF v_any AND p_flags & {KEEP} <> 0 THEN
    SELECT w.stances INTO v_stances FROM {v1_weigh}(p_ns, p_context, p_ids, v_modes, v_permits, v_limits,
      9223372036854775807, true, v_now) AS w;
    IF 1 = ALL (v_stances) THEN
      v_given := format('{"g":[%s]}', {v1_grant}(p_ns, p_context, p_attempt, p_ids, v_modes, v_permits, v_limits,
        v_stances, p_lease, '', 0, v_now));
    END IF;
  END IF;
  IF v_given IS NULL THEN
    IF v_any THEN
      FOR r IN SELECT l.id, l.replaces FROM {lock} l WHERE l.ns = p_ns AND l.id = ANY (p_ids) AND l.busy & {HELD} <> 0
        AND l.context = p_context AND l.attempt = p_attempt ORDER BY l.id LOOP
        UPDATE {lock} SET busy = busy & ~{EXCLUSIVE} WHERE ns = p_ns AND id = r.id;
        IF r.replaces <> 0 THEN
          PERFORM {v1_restore}(p_ns, r.id, r.replaces, v_now);
        END IF;
      END LOOP;
      FOR r IN DELETE FROM {holder} WHERE ns = p_ns AND id = ANY (p_ids) AND state >= 0
        AND context = p_context AND attempt = p_attempt RETURNING id, replaces LOOP
        IF r.replaces <> 0 THEN
          PERFORM {v1_restore}(p_ns, r.id, r.replaces, v_now);
        END IF;
      END LOOP;
    END IF;
    IF p_flags & {KEEP} = 0 THEN
      v_until := v_now + greatest(p_lease, {TOMBSTONE_LASTS});
      INSERT INTO {tombstone} (ns, id, context, attempt, until) VALUES (p_ns, p_ids[1], p_context, p_attempt, v_until)
        ON CONFLICT (id, ns, context, attempt) DO UPDATE SET until = excluded.until;
      UPDATE {lock} SET busy = busy | {TOMBSTONES}, lapses = greatest(lapses, v_until + 60000000)
        WHERE ns = p_ns AND id = p_ids[1] AND (busy & {TOMBSTONES} = 0 OR lapses < v_until);
    END IF;
    PERFORM {v1_settle}(p_ns, p_ids);
  END IF;
  SELECT s.p_locked, s.notify INTO v_locked, v_notify FROM {v1_serve}(p_ns, p_ids, v_now, p_ids) AS s;
  {notify};
  RETURN coalesce(v_given, '');
END {$};

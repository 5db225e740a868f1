-- flags: 1 take a place in the queue; 2 nested, obeys no queue; 8 commit asynchronously.

-- Takes one id exclusively. What is done here is most of what the usual case costs: each parameter, each operator in a
-- statement and each expression beside it is a few hundredths of that.
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
  -- The usual case, in one statement: nothing is in the way. Everything that could be is in the row, of which the condition
  -- sees the state that it locks; so this is sound though it is one statement. A row without a fence was made for something
  -- else: it does not know of what was swept.
  UPDATE {lock} SET fence = v_now, expires = v_expires, lease = p_lease, since = v_now, attempt = p_attempt, replaces = 0,
    busy = 1, context = p_context, owner = p_owner,
    lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_expires + 7 * p_lease END
    WHERE id = p_id AND ns = p_ns AND fence > 0 AND fence < v_now AND (busy = 0 OR busy = 1 AND expires <= v_now);
  IF FOUND THEN
    IF p_flags & 8 = 8 THEN
      {be async};
    END IF;
    RETURN 'G' || v_now;
  END IF;
  v_answer := {v1_stand}(p_ns, p_context, p_attempt, p_id, p_lease, p_owner, p_flags, p_session);
  IF v_answer IS NOT NULL THEN
    RETURN v_answer;
  END IF;
  RETURN {v1_acquire}(p_ns, p_context, p_attempt, ARRAY[p_id], NULL, NULL, NULL, p_lease, p_owner, p_flags, p_session);
END {$};

-- Takes any set; exclusively, if no modes are given.
CREATE OR REPLACE FUNCTION {v1_acquire}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[],
  p_lease int8, p_owner bytea, p_flags int8, p_session int8) RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {clock};
  v_set text;
  v_count int8;
BEGIN
  IF p_flags & 8 = 8 THEN
    {be async};
  END IF;
  IF p_modes IS NULL THEN
    -- Some have no row yet.
    INSERT INTO {lock} AS l
      (ns, id, fence, expires, lease, since, attempt, replaces, lapses, busy, context, owner)
      SELECT p_ns, u.id, v_now, v_now + p_lease, p_lease, v_now, p_attempt, 0, v_now + 8 * p_lease, 1, p_context,
        p_owner FROM unnest(p_ids) AS u (id)
      ON CONFLICT (id, ns) DO UPDATE SET fence = excluded.fence,
        expires = excluded.expires, lease = excluded.lease, since = excluded.since, attempt = excluded.attempt,
        replaces = 0, busy = 1, context = excluded.context, owner = excluded.owner,
        lapses = CASE WHEN l.lapses >= excluded.expires THEN l.lapses ELSE excluded.lapses END
        WHERE l.fence < excluded.fence AND (l.busy = 0 OR l.busy = 1 AND l.expires <= excluded.since);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    -- A clock that was set back may be behind what was swept.
    IF v_count = cardinality(p_ids) AND NOT EXISTS (
      SELECT FROM {namespace} n WHERE n.ns = p_ns AND n.floor >= v_now) THEN
      RETURN 'G' || v_now;
    END IF;
    IF v_count > 0 THEN
      -- Not all: what was taken is given back. Nobody has seen it; but the row may be new, and what was swept above it.
      UPDATE {lock} SET busy = 0, fence = greatest(fence, (SELECT n.floor FROM {namespace} n WHERE n.ns = p_ns))
        WHERE id = ANY (p_ids) AND ns = p_ns AND busy = 1 AND fence = v_now AND attempt = p_attempt AND context = p_context;
    END IF;
  END IF;
  RETURN {v1_acquire_slowly}(p_ns, p_context, p_attempt, p_ids,
    coalesce(p_modes, array_fill(2::int8, ARRAY[cardinality(p_ids)])),
    coalesce(p_permits, array_fill(0::int8, ARRAY[cardinality(p_ids)])),
    coalesce(p_limits, array_fill(0::int8, ARRAY[cardinality(p_ids)])), p_lease, p_owner, p_flags, p_session);
END {$};

-- Takes many ids exclusively, all under one fence; the usual case in one statement. Flags as of {v1_acquire}; answer goes in
-- empty. Rows are met in the order of the index on ids, in which everybody takes them. Who went on after only some of them
-- would hold these out of order, and a row that somebody else was changing stays locked though it does not fit in the end:
-- so all are let go first. For that it is a procedure: an exception would take two transactions each time.
CREATE OR REPLACE PROCEDURE {v1_acquire_many}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_lease int8, p_owner bytea, p_flags int8, p_session int8,
  INOUT answer text) LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_expires int8 := v_now + p_lease;
  {in order};
  v_count int8;
BEGIN
  UPDATE {lock} SET fence = v_now, expires = v_expires, lease = p_lease, since = v_now, attempt = p_attempt,
    replaces = 0, busy = 1, context = p_context, owner = p_owner,
    lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_expires + 7 * p_lease END
    WHERE id = ANY (p_ids) AND ns = p_ns AND fence > 0 AND fence < v_now
      AND (busy = 0 OR busy = 1 AND expires <= v_now);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  IF v_count < cardinality(p_ids) THEN
    ROLLBACK;
    answer := {v1_acquire}(p_ns, p_context, p_attempt, p_ids, NULL, NULL, NULL, p_lease, p_owner, p_flags, p_session);
    RETURN;
  END IF;
  IF p_flags & 8 = 8 THEN
    {be async};
  END IF;
  answer := 'G' || v_now;
END {$};

-- The usual wait: for one id, which somebody else holds exclusively. The first who waits stands in its row. NULL if anything is
-- otherwise; then nothing was done, but that the row may say that somebody waits, which costs its next release a look. Neither
-- a refusal nor a place in the queue has to survive a crash: whoever waits asks again.
CREATE OR REPLACE FUNCTION {v1_stand}(
  p_ns bytea, p_context bytea, p_attempt int8, p_id bytea, p_lease int8, p_owner bytea, p_flags int8, p_session int8)
  RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_where int4 := 1;
  v_left int8;
  v_lives boolean;
  v_set text;
  v_holder text;
  v_expires int8;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN NULL;
  END IF;
  IF p_flags & 3 = 1 THEN
    UPDATE {lock} SET busy = busy | 128, next_attempt = p_attempt, next_lease = p_lease, next_since = v_now,
      next_session = p_session, next_context = p_context, next_owner = p_owner
      WHERE busy & 159 = 1 AND {held by another}
      RETURNING {holder in row}, expires, EXISTS (SELECT FROM {session} s
        WHERE s.session = p_session AND abs(v_now - s.beat) < 1500000) INTO v_holder, v_expires, v_lives;
    IF FOUND THEN
      v_where := 2;
    END IF;
  ELSIF p_flags & 1 = 0 THEN
    SELECT {holder in row}, expires INTO v_holder, v_expires FROM {lock} WHERE busy & 27 = 1 AND {held by another} FOR UPDATE;
  END IF;
  IF v_holder IS NULL AND p_flags & 1 = 1 THEN
    UPDATE {lock} SET busy = busy | 4 WHERE busy & 155 = 1 AND {held by another}
      RETURNING {holder in row}, expires INTO v_holder, v_expires;
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
  IF p_flags & 1 = 0 THEN
    {be async};
    RETURN format('{"c":[{"p":0,"h":[[%s,%s]],"n":1,"u":1}]}', v_holder, v_left);
  END IF;
  IF v_where = 1 THEN
    INSERT INTO {place} (ns, id, line, ticket, alone, context, attempt, mode, permits, cap, owner, lease, since, session)
      SELECT p_ns, p_id, 1 - (p_flags >> 1 & 1)::int4, nextval('{ticket'}'), true, p_context, p_attempt, 2, 0, 0, p_owner,
        p_lease, v_now, p_session
        WHERE NOT EXISTS (SELECT FROM {place} p WHERE p.context = p_context AND p.attempt = p_attempt AND p.ns = p_ns)
      RETURNING EXISTS (SELECT FROM {session} s WHERE s.session = p_session AND abs(v_now - s.beat) < 1500000)
      INTO v_lives;
    IF v_lives IS NULL THEN
      -- It has a place already.
      RETURN NULL;
    END IF;
  END IF;
  {be async};
  IF NOT v_lives THEN
    {sign of life};
  END IF;
  RETURN format('{"q":%s,"c":[{"p":0,"h":[[%s,%s]],"n":1,"u":1}],"end":%s}', v_where, v_holder, v_left, v_left);
END {$};

-- The same for every set. What decides is read in later statements than the rows are locked: a statement that waited
-- for a lock sees the other tables as they were before.
CREATE OR REPLACE FUNCTION {v1_acquire_slowly}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[],
  p_lease int8, p_owner bytea, p_flags int8, p_session int8) RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8;
  v_busy int4;
  v_ticket int8;
  v_freed bytea[];
  v_locked bytea[] := p_ids;
  v_told text[] := '{}';
  v_stances int4[];
  v_conflicts text;
  v_given text;
  v_ends int8;
  v_set text;
BEGIN
  PERFORM {v1_lock}(p_ns, p_ids);
  v_now := {v1_now}();
  SELECT bit_or(busy) INTO v_busy FROM {lock} WHERE ns = p_ns AND id = ANY (p_ids);
  IF v_busy & 16 = 16 AND EXISTS (SELECT FROM {mark} m WHERE m.ns = p_ns AND m.id = p_ids[1]
    AND m.context = p_context AND m.attempt = p_attempt AND m.until > v_now) THEN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN '{"w":1}';
  END IF;
  -- What lapsed leases left goes to those who waited for it, before it is our turn.
  v_freed := {v1_tidy}(p_ns, p_ids, v_now);
  IF v_busy & 132 <> 0 THEN
    SELECT s.p_locked, s.told INTO v_locked, v_told FROM {v1_serve}(p_ns, p_ids, v_now, p_ids) AS s;
    SELECT ticket INTO v_ticket FROM {place}
      WHERE ns = p_ns AND context = p_context AND attempt = p_attempt AND NOT handed LIMIT 1;
  END IF;
  SELECT w.stances, w.conflicts INTO v_stances, v_conflicts FROM {v1_weigh}(p_ns, p_context, p_ids, p_modes, p_permits,
    p_limits, coalesce(v_ticket, 9223372036854775807), p_flags & 2 = 2, v_now) AS w;
  IF v_conflicts IS NULL THEN
    v_given := {v1_grant}(p_ns, p_context, p_attempt, p_ids, p_modes, p_permits, p_limits, v_stances, p_lease, p_owner,
      0, v_now);
    -- The place, also one that says that it was handed over.
    DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND attempt = p_attempt;
    PERFORM {v1_settle}(p_ns, p_ids);
    {tell};
    RETURN format('{"g":[%s]}', v_given);
  END IF;
  -- A stronger mode never waits: two who share an id and both want it alone would wait for ever.
  IF p_flags & 1 = 1 AND NOT (2 = ANY (v_stances) OR 3 = ANY (v_stances)) THEN
    IF v_ticket IS NULL THEN
      v_ticket := nextval('{ticket'}');
      INSERT INTO {place}
        (ns, id, line, ticket, alone, context, attempt, mode, permits, cap, owner, lease, since, session)
        SELECT p_ns, u.id, 1 - (p_flags >> 1 & 1)::int4, v_ticket, cardinality(p_ids) = 1, p_context, p_attempt, u.mode,
          u.permits, u.cap, p_owner, p_lease, v_now, p_session FROM unnest(p_ids, p_modes, p_permits, p_limits) AS u (id, mode, permits, cap);
      UPDATE {lock} SET busy = busy | 4 WHERE ns = p_ns AND id = ANY (p_ids) AND busy & 4 = 0;
    ELSE
      -- It belongs to whoever asked last, who is to be told.
      UPDATE {place} SET session = p_session, lease = p_lease
        WHERE ns = p_ns AND context = p_context AND attempt = p_attempt AND (session, lease) <> (p_session, p_lease);
    END IF;
    IF NOT EXISTS (SELECT FROM {session} s WHERE s.session = p_session AND abs(v_now - s.beat) < 1500000) THEN
      {sign of life};
    END IF;
    SELECT least(min(l.expires) FILTER (WHERE l.busy & 1 = 1),
      CASE WHEN bit_or(l.busy) & 2 = 2 THEN (SELECT min(h.expires) FROM {holder} h
        WHERE h.ns = p_ns AND h.id = ANY (p_ids) AND h.state >= 0) END) - v_now
      INTO v_ends FROM {lock} l WHERE l.ns = p_ns AND l.id = ANY (p_ids);
    v_given := format('{"q":1,"c":[%s],"end":%s}', v_conflicts, coalesce(v_ends::text, 'null'));
  ELSE
    v_given := format('{"c":[%s]}', v_conflicts);
  END IF;
  IF cardinality(v_told) = 0 THEN
    -- Nothing was granted: neither a refusal nor a place in the queue has to survive a crash.
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  IF cardinality(v_freed) > 0 THEN
    PERFORM {v1_settle}(p_ns, p_ids);
  END IF;
  {tell};
  RETURN v_given;
END {$};

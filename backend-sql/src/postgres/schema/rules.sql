-- The rules of `lockcore::rules` in SQL, for sets whose rows are locked. The random histories of the tests hold both to the
-- same model.

-- The time. Whatever decides by more than one row reads it after it has locked them; and each of its statements has to see
-- what others committed before: in another isolation level it would decide by a state of the past.
CREATE OR REPLACE FUNCTION {v1_now}() RETURNS int8 LANGUAGE plpgsql VOLATILE AS {$}
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'LC002', MESSAGE = 'the transaction isolation is '
      || current_setting('transaction_isolation') || ', locks need read committed';
  END IF;
  RETURN {clock};
END {$};

-- Locks the rows of ids in the order given, and makes those that are missing.
CREATE OR REPLACE FUNCTION {v1_lock}(p_ns bytea, p_ids bytea[]) RETURNS void LANGUAGE plpgsql AS {$}
BEGIN
  INSERT INTO {lock} AS l
    (ns, id, fence, expires, lease, since, attempt, replaces, lapses, busy, context, owner)
    SELECT p_ns, u.id, 0, 0, 0, 0, 0, 0, {v1_now}() + 60000000, 0, '', '' FROM unnest(p_ids) AS u (id)
    -- Locks what is there, though it changes nothing.
    ON CONFLICT (id, ns) DO UPDATE SET busy = l.busy WHERE l.fence < 0;
END {$};

-- Removes what has ended of ids whose rows are locked, counts from now what was granted in the future, and moves waiters
-- from rows to places. Returns the ids of which something was freed.
CREATE OR REPLACE FUNCTION {v1_tidy}(p_ns bytea, p_ids bytea[], p_now int8) RETURNS bytea[] LANGUAGE plpgsql AS {$}
DECLARE
  v_odd boolean;
  v_holders boolean;
  v_waiters boolean;
  v_freed bytea[] := '{}';
  v_more bytea[];
BEGIN
  SELECT coalesce(bool_or(busy & {HELD} <> 0 AND (expires <= p_now OR expires - lease > p_now)), false),
    coalesce(bool_or(busy & {HOLDERS} <> 0), false), coalesce(bool_or(busy & {WAITER_IN_ROW} <> 0), false)
    INTO v_odd, v_holders, v_waiters FROM {lock} WHERE ns = p_ns AND id = ANY (p_ids);
  IF v_waiters THEN
    -- No later request has a ticket yet: tickets are given under this lock, and after this.
    WITH next AS (
      UPDATE {lock} SET busy = busy & ~{WAITER_IN_ROW} | {PLACES}
        WHERE ns = p_ns AND id = ANY (p_ids) AND busy & {WAITER_IN_ROW} <> 0
        RETURNING id, next_context, next_attempt, next_owner, next_lease, next_since, next_session)
    INSERT INTO {place} (ns, id, line, ticket, alone, context, attempt, mode, permits, cap, owner, lease, since, session)
      SELECT p_ns, id, 1, nextval('{ticket'}'), true, next_context, next_attempt, 2, 0, 0, next_owner, next_lease,
        next_since, next_session FROM next;
  END IF;
  IF v_odd THEN
    UPDATE {lock} SET expires = p_now + lease
      WHERE ns = p_ns AND id = ANY (p_ids) AND busy & {HELD} <> 0 AND expires - lease > p_now;
    WITH ended AS (
      UPDATE {lock} SET busy = busy & ~{EXCLUSIVE}
        WHERE ns = p_ns AND id = ANY (p_ids) AND busy & {HELD} <> 0 AND expires <= p_now RETURNING id)
    SELECT coalesce(array_agg(id), '{}') INTO v_freed FROM ended;
  END IF;
  IF v_holders THEN
    UPDATE {holder} SET expires = p_now + lease WHERE ns = p_ns AND id = ANY (p_ids) AND expires - lease > p_now;
    WITH ended AS (
      DELETE FROM {holder} WHERE ns = p_ns AND id = ANY (p_ids) AND expires <= p_now RETURNING id)
    SELECT coalesce(array_agg(DISTINCT id), '{}') INTO v_more FROM ended;
    v_freed := v_freed || v_more;
  END IF;
  IF cardinality(v_freed) > 0 THEN
    -- A waiter that did not confirm its offer in time is not notified any more.
    DELETE FROM {place} p WHERE p.ns = p_ns AND p.id = ANY (v_freed) AND p.handed
      AND NOT EXISTS (SELECT FROM {lock} l
        WHERE l.ns = p_ns AND l.id = p.id AND l.busy & ({HELD} | {OFFERED}) = {HELD} | {OFFERED} AND l.context = p.context)
      AND NOT EXISTS (SELECT FROM {holder} h
        WHERE h.ns = p_ns AND h.id = p.id AND h.state = 1 AND h.context = p.context);
  END IF;
  RETURN v_freed;
END {$};

-- Brings `busy` of ids whose rows are locked up to date with the other tables. To be called at the end of whatever changes the
-- holders of an id.
CREATE OR REPLACE FUNCTION {v1_settle}(p_ns bytea, p_ids bytea[]) RETURNS void LANGUAGE plpgsql AS {$}
BEGIN
  UPDATE {lock} l SET busy = x.busy FROM (
    SELECT k.id, k.busy & ~({HOLDERS} | {PLACES} | {TOMBSTONES} | {WATCHED})
      | CASE WHEN EXISTS (SELECT FROM {holder} h WHERE h.ns = p_ns AND h.id = k.id) THEN {HOLDERS} ELSE 0 END
      | CASE WHEN EXISTS (SELECT FROM {place} p WHERE p.ns = p_ns AND p.id = k.id AND NOT p.handed)
        THEN {PLACES} ELSE 0 END
      | CASE WHEN k.busy & {TOMBSTONES} <> 0 AND EXISTS (SELECT FROM {tombstone} t WHERE t.ns = p_ns AND t.id = k.id)
        THEN {TOMBSTONES} ELSE 0 END AS busy
      FROM {lock} k WHERE k.ns = p_ns AND k.id = ANY (p_ids)) x
    WHERE l.ns = p_ns AND l.id = x.id AND l.busy <> x.busy;
END {$};

-- Finds what is in the way of granting a set to a context now; the rows of its ids are locked and tidy. conflicts: as
-- `reply::Against`, NULL if there are none. stances: for each id 0 the context holds nothing, 1 it holds as much, 2 it holds it
-- otherwise, 3 what it holds was broken.
CREATE OR REPLACE FUNCTION {v1_weigh}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[], p_ticket int8,
  p_nested boolean, p_now int8, OUT stances int4[], OUT conflicts text) LANGUAGE plpgsql AS {$}
DECLARE
  r {lock};
  v_own_mode int4;
  v_own_permits int8;
  v_broken boolean;
  v_stance int4;
  v_exclusive int8;
  v_shared int8;
  v_used int8;
  v_head bytea;
  v_count int8;
BEGIN
  stances := '{}';
  FOR i IN 1 .. cardinality(p_ids) LOOP
    SELECT * INTO r FROM {lock} WHERE ns = p_ns AND id = p_ids[i];
    IF r.busy & ({IN_USE} | {PLACES}) = 0 THEN
      stances := stances || 0;
      CONTINUE;
    END IF;
    v_own_mode := NULL;
    v_exclusive := 0; v_shared := 0; v_used := 0;
    IF r.busy & {HELD} <> 0 THEN
      IF r.context = p_context THEN
        v_own_mode := 2; v_own_permits := 0; v_broken := r.busy & {BROKEN} <> 0;
      ELSE
        v_exclusive := 1;
      END IF;
    END IF;
    IF r.busy & {HOLDERS} <> 0 THEN
      IF v_own_mode IS NULL THEN
        SELECT mode, permits, broken INTO v_own_mode, v_own_permits, v_broken FROM {holder}
          WHERE ns = p_ns AND id = p_ids[i] AND context = p_context AND state >= 0 LIMIT 1;
      END IF;
      SELECT count(*) FILTER (WHERE mode = 0), coalesce(sum(permits), 0) INTO v_shared, v_used FROM {holder}
        WHERE ns = p_ns AND id = p_ids[i] AND state >= 0 AND context <> p_context;
    END IF;
    v_stance := CASE WHEN v_own_mode IS NULL THEN 0 WHEN v_broken THEN 3
      WHEN v_own_mode = 1 AND p_modes[i] = 1 AND v_own_permits <> p_permits[i] THEN 2
      WHEN p_modes[i] > v_own_mode THEN 2 ELSE 1 END;
    stances := stances || v_stance;
    IF v_stance = 1 THEN
      CONTINUE;
    END IF;
    IF v_stance <> 3 AND r.busy & {FROZEN} <> 0 THEN
      conflicts := concat_ws(',', conflicts, format('{"p":%s,"f":1}', i - 1));
    ELSIF v_stance = 3 OR v_exclusive > 0 OR (p_modes[i] = 2 AND (v_shared > 0 OR v_used > 0))
      OR (p_modes[i] = 1 AND v_used + p_permits[i] > p_limits[i]) THEN
      conflicts := concat_ws(',', conflicts,
        {v1_in_the_way}(r, i - 1, CASE WHEN v_stance = 3 THEN NULL ELSE p_context END, p_now));
    ELSIF v_stance = 0 AND NOT p_nested AND r.busy & {PLACES} <> 0 THEN
      -- The opposite of lockcore::rules::passes, among the waiters of live sessions.
      SELECT count(*), (array_agg(p.context ORDER BY p.ticket))[1] INTO v_count, v_head FROM {place} p
        WHERE p.ns = p_ns AND p.id = p_ids[i] AND NOT p.handed AND p.ticket < p_ticket
        AND NOT (p_modes[i] = 0 AND p.mode = 0 OR p_modes[i] = 1 AND p.mode = 1 AND p.cap < p_limits[i])
        AND {v1_is_alive}(p.session, p_now);
      IF v_count > 0 THEN
        conflicts := concat_ws(',', conflicts,
          format('{"p":%s,"q":["%s",%s]}', i - 1, encode(v_head, 'hex'), v_count));
      END IF;
    END IF;
  END LOOP;
END {$};

-- Reports whether a session's last heartbeat still counts.
CREATE OR REPLACE FUNCTION {v1_is_alive}(p_session int8, p_now int8) RETURNS boolean LANGUAGE plpgsql AS {$}
BEGIN
  -- Not in SQL: such a function is planned each time.
  RETURN EXISTS (SELECT FROM {session} s WHERE s.session = p_session AND abs(p_now - s.heartbeat) <= {HEARTBEAT_LASTS});
END {$};

-- Lists the holders of an id for a refusal, without the context p_without.
CREATE OR REPLACE FUNCTION {v1_in_the_way}(r {lock}, p_position int4, p_without bytea, p_now int8)
  RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_listed text;
  v_count int8;
  v_units int8;
BEGIN
  WITH held AS (
    SELECT r.context, r.owner, 2 AS mode, 0::int8 AS permits, 0::int8 AS cap, r.fence, r.expires WHERE r.busy & {HELD} <> 0
    UNION ALL
    SELECT h.context, h.owner, h.mode, h.permits, h.cap, h.fence, h.expires FROM {holder} h
      WHERE h.ns = r.ns AND h.id = r.id AND h.state >= 0),
  others AS (SELECT * FROM held WHERE p_without IS NULL OR context <> p_without),
  listed AS (SELECT * FROM others ORDER BY expires DESC LIMIT 8)
  SELECT (SELECT string_agg(format('["%s","%s",%s,%s,%s,%s,%s]', encode(context, 'hex'), encode(owner, 'hex'),
      mode, permits, cap, fence, greatest(expires - p_now, 0)), ',' ORDER BY expires DESC) FROM listed),
    (SELECT count(*) FROM others),
    (SELECT CASE WHEN sum(permits) > 0 THEN sum(permits) ELSE count(*) END FROM held)
    INTO v_listed, v_count, v_units;
  RETURN format('{"p":%s,"h":[%s],"n":%s,"u":%s}', p_position, v_listed, v_count, v_units);
END {$};

-- Grants a set without conflicts; the rows of its ids are locked. Returns what was granted, as `reply::Given`.
-- p_state: 0 held, 1 handed over.
CREATE OR REPLACE FUNCTION {v1_grant}(
  p_ns bytea, p_context bytea, p_attempt int8, p_ids bytea[], p_modes int8[], p_permits int8[], p_limits int8[],
  p_stances int4[], p_lease int8, p_owner bytea, p_state int4, p_now int8)
  RETURNS text LANGUAGE plpgsql AS {$}
DECLARE
  v_fence int8;
  v_expires int8 := p_now + p_lease;
  v_lapses int8 := p_now + 8 * p_lease;
  v_given text;
  v_mode int4;
  v_permits int8;
  v_cap int8;
  v_own int8;
  v_units int8;
  v_indexes int8[];
  v_held int8;
BEGIN
  -- One number for the whole grant: above every one of its ids, and of what was swept.
  SELECT greatest(p_now, max(l.fence) + 1, (SELECT n.floor + 1 FROM {namespace} n WHERE n.ns = p_ns))
    INTO v_fence FROM {lock} l WHERE l.ns = p_ns AND l.id = ANY (p_ids);
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_mode := p_modes[i]; v_permits := p_permits[i]; v_cap := p_limits[i]; v_own := v_fence; v_indexes := '{}';
    IF p_stances[i] = 1 THEN
      -- Goes on; a longer lease of an earlier grant is not cut short. In an offer it stays until that is confirmed, and ends no sooner.
      UPDATE {lock} SET busy = CASE WHEN p_state = 0 THEN busy & ~{UNCONFIRMED} ELSE busy END,
        expires = greatest(expires, v_expires),
        lease = CASE WHEN p_state = 0 THEN greatest(expires - p_now, p_lease) ELSE greatest(lease, p_lease) END,
        lapses = greatest(lapses, v_lapses)
        WHERE ns = p_ns AND id = p_ids[i] AND busy & {HELD} <> 0 AND context = p_context
        RETURNING fence INTO v_own;
      IF FOUND THEN
        v_mode := 2; v_permits := 0; v_cap := 0;
      ELSE
        UPDATE {holder} SET state = CASE WHEN p_state = 0 THEN 0 ELSE state END,
          expires = greatest(expires, v_expires),
          lease = CASE WHEN p_state = 0 THEN greatest(expires - p_now, p_lease) ELSE greatest(lease, p_lease) END
          WHERE ns = p_ns AND id = p_ids[i] AND context = p_context AND state >= 0
          RETURNING fence, mode, permits, cap, indexes INTO v_own, v_mode, v_permits, v_cap, v_indexes;
        UPDATE {lock} SET lapses = v_lapses WHERE ns = p_ns AND id = p_ids[i] AND lapses < v_expires;
      END IF;
    ELSE
      v_held := 0;
      IF p_stances[i] = 2 THEN
        UPDATE {holder} SET state = -1 WHERE ns = p_ns AND id = p_ids[i] AND context = p_context AND state >= 0
          RETURNING fence INTO v_held;
      END IF;
      IF v_mode = 2 THEN
        UPDATE {lock} SET busy = busy & ~{EXCLUSIVE} | {HELD} | CASE WHEN p_state = 0 THEN 0 ELSE {OFFERED} END, fence = v_fence,
          expires = v_expires, lease = p_lease, since = p_now, attempt = p_attempt,
          replaces = coalesce(v_held, 0), context = p_context, owner = p_owner,
          lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_lapses END
          WHERE ns = p_ns AND id = p_ids[i];
        v_permits := 0; v_cap := 0;
      ELSE
        IF v_mode = 1 THEN
          v_indexes := {v1_lowest_free}(p_ns, p_ids[i], v_permits);
        END IF;
        INSERT INTO {holder} (ns, id, context, state, fence, attempt, mode, permits, cap, indexes, owner, lease,
          expires, since, broken, replaces)
          VALUES (p_ns, p_ids[i], p_context, p_state, v_fence, p_attempt, v_mode, v_permits, v_cap, v_indexes,
          p_owner, p_lease, v_expires, p_now, false, coalesce(v_held, 0));
        UPDATE {lock} SET busy = busy | {HOLDERS}, fence = v_fence,
          lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_lapses END
          WHERE ns = p_ns AND id = p_ids[i];
      END IF;
    END IF;
    IF v_mode = 2 THEN
      v_units := 1;
    ELSE
      SELECT CASE WHEN sum(permits) > 0 THEN sum(permits) ELSE count(*) END INTO v_units FROM {holder}
        WHERE ns = p_ns AND id = p_ids[i] AND state >= 0;
    END IF;
    v_given := concat_ws(',', v_given, format('[%s,%s,%s,%s,%s,[%s]]', v_mode, v_permits, v_cap, v_own, v_units,
      array_to_string(v_indexes, ',')));
  END LOOP;
  RETURN v_given;
END {$};

-- Finds the lowest free permit indexes of an id.
CREATE OR REPLACE FUNCTION {v1_lowest_free}(p_ns bytea, p_id bytea, p_permits int8) RETURNS int8[]
  LANGUAGE plpgsql AS {$}
BEGIN
  RETURN (
    WITH taken AS (
      SELECT unnest(indexes) AS i FROM {holder} WHERE ns = p_ns AND id = p_id AND state >= 0)
    SELECT coalesce(array_agg(i ORDER BY i), '{}') FROM (
      SELECT i FROM generate_series(0, p_permits - 1 + (SELECT count(*) FROM taken)) AS i
        WHERE i NOT IN (SELECT t.i FROM taken t) ORDER BY i LIMIT p_permits) AS free);
END {$};

-- Gives back what a context held of an id before a replacement that was undone, as far as it still lasts.
CREATE OR REPLACE FUNCTION {v1_restore}(p_ns bytea, p_id bytea, p_replaces int8, p_now int8)
  RETURNS void LANGUAGE plpgsql AS {$}
DECLARE
  h {holder};
  v_used int8;
  v_taken boolean;
  v_exclusive boolean;
BEGIN
  SELECT * INTO h FROM {holder} WHERE ns = p_ns AND id = p_id AND fence = p_replaces AND state = -1;
  IF NOT FOUND OR h.expires <= p_now THEN
    RETURN;
  END IF;
  SELECT coalesce(sum(permits), 0), coalesce(bool_or(indexes && h.indexes), false) INTO v_used, v_taken FROM {holder}
    WHERE ns = p_ns AND id = p_id AND state >= 0;
  SELECT busy & {HELD} <> 0 INTO v_exclusive FROM {lock} WHERE ns = p_ns AND id = p_id;
  -- Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
  IF v_exclusive OR v_taken OR (h.mode = 1 AND v_used + h.permits > h.cap) THEN
    DELETE FROM {holder} WHERE ns = p_ns AND id = p_id AND fence = p_replaces AND state = -1;
  ELSE
    UPDATE {holder} SET state = 0 WHERE ns = p_ns AND id = p_id AND fence = p_replaces AND state = -1;
  END IF;
END {$};

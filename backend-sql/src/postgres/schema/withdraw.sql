-- Ends an attempt. flags: 4 it keeps what it was granted; 8 commit asynchronously.
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
  v_conflicts text;
  v_any boolean;
  v_given text;
  v_locked bytea[];
  v_told text[];
  r record;
  v_set text;
BEGIN
  IF p_flags & 8 = 8 THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  PERFORM {v1_lock}(p_ns, p_ids);
  v_now := {v1_now}();
  PERFORM {v1_tidy}(p_ns, p_ids, v_now);
  DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND attempt = p_attempt;
  v_any := EXISTS (SELECT FROM {lock} WHERE ns = p_ns AND id = ANY (p_ids) AND busy & 1 = 1
      AND context = p_context AND attempt = p_attempt)
    OR EXISTS (SELECT FROM {holder} WHERE ns = p_ns AND id = ANY (p_ids) AND state >= 0
      AND context = p_context AND attempt = p_attempt);
  IF v_any AND p_flags & 4 = 4 THEN
    SELECT w.stances INTO v_stances FROM {v1_weigh}(p_ns, p_context, p_ids, v_modes, v_permits, v_limits,
      9223372036854775807, true, v_now) AS w;
    IF 1 = ALL (v_stances) THEN
      v_given := format('{"g":[%s]}', {v1_grant}(p_ns, p_context, p_attempt, p_ids, v_modes, v_permits, v_limits,
        v_stances, p_lease, '', 0, v_now));
    END IF;
  END IF;
  IF v_given IS NULL THEN
    IF v_any THEN
      FOR r IN SELECT l.id, l.replaces FROM {lock} l WHERE l.ns = p_ns AND l.id = ANY (p_ids) AND l.busy & 1 = 1
        AND l.context = p_context AND l.attempt = p_attempt ORDER BY l.id LOOP
        UPDATE {lock} SET busy = busy & ~353 WHERE ns = p_ns AND id = r.id;
        IF r.replaces <> 0 THEN
          PERFORM {v1_restore}(p_ns, r.id, r.replaces, 2, 0, 0, v_now);
        END IF;
      END LOOP;
      FOR r IN DELETE FROM {holder} WHERE ns = p_ns AND id = ANY (p_ids) AND state >= 0
        AND context = p_context AND attempt = p_attempt RETURNING id, replaces, mode, permits, cap LOOP
        IF r.replaces <> 0 THEN
          PERFORM {v1_restore}(p_ns, r.id, r.replaces, r.mode, r.permits, r.cap, v_now);
        END IF;
      END LOOP;
    END IF;
    IF p_flags & 4 = 0 THEN
      -- Longer than a request can be on its way.
      v_until := v_now + greatest(p_lease, 50000000);
      INSERT INTO {mark} AS m (ns, id, context, attempt, until) VALUES (p_ns, p_ids[1], p_context, p_attempt, v_until)
        ON CONFLICT (id, ns, context, attempt) DO UPDATE SET until = excluded.until;
      UPDATE {lock} SET busy = busy | 16, lapses = greatest(lapses, v_until + 60000000)
        WHERE ns = p_ns AND id = p_ids[1] AND (busy & 16 = 0 OR lapses < v_until);
    END IF;
    PERFORM {v1_settle}(p_ns, p_ids);
  END IF;
  SELECT s.p_locked, s.told INTO v_locked, v_told FROM {v1_serve}(p_ns, p_ids, v_now, p_ids) AS s;
  {tell};
  RETURN coalesce(v_given, '');
END {$};

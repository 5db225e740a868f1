-- Serves the waiters for what was freed, in the order of their tickets, until nothing more fits. The rows of the ids are locked
-- and tidy; p_locked: all ids whose rows are locked. notify: channels, and behind each its message.
CREATE OR REPLACE FUNCTION {v1_serve}(p_ns bytea, p_ids bytea[], p_now int8, INOUT p_locked bytea[], OUT notify text[])
  LANGUAGE plpgsql AS {$}
DECLARE
  -- Cursors over the queues: the id; which waiters may still be served (0 those who obey no queue, 1 all, 2 shared claims,
  -- 3 slots with a limit above c_over); behind which ticket.
  c_ids bytea[] := '{}';
  c_lines int4[] := '{}';
  c_over int8[] := '{}';
  c_after int8[] := '{}';
  v_todo bytea[] := p_ids;
  v_id bytea;
  v_at int4;
  v_ids bytea[];
  v_others bytea[];
  v_modes int8[];
  v_permits int8[];
  v_limits int8[];
  v_stances int4[];
  v_conflicts text;
  v_given text;
  v_lasts int8;
  v_got int8;
  v_used int8;
  v_busy int4;
  v_stuck boolean;
  v_handed int4 := 0;
  v_last int8 := -1;
  w record;
BEGIN
  notify := '{}';
  LOOP
    FOREACH v_id IN ARRAY v_todo LOOP
      SELECT busy INTO v_busy FROM {lock} WHERE ns = p_ns AND id = v_id;
      -- The id starts again: what was decided of it may be decided differently now.
      FOR i IN REVERSE cardinality(c_ids) .. 1 LOOP
        IF c_ids[i] = v_id THEN
          c_ids := c_ids[:i - 1] || c_ids[i + 1:]; c_lines := c_lines[:i - 1] || c_lines[i + 1:];
          c_over := c_over[:i - 1] || c_over[i + 1:]; c_after := c_after[:i - 1] || c_after[i + 1:];
        END IF;
      END LOOP;
      -- Waited for, not frozen, not held exclusively.
      IF v_busy & ({HELD} | {FROZEN} | {PLACES}) = {PLACES} THEN
        c_ids := c_ids || v_id || v_id; c_lines := c_lines || 0 || 1;
        c_over := c_over || 0::int8 || 0::int8; c_after := c_after || -1::int8 || -1::int8;
        v_last := -1;
      END IF;
    END LOOP;
    v_todo := '{}';
    IF cardinality(c_ids) = 0 OR v_handed >= 256 THEN
      EXIT;
    END IF;
    SELECT c.at AS cursor, p.* INTO w FROM unnest(c_ids, c_lines, c_over, c_after) WITH ORDINALITY
        AS c (id, line, over, after, at)
      CROSS JOIN LATERAL (
        SELECT q.* FROM {place} q WHERE q.ns = p_ns AND q.id = c.id AND q.line = least(c.line, 1)
          AND NOT q.handed AND q.ticket > c.after
          AND (c.line < 2 OR c.line = 2 AND q.mode = 0 OR c.line = 3 AND q.mode = 1 AND q.cap > c.over)
          ORDER BY q.ticket LIMIT 1) p
      ORDER BY p.ticket, c.at LIMIT 1;
    IF NOT FOUND THEN
      EXIT;
    END IF;
    v_at := w.cursor;
    c_after[v_at] := w.ticket;
    IF NOT {v1_is_alive}(w.session, p_now) THEN
      -- Removed from all its queues or from none: should its session come back, the rest of a set would be handed over alone.
      SELECT array_agg(id) FILTER (WHERE id <> ALL (p_locked)) INTO v_others FROM {place}
        WHERE NOT w.alone AND ns = p_ns AND context = w.context AND attempt = w.attempt AND NOT handed;
      IF v_others IS NOT NULL THEN
        SELECT count(*) INTO v_got FROM (
          SELECT FROM {lock} WHERE ns = p_ns AND id = ANY (v_others) FOR UPDATE SKIP LOCKED) AS got;
      END IF;
      IF v_others IS NULL OR v_got = cardinality(v_others) THEN
        DELETE FROM {place} WHERE ns = p_ns AND context = w.context AND attempt = w.attempt AND NOT handed;
      END IF;
      CONTINUE;
    END IF;
    v_stuck := v_last = w.ticket;
    v_last := w.ticket;
    IF NOT v_stuck THEN
      SELECT array_agg(id ORDER BY id), array_agg(mode::int8 ORDER BY id), array_agg(permits ORDER BY id),
        array_agg(cap ORDER BY id), array_agg(id ORDER BY id) FILTER (WHERE id <> ALL (p_locked))
        INTO v_ids, v_modes, v_permits, v_limits, v_others FROM {place}
        WHERE ns = p_ns AND context = w.context AND attempt = w.attempt AND NOT handed;
      IF v_others IS NOT NULL THEN
        -- Never waits for a lock: these are out of order.
        SELECT count(*) INTO v_got FROM (
          SELECT FROM {lock} WHERE ns = p_ns AND id = ANY (v_others) FOR UPDATE SKIP LOCKED) AS got;
        IF v_got < cardinality(v_others) THEN
          -- Another transaction works on an id of the set: the waiter may ask for itself.
          notify := notify || format('lockcore_%s', w.session)
            || format('{"t":[["%s",%s]]}', encode(w.context, 'hex'), w.attempt);
          v_stuck := true;
        ELSE
          p_locked := p_locked || v_others;
          -- Behind their locks: what was granted or extended meanwhile is not from the future.
          p_now := {v1_now}();
          v_todo := {v1_tidy}(p_ns, v_others, p_now);
          IF cardinality(v_todo) > 0 THEN
            -- An earlier waiter may wait for these.
            c_after[v_at] := w.ticket - 1;
            CONTINUE;
          END IF;
        END IF;
      END IF;
    END IF;
    IF NOT v_stuck THEN
      SELECT x.stances, x.conflicts INTO v_stances, v_conflicts FROM {v1_weigh}(p_ns, w.context, v_ids, v_modes,
        v_permits, v_limits, w.ticket, w.line = 0, p_now) AS x;
      v_stuck := v_conflicts IS NOT NULL;
    END IF;
    IF NOT v_stuck THEN
      v_lasts := least(w.lease, {OFFER});
      v_given := {v1_grant}(p_ns, w.context, w.attempt, v_ids, v_modes, v_permits, v_limits, v_stances, v_lasts,
        w.owner, 1, p_now);
      IF cardinality(v_ids) > 1 THEN
        DELETE FROM {place} WHERE ns = p_ns AND context = w.context AND attempt = w.attempt AND id <> v_ids[1];
      END IF;
      UPDATE {place} SET handed = true WHERE ns = p_ns AND context = w.context AND attempt = w.attempt;
      PERFORM {v1_settle}(p_ns, v_ids);
      v_handed := v_handed + 1;
      notify := notify || format('lockcore_%s', w.session);
      v_given := format('{"o":[{"c":"%s","a":%s,"at":%s,"lasts":%s,"g":[%s]}]}', encode(w.context, 'hex'), w.attempt,
        p_now, v_lasts, v_given);
      -- A notification has at most 8000 bytes; this one makes the waiter ask.
      IF length(v_given) > 7900 THEN
        v_given := format('{"t":[["%s",%s]]}', encode(w.context, 'hex'), w.attempt);
      END IF;
      notify := notify || v_given;
    END IF;
    -- Where to look on.
    SELECT busy INTO v_busy FROM {lock} WHERE ns = p_ns AND id = w.id;
    IF v_busy & {HELD} <> 0 OR (v_stuck AND c_lines[v_at] > 0 AND w.mode = 2) THEN
      c_after[v_at] := 9223372036854775807;
    ELSIF v_stuck AND c_lines[v_at] > 0 AND w.mode = 0 THEN
      c_lines[v_at] := 2;
    ELSIF v_stuck AND c_lines[v_at] > 0 THEN
      -- No smaller limit than what is held fits either.
      SELECT coalesce(sum(permits), 0) INTO v_used FROM {holder} WHERE ns = p_ns AND id = w.id AND state >= 0;
      c_over[v_at] := greatest(w.cap, v_used, c_over[v_at]); c_lines[v_at] := 3;
    END IF;
  END LOOP;
  -- Enough for one transaction: the next ones may ask for the rest.
  IF v_handed >= 256 THEN
    SELECT notify || coalesce(array_agg(x.text ORDER BY c.at, x.n), '{}') INTO notify
      FROM unnest(c_ids, c_after) WITH ORDINALITY AS c (id, after, at)
      CROSS JOIN LATERAL (SELECT q.* FROM {place} q WHERE q.ns = p_ns AND q.id = c.id AND NOT q.handed
        AND q.ticket > c.after ORDER BY q.ticket LIMIT 1) p
      CROSS JOIN LATERAL (VALUES (1, format('lockcore_%s', p.session)),
        (2, format('{"t":[["%s",%s]]}', encode(p.context, 'hex'), p.attempt))) AS x (n, text);
  END IF;
  PERFORM {v1_settle}(p_ns, p_ids);
END {$};

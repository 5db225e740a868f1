-- Releasing and renewing.

-- Frees one id, and hands it over to its next waiter. flags: any commits asynchronously if no waiter takes over, ASYNC also
-- what is. lost: goes in empty. A procedure, because it commits before it notifies (`publish`).
CREATE OR REPLACE PROCEDURE {v1_release_one}(
  p_ns bytea, p_context bytea, p_id bytea, p_fence int8, p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_notify text[];
  {variables of release};
BEGIN
  {free in row};
  IF FOUND THEN
    {free async};
    RETURN;
  END IF;
  {hand over in row};
  IF v_channel IS NULL THEN
    v_set := {set by index};
    {hand over to place};
  END IF;
  IF v_channel <> '' THEN
    {commit handed};
    v_set := pg_notify(v_channel, v_offer);
  ELSIF v_channel = '' THEN
    {free async};
  ELSE
    SELECT r.lost, r.notify INTO lost, v_notify FROM {v1_let_go}(p_ns, p_context, ARRAY[p_id], ARRAY[p_fence]) AS r;
    {publish};
  END IF;
END {$};

-- The same for any set.
CREATE OR REPLACE PROCEDURE {v1_release}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_notify text[];
  v_set text := {set by index};
  v_count int8;
BEGIN
  IF p_fences[1] = ALL (p_fences) THEN
    -- The usual case in one statement: held exclusively, without waiters. It meets the rows in the order of the index on ids,
    -- in which they are locked everywhere. If it is not so for all, all are let go first: to go on with only some of them
    -- would lock the others out of order.
    UPDATE {lock} SET busy = 0 WHERE id = ANY (p_ids) AND ns = p_ns
      AND busy = {HELD} AND fence = p_fences[1] AND context = p_context AND replaces = 0 AND expires > v_now;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(p_ids) THEN
      {free async};
      RETURN;
    END IF;
    ROLLBACK;
    v_set := {set by index};
  END IF;
  SELECT r.lost, r.notify INTO lost, v_notify FROM {v1_let_go}(p_ns, p_context, p_ids, p_fences) AS r;
  {publish};
END {$};

-- Releases one id for each of several grants, in the order of the ids. flags as of {v1_release_one}; lost has a line for each.
CREATE OR REPLACE PROCEDURE {v1_release_batch}(
  p_ns bytea, p_contexts bytea[], p_ids bytea[], p_fences int8[], p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_notify text[] := '{}';
  v_losses text[] := '{}';
  v_more text[];
  v_lost text;
  p_context bytea;
  p_id bytea;
  p_fence int8;
  v_now int8;
  {variables of release};
BEGIN
  -- As in {v1_acquire_batch}.
  v_set := set_config('lock_timeout', '20', true) || {set by index};
  FOR i IN 1 .. cardinality(p_ids) LOOP
    p_context := p_contexts[i]; p_id := p_ids[i]; p_fence := p_fences[i]; v_now := {clock}; v_lost := '';
    {free in row};
    IF NOT FOUND THEN
      {hand over in row};
      IF v_channel IS NULL THEN
        {hand over to place};
      END IF;
      IF v_channel <> '' THEN
        v_notify := v_notify || ARRAY[v_channel, v_offer];
      ELSIF v_channel IS NULL THEN
        SELECT r.lost, r.notify INTO v_lost, v_more FROM {v1_let_go}(p_ns, p_context, ARRAY[p_id], ARRAY[p_fence]) AS r;
        v_notify := v_notify || v_more;
      END IF;
    END IF;
    v_losses[i] := v_lost;
  END LOOP;
  lost := array_to_string(v_losses, E'\n');
  {publish};
END {$};

-- Frees what is held of a set, in whatever mode, and serves its waiters. lost: as `reply` has it; notify: as of {v1_serve}.
CREATE OR REPLACE FUNCTION {v1_let_go}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], OUT lost text, OUT notify text[])
  LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8;
  v_waits boolean;
  v_reason int4;
  v_done bytea[] := '{}';
  v_freed bytea[] := '{}';
  v_locked bytea[];
  v_replaces int8;
  v_expires int8;
  r {lock};
BEGIN
  notify := '{}';
  lost := '';
  {lock rows};
  v_now := {v1_now}();
  IF p_fences[1] = ALL (p_fences) THEN
    -- Ids that are simply held, at once: one by one, a large set would take up much of what its waiters are offered.
    WITH freed AS (
      UPDATE {lock} SET busy = 0 WHERE id = ANY (p_ids) AND ns = p_ns
        AND busy = {HELD} AND fence = p_fences[1] AND context = p_context AND replaces = 0 AND expires > v_now RETURNING id)
    SELECT coalesce(array_agg(id), '{}') INTO v_done FROM freed;
  END IF;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    IF p_ids[i] = ANY (v_done) THEN
      CONTINUE;
    END IF;
    v_reason := NULL;
    SELECT * INTO r FROM {lock} WHERE ns = p_ns AND id = p_ids[i];
    IF r.busy & {HELD} <> 0 AND r.fence = p_fences[i] AND r.context = p_context THEN
      UPDATE {lock} SET busy = busy & ~{EXCLUSIVE} WHERE ns = p_ns AND id = p_ids[i];
      v_expires := r.expires; v_replaces := r.replaces;
      v_freed := v_freed || p_ids[i];
    ELSE
      DELETE FROM {holder} WHERE ns = p_ns AND id = p_ids[i] AND fence = p_fences[i] AND context = p_context
        AND state >= 0 RETURNING expires, replaces INTO v_expires, v_replaces;
      IF FOUND THEN
        v_freed := v_freed || p_ids[i];
      ELSE
        v_expires := NULL; v_replaces := 0;
        v_reason := CASE WHEN EXISTS (SELECT FROM {break} b WHERE b.ns = p_ns AND b.id = p_ids[i]
          AND b.fence = p_fences[i]) THEN 1 ELSE 2 END;
      END IF;
    END IF;
    IF v_expires <= v_now THEN
      v_reason := 0;
    END IF;
    IF v_replaces <> 0 THEN
      DELETE FROM {holder} WHERE ns = p_ns AND id = p_ids[i] AND fence = v_replaces AND state = -1;
    END IF;
    IF v_reason IS NOT NULL THEN
      lost := concat_ws(',', nullif(lost, ''), format('[%s,%s]', i - 1, v_reason));
    END IF;
  END LOOP;
  IF lost <> '' THEN
    lost := format('[%s]', lost);
  END IF;
  IF cardinality(v_freed) > 0 THEN
    -- A waiter that releases its offer before it confirmed it is not notified any more.
    DELETE FROM {place} WHERE {offer of caller} = ANY (v_freed);
    SELECT coalesce(bool_or(busy & {WAITERS} <> 0), false) INTO v_waits FROM {lock} WHERE ns = p_ns AND id = ANY (v_freed);
    IF v_waits THEN
      PERFORM {v1_tidy}(p_ns, v_freed, v_now);
      SELECT s.p_locked, s.notify INTO v_locked, notify FROM {v1_serve}(p_ns, v_freed, v_now, p_ids) AS s;
    ELSE
      PERFORM {v1_settle}(p_ns, v_freed);
    END IF;
  END IF;
END {$};

-- Extends what a grant still holds to a whole lease from now, and confirms offers.
CREATE OR REPLACE FUNCTION {v1_renew}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], p_lease int8, p_flags int8)
  RETURNS text LANGUAGE plpgsql
  {by index} AS {$}
DECLARE
  v_now int8 := {clock};
  v_expires int8 := v_now + p_lease;
  v_lapses int8 := v_now + 8 * p_lease;
  v_left int8;
  v_lost text;
  v_reason int4;
  v_offered boolean := false;
  v_set text;
  r {lock};
  h {holder};
BEGIN
  IF p_flags & {ASYNC} <> 0 THEN
    {be async};
  END IF;
  IF cardinality(p_ids) = 1 THEN
    -- The usual case: held exclusively, not broken, not over, not made shorter, and not offered with a place.
    UPDATE {lock} SET busy = busy & ~{OFFERED_IN_ROW}, expires = v_expires, lease = p_lease,
      lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_lapses END
      WHERE ns = p_ns AND id = p_ids[1] AND busy & ({HELD} | {OFFERED} | {BROKEN}) = {HELD} AND fence = p_fences[1]
      AND context = p_context AND expires > v_now AND expires <= v_expires;
    IF FOUND THEN
      RETURN '';
    END IF;
  END IF;
  {lock rows};
  v_now := {v1_now}();
  v_expires := v_now + p_lease;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_reason := NULL;
    SELECT * INTO r FROM {lock} WHERE ns = p_ns AND id = p_ids[i];
    IF r.busy & {HELD} <> 0 AND r.fence = p_fences[i] AND r.context = p_context THEN
      v_left := r.expires - v_now;
      IF v_left <= 0 THEN
        v_reason := 0;
      ELSIF r.busy & {BROKEN} <> 0 THEN
        v_reason := 1;
      ELSE
        -- An offer, or a grant from the future, counts from now; a lock with a longer lease left is as it should be.
        IF r.busy & {UNCONFIRMED} <> 0 OR v_left > r.lease THEN
          v_offered := true;
          v_left := 0;
        END IF;
        IF p_flags & {EXACTLY} <> 0 THEN
          v_left := 0;
        END IF;
        UPDATE {lock} SET busy = busy & ~{UNCONFIRMED}, expires = v_now + greatest(p_lease, v_left),
          lease = greatest(p_lease, v_left), lapses = CASE WHEN lapses >= v_now + greatest(p_lease, v_left) THEN lapses
          ELSE greatest(v_lapses, v_now + greatest(p_lease, v_left)) END
          WHERE ns = p_ns AND id = p_ids[i];
      END IF;
    ELSE
      SELECT * INTO h FROM {holder} WHERE ns = p_ns AND id = p_ids[i] AND fence = p_fences[i] AND context = p_context
        AND state >= 0;
      IF NOT FOUND THEN
        v_reason := CASE WHEN EXISTS (SELECT FROM {break} b WHERE b.ns = p_ns AND b.id = p_ids[i]
          AND b.fence = p_fences[i]) THEN 1 ELSE 2 END;
      ELSIF h.expires <= v_now THEN
        v_reason := 0;
      ELSIF h.broken THEN
        v_reason := 1;
      ELSE
        v_left := h.expires - v_now;
        IF h.state = 1 OR v_left > h.lease THEN
          v_offered := true;
          v_left := 0;
        END IF;
        IF p_flags & {EXACTLY} <> 0 THEN
          v_left := 0;
        END IF;
        UPDATE {holder} SET state = 0, expires = v_now + greatest(p_lease, v_left), lease = greatest(p_lease, v_left)
          WHERE ns = p_ns AND id = p_ids[i] AND fence = p_fences[i];
        UPDATE {lock} SET lapses = greatest(v_lapses, v_now + greatest(p_lease, v_left))
          WHERE ns = p_ns AND id = p_ids[i] AND lapses < v_now + greatest(p_lease, v_left);
      END IF;
    END IF;
    IF v_reason IS NOT NULL THEN
      v_lost := concat_ws(',', v_lost, format('[%s,%s]', i - 1, v_reason));
    END IF;
  END LOOP;
  IF v_offered THEN
    DELETE FROM {place} WHERE {offer of caller} = ANY (p_ids);
  END IF;
  RETURN coalesce('[' || v_lost || ']', '');
END {$};

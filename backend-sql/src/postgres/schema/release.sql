-- Frees one id, and serves who waits for it. flags: 1 commit asynchronously if nothing is handed over; 8 always. lost: goes in
-- empty. A procedure, because it commits in between (`publish`).
CREATE OR REPLACE PROCEDURE {v1_release_one}(
  p_ns bytea, p_context bytea, p_id bytea, p_fence int8, p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_told text[];
  {variables of free};
BEGIN
  {free in row};
  IF FOUND THEN
    {free async};
    RETURN;
  END IF;
  {hand over in row};
  IF v_channel IS NULL THEN
    v_set := {set by index};
    {pass on};
  END IF;
  IF v_channel <> '' THEN
    {commit handed};
    v_set := pg_notify(v_channel, v_offer);
  ELSIF v_channel = '' THEN
    {free async};
  ELSE
    SELECT r.lost, r.told INTO lost, v_told FROM {v1_let_go}(p_ns, p_context, ARRAY[p_id], ARRAY[p_fence]) AS r;
    {publish};
  END IF;
END {$};

-- The same for many ids that are held under one fence. p_made, p_as: as of {v1_acquire_kept}, if the set is to be kept, else 0; it
-- is made by that if it is still held under that fence.
CREATE OR REPLACE PROCEDURE {v1_release_many}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fence int8, p_flags int8, p_made int8, p_as int8, INOUT lost text)
  LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_fence int8 := p_fence;
  {in order};
  v_count int8;
BEGIN
  IF p_made <> 0 AND p_made <> p_fence THEN
    UPDATE {set} SET expires = 0 WHERE {held set};
    IF FOUND THEN
      {free async};
      RETURN;
    END IF;
  ELSE
    -- Nobody waits: in one statement, or not at all, as {v1_acquire_many} takes it.
    IF p_made = 0 THEN
      UPDATE {lock} SET busy = 0 WHERE id = ANY (p_ids) AND ns = p_ns
        AND busy = 1 AND fence = p_fence AND context = p_context AND expires > v_now;
    ELSE
      -- In an hour the sweep looks whether they are still of use.
      UPDATE {lock} SET busy = 512, lapses = greatest(lapses, v_now + 3600000000) WHERE id = ANY (p_ids) AND ns = p_ns
        AND busy = 1 AND fence = p_fence AND attempt = p_as AND context = p_context AND expires > v_now;
    END IF;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(p_ids) THEN
      IF p_made <> 0 THEN
        INSERT INTO {set} (made, attempt, ns, lease, fence, expires, since, taker, parted, context, owner)
          VALUES (p_made, p_as, p_ns, 0, p_fence, 0, v_now, p_as, false, p_context, '');
      END IF;
      {free async};
      RETURN;
    END IF;
  END IF;
  ROLLBACK;
  CALL {v1_release}(p_ns, p_context, p_ids, array_fill(p_fence, ARRAY[cardinality(p_ids)]), p_flags, lost);
END {$};

-- The same for any set.
CREATE OR REPLACE PROCEDURE {v1_release}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_told text[];
  {in order};
BEGIN
  SELECT r.lost, r.told INTO lost, v_told FROM {v1_let_go}(p_ns, p_context, p_ids, p_fences) AS r;
  {publish};
END {$};

-- Frees what is held of a set, whatever there is of it, and hands it on: gives what was lost, and whom to tell what.
CREATE OR REPLACE FUNCTION {v1_let_go}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], OUT lost text, OUT told text[])
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
  told := '{}';
  lost := '';
  -- In order; and what is gone is not made anew.
  PERFORM FROM unnest(p_ids) WITH ORDINALITY AS u (id, at)
    CROSS JOIN LATERAL (SELECT FROM {lock} k WHERE k.ns = p_ns AND k.id = u.id FOR UPDATE) AS l;
  PERFORM {v1_part}(p_ns, p_ids);
  v_now := {v1_now}();
  IF p_fences[1] = ALL (p_fences) THEN
    -- Those that are simply held, at once.
    WITH freed AS (
      UPDATE {lock} SET busy = 0 WHERE id = ANY (p_ids) AND ns = p_ns
        AND busy = 1 AND fence = p_fences[1] AND context = p_context AND replaces = 0 AND expires > v_now RETURNING id)
    SELECT coalesce(array_agg(id), '{}') INTO v_done FROM freed;
  END IF;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    IF p_ids[i] = ANY (v_done) THEN
      CONTINUE;
    END IF;
    v_reason := NULL;
    SELECT * INTO r FROM {lock} WHERE ns = p_ns AND id = p_ids[i];
    IF r.busy & 1 = 1 AND r.fence = p_fences[i] AND r.context = p_context THEN
      UPDATE {lock} SET busy = busy & ~353 WHERE ns = p_ns AND id = p_ids[i];
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
    -- The offer that was released before it was confirmed is not told any more.
    DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND handed AND id = ANY (v_freed);
    SELECT coalesce(bool_or(busy & 132 <> 0), false) INTO v_waits FROM {lock} WHERE ns = p_ns AND id = ANY (v_freed);
    IF v_waits THEN
      PERFORM {v1_tidy}(p_ns, v_freed, v_now);
      SELECT s.p_locked, s.told INTO v_locked, told FROM {v1_serve}(p_ns, v_freed, v_now, p_ids) AS s;
    ELSE
      PERFORM {v1_settle}(p_ns, v_freed);
    END IF;
  END IF;
END {$};

-- Extends what a grant still holds to a whole lease from now. flags: 8 commit asynchronously.
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
  IF p_flags & 8 = 8 THEN
    {be async};
  END IF;
  IF cardinality(p_ids) = 1 THEN
    -- The usual case: held exclusively, not broken, not over, and not made shorter; and no place says that it is not confirmed.
    UPDATE {lock} SET busy = busy & ~256, expires = v_expires, lease = p_lease,
      lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_lapses END
      WHERE ns = p_ns AND id = p_ids[1] AND busy & 97 = 1 AND fence = p_fences[1] AND context = p_context
      AND expires > v_now AND expires <= v_expires;
    IF FOUND THEN
      RETURN '';
    END IF;
    -- The same where one does, which is confirmed by that.
    UPDATE {lock} SET busy = busy & ~32, expires = v_expires, lease = p_lease,
      lapses = CASE WHEN lapses >= v_expires THEN lapses ELSE v_lapses END
      WHERE ns = p_ns AND id = p_ids[1] AND busy & 97 = 33 AND fence = p_fences[1] AND context = p_context
      AND expires > v_now AND expires <= v_expires;
    IF FOUND THEN
      DELETE FROM {place} WHERE ns = p_ns AND id = p_ids[1] AND context = p_context AND handed;
      RETURN '';
    END IF;
  END IF;
  PERFORM FROM unnest(p_ids) WITH ORDINALITY AS u (id, at)
    CROSS JOIN LATERAL (SELECT FROM {lock} k WHERE k.ns = p_ns AND k.id = u.id FOR UPDATE) AS l;
  PERFORM {v1_part}(p_ns, p_ids);
  v_now := {v1_now}();
  v_expires := v_now + p_lease;
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_reason := NULL;
    SELECT * INTO r FROM {lock} WHERE ns = p_ns AND id = p_ids[i];
    IF r.busy & 1 = 1 AND r.fence = p_fences[i] AND r.context = p_context THEN
      v_left := r.expires - v_now;
      IF v_left <= 0 THEN
        v_reason := 0;
      ELSIF r.busy & 64 = 64 THEN
        v_reason := 1;
      ELSE
        -- An offer, or a grant from the future, counts from now; a lock with a longer lease left is as it should be.
        IF r.busy & 288 <> 0 OR v_left > r.lease THEN
          v_offered := true;
          v_left := 0;
        END IF;
        UPDATE {lock} SET busy = busy & ~288, expires = v_now + greatest(p_lease, v_left),
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
    DELETE FROM {place} WHERE ns = p_ns AND context = p_context AND handed AND id = ANY (p_ids);
  END IF;
  RETURN coalesce('[' || v_lost || ']', '');
END {$};

-- The same for a set that was taken by {v1_acquire_kept}, of which p_made and p_as are; lost goes in empty.
CREATE OR REPLACE PROCEDURE {v1_renew_kept}(
  p_ns bytea, p_context bytea, p_ids bytea[], p_fences int8[], p_lease int8, p_flags int8, p_made int8, p_as int8,
  INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_now int8 := {clock};
  v_fence int8 := p_fences[1];
  {in order};
BEGIN
  UPDATE {set} SET lease = greatest(p_lease, expires - v_now), expires = greatest(v_now + p_lease, expires)
    WHERE {held set} AND expires - lease <= v_now;
  IF NOT FOUND THEN
    ROLLBACK;
    lost := {v1_renew}(p_ns, p_context, p_ids, p_fences, p_lease, p_flags);
  ELSIF p_flags & 8 = 8 THEN
    {be async};
  END IF;
END {$};

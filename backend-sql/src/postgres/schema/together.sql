-- Batches: requests of one program, for one id each, in the order of the ids, in one transaction. The answer has a line for
-- each: what the routine for one id answers.

-- Takes ids exclusively; parameters as of {v1_acquire_one}.
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
  -- Who has to wait longer for a row does that alone, lest all others wait, too.
  v_set := set_config('lock_timeout', '20', true);
  FOR i IN 1 .. cardinality(p_ids) LOOP
    v_answers[i] := {v1_acquire_one}(p_ns, p_contexts[i], p_attempts[i], p_ids[i], p_leases[i], p_owners[i], p_flags[i],
      p_session);
    IF current_setting('synchronous_commit') = 'off' THEN
      -- This one need not survive; of the others, that is for them to say.
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

-- Releases ids. flags and lost as of {v1_release_one}.
CREATE OR REPLACE PROCEDURE {v1_release_batch}(
  p_ns bytea, p_contexts bytea[], p_ids bytea[], p_fences int8[], p_flags int8, INOUT lost text) LANGUAGE plpgsql AS {$}
DECLARE
  v_told text[] := '{}';
  v_losses text[] := '{}';
  v_one text[];
  v_lost text;
  p_context bytea;
  p_id bytea;
  p_fence int8;
  v_now int8;
  {variables of free};
BEGIN
  v_set := set_config('lock_timeout', '20', true) || {set by index};
  FOR i IN 1 .. cardinality(p_ids) LOOP
    p_context := p_contexts[i]; p_id := p_ids[i]; p_fence := p_fences[i]; v_now := {clock}; v_lost := '';
    {free in row};
    IF NOT FOUND THEN
      {hand over in row};
      IF v_channel IS NULL THEN
        {pass on};
      END IF;
      IF v_channel <> '' THEN
        v_told := v_told || ARRAY[v_channel, v_offer];
      ELSIF v_channel IS NULL THEN
        SELECT r.lost, r.told INTO v_lost, v_one FROM {v1_let_go}(p_ns, p_context, ARRAY[p_id], ARRAY[p_fence]) AS r;
        v_told := v_told || v_one;
      END IF;
    END IF;
    v_losses[i] := v_lost;
  END LOOP;
  lost := array_to_string(v_losses, E'\n');
  {publish};
END {$};

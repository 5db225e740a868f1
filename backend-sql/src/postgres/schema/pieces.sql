-- {clock}: microseconds since 1970.
(date_part('epoch', clock_timestamp()) * 1000000)::int8

-- {be async}: what the transaction does may reach the disk later.
v_set := set_config('synchronous_commit', 'off', true)

-- {in order}: for the next statements only one plan is left, by the index, and so in its order.
v_set text := CASE WHEN current_setting('enable_bitmapscan') || current_setting('enable_seqscan') <> 'offoff'
    THEN {v1_in_order}() END

-- {holder in row}: who holds it exclusively, as the beginning of part of `reply::Against`, and until when.
format('"%s","%s",2,0,0,%s', encode(context, 'hex'), encode(owner, 'hex'), fence), expires
      INTO v_holder, v_expires

-- {variables of free}: of the next two.
v_busy int4;
  v_fence int8;
  v_context text;
  v_attempt int8;
  v_lasts int8;
  v_channel text;
  v_offer text;
  v_set text

-- {free in row}: the usual release of one id: it is held, exclusively, and nobody waits; then `v_busy` is 0. In as few words as
-- possible. Where there is more of it than that, this locks the row and changes nothing. `v_busy` is NULL if the row alone does
-- not say that it is held.
UPDATE {lock} SET busy = CASE busy WHEN 1 THEN 0 ELSE busy END WHERE id = p_id AND ns = p_ns AND busy & ~52 = 1
    AND fence = p_fence AND context = p_context AND replaces = 0 AND expires > v_now RETURNING busy INTO v_busy

-- {pass on}: the same where somebody waits or did, where it was handed over and not confirmed, and where there are marks: if the
-- head of the queue wants it exclusively and nothing else and gave a sign of life lately, or if there is nobody in the queue.
-- Then `v_offer` is to be told on `v_channel`, which is empty if there is nobody; else it is NULL, and nothing was freed.
v_channel := NULL;
  IF v_busy IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
    IF v_busy & 32 = 32 THEN
      -- The offer that is released before it was confirmed is not told any more.
      DELETE FROM {place} WHERE id = p_id AND ns = p_ns AND handed AND context = p_context;
    END IF;
    IF v_busy & 4 = 4 THEN
      -- To free it may have waited for the row.
      v_now := {clock};
      v_fence := greatest(p_fence + 1, v_now);
      WITH w AS (
        UPDATE {place} p SET handed = true WHERE p.ctid = (SELECT q.ctid FROM {place} q
            WHERE q.id = p_id AND q.ns = p_ns AND NOT q.handed ORDER BY q.line, q.ticket LIMIT 1)
          AND p.line = 1 AND p.mode = 2 AND p.alone
          AND EXISTS (SELECT FROM {session} s WHERE s.session = p.session AND abs(v_now - s.beat) <= 3000000)
          RETURNING p.context, p.attempt, p.session, p.owner, least(p.lease, 2000000) AS lasts)
      UPDATE {lock} l SET fence = v_fence, expires = v_now + w.lasts, lease = w.lasts, since = v_now, attempt = w.attempt,
        busy = v_busy & 20 | 33, context = w.context, owner = w.owner,
        lapses = CASE WHEN lapses >= v_now + w.lasts THEN lapses ELSE v_now + 8 * w.lasts END
        FROM w WHERE l.id = p_id AND l.ns = p_ns
        RETURNING 'lockcore_' || w.session, encode(l.context, 'hex'), l.attempt, l.lease
        INTO v_channel, v_context, v_attempt, v_lasts;
    END IF;
    IF v_channel IS NOT NULL THEN
      v_offer := format('{"o":[{"c":"%s","a":%s,"at":%s,"lasts":%s,"g":[[2,0,0,%s,1,[]]]}]}',
        v_context, v_attempt, v_now, v_lasts, v_fence);
    ELSE
      UPDATE {lock} SET busy = busy & 16 WHERE id = p_id AND ns = p_ns
        AND (v_busy & 4 = 0 OR NOT EXISTS (SELECT FROM {place} p WHERE p.id = p_id AND p.ns = p_ns AND NOT p.handed));
      IF FOUND THEN
        v_channel := '';
      END IF;
    END IF;
  END IF

-- {tell}: notifies whom it concerns: `v_told` has channels, and behind each what to say.
FOR i IN 1 .. cardinality(v_told) / 2 LOOP
      v_set := pg_notify(v_told[2 * i - 1], v_told[2 * i]);
    END LOOP

-- {commit handed}: commits what was freed and handed over, durably. The notifications that follow it go
-- asynchronously: one in a durable commit lets only one commit at a time reach the disk.
IF p_flags & 8 = 8 THEN
      {be async};
    END IF;
    COMMIT;
    {be async};
    -- So that a lock timeout is always before the commit.
    IF current_setting('lock_timeout') <> '0' THEN
      v_set := set_config('lock_timeout', '0', true);
    END IF

-- {free async}: what is freed and handed to nobody need not be on the disk before the answer, if so wanted.
IF p_flags <> 0 THEN
      {be async};
    END IF

-- {publish}: one or the other; tells what is to be told.
IF cardinality(v_told) = 0 THEN
    {free async};
  ELSE
    {commit handed};
    {tell};
  END IF

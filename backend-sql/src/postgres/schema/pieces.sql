-- {clock}: microseconds since 1970.
(date_part('epoch', clock_timestamp()) * 1000000)::int8

-- {be async}: what the transaction does may reach the disk later.
v_set := set_config('synchronous_commit', 'off', true)

-- {by index}: how the statements of a routine are planned, and of all that it calls: once, and by the indexes. A plan that was made
-- while a table was small would otherwise read all of it until it is analyzed. Tied to the routine, because a session may be
-- another client's next.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off

-- {by key}: enough of that where rows are found by their whole keys; each setting is a hundredth of the usual case.
SET enable_seqscan = off

-- {set by index}: the same up to the end of the transaction, for a procedure that commits: it can have no such clause.
set_config('plan_cache_mode', 'force_generic_plan', true) || set_config('enable_seqscan', 'off', true)
    || set_config('enable_bitmapscan', 'off', true) || set_config('jit', 'off', true)

-- {set by key}: likewise.
set_config('enable_seqscan', 'off', true)

-- {in order}: for the next statements only one plan is left, by the index, and so in its order.
v_set text := {set by index}

-- {holder in row}: who holds it exclusively, as the beginning of part of `reply::Against`.
format('"%s","%s",2,0,0,%s', encode(context, 'hex'), encode(owner, 'hex'), fence)

-- {sign of life}: seldom, so that the requests of one program do not wait for each other's commits.
INSERT INTO {session} AS s (session, beat) VALUES (p_session, v_now)
      ON CONFLICT (session) DO UPDATE SET beat = excluded.beat

-- {waited for}: by p_session.
SELECT p.id FROM {place} p WHERE p.session = p_session AND NOT p.handed AND p.ns = p_ns UNION SELECT unnest(p_ids)

-- {held by p}: by the row, as far as its other columns say.
id = p_id AND ns = p_ns AND fence = p_fence AND context = p_context AND replaces = 0 AND expires > v_now

-- {held by another}: the same of somebody who is in the way.
id = p_id AND ns = p_ns AND context <> p_context AND expires > v_now AND expires - lease <= v_now

-- {variables of free}: of the next three.
v_busy int4;
  v_channel text;
  v_offer text;
  v_set text := {set by key}

-- {free in row}: the usual release of one id: it is held, exclusively, and nobody waits. In as few words as possible.
UPDATE {lock} SET busy = 0 WHERE busy & ~256 = 1 AND {held by p}

-- {hand over in row}: the same to the one who stands in the row, if it gave a sign of life lately. Then `v_offer` is to be told on
-- `v_channel`; else that is NULL, and nothing was done. The look for nobody may have waited for the row.
v_now := {clock};
  UPDATE {lock} l SET fence = greatest(fence + 1, v_now), since = v_now, lease = least(next_lease, 2000000),
    expires = v_now + least(next_lease, 2000000), attempt = next_attempt, busy = busy & 16 | 257, context = next_context,
    owner = next_owner, lapses = CASE WHEN lapses >= v_now + 2000000 THEN lapses ELSE v_now + 16000000 END
    WHERE busy & ~272 = 129 AND {held by p}
      AND EXISTS (SELECT FROM {session} s WHERE s.session = l.next_session AND abs(v_now - s.beat) <= 3000000)
    RETURNING 'lockcore_' || next_session, {offer in row} INTO v_channel, v_offer

-- {offer in row}: what its holder is told who was handed it.
format('{"o":[{"c":"%s","a":%s,"at":%s,"lasts":%s,"g":[[2,0,0,%s,1,[]]]}]}', encode(l.context, 'hex'), l.attempt, l.since,
      l.lease, l.fence)

-- {pass on}: the same where there are places, where it was handed over by one and not confirmed, and where there are marks: if
-- the head of the queue wants it exclusively and nothing else and gave a sign of life lately, or if there is nobody in the queue;
-- then `v_channel` is empty. If it is NULL nothing was freed.
v_channel := NULL;
  -- Locks the row, for the next statements.
  UPDATE {lock} SET busy = busy WHERE busy & ~52 = 1 AND {held by p} RETURNING busy INTO v_busy;
  IF FOUND AND current_setting('transaction_isolation') = 'read committed' THEN
    IF v_busy & 32 = 32 THEN
      -- The offer that is released before it was confirmed is not told any more.
      DELETE FROM {place} WHERE id = p_id AND ns = p_ns AND handed AND context = p_context;
    END IF;
    IF v_busy & 4 = 4 THEN
      -- To lock it may have waited.
      v_now := {clock};
      WITH w AS (
        UPDATE {place} p SET handed = true WHERE p.ctid = (SELECT q.ctid FROM {place} q
            WHERE q.id = p_id AND q.ns = p_ns AND NOT q.handed ORDER BY q.line, q.ticket LIMIT 1)
          AND p.line = 1 AND p.mode = 2 AND p.alone
          AND EXISTS (SELECT FROM {session} s WHERE s.session = p.session AND abs(v_now - s.beat) <= 3000000)
          RETURNING p.context, p.attempt, p.session, p.owner, least(p.lease, 2000000) AS lasts)
      UPDATE {lock} l SET fence = greatest(fence + 1, v_now), expires = v_now + w.lasts, lease = w.lasts, since = v_now,
        attempt = w.attempt, busy = v_busy & 20 | 33, context = w.context, owner = w.owner,
        lapses = CASE WHEN lapses >= v_now + w.lasts THEN lapses ELSE v_now + 8 * w.lasts END
        FROM w WHERE l.id = p_id AND l.ns = p_ns
        RETURNING 'lockcore_' || w.session, {offer in row} INTO v_channel, v_offer;
    END IF;
    IF v_channel IS NULL THEN
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

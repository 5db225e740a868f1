-- Puts the locked ids of a set in order: who stands in their rows moves to where everything else is, what is from the
-- future (the clock was set back) counts as granted now. Tells whether leases ended, and whether anybody waits.
CREATE PROCEDURE {v1_tidy}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_now BIGINT, OUT p_ended INT, OUT p_waiters INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_inline, v_over, v_extra, v_future, v_parts INT DEFAULT 0;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SELECT IFNULL(SUM(i.until > 0), 0), IFNULL(SUM(i.until > 0 AND i.until <= p_now), 0), IFNULL(SUM(i.extra), 0),
      IFNULL(SUM(i.extra = 3), 0)
    INTO v_inline, v_over, v_extra, v_parts FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id);
  IF v_parts > 0 THEN
    CALL {v1_part}(p_ns, p_set, p_now);
  END IF;
  IF v_inline > 0 THEN
    CALL {v1_move}(p_ns, p_set, p_now);
  END IF;
  SET p_ended = v_over, p_waiters = 0;
  IF v_extra > 0 THEN
    SELECT IFNULL(SUM(h.until <= p_now), 0), IFNULL(SUM(h.until - h.lease > p_now), 0) INTO p_ended, v_future
      FROM {set} STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state = 0;
    IF v_future > 0 THEN
      UPDATE {set} STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state = 0
        SET h.until = p_now + h.lease WHERE h.until - h.lease > p_now;
    END IF;
    SELECT EXISTS (SELECT 1 FROM {set} STRAIGHT_JOIN {claims} w ON w.ns = p_ns AND w.id = UNHEX(j.id)
      AND w.state IN (2, 3)) INTO p_waiters;
  END IF;
END
//
-- Moves who stands in the rows of a set's ids to where everything else is.
CREATE PROCEDURE {v1_move}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_now BIGINT)
SQL SECURITY DEFINER
BEGIN
  INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since,
      session, told)
    SELECT p_ns, i.id, 0, i.fence, i.context, i.attempt, 2, 0, 0, '', i.owner, i.lease,
      LEAST(i.until, p_now + i.lease), i.since, i.session, i.session <> 0
    FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) WHERE i.until > 0;
  INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since,
      session, wants)
    SELECT p_ns, i.id, 3, i.next_ticket, i.next_context, i.next_attempt, 2, 0, 0, '', i.next_owner, i.next_lease, 0,
      i.next_ticket, i.next_session, 1
    FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) WHERE i.extra = 2;
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
    ON DUPLICATE KEY UPDATE extra = IF({ids}.until > 0, 1, {ids}.extra), until = 0, session = 0, next_session = 0;
END
//
-- Moves who took the ids of a set together with others, as of `sets`, to where everything else is. From then on those are
-- no whole set: it is parted before it is read, so that what is freed or renewed as a whole comes before or not at all.
CREATE PROCEDURE {v1_part}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_now BIGINT)
SQL SECURITY DEFINER
BEGIN
  UPDATE {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) AND i.extra = 3
      STRAIGHT_JOIN {sets} g ON {of set g}
    SET g.parted = 1;
  INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since)
    SELECT p_ns, i.id, 0, g.number, g.context, g.taker, 2, 0, 0, '', g.owner, g.lease, LEAST(g.until, p_now + g.lease),
      g.since
    FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) AND i.extra = 3
      STRAIGHT_JOIN {sets} g ON {of set g} AND g.until > 0;
  INSERT INTO {ids} (ns, id) SELECT q.ns, q.id FROM (SELECT i.ns, i.id, g.number FROM {set}
      STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) AND i.extra = 3 LEFT JOIN {sets} g ON {of set g}) q
    ON DUPLICATE KEY UPDATE extra = 1, fence = {fence as of q};
END
//
-- Removes what ended on the locked ids of a set.
CREATE PROCEDURE {v1_prune}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_now BIGINT)
SQL SECURITY DEFINER
BEGIN
  DELETE h FROM {set} STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state IN (0, 1)
    WHERE h.until <= p_now;
END
//
-- Ids of a set of which nothing is known any more but what stands in their own row are marked so.
CREATE PROCEDURE {v1_settle}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
    WHERE NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = UNHEX(j.id))
    ON DUPLICATE KEY UPDATE extra = {ids}.frozen;
END
//
-- What stands against granting a set now, one character for each id. Nothing: N new, K goes on holding as much, C holds
-- it otherwise. Something: 1 holders, 3 frozen, 5 earlier waiters, 6 its own lock was broken; 2 and 4 are 1 and 3 for
-- an id that the context holds otherwise. The rules are those of `lockcore::rules`.
CREATE PROCEDURE {v1_weigh}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_context VARBINARY(255), p_ticket BIGINT, p_nested TINYINT,
  p_now BIGINT, OUT p_classes TEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  SELECT GROUP_CONCAT(CASE
      WHEN o.broken THEN '6'
      WHEN o.number IS NOT NULL AND {keeps o} THEN 'K'
      WHEN i.frozen THEN IF(o.number IS NULL, '3', '4')
      WHEN CASE j.a
          WHEN 2 THEN EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0
            AND h.context <> p_context)
          WHEN 0 THEN EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0
            AND h.context <> p_context AND h.mode = 2)
          ELSE j.b + (SELECT IFNULL(SUM(IF(h.mode = 2, {never}, h.permits)), 0) FROM {claims} h
            WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0 AND h.context <> p_context) > j.c END
        THEN IF(o.number IS NULL, '1', '2')
      WHEN o.number IS NOT NULL THEN 'C'
      WHEN p_nested OR NOT EXISTS (SELECT 1 FROM {claims} e STRAIGHT_JOIN {sessions} s
          ON s.session = e.session AND {alive s p_now}
        WHERE e.ns = p_ns AND e.id = i.id AND e.state IN (2, 3) AND e.number < p_ticket AND NOT {j passes e}) THEN 'N'
      ELSE '5' END ORDER BY j.n SEPARATOR '') INTO p_classes
    FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id)
    LEFT JOIN {claims} o ON o.ns = p_ns AND o.id = i.id AND o.state = 0 AND o.context = p_context;
END
//
-- Grants a set against which nothing stands; `p_session` is who is to be told of it, as an offer; 0 if the caller is.
CREATE PROCEDURE {v1_grant}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_classes TEXT CHARACTER SET ascii, p_context VARBINARY(255),
  p_attempt BIGINT, p_lease BIGINT, p_owner VARBINARY(255), p_session BIGINT, p_now BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_fence, v_slots, v_replaced, v_permits, v_cap BIGINT DEFAULT 0;
  DECLARE v_n, v_next, v_mode INT DEFAULT 0;
  DECLARE v_id VARBINARY(1024);
  IF p_classes REGEXP '[NC]' THEN
    SELECT GREATEST(MAX(i.fence) + 1, p_now), SUM(j.a = 1) INTO v_fence, v_slots
      FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id);
    INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
        since, session, told)
      SELECT p_ns, UNHEX(j.id), 0, v_fence, p_context, p_attempt, j.a, j.b, j.c, '', p_owner, p_lease, p_now + p_lease,
        p_now, p_session, p_session <> 0
      FROM {set} WHERE SUBSTRING(p_classes, j.n, 1) = 'N';
    WHILE LOCATE('C', p_classes, v_n + 1) > 0 DO
      SET v_n = LOCATE('C', p_classes, v_n + 1);
      SELECT UNHEX(j.id), j.a, j.b, j.c INTO v_id, v_mode, v_permits, v_cap FROM {set} WHERE j.n = v_n;
      SELECT number INTO v_replaced FROM {claims} WHERE ns = p_ns AND id = v_id AND state = 0 AND context = p_context;
      UPDATE {claims} SET state = 1 WHERE ns = p_ns AND id = v_id AND state = 0 AND number = v_replaced;
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
          since, session, told, replaces)
        VALUES (p_ns, v_id, 0, v_fence, p_context, p_attempt, v_mode, v_permits, v_cap, '', p_owner, p_lease,
          p_now + p_lease, p_now, p_session, p_session <> 0, v_replaced);
    END WHILE;
    INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} WHERE SUBSTRING(p_classes, j.n, 1) IN ('N', 'C')
      ON DUPLICATE KEY UPDATE fence = v_fence, extra = 1;
    SET v_n = 0;
    IF v_slots > 0 THEN
      numbering: LOOP
        SET v_next = NULL;
        SELECT j.n, UNHEX(j.id) INTO v_next, v_id FROM {set}
          WHERE j.a = 1 AND j.n > v_n AND SUBSTRING(p_classes, j.n, 1) IN ('N', 'C') ORDER BY j.n LIMIT 1;
        IF v_next IS NULL THEN LEAVE numbering; END IF;
        SET v_n = v_next;
        CALL {v1_number_permits}(p_ns, v_id, v_fence);
      END LOOP;
    END IF;
  END IF;
  SET v_n = 0;
  WHILE LOCATE('K', p_classes, v_n + 1) > 0 DO
    -- A longer lease of an earlier grant is not cut short: it relies on it.
    SET v_n = LOCATE('K', p_classes, v_n + 1);
    SELECT UNHEX(j.id) INTO v_id FROM {set} WHERE j.n = v_n;
    UPDATE {claims} SET lease = GREATEST(p_lease, until - p_now), until = GREATEST(p_now + p_lease, until), told = 0,
        session = 0
      WHERE ns = p_ns AND id = v_id AND state = 0 AND context = p_context;
  END WHILE;
END
//
-- Gives a holder of slots the lowest permit indexes that are free.
CREATE PROCEDURE {v1_number_permits}(p_ns INT UNSIGNED, p_id VARBINARY(1024), p_fence BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_free, v_permits, v_below, v_change BIGINT DEFAULT 0;
  DECLARE v_indexes LONGTEXT CHARACTER SET ascii DEFAULT '';
  SELECT IFNULL(MAX(permits), 0) INTO v_permits FROM {claims}
    WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence AND mode = 1;
  WHILE v_free < v_permits DO
    -- The free index with so many free ones below it: as many taken ones are below it as do not leave more free.
    -- Asked anew only where that changes, for it reads all that are taken: `v_change` is the first number of free ones there.
    IF v_free >= v_change THEN
      SELECT IFNULL(SUM(free_below <= v_free), 0), IFNULL(MIN(IF(free_below > v_free, free_below, NULL)), {never})
        INTO v_below, v_change FROM (
        SELECT CAST(t.x AS SIGNED) - CAST(ROW_NUMBER() OVER (ORDER BY t.x) AS SIGNED) + 1 AS free_below
        FROM {claims} c, JSON_TABLE(c.indexes, '$[*]' COLUMNS (x BIGINT PATH '$')) t
        WHERE c.ns = p_ns AND c.id = p_id AND c.state = 0 AND c.mode = 1 AND c.indexes <> '') q;
    END IF;
    SET v_indexes = CONCAT(v_indexes, IF(v_free = 0, '', ','), v_free + v_below);
    SET v_free = v_free + 1;
  END WHILE;
  IF v_permits > 0 THEN
    UPDATE {claims} SET indexes = CONCAT('[', v_indexes, ']')
      WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence;
  END IF;
END
//
-- Locks those ids of a set on which nobody else works; how many that are.
CREATE PROCEDURE {v1_lock_free}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, OUT p_locked INT)
SQL SECURITY DEFINER
BEGIN
  -- Nothing but rows of ids, so that nothing but work on an id ever keeps a waiter from being served in its turn.
  SELECT COUNT(*) INTO p_locked FROM {set}
    STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i} SKIP LOCKED;
END
//
-- The set that an attempt waits for.
CREATE PROCEDURE {v1_wanted}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, OUT p_set LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_last, v_id VARBINARY(1024);
  DECLARE v_one LONGTEXT CHARACTER SET ascii;
  SET p_set = '[';
  wanted: LOOP
    SET v_one = NULL;
    SELECT w.id, CONCAT('["', HEX(w.id), '",', w.mode, ',', w.permits, ',', w.cap, ']') INTO v_id, v_one
      FROM {places} WHERE {of attempt p} AND (v_last IS NULL OR w.id > v_last) ORDER BY w.id LIMIT 1;
    IF v_one IS NULL THEN LEAVE wanted; END IF;
    SET p_set = CONCAT(p_set, IF(v_last IS NULL, '', ','), v_one), v_last = v_id;
  END LOOP;
  SET p_set = CONCAT(p_set, ']');
END
//
-- Serves those who wait for the ids in `p_set`, which are locked, in the order of their tickets, until nothing more fits.
-- Not the attempt given: it is being served otherwise. Only the head part of each queue is looked at: as soon as somebody
-- has to go on waiting, only who may pass is looked for. A cursor is a place from which a queue is looked at: `[id, state,
-- after which ticket, only which mode or -1, only limits above]`.
CREATE PROCEDURE {v1_serve}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_now BIGINT, p_context VARBINARY(255), p_attempt BIGINT,
  INOUT p_wake LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_hex, v_single, v_set, v_cursors, v_kept LONGTEXT CHARACTER SET ascii;
  DECLARE v_classes TEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_id VARBINARY(1024);
  DECLARE v_context, v_owner VARBINARY(255);
  DECLARE v_line, v_mode, v_alive, v_stands TINYINT DEFAULT 0;
  DECLARE v_cursor, v_locked, v_wants, v_ended, v_waiters, v_handed INT DEFAULT 0;
  DECLARE v_over, v_number, v_attempt, v_session, v_permits, v_cap, v_lease, v_used BIGINT DEFAULT 0;
  DECLARE v_last_number, v_last_attempt BIGINT DEFAULT 0;
  SET v_cursors = '[]';
  serving: LOOP
    IF p_set IS NOT NULL THEN
      -- Of these ids something was freed, so that whatever was decided may be decided differently now.
      SET v_kept = NULL, v_last_number = 0;
      IF v_single IS NOT NULL AND p_set LIKE CONCAT('[["', v_single, '"%]]') AND JSON_LENGTH(p_set) = 1 THEN
        SET v_cursors = '[]';
      END IF;
      IF v_cursors = '[]' AND JSON_LENGTH(p_set) = 1 THEN
        -- The usual case, without what needs a temporary table.
        SET v_single = JSON_UNQUOTE(JSON_EXTRACT(p_set, '$[0][0]')), p_set = NULL;
        SET v_id = UNHEX(v_single);
        SELECT i.frozen OR EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = 0
              AND h.mode = 2),
            EXISTS (SELECT 1 FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = 2),
            EXISTS (SELECT 1 FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = 3)
          INTO v_stands, v_locked, v_waiters FROM {ids} i WHERE i.ns = p_ns AND i.id = v_id;
        SET v_cursors = CONCAT('[', IF(v_stands, '', CONCAT_WS(',',
          IF(v_locked, CONCAT('["', v_single, '",2,0,-1,0]'), NULL),
          IF(v_waiters, CONCAT('["', v_single, '",3,0,-1,0]'), NULL))), ']');
        ITERATE serving;
      END IF;
      SET v_single = NULL;
      IF v_cursors <> '[]' THEN
        SELECT GROUP_CONCAT('["', c.id, '",', c.line, ',', c.after, ',', c.mode, ',', c.above, ']' ORDER BY c.n)
          INTO v_kept FROM {cursors} WHERE c.line < 9 AND c.id NOT IN (SELECT j.id FROM {set});
      END IF;
      SELECT CONCAT('[', CONCAT_WS(',', v_kept, GROUP_CONCAT('["', j.id, '",', l.line, ',0,-1,0]')), ']')
        INTO v_cursors FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id)
        STRAIGHT_JOIN (SELECT 2 AS line UNION ALL SELECT 3) l
        WHERE i.frozen = 0
          AND NOT EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = 0 AND h.mode = 2)
          AND EXISTS (SELECT 1 FROM {claims} w WHERE w.ns = p_ns AND w.id = i.id AND w.state = l.line);
      SET p_set = NULL;
    END IF;
    IF v_cursors = '[]' THEN
      LEAVE body;
    END IF;
    SET v_number = NULL;
    SELECT c.n, (SELECT w.number FROM {claims} w
        WHERE w.ns = p_ns AND w.id = UNHEX(c.id) AND w.state = c.line AND w.number > c.after
          AND (c.mode < 0 OR w.mode = c.mode AND w.cap > c.above) ORDER BY w.number LIMIT 1) AS number
      INTO v_cursor, v_number FROM {cursors} HAVING number IS NOT NULL ORDER BY number, c.n LIMIT 1;
    IF v_number IS NULL THEN
      LEAVE body;
    END IF;
    SET v_hex = JSON_UNQUOTE(JSON_EXTRACT(v_cursors, CONCAT('$[', v_cursor - 1, '][0]'))),
      v_line = JSON_EXTRACT(v_cursors, CONCAT('$[', v_cursor - 1, '][1]')),
      v_over = JSON_EXTRACT(v_cursors, CONCAT('$[', v_cursor - 1, '][4]'));
    SET v_id = UNHEX(v_hex);
    SELECT w.context, w.attempt, w.mode, w.permits, w.cap, w.owner, w.lease, w.session, w.wants,
        EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = w.session AND {alive s p_now})
      INTO v_context, v_attempt, v_mode, v_permits, v_cap, v_owner, v_lease, v_session, v_wants, v_alive
      FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = v_line AND w.number = v_number;
    SET v_stands = 1;
    IF (v_attempt <> p_attempt OR v_context <> p_context) AND (v_number <> v_last_number OR v_attempt <> v_last_attempt)
    THEN
      SET v_last_number = v_number, v_last_attempt = v_attempt;
      -- All its ids have to be locked; what somebody else works on is not waited for, that could deadlock.
      IF v_wants = 1 THEN
        SET v_locked = 1, v_set = CONCAT('[["', v_hex, '",', v_mode, ',', v_permits, ',', v_cap, ']]');
      ELSE
        CALL {v1_wanted}(p_ns, v_context, v_attempt, v_set);
        CALL {v1_lock_free}(p_ns, v_set, v_locked);
        SET v_locked = v_locked = v_wants;
        IF v_locked THEN
          -- Behind their locks: what was granted or extended meanwhile is not from the future.
          SET p_now = {clock};
          CALL {v1_tidy}(p_ns, v_set, p_now, v_ended, v_waiters);
          IF v_ended > 0 THEN
            CALL {v1_prune}(p_ns, v_set, p_now);
            SET p_set = v_set;
          END IF;
        END IF;
      END IF;
      IF NOT v_alive THEN
        IF v_locked THEN
          DELETE w FROM {places} WHERE {of attempt v};
          SET p_set = v_set;
        ELSE
          SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][2]'), v_number);
        END IF;
        ITERATE serving;
      END IF;
      IF v_locked THEN
        CALL {v1_weigh}(p_ns, v_set, v_context, v_number, v_line = 2, p_now, v_classes);
        SET v_stands = v_classes REGEXP '[1-6]';
      END IF;
      IF NOT v_locked OR (NOT v_stands AND (v_classes REGEXP '[KC]' OR v_handed >= 256)) THEN
        -- Its turn has come, but it has to ask.
        UPDATE {claims} SET told = 2, until = p_now WHERE ns = p_ns AND id = v_id AND state = v_line AND number = v_number;
        SET v_stands = 1;
        IF NOT FIND_IN_SET(v_session, p_wake) THEN
          SET p_wake = CONCAT(p_wake, v_session, ',');
        END IF;
        IF v_handed >= 256 THEN
          LEAVE body;
        END IF;
      END IF;
      IF NOT v_stands THEN
        CALL {v1_grant}(p_ns, v_set, v_classes, v_context, v_attempt, LEAST(v_lease, 2000000), v_owner, v_session, p_now);
        DELETE w FROM {places} WHERE {of attempt v};
        SET v_handed = v_handed + 1, p_set = v_set;
        IF NOT FIND_IN_SET(v_session, p_wake) THEN
          SET p_wake = CONCAT(p_wake, v_session, ',');
        END IF;
        ITERATE serving;
      END IF;
    END IF;
    -- It goes on waiting. Behind a nested waiter others may fit; behind one in line only who may pass it.
    IF v_line = 3 THEN
      IF v_mode = 2 THEN
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][1]'), 9);
      ELSEIF v_mode = 0 THEN
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][3]'), 0, CONCAT('$[', v_cursor - 1, '][4]'), -1);
      ELSE
        -- No smaller limit than what is held fits either.
        SELECT IFNULL(SUM(h.permits), 0) INTO v_used FROM {claims} h
          WHERE h.ns = p_ns AND h.id = v_id AND h.state = 0;
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][3]'), 1, CONCAT('$[', v_cursor - 1, '][4]'),
          GREATEST(v_over, v_cap, v_used));
      END IF;
    END IF;
    SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][2]'), v_number);
  END LOOP;
END
//
-- Wakes the sessions in a list. Their connections hold a lock of their name, so that nobody else is ever interrupted: an
-- id that was given to another connection holds no such lock. Those that this user may not interrupt stay in the list.
CREATE PROCEDURE {v1_ring}(INOUT p_wake LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_left LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_connection BIGINT;
  DECLARE CONTINUE HANDLER FOR 1094 BEGIN END;
  DECLARE CONTINUE HANDLER FOR 1095 SET v_left = CONCAT(v_left, SUBSTRING_INDEX(p_wake, ',', 1), ',');
  WHILE p_wake <> '' DO
    SET v_connection = IS_USED_LOCK(CONCAT('lockcore:', SUBSTRING_INDEX(p_wake, ',', 1)));
    IF v_connection IS NOT NULL THEN
      KILL QUERY v_connection;
    END IF;
    SET p_wake = SUBSTRING(p_wake, LOCATE(',', p_wake) + 1);
  END WHILE;
  SET p_wake = v_left;
END
//

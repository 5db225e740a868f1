-- The set that an attempt waits for.
CREATE PROCEDURE {v1_wanted}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, OUT p_set LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_last, v_id VARBINARY({longest id});
  DECLARE v_one LONGTEXT CHARACTER SET ascii;
  SET p_set = '[';
  wanted: LOOP
    SET v_one = NULL;
    SELECT w.id, CONCAT('["', HEX(w.id), '",', w.mode, ',', w.permits, ',', w.cap, ']') INTO v_id, v_one
      FROM {places} WHERE {own places} AND (v_last IS NULL OR w.id > v_last) ORDER BY w.id LIMIT 1;
    IF v_one IS NULL THEN LEAVE wanted; END IF;
    SET p_set = CONCAT(p_set, IF(v_last IS NULL, '', ','), v_one), v_last = v_id;
  END LOOP;
  SET p_set = CONCAT(p_set, ']');
END
//
-- Takes an attempt from the queue.
CREATE PROCEDURE {v1_unqueue}(p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT)
SQL SECURITY DEFINER
BEGIN
  DELETE w FROM {places} WHERE {own places};
END
//
-- Serves the waiters for the ids of p_set, which are locked, in the order of their tickets, until nothing more fits; but not
-- the attempt p_attempt, which is being served otherwise. p_wake: the sessions to wake.
--
-- Only the head of each queue is looked at: as soon as a waiter has to go on waiting, only those that may pass it are looked
-- for. v_cursors: places from which queues are looked at, `[id, state, after which ticket, only which mode or -1, only limits
-- above]`; state DONE of one in which no one else fits.
CREATE PROCEDURE {v1_serve}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, now_us BIGINT, p_context VARBINARY({longest context}),
  p_attempt BIGINT,
  INOUT p_wake LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_hex, v_single, v_set, v_cursors, v_others LONGTEXT CHARACTER SET ascii;
  DECLARE v_verdict TEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_id VARBINARY({longest id});
  DECLARE v_context, v_owner VARBINARY({longest owner});
  DECLARE v_line, v_mode, v_alive, v_blocked TINYINT DEFAULT 0;
  DECLARE v_cursor, v_locked, v_wants, v_ended, v_waiters, v_handed INT DEFAULT 0;
  DECLARE v_over, v_number, v_attempt, v_session, v_permits, v_cap, v_lease, v_used BIGINT DEFAULT 0;
  DECLARE v_last_number, v_last_attempt BIGINT DEFAULT 0;
  SET v_cursors = '[]';
  serving: LOOP
    IF p_set IS NOT NULL THEN
      -- Something of these ids was freed, so that what was decided may be decided differently now.
      SET v_others = NULL, v_last_number = 0;
      IF v_single IS NOT NULL AND p_set LIKE CONCAT('[["', v_single, '"%]]') AND JSON_LENGTH(p_set) = 1 THEN
        SET v_cursors = '[]';
      END IF;
      IF v_cursors = '[]' AND JSON_LENGTH(p_set) = 1 THEN
        -- The usual case, without what needs a temporary table.
        SET v_single = JSON_UNQUOTE(JSON_EXTRACT(p_set, '$[0][0]')), p_set = NULL;
        SET v_id = UNHEX(v_single);
        SELECT i.frozen OR EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = {HELD}
              AND h.mode = {EXCLUSIVE}),
            EXISTS (SELECT 1 FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = {WAITS_NESTED}),
            EXISTS (SELECT 1 FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = {WAITS})
          INTO v_blocked, v_locked, v_waiters FROM {ids} i WHERE i.ns = p_ns AND i.id = v_id;
        SET v_cursors = CONCAT('[', IF(v_blocked, '', CONCAT_WS(',',
          IF(v_locked, CONCAT('["', v_single, '",{WAITS_NESTED},0,-1,0]'), NULL),
          IF(v_waiters, CONCAT('["', v_single, '",{WAITS},0,-1,0]'), NULL))), ']');
        ITERATE serving;
      END IF;
      SET v_single = NULL;
      IF v_cursors <> '[]' THEN
        SELECT GROUP_CONCAT('["', c.id, '",', c.line, ',', c.after, ',', c.mode, ',', c.above, ']' ORDER BY c.n)
          INTO v_others FROM {cursors} WHERE c.line <> {DONE} AND c.id NOT IN (SELECT j.id FROM {set});
      END IF;
      SELECT CONCAT('[', CONCAT_WS(',', v_others, GROUP_CONCAT('["', j.id, '",', l.line, ',0,-1,0]')), ']')
        INTO v_cursors FROM {ids of set}
        STRAIGHT_JOIN (SELECT {WAITS_NESTED} AS line UNION ALL SELECT {WAITS}) l
        WHERE i.frozen = 0
          AND NOT EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD}
            AND h.mode = {EXCLUSIVE})
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
        EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = w.session AND {alive s})
      INTO v_context, v_attempt, v_mode, v_permits, v_cap, v_owner, v_lease, v_session, v_wants, v_alive
      FROM {claims} w WHERE w.ns = p_ns AND w.id = v_id AND w.state = v_line AND w.number = v_number;
    SET v_blocked = 1;
    IF (v_attempt <> p_attempt OR v_context <> p_context) AND (v_number <> v_last_number OR v_attempt <> v_last_attempt)
    THEN
      SET v_last_number = v_number, v_last_attempt = v_attempt;
      IF v_wants = 1 THEN
        SET v_locked = 1, v_set = CONCAT('[["', v_hex, '",', v_mode, ',', v_permits, ',', v_cap, ']]');
      ELSE
        CALL {v1_wanted}(p_ns, v_context, v_attempt, v_set);
        CALL {v1_lock}(p_ns, v_set, v_locked);
        SET v_locked = v_locked = v_wants;
        IF v_locked THEN
          -- After their locks: what was granted or extended meanwhile is not from the future.
          SET now_us = {clock};
          CALL {v1_tidy}(p_ns, v_set, now_us, v_ended, v_waiters);
          IF v_ended > 0 THEN
            CALL {v1_prune}(p_ns, v_set, now_us);
            SET p_set = v_set;
          END IF;
        END IF;
      END IF;
      IF NOT v_alive THEN
        IF v_locked THEN
          CALL {v1_unqueue}(p_ns, v_context, v_attempt);
          SET p_set = v_set;
        ELSE
          SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][2]'), v_number);
        END IF;
        ITERATE serving;
      END IF;
      IF v_locked THEN
        CALL {v1_weigh}(p_ns, v_set, v_context, v_number, v_line = {WAITS_NESTED}, now_us, v_verdict);
        SET v_blocked = NOT v_verdict {LETS IN};
      END IF;
      IF NOT v_locked OR (NOT v_blocked AND (v_verdict REGEXP '[KC]' OR v_handed >= {most handed over})) THEN
        -- Its turn has come, but it has to ask.
        UPDATE {claims} SET notice = {TURN}, until = now_us
          WHERE ns = p_ns AND id = v_id AND state = v_line AND number = v_number;
        SET v_blocked = 1;
        IF NOT FIND_IN_SET(v_session, p_wake) THEN
          SET p_wake = CONCAT(p_wake, v_session, ',');
        END IF;
        IF v_handed >= {most handed over} THEN
          LEAVE body;
        END IF;
      END IF;
      IF NOT v_blocked THEN
        CALL {v1_grant}(p_ns, v_set, v_verdict, v_context, v_attempt, LEAST(v_lease, {offer}), v_owner, v_session, now_us);
        CALL {v1_unqueue}(p_ns, v_context, v_attempt);
        SET v_handed = v_handed + 1, p_set = v_set;
        IF NOT FIND_IN_SET(v_session, p_wake) THEN
          SET p_wake = CONCAT(p_wake, v_session, ',');
        END IF;
        ITERATE serving;
      END IF;
    END IF;
    -- It goes on waiting. Behind a nested waiter others may fit; behind one in the queue only those that may pass it.
    IF v_line = {WAITS} THEN
      IF v_mode = {EXCLUSIVE} THEN
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][1]'), {DONE});
      ELSEIF v_mode = {SHARED} THEN
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][3]'), {SHARED},
          CONCAT('$[', v_cursor - 1, '][4]'), -1);
      ELSE
        -- No smaller limit than what is held fits either.
        SELECT IFNULL(SUM(h.permits), 0) INTO v_used FROM {claims} h
          WHERE h.ns = p_ns AND h.id = v_id AND h.state = {HELD};
        SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][3]'), {SLOTS},
          CONCAT('$[', v_cursor - 1, '][4]'), GREATEST(v_over, v_cap, v_used));
      END IF;
    END IF;
    SET v_cursors = JSON_SET(v_cursors, CONCAT('$[', v_cursor - 1, '][2]'), v_number);
  END LOOP;
END
//
-- Wakes the sessions in a list. Their connections hold a user-level lock of their name, so that no other query is ever
-- interrupted: a connection id that was given to another client holds no such lock. Those that this user may not interrupt stay
-- in the list.
CREATE PROCEDURE {v1_interrupt}(INOUT p_wake LONGTEXT CHARACTER SET ascii)
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

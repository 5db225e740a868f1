-- Releases hand over to waiters in the same transaction. No answer means that all of it was held.
--
-- Releases one id. The usual cases first: no one waits, or the first waiter waits for nothing else. What is done in the row
-- commits by itself.
CREATE PROCEDURE {v1_release_one}(p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_id VARBINARY({longest id}),
  p_fence BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  IF @@autocommit THEN
    {free in row};
    IF ROW_COUNT() = 1 THEN LEAVE body; END IF;
  END IF;
  BEGIN
    -- Not declared above: that would take time in the usual case, too.
    DECLARE v_session BIGINT;
    DECLARE v_wake LONGTEXT CHARACTER SET ascii;
    IF @@autocommit THEN
      {hand over in row};
      IF ROW_COUNT() = 1 THEN SET v_session = LAST_INSERT_ID(); END IF;
    END IF;
    IF v_session IS NULL THEN
      BEGIN
        {undo on error};
        {begin};
        CALL {v1_hand_over}(p_ns, p_context, p_id, p_fence, v_session);
        IF v_session IS NULL THEN ROLLBACK; ELSE COMMIT; END IF;
      END;
    END IF;
    IF v_session IS NULL THEN
      CALL {v1_release}(p_ns, p_context, CONCAT('[["', HEX(p_id), '",', p_fence, ']]'), 1);
    ELSEIF v_session > 0 THEN
      SET v_wake = CONCAT(v_session, ',');
      CALL {v1_interrupt}(v_wake);
      IF v_wake <> '' THEN
        SELECT '' AS answer, v_wake AS to_wake;
      END IF;
    END IF;
  END;
END
//
-- Releases an id that is IN_CLAIMS, if it has no other holder, within a transaction. p_session: the session of the first waiter,
-- which it was handed to because that waits for nothing else; 0 if there are no other claims; NULL if it was not so, and then at most
-- the fence is another.
CREATE PROCEDURE {v1_hand_over}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_id VARBINARY({longest id}), p_fence BIGINT, OUT p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE now_us, v_ticket, v_session BIGINT;
  DECLARE v_others TINYINT;
  SET p_session = NULL;
  -- The lock and the next fence in one statement.
  UPDATE {row} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {clock}))
    WHERE ns = p_ns AND id = p_id AND extra = {IN_CLAIMS} AND frozen = 0;
  IF ROW_COUNT() = 1 THEN
    SET now_us = {clock};
    SELECT IF(w.mode = {EXCLUSIVE} AND w.wants = 1 AND w.context <> p_context
          AND EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = w.session AND {alive s})
          AND NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = p_id
            AND c.state IN ({HELD}, {WAITS_NESTED}) AND (c.state <> {HELD} OR c.number <> p_fence)), w.number, 0),
        w.session
      INTO v_ticket, v_session FROM {claims} w
      WHERE w.ns = p_ns AND w.id = p_id AND w.state = {WAITS} ORDER BY w.number LIMIT 1;
    IF v_ticket > 0 THEN
      DELETE FROM {claims} WHERE {held by p};
      IF ROW_COUNT() = 1 THEN
        UPDATE {claims} SET state = {HELD}, number = LAST_INSERT_ID(), notice = {OFFERED}, lease = LEAST(lease, {offer}),
            until = now_us + lease, since = now_us
          WHERE ns = p_ns AND id = p_id AND state = {WAITS} AND number = v_ticket;
        SET p_session = v_session;
      END IF;
    ELSEIF v_ticket IS NULL THEN
      SELECT EXISTS (SELECT 1 FROM {claims} c
          WHERE c.ns = p_ns AND c.id = p_id AND (c.state <> {HELD} OR c.number <> p_fence))
        INTO v_others;
      IF NOT v_others THEN
        DELETE FROM {claims} WHERE {held by p};
        IF ROW_COUNT() = 1 THEN
          UPDATE {row} SET extra = {IN_ROW} WHERE ns = p_ns AND id = p_id;
          SET p_session = 0;
        END IF;
      END IF;
    END IF;
  END IF;
END
//
-- Releases any set, whatever the context holds of it, and serves the waiters.
CREATE PROCEDURE {v1_release}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_set LONGTEXT CHARACTER SET ascii, p_n INT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_rows, v_ended, v_waiters, v_replaced INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  IF p_n > 1 THEN
    -- The usual case: it holds all of it by the rows, and no one waits.
    {begin};
    INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE
      session = IF({held in row} AND {ids}.extra = {IN_ROW}, 0, {ids}.session),
      until = IF({held in row} AND {ids}.extra = {IN_ROW}, 0, {ids}.until);
    IF {all changed} THEN
      COMMIT;
      LEAVE body;
    END IF;
    ROLLBACK;
  END IF;
  {begin};
  {lock rows};
  SET now_us = {clock};
  CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
  SELECT IFNULL(CONCAT('[', GROUP_CONCAT(IF(o.until > now_us, NULL, {lost j}) ORDER BY j.n), ']'), ''),
      IFNULL(SUM(o.replaces <> 0), 0)
    INTO v_answer, v_replaced FROM {set} {own of set} AND o.number = j.a;
  IF v_replaced > 0 THEN
    DELETE r FROM {set} STRAIGHT_JOIN {claims} r ON r.ns = p_ns AND r.id = UNHEX(j.id) AND r.state = {REPLACED}
      AND r.context = p_context;
  END IF;
  DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD}
    AND o.number = j.a AND o.context = p_context;
  IF v_ended > 0 THEN
    CALL {v1_prune}(p_ns, p_set, now_us);
  END IF;
  IF v_waiters > 0 THEN
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
  END IF;
  IF v_waiters = 0 OR p_n > 1 THEN
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT v_answer AS answer, v_wake AS to_wake;
END
//
-- Extends one id to a whole lease from now, and confirms it if it was offered. The usual cases first: it is held by the row, or
-- in `claims`.
CREATE PROCEDURE {v1_renew_one}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_id VARBINARY({longest id}), p_fence BIGINT, p_lease BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_extra TINYINT;
  {undo on error};
  {begin};
  SELECT i.extra INTO v_extra FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE;
  IF v_extra = {IN_CLAIMS} THEN
    UPDATE {claims} SET lease = GREATEST(p_lease, LEAST(until - {clock}, lease)), until = {clock} + lease, notice = 0,
        session = 0
      WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence AND context = p_context AND until > {clock}
        AND broken = 0;
  ELSE
    UPDATE {row} SET lease = GREATEST(p_lease, LEAST(until - {clock}, lease)), until = {clock} + lease, session = 0
      WHERE ns = p_ns AND id = p_id AND {own row};
  END IF;
  IF ROW_COUNT() = 1 THEN
    COMMIT;
  ELSE
    ROLLBACK;
    CALL {v1_renew}(p_ns, p_context, CONCAT('[["', HEX(p_id), '",', p_fence, ']]'), 1, p_lease);
  END IF;
END
//
-- Has what a grant still holds end a whole lease from now, also if it would last longer.
CREATE PROCEDURE {v1_shorten}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_lease BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_rows INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  {undo on error};
  {begin};
  {lock rows};
  SET now_us = {clock};
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE
    until = IF({held in row}, LEAST({ids}.until, now_us + p_lease), {ids}.until);
  UPDATE {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD} AND o.context = p_context
    AND o.number = j.a SET o.until = LEAST(o.until, now_us + p_lease);
  COMMIT;
  CALL {v1_renew}(p_ns, p_context, p_set, p_n, p_lease);
END
//
-- Extends what a grant still holds to a whole lease from now, and confirms what was offered.
CREATE PROCEDURE {v1_renew}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_lease BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_rows, v_ended, v_waiters INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  DECLARE v_answer LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  -- The usual cases: it holds all of it by the rows, or in `claims`.
  {begin};
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE
    lease = IF({held in row}, GREATEST(p_lease, LEAST({ids}.until - {clock}, {ids}.lease)), {ids}.lease),
    session = IF({held in row}, 0, {ids}.session),
    until = IF({held in row}, {clock} + {ids}.lease, {ids}.until);
  IF {all changed} THEN
    COMMIT;
    LEAVE body;
  END IF;
  ROLLBACK;
  {begin};
  {lock rows};
  SET now_us = {clock};
  {renew claims};
  IF {all changed} THEN
    COMMIT;
    LEAVE body;
  END IF;
  CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
  {renew claims};
  SELECT IFNULL(CONCAT('[', GROUP_CONCAT(IF(o.until > now_us AND NOT o.broken, NULL, {lost j}) ORDER BY j.n), ']'), '')
    INTO v_answer FROM {set} {own of set} AND o.number = j.a;
  COMMIT;
  SELECT v_answer AS answer, '' AS to_wake;
END
//
-- Releases ids for tasks of one process, which are in order, in one transaction; see `v1_acquire_batch`. p_words: of each the id,
-- the context and the fence.
CREATE PROCEDURE {v1_release_batch}(p_ns INT UNSIGNED, p_words LONGBLOB)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_extra TINYINT;
  DECLARE p_id VARBINARY({longest id});
  DECLARE p_context VARBINARY({longest context});
  DECLARE p_fence, v_session BIGINT;
  DECLARE v_answers, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {begin};
  WHILE p_words <> '' DO
    SET p_id = UNHEX({word}), p_words = {rest}, p_context = UNHEX({word}), p_words = {rest}, p_fence = {word},
      p_words = {rest}, v_extra = NULL, v_session = NULL;
    SELECT i.extra INTO v_extra FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE SKIP LOCKED;
    IF v_extra = {IN_ROW} THEN
      {free in row};
      IF ROW_COUNT() = 1 THEN SET v_session = 0; END IF;
    ELSEIF v_extra = {ONE_WAITS} THEN
      {hand over in row};
      IF ROW_COUNT() = 1 THEN SET v_session = LAST_INSERT_ID(); END IF;
    ELSEIF v_extra = {IN_CLAIMS} THEN
      CALL {v1_hand_over}(p_ns, p_context, p_id, p_fence, v_session);
    END IF;
    IF v_session > 0 AND NOT FIND_IN_SET(v_session, v_wake) THEN
      SET v_wake = CONCAT(v_wake, v_session, ',');
    END IF;
    SET v_answers = CONCAT(v_answers, CASE WHEN v_session IS NOT NULL THEN '|' WHEN v_extra IS NULL THEN 'B|' ELSE 'A|' END);
  END WHILE;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT v_answers AS answer, v_wake AS to_wake;
END
//

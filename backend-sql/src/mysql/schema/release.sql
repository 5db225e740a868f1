-- What frees a set serves who waits for it, too. No answer means that all of it was held.
--
-- Frees one id. Here are the usual cases: nobody waits, or the first in line waits for nothing else. What is done in the row
-- commits by itself.
CREATE PROCEDURE {v1_release_one}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_id VARBINARY(1024), p_fence BIGINT)
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
      CALL {v1_hand_over}(p_ns, p_context, p_id, p_fence, 0, v_session);
    END IF;
    IF v_session IS NULL THEN
      CALL {v1_release}(p_ns, p_context, CONCAT('[["', HEX(p_id), '",', p_fence, ']]'), 1, p_fence);
    ELSEIF v_session > 0 THEN
      SET v_wake = CONCAT(v_session, ',');
      CALL {v1_ring}(v_wake);
      IF v_wake <> '' THEN
        SELECT '' AS answer, v_wake AS unrung;
      END IF;
    END IF;
  END;
END
//
-- Also usual: its only holder frees an id of which no row tells all, and the first in line waits for nothing else: the
-- session that is to be told. Or nobody else has to do with it any more: 0. `NULL` if it was not so; then at most the next
-- fence was raised.
-- `p_within`: a transaction that has begun.
CREATE PROCEDURE {v1_hand_over}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_id VARBINARY(1024), p_fence BIGINT, p_within TINYINT,
  OUT p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_now, v_ticket, v_session BIGINT;
  DECLARE v_others TINYINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET p_session = NULL;
  IF NOT p_within THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
  END IF;
  -- The lock and the next fence in one statement.
  UPDATE {row} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {clock}))
    WHERE ns = p_ns AND id = p_id AND extra = 1 AND frozen = 0;
  IF ROW_COUNT() = 1 THEN
    SET v_now = {clock};
    SELECT IF(w.mode = 2 AND w.wants = 1 AND w.context <> p_context
          AND EXISTS (SELECT 1 FROM {sessions} s WHERE s.session = w.session AND {alive s})
          AND NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = p_id AND c.state IN (0, 2)
            AND (c.state = 2 OR c.number <> p_fence)), w.number, 0), w.session
      INTO v_ticket, v_session FROM {claims} w
      WHERE w.ns = p_ns AND w.id = p_id AND w.state = 3 ORDER BY w.number LIMIT 1;
    IF v_ticket > 0 THEN
      DELETE FROM {claims} WHERE {held by p};
      IF ROW_COUNT() = 1 THEN
        UPDATE {claims} SET state = 0, number = LAST_INSERT_ID(), told = 1, lease = LEAST(lease, 2000000),
            until = v_now + lease, since = v_now
          WHERE ns = p_ns AND id = p_id AND state = 3 AND number = v_ticket;
        SET p_session = v_session;
      END IF;
    ELSEIF v_ticket IS NULL THEN
      SELECT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = p_id AND (c.state <> 0 OR c.number <> p_fence))
        INTO v_others;
      IF NOT v_others THEN
        DELETE FROM {claims} WHERE {held by p};
        IF ROW_COUNT() = 1 THEN
          UPDATE {row} SET extra = 0 WHERE ns = p_ns AND id = p_id;
          SET p_session = 0;
        END IF;
      END IF;
    END IF;
  END IF;
  IF NOT p_within THEN
    IF p_session IS NULL THEN
      ROLLBACK;
    ELSE
      COMMIT;
    END IF;
  END IF;
END
//
-- Frees a set of `p_n` ids that was taken at once; `p_ids` as of `v1_acquire_many`. The usual case, in which nobody else has
-- to do with any of them, is one row, and commits by itself.
CREATE PROCEDURE {v1_release_set}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_fence BIGINT, p_n INT, p_ids LONGBLOB, p_kept BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  IF @@autocommit THEN
    IF p_kept IS NULL THEN
      DELETE FROM {sets} WHERE fence = p_fence AND {whole set of p};
    ELSE
      UPDATE {sets} SET until = 0 WHERE fence = p_kept AND {whole set of p};
    END IF;
    IF ROW_COUNT() = 1 THEN LEAVE body; END IF;
  END IF;
  CALL {v1_release}(p_ns, p_context, {p_ids held}, p_n, p_fence);
END
//
-- Frees what a grant holds, whatever that is and whoever waits. `p_fence`: if all of it has but one.
CREATE PROCEDURE {v1_release}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_fence BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_found, v_ended, v_waiters, v_replaced INT DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT 0;
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT COUNT(*) INTO v_found FROM {set}
    STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
  SET v_now = {clock};
  CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
  SELECT IFNULL(CONCAT('[', GROUP_CONCAT(IF(o.until > v_now, NULL, CONCAT('[', j.n - 1, ',',
      IF(o.number IS NOT NULL, 0, IF(EXISTS (SELECT 1 FROM {breaks} b WHERE b.ns = p_ns AND b.id = UNHEX(j.id)
        AND b.fence = j.a), 1, 2)), ']')) ORDER BY j.n), ']'), ''), IFNULL(SUM(o.replaces <> 0), 0)
    INTO v_answer, v_replaced FROM {set} LEFT JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0
      AND o.number = j.a AND o.context = p_context;
  IF v_replaced > 0 THEN
    DELETE r FROM {set} STRAIGHT_JOIN {claims} r ON r.ns = p_ns AND r.id = UNHEX(j.id) AND r.state = 1
      AND r.context = p_context;
  END IF;
  DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0
    AND o.number = j.a AND o.context = p_context;
  -- No row tells of it any more.
  DELETE FROM {sets} WHERE ns = p_ns AND fence = p_fence AND number = p_fence AND context = p_context AND ids = p_n;
  IF v_ended > 0 THEN
    CALL {v1_prune}(p_ns, p_set, v_now);
  END IF;
  IF v_waiters > 0 THEN
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
  END IF;
  IF v_waiters = 0 OR p_n > 1 THEN
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT v_answer AS answer, v_wake AS unrung;
END
//
-- Extends what a grant still holds to a whole lease from now, and confirms what was offered. `p_fence`: if all of it has but
-- one; `p_kept` is that one then, or as of `v1_acquire_kept`.
CREATE PROCEDURE {v1_renew}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_id VARBINARY(1024), p_fence BIGINT,
  p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_lease BIGINT, p_kept BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_found, v_more, v_extra INT DEFAULT 0;
  DECLARE v_now, v_until BIGINT DEFAULT 0;
  DECLARE v_answer LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF p_n = 1 AND @@autocommit THEN
    UPDATE {row} SET lease = GREATEST(p_lease, LEAST(until - {clock}, lease)), until = {clock} + lease, session = 0
      WHERE ns = p_ns AND id = p_id AND context = p_context AND fence = p_fence AND until > {clock};
    IF ROW_COUNT() = 1 THEN LEAVE body; END IF;
  ELSEIF p_fence IS NOT NULL AND @@autocommit THEN
    UPDATE {sets} SET lease = GREATEST(p_lease, LEAST(until - {clock}, lease)), until = {clock} + lease
      WHERE fence = p_kept AND {whole set of p};
    IF ROW_COUNT() = 1 THEN LEAVE body; END IF;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT IFNULL(SUM(i.context = p_context AND i.fence = j.a), 0), IFNULL(MIN(i.until), 0), IFNULL(MAX(i.extra), 0)
    INTO v_found, v_until, v_extra
    FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
  SET v_now = {clock};
  IF v_extra = 3 THEN
    CALL {v1_part}(p_ns, p_set, v_now);
  END IF;
  IF v_found = p_n AND v_until > v_now THEN
    INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
      ON DUPLICATE KEY UPDATE lease = GREATEST(p_lease, LEAST({ids}.until - v_now, {ids}.lease)),
        until = v_now + {ids}.lease, session = 0;
  ELSEIF p_n = 1 THEN
    UPDATE {claims} SET lease = GREATEST(p_lease, LEAST(until - v_now, lease)), until = v_now + lease, told = 0,
        session = 0
      WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence AND context = p_context AND until > v_now
        AND broken = 0;
    SET v_found = ROW_COUNT();
  ELSE
    SELECT COUNT(i.id), COUNT(o.id) INTO v_found, v_more
      FROM {set} LEFT JOIN {ids} i ON {own row i} LEFT JOIN {claims} o ON {own claim o};
    IF v_found > 0 THEN
      INSERT INTO {ids} (ns, id) SELECT i.ns, i.id FROM {set} STRAIGHT_JOIN {ids} i ON {own row i}
        ON DUPLICATE KEY UPDATE lease = GREATEST(p_lease, LEAST({ids}.until - v_now, {ids}.lease)),
          until = v_now + {ids}.lease, session = 0;
    END IF;
    IF v_more > 0 THEN
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since)
        SELECT o.ns, o.id, o.state, o.number, '', 0, 0, 0, 0, '', '', 0, 0, 0
          FROM {set} STRAIGHT_JOIN {claims} o ON {own claim o}
        ON DUPLICATE KEY UPDATE lease = GREATEST(p_lease, LEAST({claims}.until - v_now, {claims}.lease)),
          until = v_now + {claims}.lease, told = 0, session = 0;
    END IF;
  END IF;
  IF v_found + v_more < p_n THEN
    CALL {v1_tidy}(p_ns, p_set, v_now, v_found, v_more);
    SELECT IFNULL(CONCAT('[', GROUP_CONCAT(IF(o.until > v_now AND NOT o.broken, NULL, CONCAT('[', j.n - 1, ',',
        IF(o.until <= v_now, 0, IF(o.broken OR EXISTS (SELECT 1 FROM {breaks} b WHERE b.ns = p_ns
          AND b.id = UNHEX(j.id) AND b.fence = j.a), 1, 2)), ']')) ORDER BY j.n), ']'), '')
      INTO v_answer FROM {set} LEFT JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0
        AND o.number = j.a AND o.context = p_context;
  END IF;
  COMMIT;
  SELECT v_answer AS answer, '' AS unrung;
END
//

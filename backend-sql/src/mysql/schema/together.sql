-- Requests of one program that came at the same time, for one id each, in the order of the ids, in one transaction. The
-- answer has an entry for each, with a `|` behind it: what the routine for one answers, or `A` if it has to be asked alone,
-- and then nothing was done for it. Requests are words, each with a blank behind it: a cursor over a JSON_TABLE would make
-- a temporary table, on MariaDB a file. Rows that somebody else has locked are left to those who ask alone, lest all wait.

-- Takes ids, if the usual ways to take one or to wait for it will do.
CREATE PROCEDURE {v1_acquire_together}(p_ns INT UNSIGNED, p_words LONGTEXT CHARACTER SET ascii, p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_extra INT;
  DECLARE v_id VARBINARY(1024);
  DECLARE v_context, v_owner VARBINARY(255);
  DECLARE v_attempt, v_lease, v_marked, v_now BIGINT;
  DECLARE v_queue TINYINT;
  DECLARE v_answer, v_answers LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  WHILE p_words <> '' DO
    SET v_id = UNHEX({word}), p_words = {behind}, v_context = UNHEX({word}), p_words = {behind},
      v_owner = UNHEX({word}), p_words = {behind}, v_attempt = {word}, p_words = {behind}, v_lease = {word},
      p_words = {behind}, v_queue = {word}, p_words = {behind};
    SELECT MAX(i.extra), MAX(i.marked) INTO v_extra, v_marked FROM {ids} i WHERE i.ns = p_ns AND i.id = v_id
      FOR UPDATE SKIP LOCKED;
    SET v_answer = '', v_now = {clock};
    IF v_extra = 0 THEN
      UPDATE {ids} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, v_now)), context = v_context, attempt = v_attempt,
          owner = v_owner, lease = v_lease, since = v_now, until = v_now + v_lease
        WHERE ns = p_ns AND id = v_id AND until <= v_now AND marked <= v_now;
      IF ROW_COUNT() = 1 THEN
        SET v_answer = CONCAT('G', LAST_INSERT_ID());
      END IF;
    END IF;
    IF v_answer = '' AND v_queue AND v_marked <= v_now THEN
      CALL {v1_line_up}(p_ns, v_context, v_attempt, v_id, v_extra = 0, v_lease, v_owner, p_session, v_now, v_answer);
    END IF;
    SET v_answers = CONCAT(v_answers, IF(v_answer = '', 'A', v_answer), '|');
  END WHILE;
  COMMIT;
  SELECT v_answers AS answer, '' AS unrung;
END
//
-- Frees ids, if nobody else has to do with them or whoever is the first in line waits for nothing else.
CREATE PROCEDURE {v1_release_together}(p_ns INT UNSIGNED, p_words LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_id VARBINARY(1024);
  DECLARE v_context VARBINARY(255);
  DECLARE v_fence, v_session BIGINT;
  DECLARE v_extra, v_done INT;
  DECLARE v_answers, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  WHILE p_words <> '' DO
    SET v_id = UNHEX({word}), p_words = {behind}, v_context = UNHEX({word}), p_words = {behind}, v_fence = {word},
      p_words = {behind};
    SET v_session = NULL;
    SELECT MAX(i.extra) INTO v_extra FROM {ids} i WHERE i.ns = p_ns AND i.id = v_id FOR UPDATE SKIP LOCKED;
    IF v_extra = 0 THEN
      UPDATE {ids} SET until = 0
        WHERE ns = p_ns AND id = v_id AND context = v_context AND fence = v_fence AND until > {clock};
      SET v_done = ROW_COUNT();
    ELSE
      IF v_extra = 1 THEN
        CALL {v1_hand_over}(p_ns, v_context, v_id, v_fence, 1, v_session);
      END IF;
      SET v_done = v_session IS NOT NULL;
    END IF;
    SET v_answers = CONCAT(v_answers, IF(v_done, '|', 'A|'));
    IF v_session > 0 AND NOT FIND_IN_SET(v_session, v_wake) THEN
      SET v_wake = CONCAT(v_wake, v_session, ',');
    END IF;
  END WHILE;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT v_answers AS answer, v_wake AS unrung;
END
//

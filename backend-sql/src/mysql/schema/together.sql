-- Requests of one program that came at the same time, for one id each, in the order of the ids, in one transaction. The
-- answer has an entry for each, with a `|` behind it: what the routine for one answers; or, and then nothing was done for
-- it, `A` if it has to be asked alone, and `B` if somebody else has locked the row, for whom the others would wait, too. At
-- its end is how many microseconds all took before the commit.
-- Requests are words, each with a blank behind it: a cursor over a JSON_TABLE would make a temporary table, on MariaDB a file.
-- The first word is what is asked for: 0 frees an id, if nobody else has to do with it or whoever is the first in line waits
-- for nothing else; 1 takes it, if the usual way will do; 2 also lines up for it, if the usual ways will do.
CREATE PROCEDURE {v1_together}(p_ns INT UNSIGNED, p_words LONGBLOB, p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_kind, v_extra TINYINT;
  DECLARE p_id VARBINARY(1024);
  DECLARE p_context, p_owner VARBINARY(255);
  DECLARE p_fence, p_attempt, p_lease, v_marked, v_end, v_session, p_now BIGINT;
  DECLARE v_begun BIGINT DEFAULT {clock};
  DECLARE v_fresh TINYINT DEFAULT 0;
  DECLARE v_holder, v_answer, v_answers, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  WHILE p_words <> '' DO
    SET v_kind = {word}, p_words = {behind}, p_id = UNHEX({word}), p_words = {behind}, p_context = UNHEX({word}),
      p_words = {behind}, v_extra = NULL, v_answer = 'A';
    IF v_kind = 0 THEN
      SET p_fence = {word}, p_words = {behind}, v_session = NULL;
      SELECT i.extra INTO v_extra FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE SKIP LOCKED;
      IF v_extra IS NULL THEN
        SET v_answer = 'B';
      ELSEIF v_extra = 0 THEN
        {free in row};
        IF ROW_COUNT() = 1 THEN SET v_session = 0; END IF;
      ELSEIF v_extra = 2 THEN
        {hand over in row};
        IF ROW_COUNT() = 1 THEN SET v_session = LAST_INSERT_ID(); END IF;
      ELSE
        CALL {v1_hand_over}(p_ns, p_context, p_id, p_fence, 1, v_session);
      END IF;
      IF v_session IS NOT NULL THEN
        SET v_answer = '';
        IF v_session > 0 AND NOT FIND_IN_SET(v_session, v_wake) THEN
          SET v_wake = CONCAT(v_wake, v_session, ',');
        END IF;
      END IF;
    ELSE
      SET p_owner = UNHEX({word}), p_words = {behind}, p_attempt = {word}, p_words = {behind}, p_lease = {word},
        p_words = {behind}, p_now = {clock};
      -- Nobody is waited for, so that the time taken before is that behind the lock.
      SELECT i.extra, i.marked, i.until - p_now, {holder of i} INTO v_extra, v_marked, v_end, v_holder
        FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE SKIP LOCKED;
      IF v_extra IS NULL THEN
        SELECT IF(COUNT(*) = 1, 'B', 'A') INTO v_answer FROM {ids} WHERE ns = p_ns AND id = p_id;
      ELSEIF v_marked > p_now THEN
        SET v_answer = 'A';
      ELSEIF v_extra = 0 AND v_end <= 0 THEN
        UPDATE {row} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, p_now)), context = p_context, attempt = p_attempt,
            owner = p_owner, lease = p_lease, since = p_now, until = p_now + p_lease, session = 0
          WHERE ns = p_ns AND id = p_id;
        SET v_answer = CONCAT('G', LAST_INSERT_ID());
      ELSEIF v_kind = 2 THEN
        IF NOT v_fresh THEN
          SELECT {fresh} INTO v_fresh;
          IF NOT v_fresh THEN {be fresh}; END IF;
          SET v_fresh = 1;
        END IF;
        IF v_extra = 0 THEN
          {wait in row};
          IF ROW_COUNT() = 1 THEN
            SET v_answer = {queued};
          END IF;
        ELSE
          CALL {v1_line_up}(p_ns, p_context, p_attempt, p_id, v_extra, p_lease, p_owner, p_session, p_now, v_answer);
          IF v_answer = '' THEN SET v_answer = 'A'; END IF;
        END IF;
      END IF;
    END IF;
    SET v_answers = CONCAT(v_answers, v_answer, '|');
  END WHILE;
  SET v_answers = CONCAT(v_answers, {clock} - v_begun);
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT v_answers AS answer, v_wake AS unrung;
END
//

-- Ends an attempt: it leaves the queue; with p_undo it also gives up what it got and is refused if it comes only now.
CREATE PROCEDURE {v1_withdraw}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_set LONGTEXT CHARACTER SET ascii, p_n INT,
  p_lease BIGINT, p_owner VARBINARY(255), p_undo TINYINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_freed, v_waiters, v_all, v_any, v_replaced, v_holders, v_exclusive INT DEFAULT 0;
  DECLARE v_now, v_until, v_fence, v_replaces, v_permits, v_cap, v_taken, v_kept_permits, v_kept_cap BIGINT DEFAULT 0;
  DECLARE v_mode, v_kept_mode TINYINT DEFAULT 0;
  DECLARE v_id VARBINARY(1024);
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  -- Also of ids that are not there yet, so that the request comes either before or after this.
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE fence = {ids}.fence;
  SET v_now = {clock};
  CALL {v1_tidy}(p_ns, p_set, v_now, v_freed, v_waiters);
  IF v_freed > 0 THEN
    CALL {v1_prune}(p_ns, p_set, v_now);
  END IF;
  DELETE w FROM {places} WHERE {of attempt p};
  IF NOT p_undo THEN
    SELECT COUNT(*), IFNULL(SUM(o.attempt = p_attempt), 0) INTO v_all, v_any FROM {set} STRAIGHT_JOIN {claims} o
      ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0 AND o.context = p_context AND NOT o.broken AND {keeps o};
    IF v_all = p_n AND v_any > 0 THEN
      CALL {v1_grant}(p_ns, p_set, REPEAT('K', p_n), p_context, p_attempt, p_lease, p_owner, 0, v_now);
      CALL {v1_given}(p_ns, p_set, p_n, p_context, v_answer);
      SET v_answer = CONCAT('{"now":', v_now, ',"g":[', v_answer, ']}');
    END IF;
  END IF;
  IF v_answer = '' THEN
    SELECT COUNT(*) INTO v_replaced FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id)
      AND o.state = 0 AND o.context = p_context AND o.attempt = p_attempt AND o.replaces <> 0;
    WHILE v_replaced > 0 DO
      -- What the context held before comes back, so far as it still lasts.
      SET v_replaced = v_replaced - 1;
      SELECT o.id, o.number, o.replaces, o.mode, o.permits, o.cap INTO v_id, v_fence, v_replaces, v_mode, v_permits,
          v_cap FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id)
          AND o.state = 0 AND o.context = p_context AND o.attempt = p_attempt AND o.replaces <> 0
        ORDER BY o.id LIMIT 1;
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = 0 AND number = v_fence;
      SET v_kept_mode = NULL;
      SELECT o.mode, o.permits, o.cap INTO v_kept_mode, v_kept_permits, v_kept_cap FROM {claims} o
        WHERE o.ns = p_ns AND o.id = v_id AND o.state = 1 AND o.number = v_replaces AND o.context = p_context
          AND o.until > v_now;
      IF v_kept_mode IS NOT NULL THEN
        SELECT COUNT(*), IFNULL(SUM(h.mode = 2), 0), IFNULL(SUM(h.permits), 0) INTO v_holders, v_exclusive, v_taken
          FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = 0;
        IF CASE v_kept_mode WHEN 2 THEN v_holders = 0 WHEN 0 THEN v_exclusive = 0
            ELSE v_exclusive = 0 AND v_taken + v_kept_permits <= v_kept_cap END THEN
          SET v_mode = v_kept_mode, v_permits = v_kept_permits, v_cap = v_kept_cap;
        END IF;
        -- Else fewer permits let somebody in meanwhile who needs the rest: then they stay as few.
        UPDATE {claims} SET state = 0, mode = v_mode, permits = v_permits, cap = v_cap, indexes = ''
          WHERE ns = p_ns AND id = v_id AND state = 1 AND number = v_replaces;
        CALL {v1_number_permits}(p_ns, v_id, v_replaces);
      END IF;
    END WHILE;
    DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0
      AND o.context = p_context AND o.attempt = p_attempt;
    IF p_undo THEN
      -- For longer than a request can be on its way. Who asks for one of these ids looks for marks until then.
      SET v_until = v_now + GREATEST(p_lease, 50000000);
      INSERT INTO {marks} (ns, context, attempt, until) VALUES (p_ns, p_context, p_attempt, v_until)
        ON DUPLICATE KEY UPDATE until = GREATEST(until, v_until);
      INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
        ON DUPLICATE KEY UPDATE marked = GREATEST({ids}.marked, v_until);
    END IF;
  END IF;
  IF v_waiters > 0 THEN
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
  END IF;
  CALL {v1_settle}(p_ns, p_set);
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT v_answer AS answer, v_wake AS unrung;
END
//

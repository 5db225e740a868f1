-- `lockcore::rules` in SQL, with `serve.sql`, and held to them by the random histories: what stands against a set, and granting it.
-- The rows of the ids are locked.
--
-- Puts a set in order before it is looked at: what its rows say moves to `claims`, and leases from the future (the clock was set
-- back) count from now. Returns whether leases ended, and whether there are waiters.
CREATE PROCEDURE {v1_tidy}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, now_us BIGINT, OUT p_ended INT, OUT p_waiters INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_in_row, v_in_claims, v_future INT DEFAULT 0;
  {long lists};
  SELECT IFNULL(SUM(i.until > 0), 0), IFNULL(SUM(i.extra <> {IN_ROW}), 0) INTO v_in_row, v_in_claims FROM {ids of set};
  IF v_in_row > 0 THEN
    CALL {v1_move}(p_ns, p_set, now_us);
  END IF;
  SET p_ended = 0, p_waiters = 0;
  IF v_in_row + v_in_claims > 0 THEN
    SELECT IFNULL(SUM(h.until <= now_us), 0), IFNULL(SUM(h.until - h.lease > now_us), 0) INTO p_ended, v_future
      FROM {holders of set};
    IF v_future > 0 THEN
      UPDATE {holders of set} SET h.until = now_us + h.lease WHERE h.until - h.lease > now_us;
    END IF;
  END IF;
  IF v_in_claims > 0 THEN
    SELECT EXISTS (SELECT 1 FROM {set} STRAIGHT_JOIN {claims} w ON w.ns = p_ns AND w.id = UNHEX(j.id)
      AND w.state IN ({WAITING})) INTO p_waiters;
  END IF;
END
//
-- Moves what the rows of a set say to `claims`.
CREATE PROCEDURE {v1_move}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, now_us BIGINT)
SQL SECURITY DEFINER
BEGIN
  INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since,
      session, notice)
    SELECT p_ns, i.id, {HELD}, i.fence, i.context, i.attempt, {EXCLUSIVE}, 0, 0, '', i.owner, i.lease,
      LEAST(i.until, now_us + i.lease), i.since, i.session, IF(i.session <> 0, {OFFERED}, 0)
    FROM {ids of set} WHERE i.until > 0;
  INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until, since,
      session, wants)
    SELECT p_ns, i.id, {WAITS}, i.next_ticket, i.next_context, i.next_attempt, {EXCLUSIVE}, 0, 0, '', i.next_owner,
      i.next_lease, 0, i.next_ticket, i.next_session, 1
    FROM {ids of set} WHERE i.extra = {ONE_WAITS};
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE
    extra = IF({ids}.until > 0, {IN_CLAIMS}, {ids}.extra), until = 0, session = 0, next_session = 0;
END
//
-- Removes what ended.
CREATE PROCEDURE {v1_prune}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, now_us BIGINT)
SQL SECURITY DEFINER
BEGIN
  DELETE h FROM {set} STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state IN ({HELD}, {REPLACED})
    WHERE h.until <= now_us;
END
//
-- Ids without claims are IN_ROW again, unless they are frozen. To be called when holders of a set have changed.
CREATE PROCEDURE {v1_settle}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
    WHERE NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = UNHEX(j.id))
    ON DUPLICATE KEY UPDATE extra = IF({ids}.frozen, {IN_CLAIMS}, {IN_ROW});
END
//
-- What stands against granting a set now, one letter for each id.
-- Nothing: N new, K keeps what it holds, C changes what it holds.
-- Something: H other holders, F frozen, Q earlier waiters, B its own lock was broken; and of an id that the context holds in
-- another mode, so that it does not wait: U other holders, V frozen.
CREATE PROCEDURE {v1_weigh}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_context VARBINARY({longest context}), p_ticket BIGINT,
  p_nested TINYINT, now_us BIGINT, OUT p_verdict TEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  SELECT GROUP_CONCAT(CASE
      WHEN o.broken THEN 'B'
      WHEN o.number IS NOT NULL AND {keeps o} THEN 'K'
      WHEN i.frozen THEN IF(o.number IS NULL, 'F', 'V')
      WHEN CASE j.a
          WHEN {EXCLUSIVE} THEN EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD}
            AND h.context <> p_context)
          WHEN {SHARED} THEN EXISTS (SELECT 1 FROM {claims} h WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD}
            AND h.context <> p_context AND h.mode = {EXCLUSIVE})
          ELSE j.b + (SELECT IFNULL(SUM(IF(h.mode = {EXCLUSIVE}, {never}, h.permits)), 0) FROM {claims} h
            WHERE h.ns = p_ns AND h.id = i.id AND h.state = {HELD} AND h.context <> p_context) > j.c END
        THEN IF(o.number IS NULL, 'H', 'U')
      WHEN o.number IS NOT NULL THEN 'C'
      WHEN p_nested OR NOT EXISTS (SELECT 1 FROM {waiters before j}) THEN 'N'
      ELSE 'Q' END ORDER BY j.n SEPARATOR '') INTO p_verdict
    FROM {ids of set} {own of set};
END
//
-- Grants a set against which nothing stands. p_session: whom to notify of it, as an offer; 0 if the caller gets the answer.
CREATE PROCEDURE {v1_grant}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_verdict TEXT CHARACTER SET ascii,
  p_context VARBINARY({longest context}),
  p_attempt BIGINT, p_lease BIGINT, p_owner VARBINARY({longest owner}), p_session BIGINT, now_us BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_fence, v_slots, v_replaced, v_permits, v_cap BIGINT DEFAULT 0;
  DECLARE v_n, v_next, v_mode INT DEFAULT 0;
  DECLARE v_id VARBINARY({longest id});
  IF p_verdict REGEXP '[NC]' THEN
    SELECT GREATEST(MAX(i.fence) + 1, now_us), SUM(j.a = {SLOTS}) INTO v_fence, v_slots FROM {ids of set};
    INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
        since, session, notice)
      SELECT p_ns, UNHEX(j.id), {HELD}, v_fence, p_context, p_attempt, j.a, j.b, j.c, '', p_owner, p_lease, now_us + p_lease,
        now_us, p_session, IF(p_session <> 0, {OFFERED}, 0)
      FROM {set} WHERE SUBSTRING(p_verdict, j.n, 1) = 'N';
    WHILE LOCATE('C', p_verdict, v_n + 1) > 0 DO
      SET v_n = LOCATE('C', p_verdict, v_n + 1);
      SELECT UNHEX(j.id), j.a, j.b, j.c INTO v_id, v_mode, v_permits, v_cap FROM {set} WHERE j.n = v_n;
      SELECT number INTO v_replaced FROM {claims}
        WHERE ns = p_ns AND id = v_id AND state = {HELD} AND context = p_context;
      UPDATE {claims} SET state = {REPLACED} WHERE ns = p_ns AND id = v_id AND state = {HELD} AND number = v_replaced;
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
          since, session, notice, replaces)
        VALUES (p_ns, v_id, {HELD}, v_fence, p_context, p_attempt, v_mode, v_permits, v_cap, '', p_owner, p_lease,
          now_us + p_lease, now_us, p_session, IF(p_session <> 0, {OFFERED}, 0), v_replaced);
    END WHILE;
    INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} WHERE SUBSTRING(p_verdict, j.n, 1) IN ('N', 'C')
      ON DUPLICATE KEY UPDATE fence = v_fence, extra = {IN_CLAIMS};
    SET v_n = 0;
    IF v_slots > 0 THEN
      numbering: LOOP
        SET v_next = NULL;
        SELECT j.n, UNHEX(j.id) INTO v_next, v_id FROM {set}
          WHERE j.a = {SLOTS} AND j.n > v_n AND SUBSTRING(p_verdict, j.n, 1) IN ('N', 'C') ORDER BY j.n LIMIT 1;
        IF v_next IS NULL THEN LEAVE numbering; END IF;
        SET v_n = v_next;
        CALL {v1_number_permits}(p_ns, v_id, v_fence);
      END LOOP;
    END IF;
  END IF;
  SET v_n = 0;
  WHILE LOCATE('K', p_verdict, v_n + 1) > 0 DO
    -- A longer lease of an earlier grant is not cut short: that one relies on it.
    SET v_n = LOCATE('K', p_verdict, v_n + 1);
    SELECT UNHEX(j.id) INTO v_id FROM {set} WHERE j.n = v_n;
    UPDATE {claims} SET lease = GREATEST(p_lease, until - now_us), until = GREATEST(now_us + p_lease, until), notice = 0,
        session = 0
      WHERE ns = p_ns AND id = v_id AND state = {HELD} AND context = p_context;
  END WHILE;
END
//
-- Gives a holder of slots the lowest permit indexes that are free.
CREATE PROCEDURE {v1_number_permits}(p_ns INT UNSIGNED, p_id VARBINARY({longest id}), p_fence BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_free, v_permits, v_below, v_change BIGINT DEFAULT 0;
  DECLARE v_indexes LONGTEXT CHARACTER SET ascii DEFAULT '';
  SELECT IFNULL(MAX(permits), 0) INTO v_permits FROM {claims}
    WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence AND mode = {SLOTS};
  WHILE v_free < v_permits DO
    -- The v_free-th free index is v_free + v_below, where v_below is the number of taken ones below it. It changes only at
    -- v_change; so all taken indexes are read once for each gap, and not for each permit.
    IF v_free >= v_change THEN
      SELECT IFNULL(SUM(free_below <= v_free), 0), IFNULL(MIN(IF(free_below > v_free, free_below, NULL)), {never})
        INTO v_below, v_change FROM (
        SELECT CAST(t.x AS SIGNED) - CAST(ROW_NUMBER() OVER (ORDER BY t.x) AS SIGNED) + 1 AS free_below
        FROM {claims} c, JSON_TABLE(c.indexes, '$[*]' COLUMNS (x BIGINT PATH '$')) t
        WHERE c.ns = p_ns AND c.id = p_id AND c.state = {HELD} AND c.mode = {SLOTS} AND c.indexes <> '') q;
    END IF;
    SET v_indexes = CONCAT(v_indexes, IF(v_free = 0, '', ','), v_free + v_below);
    SET v_free = v_free + 1;
  END WHILE;
  IF v_permits > 0 THEN
    UPDATE {claims} SET indexes = CONCAT('[', v_indexes, ']')
      WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence;
  END IF;
END
//
-- What a context holds of a set, as a list of `server::reply::Given`.
CREATE PROCEDURE {v1_given}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_context VARBINARY({longest context}),
  OUT p_given LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  SELECT GROUP_CONCAT({given} ORDER BY j.n) INTO p_given FROM {set} STRAIGHT_JOIN {claims} o
    ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD} AND o.context = p_context;
END
//
-- What is in the way of a set, by the verdict of `v1_weigh`, as a list of `server::reply::Against`.
CREATE PROCEDURE {v1_against}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_verdict TEXT CHARACTER SET ascii,
  p_context VARBINARY({longest context}),
  p_ticket BIGINT, now_us BIGINT, OUT p_against LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_n, v_listed, v_count INT DEFAULT 0;
  DECLARE v_units BIGINT DEFAULT 0;
  DECLARE v_letter CHAR(1) CHARACTER SET ascii;
  DECLARE v_id VARBINARY({longest id});
  DECLARE v_one, v_all LONGTEXT CHARACTER SET ascii DEFAULT '';
  WHILE v_n < LENGTH(p_verdict) DO
    SET v_n = v_n + 1, v_letter = SUBSTRING(p_verdict, v_n, 1);
    IF v_letter NOT IN ('N', 'K', 'C') THEN
      SET v_all = CONCAT(v_all, IF(v_all = '', '', ','), '{"p":', v_n - 1);
      IF v_letter IN ('F', 'V') THEN
        SET v_all = CONCAT(v_all, ',"f":1}');
      ELSEIF v_letter = 'Q' THEN
        SELECT (SELECT COUNT(*) FROM {waiters before j}),
            (SELECT HEX(e.context) FROM {waiters before j} ORDER BY e.number LIMIT 1)
          INTO v_count, v_one FROM {set} WHERE j.n = v_n;
        SET v_all = CONCAT(v_all, ',"q":["', v_one, '",', v_count, ']}');
      ELSE
        SELECT UNHEX(j.id) INTO v_id FROM {set} WHERE j.n = v_n;
        SELECT IFNULL(SUM(h.context <> p_context OR v_letter = 'B'), 0),
            IF(IFNULL(SUM(h.permits), 0) > 0, SUM(h.permits), COUNT(*))
          INTO v_count, v_units FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = {HELD};
        SET v_all = CONCAT(v_all, ',"h":['), v_listed = 0;
        WHILE v_listed < LEAST(v_count, 8) DO
          SELECT CONCAT('["', HEX(h.context), '","', HEX(h.owner), '",', h.mode, ',', h.permits, ',', h.cap, ',',
              h.number, ',', h.until - now_us, ']') INTO v_one FROM {claims} h
            WHERE h.ns = p_ns AND h.id = v_id AND h.state = {HELD} AND (h.context <> p_context OR v_letter = 'B')
            ORDER BY h.until DESC, h.number LIMIT v_listed, 1;
          SET v_all = CONCAT(v_all, IF(v_listed = 0, '', ','), v_one), v_listed = v_listed + 1;
        END WHILE;
        SET v_all = CONCAT(v_all, '],"n":', v_count, ',"u":', v_units, '}');
      END IF;
    END IF;
  END WHILE;
  SET p_against = CONCAT('[', v_all, ']');
END
//
-- Locks those ids of a set that no one else has locked, and returns how many: waiting for the others could deadlock. Only rows of
-- ids are locked, so that nothing but work on an id keeps a waiter from being served in its turn.
CREATE PROCEDURE {v1_lock}(p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, OUT p_locked INT)
SQL SECURITY DEFINER
BEGIN
  SELECT COUNT(*) INTO p_locked FROM {ids of set} {for update of i} SKIP LOCKED;
END
//

-- The number of a namespace, and the version of the schema.
CREATE PROCEDURE {v1_enter}(p_name VARBINARY(255))
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ns INT UNSIGNED DEFAULT NULL;
  DECLARE v_version INT DEFAULT 0;
  SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  IF v_ns IS NULL THEN
    INSERT INTO {namespaces} (name) VALUES (p_name) ON DUPLICATE KEY UPDATE swept = swept;
    SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  END IF;
  SELECT IFNULL(MAX(version), 0) INTO v_version FROM {schema};
  SELECT CONCAT(v_ns, ' ', v_version) AS answer, '' AS unrung;
END
//
-- The version of the schema.
CREATE PROCEDURE {version}()
SQL SECURITY DEFINER
BEGIN
  SELECT CAST(IFNULL(MAX(version), 0) AS CHAR CHARACTER SET ascii) AS answer, '' AS unrung FROM {schema};
END
//
-- A session's sign of life. Looks after the leases that it waits for, and gives what was handed to it. With a probe it
-- is told so, to see that it hears.
CREATE PROCEDURE {v1_beat}(p_ns INT UNSIGNED, p_session BIGINT, p_probe BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ended, v_waiters INT DEFAULT 0;
  DECLARE v_now, v_next BIGINT DEFAULT 0;
  DECLARE v_set, p_set LONGTEXT CHARACTER SET ascii;
  DECLARE v_told, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET v_now = {clock};
  INSERT INTO {sessions} (session, ns, beat, probe) VALUES (p_session, p_ns, v_now, p_probe)
    ON DUPLICATE KEY UPDATE beat = v_now, probe = IF(p_probe = 0, probe, p_probe);
  COMMIT;
  SELECT EXISTS (SELECT 1 FROM {claims} w FORCE INDEX (by_session)
    STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = 0 AND h.until <= v_now
    WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2) INTO v_ended;
  IF v_ended THEN
    SELECT CONCAT('[', GROUP_CONCAT(DISTINCT CONCAT('["', HEX(w.id), '"]') ORDER BY w.id), ']') INTO p_set
      FROM {claims} w FORCE INDEX (by_session)
      STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = 0 AND h.until <= v_now
      WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(i.id), '"]') ORDER BY i.id), ']') INTO v_set
      FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i} SKIP LOCKED;
    IF v_set IS NOT NULL THEN
      SET p_set = v_set, v_now = {clock};
      CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
      CALL {v1_prune}(p_ns, p_set, v_now);
      CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
      CALL {v1_settle}(p_ns, p_set);
    END IF;
    COMMIT;
  END IF;
  CALL {v1_told}(p_ns, p_session, '', v_told);
  SET v_now = {clock};
  SELECT MIN(h.until) - v_now INTO v_next FROM {claims} w FORCE INDEX (by_session)
    STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = 0
    WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2;
  IF p_probe <> 0 AND NOT FIND_IN_SET(p_session, v_wake) THEN
    SET v_wake = CONCAT(v_wake, p_session, ',');
  END IF;
  CALL {v1_ring}(v_wake);
  SELECT CONCAT('{"now":', v_now, ',"next":', LEAST(1000000, GREATEST(IFNULL(v_next, 1000000), 0)),
    IF(v_told = '', '', ','), v_told, '}') AS answer, v_wake AS unrung;
END
//
-- What a session is to be told: the sets that were handed to it, and who is to ask, but for what `p_known` marks as told.
-- The inside of a JSON object; empty if there is nothing. It changes nothing: whoever hears may be interrupted before the
-- answer is out. What is handed over counts as told when it is confirmed, a turn when the waiter asks.
CREATE PROCEDURE {v1_told}(
  p_ns INT UNSIGNED, p_session BIGINT, p_known LONGTEXT CHARACTER SET ascii, OUT p_told LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_offers, v_turns, v_given, v_marks LONGTEXT CHARACTER SET ascii;
  DECLARE v_now BIGINT DEFAULT {clock};
  DECLARE v_offered, v_turned INT DEFAULT 0;
  DECLARE v_last, v_attempt, v_at, v_lease BIGINT;
  DECLARE v_id, v_last_id VARBINARY(1024);
  DECLARE v_context VARBINARY(255);
  SELECT IFNULL(SUM(told = 1), 0), IFNULL(SUM(told = 2), 0) INTO v_offered, v_turned
    FROM {claims} FORCE INDEX (by_session) WHERE session = p_session AND told IN (1, 2) AND ns = p_ns;
  -- One by one, in the order of attempts and ids: grouping would need a temporary table each time.
  offers: WHILE v_offered > 0 DO
    SET v_attempt = NULL, v_offered = v_offered - 1;
    SELECT o.context, o.attempt, o.id, o.since, o.lease, {given} INTO v_context, v_attempt, v_id, v_at, v_lease, v_given
      FROM {claims} o FORCE INDEX (by_session)
      WHERE o.session = p_session AND o.told = 1 AND o.ns = p_ns AND o.state = 0 AND o.until > v_now
        AND NOT FIND_IN_SET(CONCAT(o.attempt, ':', o.since), p_known)
        AND (v_last IS NULL OR o.attempt > v_last OR o.attempt = v_last AND o.id > v_last_id)
      ORDER BY o.attempt, o.id LIMIT 1;
    IF v_attempt IS NULL THEN LEAVE offers; END IF;
    IF v_attempt = v_last THEN
      SET v_offers = CONCAT(v_offers, ',', v_given);
    ELSE
      SET v_offers = CONCAT(IFNULL(CONCAT(v_offers, ']},'), ''), '{"c":"', HEX(v_context), '","a":', v_attempt, ',"at":',
        v_at, ',"lasts":', v_lease, ',"g":[', v_given);
      SET v_marks = CONCAT_WS(',', v_marks, CONCAT(v_attempt, ':', v_at));
    END IF;
    SET v_last = v_attempt, v_last_id = v_id;
  END WHILE;
  SET v_last = NULL;
  turns: WHILE v_turned > 0 DO
    SET v_attempt = NULL, v_turned = v_turned - 1;
    SELECT w.context, w.attempt, w.id, w.until INTO v_context, v_attempt, v_id, v_at
      FROM {claims} w FORCE INDEX (by_session)
      WHERE w.session = p_session AND w.told = 2 AND w.ns = p_ns
        AND NOT FIND_IN_SET(CONCAT(w.attempt, ':', w.until), p_known)
        AND (v_last IS NULL OR w.attempt > v_last OR w.attempt = v_last AND w.id > v_last_id)
      ORDER BY w.attempt, w.id LIMIT 1;
    IF v_attempt IS NULL THEN LEAVE turns; END IF;
    SET v_turns = CONCAT(IFNULL(CONCAT(v_turns, ','), ''), '["', HEX(v_context), '",', v_attempt, ']');
    SET v_marks = CONCAT_WS(',', v_marks, CONCAT(v_attempt, ':', v_at));
    SET v_last = v_attempt, v_last_id = v_id;
  END WHILE;
  SET v_offers = CONCAT(v_offers, ']}');
  SET p_told = CONCAT_WS(',', CONCAT('"o":[', v_offers, ']'), CONCAT('"t":[', v_turns, ']'),
    CONCAT('"known":"', v_marks, '"'));
END
//
-- Waits for the session's turn: until there is something to tell, `v1_ring` interrupts it, or `p_seconds` are over. Who
-- commits before it rings is never missed: either this is interrupted, wherever it is, or the next call finds it.
-- It waits with the caller's own rights: a connection that has somebody else's at the moment can only be interrupted by
-- that one. It waits for a lock that another connection of this process keeps, as `v1_listen` named it, and not in
-- `SLEEP`: on MariaDB all that sleep share a mutex, with which `KILL QUERY` may get in its own way for two seconds.
CREATE PROCEDURE {v1_hear}(
  p_ns INT UNSIGNED, p_session BIGINT, p_kept BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT,
  p_seconds INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_told LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_had INT DEFAULT 0;
  CALL {v1_pending}(p_ns, p_session, p_known, p_probe, v_told);
  IF v_told = '' THEN
    SET v_had = GET_LOCK(CONCAT('lockcore:', p_kept), p_seconds);
    IF v_had THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the connection that keeps the listener waiting is gone';
    END IF;
  END IF;
  SELECT IF(v_told = '', '', CONCAT('{', v_told, '}')) AS answer, '' AS unrung;
END
//
-- What there is to tell a session, its probe included unless that is `p_probe`.
CREATE PROCEDURE {v1_pending}(
  p_ns INT UNSIGNED, p_session BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT,
  OUT p_told LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_now, v_probe BIGINT DEFAULT {clock};
  DECLARE v_count INT DEFAULT 0;
  -- Usually it is one offer of one id.
  SELECT COUNT(*), MAX(IF(o.told = 1 AND o.state = 0 AND o.until > v_now,
      IF(FIND_IN_SET(CONCAT(o.attempt, ':', o.since), p_known), '', CONCAT('"o":[{"c":"', HEX(o.context), '","a":',
        o.attempt, ',"at":', o.since, ',"lasts":', o.lease, ',"g":[', {given}, ']}],"known":"', o.attempt, ':', o.since,
        '"')), NULL)), (SELECT IFNULL(MAX(probe), 0) FROM {sessions} WHERE session = p_session)
    INTO v_count, p_told, v_probe
    FROM {claims} o FORCE INDEX (by_session) WHERE o.session = p_session AND o.told IN (1, 2) AND o.ns = p_ns;
  IF v_count = 0 THEN
    SET p_told = '';
  ELSEIF v_count > 1 OR p_told IS NULL THEN
    CALL {v1_told}(p_ns, p_session, p_known, p_told);
  END IF;
  IF v_probe <> p_probe THEN
    SET p_told = CONCAT('"probe":', v_probe, IF(p_told = '', '', ','), p_told);
  END IF;
END
//
-- Wakes the sessions that a routine could not, because it runs with the rights of whoever made it.
CREATE PROCEDURE {v1_wake}(p_wake LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT p_wake;
  CALL {v1_ring}(v_wake);
  SELECT '' AS answer, v_wake AS unrung;
END
//
-- A session has ended: it gives up all its places.
CREATE PROCEDURE {v1_leave}(p_ns INT UNSIGNED, p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_locked, v_ended, v_waiters INT DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT 0;
  DECLARE p_set LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT CONCAT('[', GROUP_CONCAT(DISTINCT CONCAT('["', HEX(w.id), '"]') ORDER BY w.id), ']') INTO p_set
    FROM {claims} w FORCE INDEX (by_session) WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2;
  IF p_set IS NOT NULL THEN
    SELECT COUNT(*) INTO v_locked FROM {set}
      STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
    SET v_now = {clock};
    CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
    CALL {v1_prune}(p_ns, p_set, v_now);
    DELETE w FROM {claims} w FORCE INDEX (by_session) WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2;
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  DELETE FROM {sessions} WHERE session = p_session;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT '' AS answer, v_wake AS unrung;
END
//
-- Holds the name of a session, so that it can be woken, and tells whether it is this connection's. Also the name by which
-- a connection keeps the one that listens waiting.
CREATE PROCEDURE {v1_listen}(p_session BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT CAST(GET_LOCK(CONCAT('lockcore:', p_session), 5) AS CHAR CHARACTER SET ascii) AS answer, '' AS unrung;
END
//

-- Returns the number of a namespace, 0 if it is not there and not to be created; then the version of the schema, and the oldest
-- version of a program that may use it.
CREATE PROCEDURE {v1_enter}(p_name VARBINARY(255), p_create TINYINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ns INT UNSIGNED DEFAULT NULL;
  DECLARE v_version, v_oldest INT DEFAULT 0;
  -- Where `timestamp` is set {clock} tells that, and leases of others would end by it; SYSDATE goes on.
  IF ABS(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))) > 1000000 THEN
    SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = 1231,
      MESSAGE_TEXT = 'the variable timestamp of the session is set, locks need the time of the server: SET timestamp = DEFAULT';
  END IF;
  SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  IF v_ns IS NULL AND p_create THEN
    INSERT INTO {namespaces} (name) VALUES (p_name) ON DUPLICATE KEY UPDATE swept = swept;
    SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  END IF;
  SELECT IFNULL(MAX(version), 0), IFNULL(MAX(oldest_program), 0) INTO v_version, v_oldest FROM {schema};
  SELECT CONCAT_WS(' ', IFNULL(v_ns, 0), v_version, v_oldest) AS answer, '' AS to_wake;
END
//
-- Returns the form in which a namespace is locked; enters it as one that is locked by routines, unless that is known or not to be created.
CREATE PROCEDURE {v1_form}(p_ns VARBINARY(765), p_create TINYINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_form VARBINARY(16) DEFAULT NULL;
  SELECT f.form INTO v_form FROM {form} f WHERE f.ns = p_ns;
  IF v_form IS NULL AND p_create THEN
    INSERT INTO {form} (ns, form) VALUES (p_ns, 'routines') ON DUPLICATE KEY UPDATE form = form;
    SELECT f.form INTO v_form FROM {form} f WHERE f.ns = p_ns;
  END IF;
  SELECT CAST(IFNULL(v_form, '') AS CHAR CHARACTER SET ascii) AS answer, '' AS to_wake;
END
//
-- Returns the version of the schema, and the oldest of programs that may use it. Every program calls this before any other: it
-- stays as it is in all versions.
CREATE PROCEDURE {version}()
SQL SECURITY DEFINER
BEGIN
  SELECT CAST(CONCAT_WS(' ', IFNULL(MAX(version), 0), IFNULL(MAX(oldest_program), 0)) AS CHAR CHARACTER SET ascii) AS answer,
    '' AS to_wake FROM {schema};
END
//
-- All that is known of one id.
CREATE PROCEDURE {v1_inspect}(p_ns INT UNSIGNED, p_id VARBINARY({longest id}))
SQL SECURITY DEFINER
BEGIN
  DECLARE now_us BIGINT DEFAULT {clock};
  DECLARE v_answer LONGTEXT CHARACTER SET ascii;
  {long lists};
  SELECT {inspected} INTO v_answer FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
  SELECT IFNULL(v_answer, CONCAT('{"i":"', HEX(p_id), '","h":[],"w":[],"f":0,"b":[]}')) AS answer, '' AS to_wake;
END
//
-- A page of the ids that are held, waited for or frozen.
CREATE PROCEDURE {v1_list}(p_ns INT UNSIGNED, p_after VARBINARY({longest id}), p_limit INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE now_us BIGINT DEFAULT {clock};
  DECLARE v_ids LONGTEXT CHARACTER SET ascii;
  DECLARE v_last, v_next VARBINARY({longest id});
  DECLARE v_count INT DEFAULT 0;
  {long lists};
  SELECT GROUP_CONCAT(q.x ORDER BY q.id), MAX(q.id), COUNT(*) INTO v_ids, v_last, v_count FROM (
    SELECT i.id, {inspected} AS x FROM {ids} i
      WHERE i.ns = p_ns AND (p_after IS NULL OR i.id > p_after) AND {shown} ORDER BY i.id LIMIT p_limit) q;
  IF v_count = p_limit THEN
    SELECT MIN(q.id) INTO v_next FROM (
      SELECT i.id FROM {ids} i WHERE i.ns = p_ns AND i.id > v_last AND {shown} ORDER BY i.id LIMIT 1) q;
  END IF;
  SELECT CONCAT('{"ids":[', IFNULL(v_ids, ''), '],"next":', IF(v_next IS NULL, 'null', CONCAT('"', HEX(v_last), '"')),
    '}') AS answer, '' AS to_wake;
END
//
-- Breaks the lock that is held under this fence, and records by whom.
CREATE PROCEDURE {v1_break_lock}(
  p_ns INT UNSIGNED, p_id VARBINARY({longest id}), p_fence BIGINT, p_freed TINYINT, p_by VARBINARY({longest owner}))
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_rows, v_ended, v_waiters, v_broken INT DEFAULT 0;
  DECLARE now_us, v_until BIGINT DEFAULT 0;
  DECLARE v_context VARBINARY({longest context});
  DECLARE p_set LONGTEXT CHARACTER SET ascii DEFAULT CONCAT('[["', HEX(p_id), '"]]');
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {begin};
  {lock rows};
  SET now_us = {clock};
  CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
  SELECT context, until, broken INTO v_context, v_until, v_broken FROM {claims}
    WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence AND until > now_us;
  IF v_context IS NULL THEN
    ROLLBACK;
    SELECT '{"left":null}' AS answer, '' AS to_wake;
    LEAVE body;
  END IF;
  IF p_freed OR NOT v_broken THEN
    INSERT INTO {breaks} (ns, id, fence, context, breaker, at, freed)
      VALUES (p_ns, p_id, p_fence, v_context, p_by, now_us, p_freed);
    DELETE b FROM {breaks} b JOIN (
        SELECT number FROM {breaks} WHERE ns = p_ns AND id = p_id ORDER BY number DESC LIMIT 1000 OFFSET 16) old
      ON old.number = b.number;
  END IF;
  IF p_freed THEN
    DELETE FROM {claims} WHERE ns = p_ns AND id = p_id AND state = {REPLACED} AND context = v_context;
    DELETE FROM {claims} WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence;
    CALL {v1_prune}(p_ns, p_set, now_us);
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  ELSE
    UPDATE {claims} SET broken = 1 WHERE ns = p_ns AND id = p_id AND state = {HELD} AND number = p_fence;
  END IF;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT CONCAT('{"left":', IF(p_freed, 0, GREATEST(v_until - now_us, 1)), '}') AS answer, v_wake AS to_wake;
END
//
-- Freezes an id, or thaws it and serves its waiters.
CREATE PROCEDURE {v1_freeze}(p_ns INT UNSIGNED, p_id VARBINARY({longest id}), p_frozen TINYINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ended, v_waiters INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  DECLARE p_set LONGTEXT CHARACTER SET ascii DEFAULT CONCAT('[["', HEX(p_id), '"]]');
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {begin};
  {lock or make rows};
  SET now_us = {clock};
  CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
  IF p_frozen THEN
    UPDATE {ids} SET frozen = 1, extra = {IN_CLAIMS} WHERE ns = p_ns AND id = p_id;
  ELSE
    UPDATE {ids} SET frozen = 0 WHERE ns = p_ns AND id = p_id;
    CALL {v1_prune}(p_ns, p_set, now_us);
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT '' AS answer, v_wake AS to_wake;
END
//
-- Frees all that a context holds and takes it from every queue. Reads the whole namespace.
CREATE PROCEDURE {v1_release_context}(p_ns INT UNSIGNED, p_context VARBINARY({longest context}))
SQL SECURITY DEFINER
BEGIN
  DECLARE v_rows, v_ended, v_waiters INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  DECLARE p_set, v_freed LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {long lists};
  {begin};
  SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set FROM (
    SELECT id FROM {ids}
      WHERE ns = p_ns AND (context = p_context AND until > 0 OR next_context = p_context AND extra = {ONE_WAITS})
    UNION SELECT id FROM {claims} WHERE ns = p_ns AND context = p_context) q;
  IF p_set IS NOT NULL THEN
    {lock rows};
    SET now_us = {clock};
    CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
    SELECT GROUP_CONCAT('"', j.id, '"' ORDER BY j.n) INTO v_freed FROM {set} {own of set} WHERE o.until > now_us;
    DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.context = p_context;
    CALL {v1_prune}(p_ns, p_set, now_us);
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT CONCAT('[', IFNULL(v_freed, ''), ']') AS answer, v_wake AS to_wake;
END
//
-- Removes what is over: at most p_batch locks, places and tombstones, from where the last sweep ended. It waits for no lock.
-- p_within: not if there was a sweep so lately. Rows of ids that no one holds go once their fence is an hour old and no
-- tombstone can be left of an attempt to take them.
CREATE PROCEDURE {v1_sweep}(p_ns INT UNSIGNED, p_batch INT, p_within BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE now_us, v_swept, v_attempt BIGINT DEFAULT 0;
  DECLARE v_removed, v_room, v_ended, v_waiters, v_more, v_rows, v_locked, v_done, v_count INT DEFAULT 0;
  DECLARE v_from, v_id, v_end VARBINARY({longest id});
  DECLARE v_context VARBINARY({longest context});
  DECLARE v_found, p_set, v_hex, v_set LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {long lists};
  {begin};
  SELECT swept, swept_to INTO v_swept, v_from FROM {namespaces} WHERE ns = p_ns FOR UPDATE;
  SET now_us = {clock};
  IF p_within >= 0 AND v_swept <= now_us AND now_us - v_swept < p_within THEN
    ROLLBACK;
    SELECT '{"removed":0,"more":0,"elsewhere":1}' AS answer, '' AS to_wake;
    LEAVE body;
  END IF;
  UPDATE {namespaces} SET swept = now_us WHERE ns = p_ns;
  COMMIT;
  IF p_within >= 0 THEN
    SET v_from = NULL;
  END IF;
  SET v_room = p_batch, v_rows = GREATEST(1000, p_batch * 10);
  -- What is over in a stretch of the table, read without a lock: p_set of those IN_ROW, v_found of all others.
  SELECT MAX(q.id), COUNT(*) INTO v_end, v_count FROM (
    SELECT i.id FROM {ids} i WHERE i.ns = p_ns AND (v_from IS NULL OR i.id > v_from) ORDER BY i.id LIMIT v_rows) q;
  SET v_more = v_count = v_rows;
  SELECT CONCAT('[', GROUP_CONCAT(IF(q.extra = {IN_ROW}, CONCAT('["', HEX(q.id), '"]'), NULL) ORDER BY q.id), ']'),
      IFNULL(CONCAT(GROUP_CONCAT(IF(q.extra = {IN_ROW}, NULL, CONCAT('x', HEX(q.id))) ORDER BY q.id), ','), ''), MAX(q.id),
      COUNT(*)
    INTO p_set, v_found, v_id, v_count FROM (
    SELECT i.id, i.extra FROM {ids} i
      WHERE i.ns = p_ns AND (v_from IS NULL OR i.id > v_from) AND i.id <= v_end AND (
        {over i} OR {unused i}
        OR (i.extra = {ONE_WAITS} AND (i.until <= now_us OR NOT {next is alive}))
        OR (i.extra = {IN_CLAIMS} AND (
          NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id) AND i.frozen = 0
          OR EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id AND c.state IN ({HELD}, {REPLACED}, {WATCHED})
            AND c.until <= now_us)
          OR EXISTS (SELECT 1 FROM {claims} w LEFT JOIN {sessions} s ON s.session = w.session AND {alive s}
            WHERE w.ns = p_ns AND w.id = i.id AND w.state IN ({WAITING}) AND s.session IS NULL))))
      ORDER BY i.id LIMIT p_batch) q;
  IF v_count = p_batch THEN
    SET v_more = 1, v_end = v_id;
  END IF;
  IF p_set IS NOT NULL THEN
    {begin};
    SELECT CONCAT('[', GROUP_CONCAT('["', j.id, '"]' ORDER BY j.n), ']') INTO v_set
      FROM {ids of set} {for update of i} SKIP LOCKED;
    IF v_set IS NOT NULL THEN
      SET p_set = v_set, now_us = {clock};
      UPDATE {ids of set} SET i.until = 0, i.session = 0 WHERE {over i};
      SET v_removed = ROW_COUNT(), v_room = p_batch - v_removed;
      DELETE i FROM {ids of set} WHERE {unused i};
    END IF;
    COMMIT;
  END IF;
  -- One short transaction for each of the others.
  WHILE v_found <> '' AND v_room > 0 DO
    SET v_hex = SUBSTRING_INDEX(v_found, ',', 1);
    SET v_found = SUBSTRING(v_found, LENGTH(v_hex) + 2);
    SET v_id = UNHEX(SUBSTRING(v_hex, 2)), p_set = CONCAT('[["', SUBSTRING(v_hex, 2), '"]]');
    {begin};
    CALL {v1_lock}(p_ns, p_set, v_locked);
    IF v_locked THEN
      SET now_us = {clock};
      CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = {HELD} AND until <= now_us LIMIT v_room;
      SET v_done = ROW_COUNT();
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = {REPLACED} AND until <= now_us;
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = {WATCHED} AND until <= now_us;
      -- Places of silent sessions; one that has other ids too goes if all of them can be locked.
      silent: LOOP
        SET v_attempt = NULL;
        SELECT w.attempt, w.context INTO v_attempt, v_context FROM {claims} w {silent w} AND w.wants = 1 LIMIT 1;
        IF v_attempt IS NULL OR v_done >= v_room THEN LEAVE silent; END IF;
        CALL {v1_unqueue}(p_ns, v_context, v_attempt);
        SET v_done = v_done + 1;
      END LOOP;
      SET v_attempt = NULL;
      SELECT w.attempt, w.context, w.wants INTO v_attempt, v_context, v_count
        FROM {claims} w {silent w} AND w.wants > 1 LIMIT 1;
      IF v_attempt IS NOT NULL THEN
        CALL {v1_wanted}(p_ns, v_context, v_attempt, v_set);
        CALL {v1_lock}(p_ns, v_set, v_locked);
        IF v_locked = v_count THEN
          CALL {v1_unqueue}(p_ns, v_context, v_attempt);
          SET v_done = v_done + 1, p_set = v_set;
        END IF;
      END IF;
      CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
      CALL {v1_settle}(p_ns, p_set);
      SET v_removed = v_removed + v_done, v_room = v_room - LEAST(v_done, v_room);
    END IF;
    COMMIT;
    IF v_room = 0 AND v_found <> '' THEN
      SET v_more = 1, v_end = v_id;
    END IF;
  END WHILE;
  IF v_room > 0 THEN
    DELETE FROM {tombstones} WHERE ns = p_ns AND until <= now_us ORDER BY until LIMIT v_room;
    SET v_done = ROW_COUNT();
    SET v_removed = v_removed + v_done;
    IF v_done = v_room THEN SET v_more = 1; END IF;
  END IF;
  -- Breaks are remembered for a week, sessions for a day.
  DELETE FROM {breaks} WHERE ns = p_ns AND at < now_us - 7 * 24 * {hour} LIMIT 100;
  DELETE FROM {sessions} WHERE ns = p_ns AND heartbeat < now_us - 24 * {hour} LIMIT 100;
  UPDATE {namespaces} SET swept_to = IF(v_more, v_end, NULL) WHERE ns = p_ns;
  CALL {v1_interrupt}(v_wake);
  SELECT CONCAT('{"removed":', v_removed, ',"more":', v_more, ',"elsewhere":0}') AS answer, v_wake AS to_wake;
END
//

-- All that is known of one id.
CREATE PROCEDURE {v1_inspect}(p_ns INT UNSIGNED, p_id VARBINARY(1024))
SQL SECURITY DEFINER
BEGIN
  DECLARE v_now BIGINT DEFAULT {clock};
  DECLARE v_answer LONGTEXT CHARACTER SET ascii;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SELECT {inspected} INTO v_answer FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
  SELECT IFNULL(v_answer, CONCAT('{"i":"', HEX(p_id), '","h":[],"w":[],"f":0,"b":[]}')) AS answer, '' AS unrung;
END
//
-- A page of the ids that are held, waited for or frozen.
CREATE PROCEDURE {v1_list}(p_ns INT UNSIGNED, p_after VARBINARY(1024), p_limit INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_now BIGINT DEFAULT {clock};
  DECLARE v_ids LONGTEXT CHARACTER SET ascii;
  DECLARE v_last, v_next VARBINARY(1024);
  DECLARE v_count INT DEFAULT 0;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SELECT GROUP_CONCAT(q.x ORDER BY q.id), MAX(q.id), COUNT(*) INTO v_ids, v_last, v_count FROM (
    SELECT i.id, {inspected} AS x FROM {ids} i
      WHERE i.ns = p_ns AND (p_after IS NULL OR i.id > p_after) AND {shown} ORDER BY i.id LIMIT p_limit) q;
  IF v_count = p_limit THEN
    SELECT MIN(q.id) INTO v_next FROM (
      SELECT i.id FROM {ids} i WHERE i.ns = p_ns AND i.id > v_last AND {shown} ORDER BY i.id LIMIT 1) q;
  END IF;
  SELECT CONCAT('{"ids":[', IFNULL(v_ids, ''), '],"next":', IF(v_next IS NULL, 'null', CONCAT('"', HEX(v_last), '"')),
    '}') AS answer, '' AS unrung;
END
//
-- Breaks the lock that is held under this fence, and records who did.
CREATE PROCEDURE {v1_break}(
  p_ns INT UNSIGNED, p_id VARBINARY(1024), p_fence BIGINT, p_freed TINYINT, p_by VARBINARY(255))
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ended, v_waiters, v_broken INT DEFAULT 0;
  DECLARE v_now, v_until BIGINT DEFAULT 0;
  DECLARE v_context VARBINARY(255);
  DECLARE p_set LONGTEXT CHARACTER SET ascii DEFAULT CONCAT('[["', HEX(p_id), '"]]');
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT COUNT(*) INTO v_ended FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE;
  SET v_now = {clock};
  CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
  SELECT context, until, broken INTO v_context, v_until, v_broken FROM {claims}
    WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence AND until > v_now;
  IF v_context IS NULL THEN
    ROLLBACK;
    SELECT '{"left":null}' AS answer, '' AS unrung;
    LEAVE body;
  END IF;
  IF p_freed OR NOT v_broken THEN
    INSERT INTO {breaks} (ns, id, fence, context, breaker, at, freed)
      VALUES (p_ns, p_id, p_fence, v_context, p_by, v_now, p_freed);
    DELETE b FROM {breaks} b JOIN (
        SELECT number FROM {breaks} WHERE ns = p_ns AND id = p_id ORDER BY number DESC LIMIT 1000 OFFSET 16) old
      ON old.number = b.number;
  END IF;
  IF p_freed THEN
    DELETE FROM {claims} WHERE ns = p_ns AND id = p_id AND state = 1 AND context = v_context;
    DELETE FROM {claims} WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence;
    CALL {v1_prune}(p_ns, p_set, v_now);
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  ELSE
    UPDATE {claims} SET broken = 1 WHERE ns = p_ns AND id = p_id AND state = 0 AND number = p_fence;
  END IF;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT CONCAT('{"left":', IF(p_freed, 0, GREATEST(v_until - v_now, 1)), '}') AS answer, v_wake AS unrung;
END
//
-- Freezes an id, or thaws it and serves who waits for it.
CREATE PROCEDURE {v1_freeze}(p_ns INT UNSIGNED, p_id VARBINARY(1024), p_frozen TINYINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ended, v_waiters INT DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT 0;
  DECLARE p_set LONGTEXT CHARACTER SET ascii DEFAULT CONCAT('[["', HEX(p_id), '"]]');
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  INSERT INTO {ids} (ns, id) VALUES (p_ns, p_id) ON DUPLICATE KEY UPDATE fence = {ids}.fence;
  SET v_now = {clock};
  CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
  IF p_frozen THEN
    UPDATE {ids} SET frozen = 1, extra = 1 WHERE ns = p_ns AND id = p_id;
  ELSE
    UPDATE {ids} SET frozen = 0 WHERE ns = p_ns AND id = p_id;
    CALL {v1_prune}(p_ns, p_set, v_now);
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT '' AS answer, v_wake AS unrung;
END
//
-- Frees all that a context holds and takes it from every queue. Reads the whole namespace.
CREATE PROCEDURE {v1_release_context}(p_ns INT UNSIGNED, p_context VARBINARY(255))
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ended, v_waiters INT DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT 0;
  DECLARE p_set, v_freed LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set FROM (
    SELECT id FROM {ids} WHERE ns = p_ns AND (context = p_context AND until > 0 OR next_context = p_context AND extra = 2)
    UNION SELECT id FROM {claims} WHERE ns = p_ns AND context = p_context
    UNION SELECT i.id FROM {ids} i STRAIGHT_JOIN {sets} g ON {of set g} AND g.context = p_context
      WHERE i.ns = p_ns AND i.extra = 3) q;
  IF p_set IS NOT NULL THEN
    SELECT COUNT(*) INTO v_ended FROM {set}
      STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
    SET v_now = {clock};
    CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
    SELECT GROUP_CONCAT('"', j.id, '"' ORDER BY j.n) INTO v_freed FROM {set} STRAIGHT_JOIN {claims} o
      ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = 0 AND o.context = p_context AND o.until > v_now;
    DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.context = p_context;
    CALL {v1_prune}(p_ns, p_set, v_now);
    CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  COMMIT;
  CALL {v1_ring}(v_wake);
  SELECT CONCAT('[', IFNULL(v_freed, ''), ']') AS answer, v_wake AS unrung;
END
//

-- The number of a namespace, 0 if it is not there and not to be created; then the version of the schema, and the oldest of
-- programs that may use it.
CREATE PROCEDURE {v1_enter}(p_name VARBINARY(255), p_create TINYINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_ns INT UNSIGNED DEFAULT NULL;
  DECLARE v_version, v_oldest INT DEFAULT 0;
  SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  IF v_ns IS NULL AND p_create THEN
    INSERT INTO {namespaces} (name) VALUES (p_name) ON DUPLICATE KEY UPDATE swept = swept;
    SELECT ns INTO v_ns FROM {namespaces} WHERE name = p_name;
  END IF;
  SELECT IFNULL(MAX(version), 0), IFNULL(MAX(oldest_program), 0) INTO v_version, v_oldest FROM {schema};
  SELECT CONCAT_WS(' ', IFNULL(v_ns, 0), v_version, v_oldest) AS answer, '' AS unrung;
END
//
-- The version of the schema, and the oldest of programs that may use it. Every program calls this before any other: it stays
-- as it is in all versions.
CREATE PROCEDURE {version}()
SQL SECURITY DEFINER
BEGIN
  SELECT CAST(CONCAT_WS(' ', IFNULL(MAX(version), 0), IFNULL(MAX(oldest_program), 0)) AS CHAR CHARACTER SET ascii) AS answer,
    '' AS unrung FROM {schema};
END
//
-- A session's sign of life. Looks after the leases that it waits for, and gives what was handed to it. With a probe it
-- is told so, to see that it hears.
CREATE PROCEDURE {v1_beat}(p_ns INT UNSIGNED, p_session BIGINT, p_probe BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ended, v_silent, v_waiters INT DEFAULT 0;
  DECLARE v_now, v_next BIGINT DEFAULT 0;
  DECLARE v_set, p_set LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_told INT;
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
  -- Leases that are over; and the silent among those who wait, behind whom an id may be free: no lease ends there.
  SELECT EXISTS (SELECT 1 {ended}) OR EXISTS (SELECT 1 {ended in row}), EXISTS (SELECT 1 {silent}) INTO v_ended, v_silent;
  IF v_ended OR v_silent THEN
    SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set
      FROM (SELECT w.id {ended} UNION SELECT w.id {ended in row} UNION SELECT w.id {silent}) q;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT CONCAT('[', GROUP_CONCAT('["', j.id, '"]' ORDER BY j.n), ']') INTO v_set
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
  SET v_now = {clock};
  SELECT LEAST(IFNULL(MIN(h.until), {never}), (SELECT IFNULL(MIN(i.until), {never}) FROM {ids} i FORCE INDEX (by_next)
      WHERE i.next_session = p_session AND i.ns = p_ns)) - v_now INTO v_next
    FROM {claims} w FORCE INDEX (by_session)
    STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = 0
    WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2;
  IF p_probe <> 0 AND NOT FIND_IN_SET(p_session, v_wake) THEN
    SET v_wake = CONCAT(v_wake, p_session, ',');
  END IF;
  CALL {v1_ring}(v_wake);
  SELECT CONCAT('{"now":', v_now, ',"next":', LEAST(1000000, GREATEST(v_next, 0)), '}') AS answer,
    v_wake AS unrung;
  CALL {v1_told}(p_ns, p_session, '', NULL, v_told);
END
//
-- Tells a session what was handed to it, id by id, who is to ask, and its probe: answers, each a JSON object; but not what
-- `p_known` marks as told, and no probe that is `p_probe`. `p_something`: whether there was anything. `known` marks all
-- that there is, so that nobody has to remember what is there no more. It changes nothing: whoever hears may be
-- interrupted before the answer is out. What is handed over counts as told when it is confirmed, a turn when the waiter
-- asks. Rows and not a list: on MariaDB each GROUP_CONCAT of long texts makes a file.
CREATE PROCEDURE {v1_told}(
  p_ns INT UNSIGNED, p_session BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT, OUT p_something INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_now, v_probe BIGINT DEFAULT {clock};
  SELECT COUNT(*) + (SELECT COUNT(*) {offered in row} AND NOT FIND_IN_SET({mark of i}, p_known)),
      (SELECT IFNULL(MAX(probe), 0) FROM {sessions} WHERE session = p_session)
    INTO p_something, v_probe
    FROM {claims} o FORCE INDEX (by_session) WHERE o.session = p_session AND o.told IN (1, 2) AND o.ns = p_ns
      AND (o.told = 2 OR o.state = 0 AND o.until > v_now) AND NOT FIND_IN_SET({mark of o}, p_known);
  IF p_something THEN
    SELECT CONCAT('{"known":"', {mark of i}, '"', IF(FIND_IN_SET({mark of i}, p_known), '',
        CONCAT(',"o":[', {offer in row}, ']')), '}') AS answer, '' AS unrung {offered in row};
    SELECT CONCAT('{"known":"', {mark of o}, '"', IF(FIND_IN_SET({mark of o}, p_known), '', IF(o.told = 2,
        CONCAT(',"t":[["', HEX(o.context), '",', o.attempt, ']]'),
        IF(o.state = 0 AND o.until > v_now, CONCAT(',"o":[', {offer}, ']'), ''))), '}') AS answer, '' AS unrung
      FROM {claims} o FORCE INDEX (by_session) WHERE o.session = p_session AND o.told IN (1, 2) AND o.ns = p_ns;
  END IF;
  IF v_probe <> p_probe THEN
    SELECT CONCAT('{"probe":', v_probe, '}') AS answer, '' AS unrung;
    SET p_something = 1;
  END IF;
END
//
-- Tells what there is to tell, and waits for more: until `v1_ring` interrupts it, or `p_seconds` are over. With
-- `p_unnamed` it looks without the session's name and tells what there is, so that nobody interrupts it: under many
-- hand-overs it might never get to the end. Nobody is missed: who commits and then finds no name to ring comes before a
-- look that is made with the name; who finds it interrupts this, and the next call finds what was committed. It waits
-- with the caller's own rights: a connection that has somebody else's at the moment can only be interrupted by that
-- one. It waits for a lock that another connection of this process keeps, as `v1_listen` named it, and not in `SLEEP`:
-- on MariaDB all that sleep share a mutex, with which `KILL QUERY` may get in its own way for two seconds.
CREATE PROCEDURE {v1_hear}(
  p_ns INT UNSIGNED, p_session BIGINT, p_kept BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT,
  p_seconds INT, p_unnamed TINYINT)
SQL SECURITY INVOKER
body: BEGIN
  DECLARE v_told INT DEFAULT 0;
  IF p_unnamed THEN
    DO RELEASE_LOCK(CONCAT('lockcore:', p_session));
    CALL {v1_told}(p_ns, p_session, p_known, p_probe, v_told);
    IF v_told THEN LEAVE body; END IF;
  END IF;
  -- It may have the name already, and would then have it twice.
  IF NOT IFNULL(IS_USED_LOCK(CONCAT('lockcore:', p_session)) = CONNECTION_ID(), 0) THEN
    IF NOT IFNULL(GET_LOCK(CONCAT('lockcore:', p_session), 5), 0) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'another connection has the name of this session';
    END IF;
  END IF;
  CALL {v1_told}(p_ns, p_session, p_known, p_probe, v_told);
  IF GET_LOCK(CONCAT('lockcore:', p_kept), p_seconds) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the connection that keeps the listener waiting is gone';
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
  SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set FROM (
    SELECT w.id FROM {claims} w FORCE INDEX (by_session) WHERE w.session = p_session AND w.ns = p_ns AND w.state >= 2
    UNION SELECT i.id FROM {ids} i FORCE INDEX (by_next) WHERE i.next_session = p_session AND i.ns = p_ns) q;
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
-- The connection on which this arrives, and the one that holds a session's name; 0 if none does.
CREATE PROCEDURE {v1_connection}(p_session BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT CAST(CONCAT_WS(' ', CONNECTION_ID(), IFNULL(IS_USED_LOCK(CONCAT('lockcore:', p_session)), 0))
    AS CHAR CHARACTER SET ascii) AS answer, '' AS unrung;
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

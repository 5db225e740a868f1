-- How processes with waiters notice what concerns them: heartbeats, and a connection that listens.
--
-- A heartbeat of a session. Looks after the leases that it waits for, and returns what was handed to it. A probe is a notice
-- to itself, by which it sees that it still listens.
CREATE PROCEDURE {v1_heartbeat}(p_ns INT UNSIGNED, p_session BIGINT, p_probe BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ended, v_silent, v_waiters, v_notices INT DEFAULT 0;
  DECLARE now_us, v_next BIGINT DEFAULT 0;
  DECLARE v_set, p_set LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {long lists};
  {begin};
  SET now_us = {clock};
  INSERT INTO {sessions} (session, ns, heartbeat, probe) VALUES (p_session, p_ns, now_us, p_probe)
    ON DUPLICATE KEY UPDATE heartbeat = now_us, probe = IF(p_probe = 0, probe, p_probe);
  COMMIT;
  -- No lease ends where a session falls silent that others wait behind.
  SELECT EXISTS (SELECT 1 {ended}) OR EXISTS (SELECT 1 {ended in rows}), EXISTS (SELECT 1 {behind the silent})
    INTO v_ended, v_silent;
  IF v_ended OR v_silent THEN
    SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set
      FROM (SELECT w.id {ended} UNION SELECT w.id {ended in rows} UNION SELECT w.id {behind the silent}) q;
    {begin};
    SELECT CONCAT('[', GROUP_CONCAT('["', j.id, '"]' ORDER BY j.n), ']') INTO v_set
      FROM {ids of set} {for update of i} SKIP LOCKED;
    IF v_set IS NOT NULL THEN
      SET p_set = v_set, now_us = {clock};
      CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
      CALL {v1_prune}(p_ns, p_set, now_us);
      CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
      CALL {v1_settle}(p_ns, p_set);
    END IF;
    COMMIT;
  END IF;
  SET now_us = {clock};
  SELECT LEAST(IFNULL(MIN(h.until), {never}), (SELECT IFNULL(MIN(i.until), {never}) FROM {ids} i FORCE INDEX (by_next)
      WHERE i.next_session = p_session AND i.ns = p_ns)) - now_us INTO v_next
    FROM {claims} w FORCE INDEX (by_session)
    STRAIGHT_JOIN {claims} h ON h.ns = w.ns AND h.id = w.id AND h.state = {HELD}
    WHERE w.session = p_session AND w.ns = p_ns AND w.state IN ({WAITING});
  IF p_probe <> 0 AND NOT FIND_IN_SET(p_session, v_wake) THEN
    SET v_wake = CONCAT(v_wake, p_session, ',');
  END IF;
  CALL {v1_interrupt}(v_wake);
  SELECT CONCAT('{"now":', now_us, ',"next":', LEAST({heartbeat}, GREATEST(v_next, 0)), '}') AS answer, v_wake AS to_wake;
  CALL {v1_notices}(p_ns, p_session, '', NULL, v_notices);
END
//
-- The notices of a session, each an answer of its own in JSON: what was handed to it, id by id; which waiters should ask again; its
-- probe. But not those whose marks are in p_known, and no probe that is p_probe. `known` marks all that there are, so that the
-- caller need not remember others. p_any: whether there were any.
-- It changes nothing: a listener may be interrupted before the answer is out. An offer counts as noticed when it is confirmed, a turn
-- when the waiter asks. Rows and not a list: on MariaDB each GROUP_CONCAT of long texts makes a file.
CREATE PROCEDURE {v1_notices}(
  p_ns INT UNSIGNED, p_session BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT, OUT p_any INT)
SQL SECURITY DEFINER
BEGIN
  DECLARE now_us, v_probe BIGINT DEFAULT {clock};
  SELECT COUNT(*) + (SELECT COUNT(*) {offered in rows} AND NOT FIND_IN_SET({mark of i}, p_known)),
      (SELECT IFNULL(MAX(probe), 0) FROM {sessions} WHERE session = p_session)
    INTO p_any, v_probe
    FROM {noticed claims} AND (o.notice = {TURN} OR o.state = {HELD} AND o.until > now_us)
      AND NOT FIND_IN_SET({mark of o}, p_known);
  IF p_any THEN
    SELECT CONCAT('{"known":"', {mark of i}, '"', IF(FIND_IN_SET({mark of i}, p_known), '',
        CONCAT(',"o":[', {offer of i}, ']')), '}') AS answer, '' AS to_wake {offered in rows};
    SELECT CONCAT('{"known":"', {mark of o}, '"', IF(FIND_IN_SET({mark of o}, p_known), '', IF(o.notice = {TURN},
        CONCAT(',"t":[["', HEX(o.context), '",', o.attempt, ']]'),
        IF(o.state = {HELD} AND o.until > now_us, CONCAT(',"o":[', {offer of o}, ']'), ''))), '}') AS answer, '' AS to_wake
      FROM {noticed claims};
  END IF;
  IF v_probe <> p_probe THEN
    SELECT CONCAT('{"probe":', v_probe, '}') AS answer, '' AS to_wake;
    SET p_any = 1;
  END IF;
END
//
-- Returns the notices of a session, and waits for more, until `v1_interrupt` interrupts it or p_seconds are over.
--
-- With p_unnamed it first looks without the name of the session, so that no one interrupts it: under many hand-overs it might never
-- get to the end. None is missed: a process that commits and then finds no session of that name comes before a look with the name; one that
-- finds it interrupts this, and the next call finds what was committed.
-- It runs with the caller's own rights: a connection that has another user's at the moment can be interrupted only by that user.
-- It waits for a lock that another connection of this process holds (p_other, by `v1_listen`), and not in SLEEP: on MariaDB all
-- that sleep share a mutex, with which KILL QUERY may block itself for two seconds.
CREATE PROCEDURE {v1_await}(
  p_ns INT UNSIGNED, p_session BIGINT, p_other BIGINT, p_known LONGTEXT CHARACTER SET ascii, p_probe BIGINT,
  p_seconds INT, p_unnamed TINYINT)
SQL SECURITY INVOKER
body: BEGIN
  DECLARE v_notices INT DEFAULT 0;
  IF p_unnamed THEN
    DO RELEASE_LOCK(CONCAT('lockcore:', p_session));
    CALL {v1_notices}(p_ns, p_session, p_known, p_probe, v_notices);
    IF v_notices THEN LEAVE body; END IF;
  END IF;
  -- A connection that has the name already would have it twice.
  IF NOT IFNULL(IS_USED_LOCK(CONCAT('lockcore:', p_session)) = CONNECTION_ID(), 0) THEN
    IF NOT IFNULL(GET_LOCK(CONCAT('lockcore:', p_session), 5), 0) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'another connection has the name of this session';
    END IF;
  END IF;
  CALL {v1_notices}(p_ns, p_session, p_known, p_probe, v_notices);
  IF GET_LOCK(CONCAT('lockcore:', p_other), p_seconds) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the connection that keeps the listener waiting is gone';
  END IF;
END
//
-- Wakes sessions that a routine could not, because it runs with the rights of the user who made it.
CREATE PROCEDURE {v1_wake}(p_wake LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT p_wake;
  CALL {v1_interrupt}(v_wake);
  SELECT '' AS answer, v_wake AS to_wake;
END
//
-- Ends a session: it gives up all its places.
CREATE PROCEDURE {v1_leave}(p_ns INT UNSIGNED, p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_rows, v_ended, v_waiters INT DEFAULT 0;
  DECLARE now_us BIGINT DEFAULT 0;
  DECLARE p_set LONGTEXT CHARACTER SET ascii;
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {long lists};
  {begin};
  SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["', HEX(q.id), '"]') ORDER BY q.id), ']') INTO p_set FROM (
    SELECT w.id FROM {claims} w FORCE INDEX (by_session) WHERE w.session = p_session AND w.ns = p_ns
      AND w.state IN ({WAITING})
    UNION SELECT i.id FROM {ids} i FORCE INDEX (by_next) WHERE i.next_session = p_session AND i.ns = p_ns) q;
  IF p_set IS NOT NULL THEN
    {lock rows};
    SET now_us = {clock};
    CALL {v1_tidy}(p_ns, p_set, now_us, v_ended, v_waiters);
    CALL {v1_prune}(p_ns, p_set, now_us);
    DELETE w FROM {claims} w FORCE INDEX (by_session) WHERE w.session = p_session AND w.ns = p_ns
      AND w.state IN ({WAITING});
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
    CALL {v1_settle}(p_ns, p_set);
  END IF;
  DELETE FROM {sessions} WHERE session = p_session;
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT '' AS answer, v_wake AS to_wake;
END
//
-- The connection on which this arrives, and the one that holds a session's name; 0 if none does.
CREATE PROCEDURE {v1_connection}(p_session BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT CAST(CONCAT_WS(' ', CONNECTION_ID(), IFNULL(IS_USED_LOCK(CONCAT('lockcore:', p_session)), 0))
    AS CHAR CHARACTER SET ascii) AS answer, '' AS to_wake;
END
//
-- Takes the name of a session, by which it can be woken; or the one by which a connection keeps the listening one waiting. Returns
-- whether it is this connection's.
CREATE PROCEDURE {v1_listen}(p_session BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT CAST(GET_LOCK(CONCAT('lockcore:', p_session), 5) AS CHAR CHARACTER SET ascii) AS answer, '' AS to_wake;
END
//

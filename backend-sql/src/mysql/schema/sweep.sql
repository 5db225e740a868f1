-- Removes what is over: at most `p_batch` locks, places and marks, from where the last sweep ended. One short transaction
-- for each id, in which nobody is waited for. Rows of ids that nobody holds go once their fence is an hour old and
-- no mark of a withdrawn attempt is left that they would have to tell of.
CREATE PROCEDURE {v1_sweep}(p_ns INT UNSIGNED, p_batch INT, p_within BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_now, v_swept, v_attempt BIGINT DEFAULT 0;
  DECLARE v_removed, v_room, v_ended, v_waiters, v_more, v_rows, v_locked, v_done, v_places INT DEFAULT 0;
  DECLARE v_from, v_id, v_end VARBINARY(1024);
  DECLARE v_context VARBINARY(255);
  DECLARE v_found, p_set, v_hex, v_set LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF @@session.group_concat_max_len < 16777216 THEN
    SET SESSION group_concat_max_len = 16777216;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT swept, swept_to INTO v_swept, v_from FROM {namespaces} WHERE ns = p_ns FOR UPDATE;
  SET v_now = {clock};
  IF p_within >= 0 AND v_swept <= v_now AND v_now - v_swept < p_within THEN
    ROLLBACK;
    SELECT '{"removed":0,"more":0,"elsewhere":1}' AS answer, '' AS unrung;
    LEAVE body;
  END IF;
  UPDATE {namespaces} SET swept = v_now WHERE ns = p_ns;
  COMMIT;
  IF p_within >= 0 THEN
    SET v_from = NULL;
  END IF;
  SET v_room = p_batch, v_rows = GREATEST(1000, p_batch * 10);
  -- What is over in a stretch of the table, read without a lock.
  SELECT MAX(q.id), COUNT(*) INTO v_end, v_places FROM (
    SELECT i.id FROM {ids} i WHERE i.ns = p_ns AND (v_from IS NULL OR i.id > v_from) ORDER BY i.id LIMIT v_rows) q;
  SET v_more = v_places = v_rows;
  SELECT CONCAT('[', GROUP_CONCAT(IF(q.plain, CONCAT('["', HEX(q.id), '"]'), NULL) ORDER BY q.id), ']'),
      IFNULL(CONCAT(GROUP_CONCAT(IF(q.plain, NULL, CONCAT('x', HEX(q.id))) ORDER BY q.id), ','), ''), MAX(q.id), COUNT(*)
    INTO p_set, v_found, v_id, v_places FROM (
    SELECT i.id, i.extra IN (0, 3) AS plain FROM {ids} i
      WHERE i.ns = p_ns AND (v_from IS NULL OR i.id > v_from) AND i.id <= v_end AND (
        (i.until > 0 AND i.until <= v_now) OR (i.until = 0 AND i.extra = 0 AND i.fence < v_now - {hour} AND i.marked <= v_now)
        OR (i.extra = 2 AND NOT {next is alive})
        OR (i.extra = 3 AND IFNULL((SELECT {set is over} FROM {sets} g WHERE {of set g}),
          i.fence < v_now - {hour} AND i.marked <= v_now))
        OR (i.extra = 1 AND (
          NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id) AND i.frozen = 0
          OR EXISTS (SELECT 1 FROM {claims} c WHERE c.ns = p_ns AND c.id = i.id AND c.state IN (0, 1)
            AND c.until <= v_now)
          OR EXISTS (SELECT 1 FROM {claims} w LEFT JOIN {sessions} s ON s.session = w.session AND {alive s}
            WHERE w.ns = p_ns AND w.id = i.id AND w.state IN (2, 3) AND s.session IS NULL))))
      ORDER BY i.id LIMIT p_batch) q;
  IF v_places = p_batch THEN
    SET v_more = 1, v_end = v_id;
  END IF;
  IF p_set IS NOT NULL THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT CONCAT('[', GROUP_CONCAT('["', j.id, '"]' ORDER BY j.n), ']') INTO v_set
      FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i} SKIP LOCKED;
    IF v_set IS NOT NULL THEN
      SET p_set = v_set, v_now = {clock};
      -- Of sets, parted first (see `set of i is gone`); what was freed is no lock that is over.
      UPDATE {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) AND i.extra = 3
          STRAIGHT_JOIN {sets} g ON {of set g}
        SET g.parted = 1 WHERE {set is over};
      SELECT COUNT(NULLIF(IF(i.extra = 3, g.until, i.until), 0)), COUNT(*) INTO v_removed, v_locked
        FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) LEFT JOIN {sets} g ON {of set g}
        WHERE {row is over};
      IF v_locked > 0 THEN
        INSERT INTO {ids} (ns, id)
          SELECT q.ns, q.id FROM (SELECT i.ns, i.id, g.number FROM {set}
            STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) LEFT JOIN {sets} g ON {of set g} AND i.extra = 3
            WHERE {row is over}) q
          ON DUPLICATE KEY UPDATE extra = 0, until = 0, session = 0, fence = {fence as of q};
      END IF;
      SET v_room = p_batch - v_removed;
      DELETE i FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id)
        WHERE i.until = 0 AND i.extra = 0 AND i.fence < v_now - {hour} AND i.marked <= v_now;
    END IF;
    COMMIT;
  END IF;
  WHILE v_found <> '' AND v_room > 0 DO
    SET v_hex = SUBSTRING_INDEX(v_found, ',', 1);
    SET v_found = SUBSTRING(v_found, LENGTH(v_hex) + 2);
    SET v_id = UNHEX(SUBSTRING(v_hex, 2)), p_set = CONCAT('[["', SUBSTRING(v_hex, 2), '"]]');
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT COUNT(*) INTO v_locked FROM {ids} i WHERE i.ns = p_ns AND i.id = v_id FOR UPDATE SKIP LOCKED;
    IF v_locked THEN
      SET v_now = {clock};
      CALL {v1_tidy}(p_ns, p_set, v_now, v_ended, v_waiters);
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = 0 AND until <= v_now LIMIT v_room;
      SET v_done = ROW_COUNT();
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = 1 AND until <= v_now;
      -- Places of sessions that are silent; one that has other ids too goes if all of them can be locked.
      gone: LOOP
        SET v_attempt = NULL;
        SELECT w.attempt, w.context INTO v_attempt, v_context FROM {claims} w
          LEFT JOIN {sessions} s ON s.session = w.session AND {alive s}
          WHERE w.ns = p_ns AND w.id = v_id AND w.state IN (2, 3) AND s.session IS NULL AND w.wants = 1 LIMIT 1;
        IF v_attempt IS NULL OR v_done >= v_room THEN LEAVE gone; END IF;
        DELETE w FROM {places} WHERE {of attempt v};
        SET v_done = v_done + ROW_COUNT();
      END LOOP;
      SET v_attempt = NULL;
      SELECT w.attempt, w.context, w.wants INTO v_attempt, v_context, v_places FROM {claims} w
        LEFT JOIN {sessions} s ON s.session = w.session AND {alive s}
        WHERE w.ns = p_ns AND w.id = v_id AND w.state IN (2, 3) AND s.session IS NULL AND w.wants > 1 LIMIT 1;
      IF v_attempt IS NOT NULL THEN
        CALL {v1_wanted}(p_ns, v_context, v_attempt, v_set);
        CALL {v1_lock_free}(p_ns, v_set, v_locked);
        IF v_locked = v_places THEN
          DELETE w FROM {places} WHERE {of attempt v};
          SET v_done = v_done + 1, p_set = v_set;
        END IF;
      END IF;
      CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
      CALL {v1_settle}(p_ns, p_set);
      SET v_removed = v_removed + v_done, v_room = v_room - LEAST(v_done, v_room);
    END IF;
    COMMIT;
    IF v_room = 0 AND v_found <> '' THEN
      SET v_more = 1, v_end = v_id;
    END IF;
  END WHILE;
  IF NOT v_more THEN
    -- No id is counted by them any more; and what only they knew of fences is an hour old. READ COMMITTED keeps no lock on the
    -- others.
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    DELETE FROM {sets} WHERE ns = p_ns AND until <= v_now
      AND (number < v_now - {hour} OR number = fence AND (until > 0 OR parted = 1)) LIMIT p_batch;
    SET v_more = ROW_COUNT() = p_batch;
  END IF;
  IF v_room > 0 THEN
    DELETE FROM {marks} WHERE ns = p_ns AND until <= v_now ORDER BY until LIMIT v_room;
    SET v_done = ROW_COUNT();
    SET v_removed = v_removed + v_done;
    IF v_done = v_room THEN SET v_more = 1; END IF;
  END IF;
  -- Breakings of locks are remembered for a week, sessions for a day.
  DELETE FROM {breaks} WHERE ns = p_ns AND at < v_now - 604800000000 LIMIT 100;
  DELETE FROM {sessions} WHERE ns = p_ns AND beat < v_now - 86400000000 LIMIT 100;
  UPDATE {namespaces} SET swept_to = IF(v_more, v_end, NULL) WHERE ns = p_ns;
  CALL {v1_ring}(v_wake);
  SELECT CONCAT('{"removed":', v_removed, ',"more":', v_more, ',"elsewhere":0}') AS answer, v_wake AS unrung;
END
//

-- Acquires take all of a set or nothing, and answer as `server::reply` says. Flags: QUEUE, NESTED.
--
-- The fast ways look for no tombstone of the attempt: a withdrawal writes into the rows of its ids until when one may be there,
-- so that it comes either before or after the request; and until then those rows are not `free`.
--
-- Takes one id exclusively: a free row, or a new one; else waits for it behind its holder. Each statement commits by
-- itself. Few variables and parameters: each takes as long as a tenth to a half of a statement.
CREATE PROCEDURE {v1_acquire_one}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, p_id VARBINARY({longest id}), p_lease BIGINT,
  p_owner VARBINARY({longest owner}), p_flags TINYINT, p_session BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  IF @@autocommit THEN
    UPDATE {row} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {clock})), context = p_context, attempt = p_attempt,
        owner = p_owner, lease = p_lease, since = {clock}, until = since + lease
      WHERE ns = p_ns AND id = p_id AND {free};
    IF ROW_COUNT() = 0 THEN
      INSERT IGNORE INTO {ids} (ns, id, fence, context, attempt, owner, lease, until, since, born)
        VALUES (p_ns, p_id, LAST_INSERT_ID({clock}), p_context, p_attempt, p_owner, p_lease, {clock} + p_lease, {clock},
          {clock});
    END IF;
    IF ROW_COUNT() = 1 THEN
      SELECT CONCAT('G', LAST_INSERT_ID()) AS answer, '' AS to_wake;
      LEAVE body;
    END IF;
    IF p_flags = {QUEUE} THEN
      BEGIN
        -- Not declared above: that would take time in the usual case, too.
        DECLARE v_answer LONGTEXT CHARACTER SET ascii;
        CALL {v1_wait_one}(p_ns, p_context, p_attempt, p_id, p_lease, p_owner, p_session, v_answer);
        IF v_answer <> '' THEN
          SELECT v_answer AS answer, '' AS to_wake;
          LEAVE body;
        END IF;
      END;
    END IF;
  END IF;
  CALL {v1_acquire}(p_ns, p_context, p_attempt, CONCAT('[["', HEX(p_id), '",{EXCLUSIVE},0,0]]'), 1, 0, p_lease, p_owner,
    p_flags, p_session);
END
//
-- Takes any set. p_fast: first as if nothing stands against it, which is the usual case if all is wanted exclusively.
CREATE PROCEDURE {v1_acquire}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, p_set LONGTEXT CHARACTER SET ascii, p_n INT,
  p_fast TINYINT,
  p_lease BIGINT, p_owner VARBINARY({longest owner}), p_flags TINYINT, p_session BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_rows, v_freed, v_waiters, v_withdrawn, v_recent INT DEFAULT 0;
  DECLARE now_us, v_ticket, v_end, v_tombstone BIGINT DEFAULT 0;
  DECLARE v_verdict TEXT CHARACTER SET ascii;
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  IF p_fast THEN
    {begin};
    -- One statement takes all. A row that is not free makes LAST_INSERT_ID() 1; then all of it is rolled back. The time is that
    -- before the locks, which is the fence if all earlier ones are below it.
    SET now_us = {clock};
    DO LAST_INSERT_ID(0);
    INSERT INTO {ids} (ns, id, fence, context, attempt, owner, lease, until, since, born)
      SELECT p_ns, UNHEX(j.id), now_us, p_context, p_attempt, p_owner, p_lease, now_us + p_lease, now_us, now_us FROM {set}
      ON DUPLICATE KEY UPDATE
        fence = IF({ids}.extra = {IN_ROW} AND {ids}.until <= now_us AND {ids}.tombstone <= now_us AND {ids}.session = 0
          AND {ids}.fence < now_us, now_us, LAST_INSERT_ID(1)),
        context = p_context, attempt = p_attempt, owner = p_owner, lease = p_lease, until = now_us + p_lease, since = now_us;
    IF LAST_INSERT_ID() = 0 THEN
      COMMIT;
      SELECT CONCAT('G', now_us) AS answer, '' AS to_wake;
      LEAVE body;
    END IF;
    ROLLBACK;
  END IF;
  {begin};
  SELECT COUNT(*), MAX(i.tombstone) INTO v_rows, v_tombstone FROM {ids of set} {for update of i};
  IF v_rows < p_n THEN
    -- Some ids are new. Without the locks so far, so that all are taken in the order of the ids.
    ROLLBACK;
    {begin};
    {lock or make rows};
    SELECT MAX(i.tombstone) INTO v_tombstone FROM {ids of set};
  END IF;
  -- After the locks: waiting for them takes time. The attempt's tombstone is read in a statement after them, too.
  SET now_us = {clock};
  IF v_tombstone > now_us THEN
    SELECT EXISTS ({own tombstone}) INTO v_withdrawn;
    IF v_withdrawn THEN
      ROLLBACK;
      SELECT '{"w":1}' AS answer, '' AS to_wake;
      LEAVE body;
    END IF;
  END IF;
  CALL {v1_tidy}(p_ns, p_set, now_us, v_freed, v_waiters);
  IF v_freed > 0 THEN
    CALL {v1_prune}(p_ns, p_set, now_us);
    IF v_waiters > 0 THEN
      -- What ended goes to its waiters before it is this request's turn.
      CALL {v1_serve}(p_ns, p_set, now_us, p_context, p_attempt, v_wake);
    END IF;
  END IF;
  SET v_ticket = NULL;
  IF v_waiters > 0 THEN
    SELECT MAX(w.number) INTO v_ticket FROM {places} WHERE {own places};
  END IF;
  CALL {v1_weigh}(p_ns, p_set, p_context, IFNULL(v_ticket, {never}), p_flags & {NESTED}, now_us, v_verdict);
  IF v_verdict {LETS IN} THEN
    CALL {v1_grant}(p_ns, p_set, v_verdict, p_context, p_attempt, p_lease, p_owner, 0, now_us);
    CALL {v1_given}(p_ns, p_set, p_context, v_answer);
    SET v_answer = CONCAT('{"now":', now_us, ',"g":[', v_answer, ']}');
    IF v_ticket IS NOT NULL THEN
      DELETE w FROM {places} WHERE {own places};
    END IF;
    IF v_ticket IS NOT NULL OR (v_waiters > 0 AND LOCATE('C', v_verdict) > 0) THEN
      -- Its place is free, or permits that it gave back.
      CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
    END IF;
    COMMIT;
    CALL {v1_interrupt}(v_wake);
    SELECT v_answer AS answer, v_wake AS to_wake;
    LEAVE body;
  END IF;
  CALL {v1_against}(p_ns, p_set, v_verdict, p_context, IFNULL(v_ticket, {never}), now_us, v_answer);
  IF p_flags & {QUEUE} AND v_verdict NOT REGEXP '[CBUV]' THEN
    IF v_ticket IS NULL THEN
      SELECT GREATEST(now_us, MAX({next ticket})) INTO v_ticket FROM {ids of set};
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
          since, session, wants)
        SELECT p_ns, UNHEX(j.id), IF(p_flags & {NESTED}, {WAITS_NESTED}, {WAITS}), v_ticket, p_context, p_attempt, j.a, j.b,
          j.c, '', p_owner, p_lease, 0, now_us, p_session, p_n FROM {set};
      INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE extra = {IN_CLAIMS};
    ELSE
      -- The place belongs to the session that asked last.
      UPDATE {places} SET w.session = p_session, w.lease = p_lease, w.notice = 0 WHERE {own places};
    END IF;
    {keep alive};
    SELECT MIN(h.until) - now_us INTO v_end FROM {holders of set};
    SET v_answer = CONCAT('{"q":1,"now":', now_us, IFNULL(CONCAT(',"end":', v_end), ''), ',"c":', v_answer, '}');
    COMMIT;
  ELSE
    SET v_answer = CONCAT('{"now":', now_us, ',"c":', v_answer, '}');
    IF v_freed > 0 THEN
      CALL {v1_settle}(p_ns, p_set);
      COMMIT;
    ELSE
      ROLLBACK;
    END IF;
  END IF;
  CALL {v1_interrupt}(v_wake);
  SELECT v_answer AS answer, v_wake AS to_wake;
END
//
-- Waits for one id, if that is as simple as `v1_line_up` needs it; the answer is empty if not.
CREATE PROCEDURE {v1_wait_one}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, p_id VARBINARY({longest id}), p_lease BIGINT,
  p_owner VARBINARY({longest owner}), p_session BIGINT, OUT p_answer LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_extra TINYINT;
  DECLARE v_tombstone BIGINT DEFAULT {never};
  DECLARE now_us BIGINT;
  {undo on error};
  SET p_answer = '';
  {begin};
  SELECT i.extra, i.tombstone INTO v_extra, v_tombstone FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE;
  SET now_us = {clock};
  IF v_tombstone <= now_us THEN
    CALL {v1_line_up}(p_ns, p_context, p_attempt, p_id, v_extra, p_lease, p_owner, p_session, now_us, p_answer);
  END IF;
  IF p_answer = '' THEN
    ROLLBACK;
  ELSE
    COMMIT;
  END IF;
END
//
-- Queues for one id, whose row is locked, that one other context holds exclusively: in the row if it is IN_ROW, as p_extra
-- says. The answer is empty if it is not so simple. The general way takes twenty statements.
CREATE PROCEDURE {v1_line_up}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, p_id VARBINARY({longest id}), p_extra TINYINT,
  p_lease BIGINT,
  p_owner VARBINARY({longest owner}), p_session BIGINT, now_us BIGINT, OUT p_answer LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ticket, v_end BIGINT;
  DECLARE v_recent TINYINT;
  DECLARE v_holder LONGTEXT CHARACTER SET ascii;
  SET p_answer = '';
  IF p_extra = {IN_ROW} THEN
    SELECT {holder of i}, i.until - now_us INTO v_holder, v_end FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
    {wait in row};
    IF ROW_COUNT() = 0 THEN LEAVE body; END IF;
  ELSE
    IF p_extra = {ONE_WAITS} THEN
      CALL {v1_move}(p_ns, CONCAT('[["', HEX(p_id), '"]]'), now_us);
    END IF;
    SELECT IF(COUNT(*) = 1 AND MIN(h.mode) = {EXCLUSIVE} AND MIN(h.until) > now_us AND MAX(h.until - h.lease) <= now_us
          AND MAX(h.context = p_context) = 0,
        CONCAT('[["', MAX(HEX(h.context)), '","', MAX(HEX(h.owner)), '",{EXCLUSIVE},0,0,', MAX(h.number), ',',
          MAX(h.until) - now_us, ']]'), NULL), MAX(h.until) - now_us
      INTO v_holder, v_end FROM {claims} h WHERE h.ns = p_ns AND h.id = p_id AND h.state = {HELD};
    IF v_holder IS NULL THEN LEAVE body; END IF;
    SELECT IF(i.frozen OR EXISTS (SELECT 1 FROM {places} WHERE {own places}), NULL, GREATEST(now_us, {next ticket}))
      INTO v_ticket FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
    IF v_ticket IS NULL THEN LEAVE body; END IF;
    INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
        since, session, wants)
      VALUES (p_ns, p_id, {WAITS}, v_ticket, p_context, p_attempt, {EXCLUSIVE}, 0, 0, '', p_owner, p_lease, 0, now_us,
        p_session, 1);
  END IF;
  {keep alive};
  SET p_answer = {queued};
END
//
-- Takes ids for tasks of one process, which are in order, exclusively, in one transaction. p_words: of each the id, the context, the
-- owner, the attempt, the lease, and whether to wait; words with a blank behind each, since a cursor over a JSON_TABLE makes a
-- temporary table, on MariaDB a file. The answer has one for each, with a `|` behind it: that of `v1_acquire_one`; or
-- `A` if it needs the general way, or `B` if another transaction has locked the row, for which the others would wait, too: then
-- nothing was done.
CREATE PROCEDURE {v1_acquire_batch}(p_ns INT UNSIGNED, p_words LONGBLOB, p_session BIGINT)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_extra, v_known, v_waits TINYINT;
  DECLARE p_id VARBINARY({longest id});
  DECLARE p_context, p_owner VARBINARY({longest owner});
  DECLARE p_attempt, p_lease, v_tombstone, v_until, now_us BIGINT;
  DECLARE v_answer, v_answers LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {begin};
  WHILE p_words <> '' DO
    SET p_id = UNHEX({word}), p_words = {rest}, p_context = UNHEX({word}), p_words = {rest}, p_owner = UNHEX({word}),
      p_words = {rest}, p_attempt = {word}, p_words = {rest}, p_lease = {word}, p_words = {rest}, v_waits = {word},
      p_words = {rest}, v_extra = NULL, v_answer = 'A', now_us = {clock};
    -- It waits for no lock, so that the time is also that after it.
    SELECT i.extra, i.tombstone, i.until INTO v_extra, v_tombstone, v_until
      FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE SKIP LOCKED;
    IF v_extra IS NULL THEN
      SELECT COUNT(*) INTO v_known FROM {ids} WHERE ns = p_ns AND id = p_id;
      IF v_known THEN
        SET v_answer = 'B';
      ELSE
        INSERT IGNORE INTO {ids} (ns, id, fence, context, attempt, owner, lease, until, since, born)
          VALUES (p_ns, p_id, now_us, p_context, p_attempt, p_owner, p_lease, now_us + p_lease, now_us, now_us);
        IF ROW_COUNT() = 1 THEN SET v_answer = CONCAT('G', now_us); END IF;
      END IF;
    ELSEIF v_tombstone <= now_us THEN
      IF v_extra = {IN_ROW} AND v_until <= now_us THEN
        UPDATE {row} SET fence = LAST_INSERT_ID(GREATEST(fence + 1, now_us)), context = p_context, attempt = p_attempt,
            owner = p_owner, lease = p_lease, since = now_us, until = now_us + p_lease, session = 0
          WHERE ns = p_ns AND id = p_id;
        SET v_answer = CONCAT('G', LAST_INSERT_ID());
      ELSEIF v_waits THEN
        CALL {v1_line_up}(p_ns, p_context, p_attempt, p_id, v_extra, p_lease, p_owner, p_session, now_us, v_answer);
        IF v_answer = '' THEN SET v_answer = 'A'; END IF;
      END IF;
    END IF;
    SET v_answers = CONCAT(v_answers, v_answer, '|');
  END WHILE;
  COMMIT;
  SELECT v_answers AS answer, '' AS to_wake;
END
//
-- Ends an attempt: it leaves the queue. With p_undo it also gives up what it got, and a request that arrives later is refused.
CREATE PROCEDURE {v1_withdraw}(
  p_ns INT UNSIGNED, p_context VARBINARY({longest context}), p_attempt BIGINT, p_set LONGTEXT CHARACTER SET ascii, p_n INT,
  p_lease BIGINT, p_owner VARBINARY({longest owner}), p_undo TINYINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_freed, v_waiters, v_all, v_any, v_replaced, v_holders, v_exclusive, v_common INT DEFAULT 0;
  DECLARE now_us, v_until, v_fence, v_replaces, v_taken, v_old_permits, v_old_cap BIGINT DEFAULT 0;
  DECLARE v_old_mode TINYINT DEFAULT 0;
  DECLARE v_old_indexes LONGTEXT CHARACTER SET ascii;
  DECLARE v_id VARBINARY({longest id});
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  {undo on error};
  {begin};
  -- Also of ids that are not there yet, so that the request comes either before or after this.
  {lock or make rows};
  SET now_us = {clock};
  CALL {v1_tidy}(p_ns, p_set, now_us, v_freed, v_waiters);
  IF v_freed > 0 THEN
    CALL {v1_prune}(p_ns, p_set, now_us);
  END IF;
  DELETE w FROM {places} WHERE {own places};
  IF NOT p_undo THEN
    SELECT COUNT(*), IFNULL(SUM(o.attempt = p_attempt), 0) INTO v_all, v_any FROM {set} STRAIGHT_JOIN {claims} o
      ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD} AND o.context = p_context AND NOT o.broken AND {keeps o};
    IF v_all = p_n AND v_any > 0 THEN
      CALL {v1_grant}(p_ns, p_set, REPEAT('K', p_n), p_context, p_attempt, p_lease, p_owner, 0, now_us);
      CALL {v1_given}(p_ns, p_set, p_context, v_answer);
      SET v_answer = CONCAT('{"now":', now_us, ',"g":[', v_answer, ']}');
    END IF;
  END IF;
  IF v_answer = '' THEN
    SELECT COUNT(*) INTO v_replaced FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id)
      AND o.state = {HELD} AND o.context = p_context AND o.attempt = p_attempt AND o.replaces <> 0;
    WHILE v_replaced > 0 DO
      -- What the context held before comes back, as far as it still lasts.
      SET v_replaced = v_replaced - 1;
      SELECT o.id, o.number, o.replaces INTO v_id, v_fence, v_replaces
          FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id)
          AND o.state = {HELD} AND o.context = p_context AND o.attempt = p_attempt AND o.replaces <> 0
        ORDER BY o.id LIMIT 1;
      DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = {HELD} AND number = v_fence;
      SET v_old_mode = NULL;
      SELECT o.mode, o.permits, o.cap, o.indexes INTO v_old_mode, v_old_permits, v_old_cap, v_old_indexes FROM {claims} o
        WHERE o.ns = p_ns AND o.id = v_id AND o.state = {REPLACED} AND o.number = v_replaces AND o.context = p_context
          AND o.until > now_us;
      IF v_old_mode IS NOT NULL THEN
        SELECT COUNT(*), IFNULL(SUM(h.mode = {EXCLUSIVE}), 0), IFNULL(SUM(h.permits), 0)
          INTO v_holders, v_exclusive, v_taken
          FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = {HELD};
        SET v_common = 0;
        IF v_old_indexes <> '' THEN
          SELECT COUNT(*) INTO v_common FROM JSON_TABLE(v_old_indexes, '$[*]' COLUMNS (x BIGINT PATH '$')) r JOIN (
            SELECT t.x FROM {claims} c, JSON_TABLE(c.indexes, '$[*]' COLUMNS (x BIGINT PATH '$')) t
            WHERE c.ns = p_ns AND c.id = v_id AND c.state = {HELD} AND c.mode = {SLOTS} AND c.indexes <> '') q ON q.x = r.x;
        END IF;
        IF v_common = 0 AND CASE v_old_mode WHEN {EXCLUSIVE} THEN v_holders = 0 WHEN {SHARED} THEN v_exclusive = 0
            ELSE v_exclusive = 0 AND v_taken + v_old_permits <= v_old_cap END THEN
          UPDATE {claims} SET state = {HELD} WHERE ns = p_ns AND id = v_id AND state = {REPLACED} AND number = v_replaces;
        ELSE
          -- Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
          DELETE FROM {claims} WHERE ns = p_ns AND id = v_id AND state = {REPLACED} AND number = v_replaces;
        END IF;
      END IF;
    END WHILE;
    DELETE o FROM {set} STRAIGHT_JOIN {claims} o ON o.ns = p_ns AND o.id = UNHEX(j.id) AND o.state = {HELD}
      AND o.context = p_context AND o.attempt = p_attempt;
    IF p_undo THEN
      -- Acquires of these ids look for tombstones until then.
      SET v_until = now_us + GREATEST(p_lease, {tombstone});
      INSERT INTO {tombstones} (ns, context, attempt, until) VALUES (p_ns, p_context, p_attempt, v_until)
        ON DUPLICATE KEY UPDATE until = GREATEST(until, v_until);
      INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set}
        ON DUPLICATE KEY UPDATE tombstone = GREATEST({ids}.tombstone, v_until);
    END IF;
  END IF;
  IF v_waiters > 0 THEN
    CALL {v1_serve}(p_ns, p_set, now_us, '', 0, v_wake);
  END IF;
  CALL {v1_settle}(p_ns, p_set);
  COMMIT;
  CALL {v1_interrupt}(v_wake);
  SELECT v_answer AS answer, v_wake AS to_wake;
END
//

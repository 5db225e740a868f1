-- What takes sets takes all or nothing, in one transaction. Answers as `server::reply` says. Flags: 1 take a place in the
-- queue; 2 nested, obeys no queue.
--
-- In the usual case - nobody holds, waits for or froze any of it - there is no answer: it is granted under `p_fence`, which the
-- caller proposes. To tell a fence is a message of its own before that with which a routine ends, and takes a fifth of the time
-- of all this. If the proposal is no good, the general way chooses, and tells the time behind the fence, so that the next is.
--
-- Takes one id exclusively. Not much is declared here: each variable takes as long as half a statement, each parameter a tenth.
-- A withdrawal writes `marked` into the rows, so that it comes either before or after this; looking for the mark in these
-- statements would double the time that they take.
CREATE PROCEDURE {v1_acquire_one}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_id VARBINARY(1024), p_lease BIGINT,
  p_owner VARBINARY(255), p_flags TINYINT, p_session BIGINT, p_fence BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  IF @@autocommit THEN
    -- It commits by itself.
    UPDATE {row} SET fence = p_fence, context = p_context, attempt = p_attempt, owner = p_owner, lease = p_lease,
        since = {clock}, until = since + lease
      WHERE ns = p_ns AND id = p_id AND extra = 0 AND until <= {clock} AND marked <= {clock} AND session = 0
        AND fence < p_fence AND {fence is due};
    IF ROW_COUNT() = 1 THEN LEAVE body; END IF;
  END IF;
  CALL {v1_acquire}(p_ns, p_context, p_attempt, p_id, CONCAT('[["', HEX(p_id), '",2,0,0]]'), 1, 1, p_lease, p_owner, p_flags,
    p_session);
END
//
-- Takes some ids exclusively, no more than `schema::FEW`: the first `p_n` of its last parameters; the others are `NULL`. The
-- usual case is a statement that names them, so that they are looked up as one list: joined to a set they take half as long
-- again.
CREATE PROCEDURE {v1_acquire_few}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_n INT, p_lease BIGINT, p_owner VARBINARY(255),
  p_flags TINYINT, p_session BIGINT, p_fence BIGINT, {few parameters})
SQL SECURITY DEFINER
body: BEGIN
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  UPDATE {ids} i FORCE INDEX (PRIMARY) SET fence = p_fence, extra = 3, until = 0, attempt = p_attempt
    WHERE ns = p_ns AND id IN ({few}) AND marked <= {clock} AND fence < p_fence AND {fence is due}
      AND (extra = 0 AND until <= {clock} AND session = 0 OR extra = 3 AND {asked once}{set of i is gone}{asked});
  {taken if all};
  CALL {v1_acquire}(p_ns, p_context, p_attempt, NULL,
    CONCAT('[["', REPLACE(CONCAT_WS(' ', {few in hex}), ' ', '",2,0,0],["'), '",2,0,0]]'), p_n, 1, p_lease, p_owner, p_flags, p_session);
END
//
-- The same for any number, which come as `p_ids` (see `are ids`; bytes, since text would be converted). The statement is
-- made each time: parameters for as many as there may be, most of them unused, would cost more.
CREATE PROCEDURE {v1_acquire_many}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_n INT, p_lease BIGINT, p_owner VARBINARY(255),
  p_flags TINYINT, p_session BIGINT, p_fence BIGINT, p_ids LONGBLOB)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF {fence is due} AND {are ids} THEN
    SET @lockcore = CONCAT('UPDATE ', {ids as text}, ' i FORCE INDEX (PRIMARY) SET fence = ', p_fence,
      ', extra = 3, until = 0, attempt = ', p_attempt, ' WHERE ns = ', p_ns, ' AND id IN (x''', p_ids, ''') AND marked <= ',
      {clock}, ' AND fence < ', p_fence, ' AND (extra = 0 AND until <= ', {clock},
      ' AND session = 0 OR extra = 3 AND {asked once}(SELECT g.fence FROM ', {sets as text},
      ' g WHERE {of set g} LOCK IN SHARE MODE) IS NULL{asked})');
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    {execute};
    {taken if all};
  END IF;
  CALL {v1_acquire}(p_ns, p_context, p_attempt, NULL, {p_ids wanted}, p_n, 1, p_lease, p_owner, p_flags, p_session);
END
//
-- Takes a set again that was kept (see `kept`): `p_kept` and `p_made` are the fence and the attempt by which its rows know it. All
-- who have to do with one of its ids part it first, a withdrawal, too; so nothing has to be looked for in their rows. If the
-- proposed fence is no good, this one's answer begins with a `K`.
CREATE PROCEDURE {v1_acquire_kept}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_n INT, p_lease BIGINT, p_owner VARBINARY(255),
  p_flags TINYINT, p_session BIGINT, p_fence BIGINT, p_kept BIGINT, p_made BIGINT, p_ids LONGBLOB)
SQL SECURITY DEFINER
body: BEGIN
  IF @@autocommit THEN
    UPDATE {sets} SET since = {clock}, until = since + p_lease, lease = p_lease, context = p_context, taker = p_attempt,
        owner = p_owner,
        number = LAST_INSERT_ID(IF(number < p_fence AND {fence is due}, p_fence, GREATEST(number + 1, since)))
      WHERE ns = p_ns AND fence = p_kept AND attempt = p_made AND parted = 0 AND until = 0;
    IF ROW_COUNT() = 1 THEN
      IF LAST_INSERT_ID() <> p_fence THEN
        SELECT CONCAT('K', LAST_INSERT_ID(), '@', {clock}) AS answer, '' AS unrung;
      END IF;
      LEAVE body;
    END IF;
  END IF;
  CALL {v1_acquire}(p_ns, p_context, p_attempt, NULL, {p_ids wanted}, p_n, 1, p_lease, p_owner, p_flags, p_session);
END
//
-- Takes any set, whatever stands against it. `p_id`: if it is but one. `p_plain`: exclusively.
CREATE PROCEDURE {v1_acquire}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_id VARBINARY(1024),
  p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_plain TINYINT, p_lease BIGINT, p_owner VARBINARY(255),
  p_flags TINYINT, p_session BIGINT)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_found, v_extra, v_freed, v_waiters INT DEFAULT 0;
  DECLARE v_fence, v_until, v_marked, v_now, v_ticket, v_end BIGINT DEFAULT 0;
  DECLARE v_classes TEXT CHARACTER SET ascii;
  DECLARE v_answer, v_wake LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  IF p_n = 1 THEN
    SELECT COUNT(*), MAX(i.fence), MAX(i.extra), MAX(i.until), MAX(i.marked)
      INTO v_found, v_fence, v_extra, v_until, v_marked FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id FOR UPDATE;
  ELSE
    SELECT COUNT(*), MAX(i.fence), MAX(i.extra), MAX(i.until), MAX(i.marked)
      INTO v_found, v_fence, v_extra, v_until, v_marked FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
  END IF;
  IF v_found < p_n THEN
    -- Some ids are new. Without what is locked so far, so that all locks are taken in the order of the ids.
    ROLLBACK;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SET v_fence = {clock};
    DO LAST_INSERT_ID(0);
    IF p_plain AND p_n = 1 THEN
      INSERT INTO {ids} (ns, id, fence, context, attempt, owner, lease, until, since, born)
        VALUES (p_ns, p_id, v_fence, p_context, p_attempt, p_owner, p_lease, v_fence + p_lease, v_fence, v_fence)
        {unless there};
    ELSE
      INSERT INTO {ids} (ns, id, fence, extra, attempt, born)
        SELECT p_ns, UNHEX(j.id), IF(p_plain, v_fence, 0), IF(p_plain, 3, 0), p_attempt, v_fence FROM {set} {unless there};
    END IF;
    IF p_plain AND LAST_INSERT_ID() = 0 THEN
      -- All are, and nobody withdrew the attempt: a withdrawal writes into the rows.
      IF p_n > 1 THEN {be this set}; END IF;
      COMMIT;
      SELECT CONCAT('G', v_fence, '@', v_fence) AS answer, '' AS unrung;
      LEAVE body;
    END IF;
    SELECT COUNT(*), MAX(i.fence), MAX(i.extra), MAX(i.until), MAX(i.marked)
      INTO v_found, v_fence, v_extra, v_until, v_marked FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id) {for update of i};
  END IF;
  -- After the locks: waiting for them takes time.
  SET v_now = {clock};
  IF p_plain AND v_extra = 3 THEN
    SELECT MAX(IF(i.extra = 3 AND {set of i is gone}, 0, i.extra)) INTO v_extra
      FROM {set} STRAIGHT_JOIN {ids} i ON i.ns = p_ns AND i.id = UNHEX(j.id);
  END IF;
  IF p_plain AND v_extra = 0 AND v_until <= v_now AND (p_n = 1 OR v_fence < v_now + {ahead}) THEN
    -- Nothing but ended leases, and no fence of a set further ahead than a proposal is. Whether the attempt was withdrawn is
    -- read in a statement after the locks, too.
    SET v_fence = GREATEST(v_fence + 1, v_now);
    IF p_n = 1 THEN
      UPDATE {row} SET fence = v_fence, extra = 0, context = p_context, attempt = p_attempt, owner = p_owner,
          lease = p_lease, until = v_now + p_lease, since = v_now, session = 0
        WHERE ns = p_ns AND id = p_id AND NOT EXISTS ({mark});
    ELSE
      INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} WHERE NOT EXISTS ({mark})
        ON DUPLICATE KEY UPDATE fence = v_fence, extra = 3, until = 0, attempt = p_attempt, session = 0;
      IF ROW_COUNT() > 0 THEN {be this set}; END IF;
    END IF;
    IF ROW_COUNT() > 0 THEN
      COMMIT;
      SELECT CONCAT('G', v_fence, '@', v_now) AS answer, '' AS unrung;
    ELSE
      ROLLBACK;
      SELECT '{"w":1}' AS answer, '' AS unrung;
    END IF;
    LEAVE body;
  END IF;
  IF v_marked > v_now THEN
    SELECT EXISTS ({mark}) INTO v_found;
  ELSE
    SET v_found = 0;
    IF p_n = 1 AND p_plain AND p_flags = 1 THEN
      CALL {v1_line_up}(p_ns, p_context, p_attempt, p_id, v_extra, p_lease, p_owner, p_session, v_now, v_answer);
      IF v_answer <> '' THEN
        COMMIT;
        SELECT v_answer AS answer, '' AS unrung;
        LEAVE body;
      END IF;
    END IF;
  END IF;
  IF v_found THEN
    ROLLBACK;
    SELECT '{"w":1}' AS answer, '' AS unrung;
    LEAVE body;
  END IF;
  CALL {v1_tidy}(p_ns, p_set, v_now, v_freed, v_waiters);
  IF v_freed > 0 THEN
    CALL {v1_prune}(p_ns, p_set, v_now);
    IF v_waiters > 0 THEN
      -- What ended goes to those who waited for it, before it is our turn.
      CALL {v1_serve}(p_ns, p_set, v_now, p_context, p_attempt, v_wake);
    END IF;
  END IF;
  SET v_ticket = NULL;
  IF v_waiters > 0 THEN
    SELECT MAX(w.number) INTO v_ticket FROM {places} WHERE {of attempt p};
  END IF;
  CALL {v1_weigh}(p_ns, p_set, p_context, IFNULL(v_ticket, {never}), p_flags & 2, v_now, v_classes);
  IF v_classes NOT REGEXP '[1-6]' THEN
    CALL {v1_grant}(p_ns, p_set, v_classes, p_context, p_attempt, p_lease, p_owner, 0, v_now);
    CALL {v1_given}(p_ns, p_set, p_n, p_context, v_answer);
    SET v_answer = CONCAT('{"now":', v_now, ',"g":[', v_answer, ']}');
    IF v_ticket IS NOT NULL THEN
      DELETE w FROM {places} WHERE {of attempt p};
    END IF;
    IF v_ticket IS NOT NULL OR (v_waiters > 0 AND v_classes REGEXP 'C') THEN
      -- Its place is free, or permits that it gave back.
      CALL {v1_serve}(p_ns, p_set, v_now, '', 0, v_wake);
    END IF;
    COMMIT;
    CALL {v1_ring}(v_wake);
    SELECT v_answer AS answer, v_wake AS unrung;
    LEAVE body;
  END IF;
  CALL {v1_against}(p_ns, p_set, v_classes, p_context, IFNULL(v_ticket, {never}), v_now, v_answer);
  IF p_flags & 1 AND v_classes NOT REGEXP '[C246]' THEN
    IF v_ticket IS NULL THEN
      SELECT GREATEST(v_now, 1 + MAX(GREATEST(
          IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = UNHEX(j.id) AND c.state = 2
            ORDER BY c.number DESC LIMIT 1), 0),
          IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = UNHEX(j.id) AND c.state = 3
            ORDER BY c.number DESC LIMIT 1), 0)))) INTO v_ticket FROM {set};
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
          since, session, wants)
        SELECT p_ns, UNHEX(j.id), IF(p_flags & 2, 2, 3), v_ticket, p_context, p_attempt, j.a, j.b, j.c, '', p_owner,
          p_lease, 0, v_now, p_session, p_n FROM {set};
      INSERT INTO {ids} (ns, id) SELECT p_ns, UNHEX(j.id) FROM {set} ON DUPLICATE KEY UPDATE extra = 1;
    ELSE
      -- The place belongs to whoever asked last, who is to be told.
      UPDATE {places} SET w.session = p_session, w.lease = p_lease, w.told = 0 WHERE {of attempt p};
    END IF;
    SELECT EXISTS (SELECT 1 FROM {sessions} WHERE session = p_session AND beat BETWEEN v_now - 1000000 AND v_now)
      INTO v_found;
    IF NOT v_found THEN
      INSERT INTO {sessions} (session, ns, beat) VALUES (p_session, p_ns, v_now)
        ON DUPLICATE KEY UPDATE beat = v_now;
    END IF;
    SELECT MIN(h.until) - v_now INTO v_end FROM {set}
      STRAIGHT_JOIN {claims} h ON h.ns = p_ns AND h.id = UNHEX(j.id) AND h.state = 0;
    SET v_answer = CONCAT('{"q":1,"now":', v_now, IFNULL(CONCAT(',"end":', v_end), ''), ',"c":', v_answer, '}');
    COMMIT;
  ELSE
    SET v_answer = CONCAT('{"now":', v_now, ',"c":', v_answer, '}');
    IF v_freed > 0 THEN
      CALL {v1_settle}(p_ns, p_set);
      COMMIT;
    ELSE
      ROLLBACK;
    END IF;
  END IF;
  CALL {v1_ring}(v_wake);
  SELECT v_answer AS answer, v_wake AS unrung;
END
//
-- The usual ways to wait: for one id, whose row is locked, that one other context holds exclusively; `p_extra` is what its
-- row says. The answer; none if it is not so simple, and then at most its row was cleared, as `v1_tidy` does. All of the
-- general way is twenty statements.
CREATE PROCEDURE {v1_line_up}(
  p_ns INT UNSIGNED, p_context VARBINARY(255), p_attempt BIGINT, p_id VARBINARY(1024), p_extra TINYINT, p_lease BIGINT,
  p_owner VARBINARY(255), p_session BIGINT, p_now BIGINT, OUT p_answer LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
body: BEGIN
  DECLARE v_ticket, v_end BIGINT;
  DECLARE v_fresh TINYINT;
  DECLARE v_holder LONGTEXT CHARACTER SET ascii;
  SET p_answer = '';
  IF p_extra = 0 THEN
    SELECT {holder of i}, i.until - p_now, {fresh} INTO v_holder, v_end, v_fresh
      FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
    {wait in row};
    IF ROW_COUNT() = 1 THEN
      IF NOT v_fresh THEN {be fresh}; END IF;
      SET p_answer = {queued};
    END IF;
    LEAVE body;
  END IF;
  IF p_extra = 2 THEN
    CALL {v1_move}(p_ns, CONCAT('[["', HEX(p_id), '"]]'), p_now);
  ELSEIF p_extra = 3 THEN
    CALL {v1_part}(p_ns, CONCAT('[["', HEX(p_id), '"]]'), p_now);
  END IF;
  -- Whoever holds something at all; more than one if nobody holds it exclusively.
  SELECT IF(COUNT(*) = 1 AND MIN(h.mode) = 2 AND MIN(h.until) > p_now AND MAX(h.until - h.lease) <= p_now
        AND MAX(h.context = p_context) = 0,
      CONCAT('[["', MAX(HEX(h.context)), '","', MAX(HEX(h.owner)), '",2,0,0,', MAX(h.number), ',', MAX(h.until) - p_now,
        ']]'), NULL), MAX(h.until) - p_now
    INTO v_holder, v_end FROM {claims} h WHERE h.ns = p_ns AND h.id = p_id AND h.state = 0;
  IF v_holder IS NOT NULL THEN
    -- Without a ticket if it has one; the frozen are left to the general way.
    SELECT IF(i.frozen OR EXISTS (SELECT 1 FROM {places} WHERE {of attempt p}), NULL, GREATEST(p_now, 1 + GREATEST(
          IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = p_id AND c.state = 2
            ORDER BY c.number DESC LIMIT 1), 0),
          IFNULL((SELECT c.number FROM {claims} c WHERE c.ns = p_ns AND c.id = p_id AND c.state = 3
            ORDER BY c.number DESC LIMIT 1), 0)))), {fresh}
      INTO v_ticket, v_fresh FROM {ids} i WHERE i.ns = p_ns AND i.id = p_id;
    IF v_ticket IS NOT NULL THEN
      INSERT INTO {claims} (ns, id, state, number, context, attempt, mode, permits, cap, indexes, owner, lease, until,
          since, session, wants)
        VALUES (p_ns, p_id, 3, v_ticket, p_context, p_attempt, 2, 0, 0, '', p_owner, p_lease, 0, p_now, p_session, 1);
      IF NOT v_fresh THEN {be fresh}; END IF;
      SET p_answer = {queued};
    END IF;
  END IF;
END
//
-- What a context holds of a set, as `server::reply::Given`.
CREATE PROCEDURE {v1_given}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_n INT, p_context VARBINARY(255),
  OUT p_given LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  IF p_n = 1 THEN
    SELECT {given} INTO p_given {from given};
  ELSE
    SELECT GROUP_CONCAT({given} ORDER BY j.n) INTO p_given {from given};
  END IF;
END
//
-- What is in the way of a set, by the classes of `v1_weigh`, as a list of `server::reply::Against`.
CREATE PROCEDURE {v1_against}(
  p_ns INT UNSIGNED, p_set LONGTEXT CHARACTER SET ascii, p_classes TEXT CHARACTER SET ascii, p_context VARBINARY(255),
  p_ticket BIGINT, p_now BIGINT, OUT p_against LONGTEXT CHARACTER SET ascii)
SQL SECURITY DEFINER
BEGIN
  DECLARE v_n, v_listed, v_count INT DEFAULT 0;
  DECLARE v_units BIGINT DEFAULT 0;
  DECLARE v_class CHAR(1) CHARACTER SET ascii;
  DECLARE v_mode, v_permits, v_cap BIGINT;
  DECLARE v_id VARBINARY(1024);
  DECLARE v_one, v_all LONGTEXT CHARACTER SET ascii DEFAULT '';
  WHILE v_n < LENGTH(p_classes) DO
    SET v_n = v_n + 1, v_class = SUBSTRING(p_classes, v_n, 1);
    IF v_class BETWEEN '1' AND '6' THEN
      SELECT UNHEX(j.id), j.a, j.b, j.c INTO v_id, v_mode, v_permits, v_cap FROM {set} WHERE j.n = v_n;
      SET v_all = CONCAT(v_all, IF(v_all = '', '', ','), '{"p":', v_n - 1);
      IF v_class IN ('3', '4') THEN
        SET v_all = CONCAT(v_all, ',"f":1}');
      ELSEIF v_class = '5' THEN
        SELECT COUNT(*) INTO v_count FROM {claims} e JOIN {sessions} s ON s.session = e.session AND {alive s p_now}
          WHERE e.ns = p_ns AND e.id = v_id AND e.state IN (2, 3) AND e.number < p_ticket AND NOT {claim passes e};
        SELECT HEX(e.context) INTO v_one FROM {claims} e JOIN {sessions} s ON s.session = e.session AND {alive s p_now}
          WHERE e.ns = p_ns AND e.id = v_id AND e.state IN (2, 3) AND e.number < p_ticket AND NOT {claim passes e}
          ORDER BY e.number LIMIT 1;
        SET v_all = CONCAT(v_all, ',"q":["', v_one, '",', v_count, ']}');
      ELSE
        SELECT IFNULL(SUM(h.context <> p_context OR v_class = '6'), 0),
            IF(IFNULL(SUM(h.permits), 0) > 0, SUM(h.permits), COUNT(*))
          INTO v_count, v_units FROM {claims} h WHERE h.ns = p_ns AND h.id = v_id AND h.state = 0;
        SET v_all = CONCAT(v_all, ',"h":['), v_listed = 0;
        WHILE v_listed < LEAST(v_count, 8) DO
          SELECT CONCAT('["', HEX(h.context), '","', HEX(h.owner), '",', h.mode, ',', h.permits, ',', h.cap, ',',
              h.number, ',', h.until - p_now, ']') INTO v_one FROM {claims} h
            WHERE h.ns = p_ns AND h.id = v_id AND h.state = 0 AND (h.context <> p_context OR v_class = '6')
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

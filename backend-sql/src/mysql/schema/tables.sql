-- Times are microseconds since 1970 by the server's clock, leases microseconds.
--
-- One row for each id that was locked within the last hour. `extra` says where its holders and waiters are:
--
-- | extra | holder | waiters |
-- | --- | --- | --- |
-- | IN_ROW | context .. since, if until > 0: one, exclusively | none |
-- | ONE_WAITS | likewise | next_..: one, for this id alone, exclusively; next_ticket is also since when |
-- | IN_CLAIMS | rows of `claims`, and until = 0 | rows of `claims` |
--
-- So taking and releasing an id that no one else wants, or that two take by turns, is to update one row of one table.
-- A released row keeps its context, so that its length stays the same. session: the session that the id was offered to, until
-- the offer is confirmed; else 0. tombstone: until when an attempt to take the id may have a tombstone.
-- born: when the row was made. Nearly all rows have session 0, and stand in the other indexes in the order of `born`: new
-- rows come next to each other there.
CREATE TABLE IF NOT EXISTS {ids} (
  ns INT UNSIGNED NOT NULL,
  id VARBINARY({longest id}) NOT NULL,
  fence BIGINT NOT NULL DEFAULT 0,
  extra TINYINT NOT NULL DEFAULT {IN_ROW},
  frozen TINYINT NOT NULL DEFAULT 0,
  context VARBINARY({longest context}) NOT NULL DEFAULT '',
  attempt BIGINT NOT NULL DEFAULT 0,
  owner VARBINARY({longest owner}) NOT NULL DEFAULT '',
  lease BIGINT NOT NULL DEFAULT 0,
  until BIGINT NOT NULL DEFAULT 0,
  since BIGINT NOT NULL DEFAULT 0,
  tombstone BIGINT NOT NULL DEFAULT 0,
  session BIGINT NOT NULL DEFAULT 0,
  next_context VARBINARY({longest context}) NOT NULL DEFAULT '',
  next_attempt BIGINT NOT NULL DEFAULT 0,
  next_owner VARBINARY({longest owner}) NOT NULL DEFAULT '',
  next_lease BIGINT NOT NULL DEFAULT 0,
  next_ticket BIGINT NOT NULL DEFAULT 0,
  next_session BIGINT NOT NULL DEFAULT 0,
  born BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, id),
  KEY by_session (session, born),
  KEY by_next (next_session, born)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- Holders and waiters of the ids that are IN_CLAIMS, one row for each id of their sets.
-- state: HELD, REPLACED, WAITS_NESTED, WAITS, WATCHED. number: a holder's fence, a waiter's ticket.
-- wants: how many ids a waiter waits for.
-- session: whom to notify; 0 for what is held and confirmed. notice: of what: 0 nothing, OFFERED, TURN (until: since when).
-- replaces: the fence of the REPLACED claim that comes back if this one is withdrawn. broken: by an administrator.
CREATE TABLE IF NOT EXISTS {claims} (
  ns INT UNSIGNED NOT NULL,
  id VARBINARY({longest id}) NOT NULL,
  state TINYINT NOT NULL,
  number BIGINT NOT NULL,
  context VARBINARY({longest context}) NOT NULL,
  attempt BIGINT NOT NULL,
  mode TINYINT NOT NULL,
  permits BIGINT NOT NULL,
  cap BIGINT NOT NULL,
  indexes LONGTEXT NOT NULL,
  owner VARBINARY({longest owner}) NOT NULL,
  lease BIGINT NOT NULL,
  until BIGINT NOT NULL,
  since BIGINT NOT NULL,
  session BIGINT NOT NULL DEFAULT 0,
  notice TINYINT NOT NULL DEFAULT 0,
  broken TINYINT NOT NULL DEFAULT 0,
  wants INT NOT NULL DEFAULT 0,
  replaces BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, id, state, number),
  KEY by_attempt (attempt),
  KEY by_session (session, notice)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {namespaces} (
  ns INT UNSIGNED NOT NULL AUTO_INCREMENT,
  name VARBINARY(255) NOT NULL,
  swept BIGINT NOT NULL DEFAULT 0,
  swept_to VARBINARY({longest id}) NULL,
  PRIMARY KEY (ns),
  UNIQUE KEY by_name (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- Processes with waiters. probe: the last number that a process sent to its own listener.
CREATE TABLE IF NOT EXISTS {sessions} (
  session BIGINT NOT NULL,
  ns INT UNSIGNED NOT NULL,
  heartbeat BIGINT NOT NULL,
  probe BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (session)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- Withdrawn attempts: their requests are refused if they arrive later.
CREATE TABLE IF NOT EXISTS {tombstones} (
  ns INT UNSIGNED NOT NULL,
  context VARBINARY({longest context}) NOT NULL,
  attempt BIGINT NOT NULL,
  until BIGINT NOT NULL,
  PRIMARY KEY (ns, context, attempt),
  KEY by_end (ns, until)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {breaks} (
  number BIGINT NOT NULL AUTO_INCREMENT,
  ns INT UNSIGNED NOT NULL,
  id VARBINARY({longest id}) NOT NULL,
  fence BIGINT NOT NULL,
  context VARBINARY({longest context}) NOT NULL,
  breaker VARBINARY({longest owner}) NOT NULL,
  at BIGINT NOT NULL,
  freed TINYINT NOT NULL,
  PRIMARY KEY (number),
  KEY by_id (ns, id, number)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- One row: the version of these tables and routines, and the oldest version of a program that may use them.
CREATE TABLE IF NOT EXISTS {schema} (
  version INT NOT NULL,
  oldest_program INT NOT NULL,
  PRIMARY KEY (version)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//

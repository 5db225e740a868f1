-- One row for each id that was locked within the last hour. Who holds an id exclusively, while nothing else is to be
-- known of it (extra = 0), stands in that row: taking and freeing touch one row of one table. So does the first who waits
-- for it, alone and for nothing else (extra = 2, next_..; next_ticket is also since when): two who take turns touch only
-- this row. Of what was taken together, exclusively and alone, the row says but that (extra = 3, until = 0): who has it, and
-- until when, stands in sets, by fence and attempt; nobody does if nothing stands there, so that a set is freed and renewed
-- in one row. All else (shared holders, slots, more waiters) is in claims; then extra = 1 and until = 0. Whose context stands
-- there with until = 0 holds it no more: a row that keeps its length is changed in its place. session: who is to be told
-- that it was handed over; 0 if that is confirmed. marked: until when an attempt to take the id may be marked as withdrawn.
-- born: when the row was made. Nearly all rows have no session, and stand in the two other indexes as of it: new ones come
-- next to each other there, wherever they stand in the table.
CREATE TABLE IF NOT EXISTS {ids} (
  ns INT UNSIGNED NOT NULL,
  id VARBINARY(1024) NOT NULL,
  fence BIGINT NOT NULL DEFAULT 0,
  extra TINYINT NOT NULL DEFAULT 0,
  frozen TINYINT NOT NULL DEFAULT 0,
  context VARBINARY(255) NOT NULL DEFAULT '',
  attempt BIGINT NOT NULL DEFAULT 0,
  owner VARBINARY(255) NOT NULL DEFAULT '',
  lease BIGINT NOT NULL DEFAULT 0,
  until BIGINT NOT NULL DEFAULT 0,
  since BIGINT NOT NULL DEFAULT 0,
  marked BIGINT NOT NULL DEFAULT 0,
  session BIGINT NOT NULL DEFAULT 0,
  next_context VARBINARY(255) NOT NULL DEFAULT '',
  next_attempt BIGINT NOT NULL DEFAULT 0,
  next_owner VARBINARY(255) NOT NULL DEFAULT '',
  next_lease BIGINT NOT NULL DEFAULT 0,
  next_ticket BIGINT NOT NULL DEFAULT 0,
  next_session BIGINT NOT NULL DEFAULT 0,
  born BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, id),
  KEY by_session (session, born),
  KEY by_next (next_session, born)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- Who took several ids at once, how many, and until when. fence, attempt: by which their rows know it, those with which it was
-- taken first. One that is freed goes, or is kept (until = 0) for who made it to be taken again in this row alone; number, taker:
-- fence and attempt with which it was last. It stays for an hour then, since the rows do not know that fence. parted: some of
-- these ids are in claims by now, because somebody else has to do with them, or were given up, because the lease was over.
CREATE TABLE IF NOT EXISTS {sets} (
  ns INT UNSIGNED NOT NULL,
  fence BIGINT NOT NULL,
  ids INT NOT NULL,
  parted TINYINT NOT NULL DEFAULT 0,
  context VARBINARY(255) NOT NULL,
  attempt BIGINT NOT NULL,
  number BIGINT NOT NULL,
  taker BIGINT NOT NULL,
  owner VARBINARY(255) NOT NULL,
  lease BIGINT NOT NULL,
  until BIGINT NOT NULL,
  since BIGINT NOT NULL,
  PRIMARY KEY (ns, fence)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
-- state: 0 held, 1 was held until its context asked for another mode, 2 waits and obeys holders only, 3 waits in line.
-- number: a holder's fence, a waiter's ticket. session: who is to be told; 0 for what is held and confirmed. told: what
-- there is to tell: 0 nothing, 1 that it is offered, 2 that its turn has come; `until` is then since when.
CREATE TABLE IF NOT EXISTS {claims} (
  ns INT UNSIGNED NOT NULL,
  id VARBINARY(1024) NOT NULL,
  state TINYINT NOT NULL,
  number BIGINT NOT NULL,
  context VARBINARY(255) NOT NULL,
  attempt BIGINT NOT NULL,
  mode TINYINT NOT NULL,
  permits BIGINT NOT NULL,
  cap BIGINT NOT NULL,
  indexes LONGTEXT NOT NULL,
  owner VARBINARY(255) NOT NULL,
  lease BIGINT NOT NULL,
  until BIGINT NOT NULL,
  since BIGINT NOT NULL,
  session BIGINT NOT NULL DEFAULT 0,
  told TINYINT NOT NULL DEFAULT 0,
  broken TINYINT NOT NULL DEFAULT 0,
  wants INT NOT NULL DEFAULT 0,
  replaces BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, id, state, number),
  KEY by_attempt (attempt),
  KEY by_session (session, told)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {namespaces} (
  ns INT UNSIGNED NOT NULL AUTO_INCREMENT,
  name VARBINARY(255) NOT NULL,
  swept BIGINT NOT NULL DEFAULT 0,
  swept_to VARBINARY(1024) NULL,
  PRIMARY KEY (ns),
  UNIQUE KEY by_name (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {sessions} (
  session BIGINT NOT NULL,
  ns INT UNSIGNED NOT NULL,
  beat BIGINT NOT NULL,
  probe BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (session)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {marks} (
  ns INT UNSIGNED NOT NULL,
  context VARBINARY(255) NOT NULL,
  attempt BIGINT NOT NULL,
  until BIGINT NOT NULL,
  PRIMARY KEY (ns, context, attempt),
  KEY by_end (ns, until)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//
CREATE TABLE IF NOT EXISTS {breaks} (
  number BIGINT NOT NULL AUTO_INCREMENT,
  ns INT UNSIGNED NOT NULL,
  id VARBINARY(1024) NOT NULL,
  fence BIGINT NOT NULL,
  context VARBINARY(255) NOT NULL,
  breaker VARBINARY(255) NOT NULL,
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

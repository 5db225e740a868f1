-- Times are microseconds since 1970 by the server's clock, leases microseconds, ids and labels bytes.

-- Every table has a primary key: a publication for all tables refuses changes of rows that nothing identifies.

-- One row: the version of these tables and routines, and the oldest version of a program that may use them.
CREATE TABLE IF NOT EXISTS {schema} (version int8 NOT NULL, oldest_program int8 NOT NULL, PRIMARY KEY (version));

-- floor: no fence of an id whose row was swept is above it. swept: when; reached: up to which `lapses` the last sweep got, so
-- that the next one does not read again what that one removed; 0 at the end.
CREATE TABLE IF NOT EXISTS {namespace} (
  ns bytea NOT NULL,
  floor int8 NOT NULL,
  swept int8 NOT NULL,
  reached int8 NOT NULL,
  PRIMARY KEY (ns)
);

-- `ns` comes first in no index but where that is needed: a plan that was made while a table was small would read all of a
-- namespace for a few ids, until the table is analyzed.

-- One row for each id that is, or lately was, in use: its exclusive holder, and what else there is of it. Whatever is done to
-- an id is done under the lock of this row; sets are locked in the order of their ids.
--
-- An example: A takes an id, B and C queue for it, and A releases it.
--   A takes it              busy = HELD                        the columns are A's
--   B queues                busy = HELD | WAITER_IN_ROW        next_.. are B's
--   A releases to B         busy = HELD | OFFERED_IN_ROW       the columns are B's, for the length of an offer
--   B confirms by renewing  busy = HELD
-- Had C queued too, B and C would have got rows in `place`: busy = HELD | PLACES, and B's offer OFFERED.
--
-- busy: bits, named in pieces.sql.
-- fence: the highest that was given for it; of the exclusive holder, its own.
-- replaces: the fence of the holder's row in `holder`, if it holds the id in a weaker mode besides.
-- lapses: nothing of it lasts longer. Eight leases ahead, and left alone as long as it is true, so that the index is seldom
--   written to and an update stays on its page. For that, and for the first release, half of a page is left free.
-- next_..: the waiter in the row, alone in the queue, for this id alone, exclusively; so two who take turns touch only this
--   row. Only with WAITER_IN_ROW; NULL as long as there never was one, so that they take no room.
--
-- The columns of the indexes come first, where few others have to be passed to find them; and only they are NOT NULL, though
-- all have a value: for that each row that is written is looked through up to the last of them. Of the rest, what a grant
-- changes is side by side: what is logged of an update is from the first to the last of it.
CREATE TABLE IF NOT EXISTS {lock} (
  id bytea NOT NULL,
  ns bytea NOT NULL,
  lapses int8 NOT NULL,
  replaces int8,
  lease int8,
  fence int8,
  expires int8,
  since int8,
  attempt int8,
  busy int4,
  context bytea,
  owner bytea,
  next_attempt int8,
  next_lease int8,
  next_since int8,
  next_session int8,
  next_context bytea,
  next_owner bytea,
  PRIMARY KEY (id, ns)
) WITH (fillfactor = 50);
-- For the sweep alone: what does not say that `lapses` is positive cannot be planned by it.
CREATE INDEX IF NOT EXISTS {lock_by_lapses!} ON {lock} (ns, lapses) WHERE lapses >= 0;

-- Shared holders and holders of slots.
-- state: 0 held; 1 handed over and not confirmed yet; -1 replaced by another mode, comes back if that is undone.
CREATE TABLE IF NOT EXISTS {holder} (
  fence int8 NOT NULL,
  attempt int8 NOT NULL,
  lease int8 NOT NULL,
  expires int8 NOT NULL,
  since int8 NOT NULL,
  replaces int8 NOT NULL,
  permits int8 NOT NULL,
  cap int8 NOT NULL,
  mode int4 NOT NULL,
  state int4 NOT NULL,
  broken boolean NOT NULL,
  ns bytea NOT NULL,
  id bytea NOT NULL,
  context bytea NOT NULL,
  owner bytea NOT NULL,
  indexes int8[] NOT NULL,
  PRIMARY KEY (id, ns, fence)
);
CREATE INDEX IF NOT EXISTS {holder_by_context!} ON {holder} (context, ns);

-- Waiters: one row for each id of the set; a waiter in the row of the id has none.
-- line: 0 nested, obeys holders only; 1 in the queue.
-- alone: the set is this id alone.
-- handed: was handed the set, and has not confirmed it yet. In no index, so that a hand-over stays on its page.
CREATE TABLE IF NOT EXISTS {place} (
  ticket int8 NOT NULL,
  attempt int8 NOT NULL,
  lease int8 NOT NULL,
  since int8 NOT NULL,
  session int8 NOT NULL,
  permits int8 NOT NULL,
  cap int8 NOT NULL,
  mode int4 NOT NULL,
  line int4 NOT NULL,
  alone boolean NOT NULL,
  handed boolean NOT NULL DEFAULT false,
  ns bytea NOT NULL,
  id bytea NOT NULL,
  context bytea NOT NULL,
  owner bytea NOT NULL,
  PRIMARY KEY (id, ns, line, ticket)
) WITH (fillfactor = 60);
CREATE INDEX IF NOT EXISTS {place_by_attempt!} ON {place} (context, attempt, ns);
CREATE INDEX IF NOT EXISTS {place_by_session!} ON {place} (session);
CREATE SEQUENCE IF NOT EXISTS {ticket};

-- Programs with waiters, and their last heartbeats.
CREATE TABLE IF NOT EXISTS {session} (
  session int8 NOT NULL,
  heartbeat int8 NOT NULL,
  PRIMARY KEY (session)
) WITH (fillfactor = 50);

-- Withdrawn attempts, at the first id of their sets: their requests are refused if they arrive later.
CREATE TABLE IF NOT EXISTS {tombstone} (
  attempt int8 NOT NULL,
  until int8 NOT NULL,
  ns bytea NOT NULL,
  id bytea NOT NULL,
  context bytea NOT NULL,
  PRIMARY KEY (id, ns, context, attempt)
);

-- Locks that administrators broke.
CREATE TABLE IF NOT EXISTS {break} (
  at int8 NOT NULL,
  fence int8 NOT NULL,
  freed boolean NOT NULL,
  ns bytea NOT NULL,
  id bytea NOT NULL,
  context bytea NOT NULL,
  breaker bytea NOT NULL,
  PRIMARY KEY (id, ns, at, fence)
);

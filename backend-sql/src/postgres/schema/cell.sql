-- The cells of each namespace that is locked by statements. version: chosen at random by the writer, so that none comes back; previous:
-- the one that it replaced, 0 for none; written: microseconds since 1970 by the server's clock. Names are compared by their bytes.
CREATE TABLE IF NOT EXISTS {cell} (
  ns text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  version int8 NOT NULL,
  previous int8 NOT NULL,
  written int8 NOT NULL,
  content bytea NOT NULL,
  PRIMARY KEY (ns, name)
);

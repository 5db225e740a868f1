-- The cells of each namespace that is locked by statements. version: chosen at random by the writer, so that none comes back; previous:
-- the one that it replaced, 0 for none; written: microseconds since 1970 by the server's clock. Names are compared by their bytes.
CREATE TABLE IF NOT EXISTS {cell} (
  ns VARBINARY(255) NOT NULL,
  name VARBINARY(2100) NOT NULL,
  version BIGINT NOT NULL,
  previous BIGINT NOT NULL,
  written BIGINT NOT NULL,
  content LONGBLOB NOT NULL,
  PRIMARY KEY (ns, name)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//

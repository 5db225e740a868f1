-- The form in which each namespace is locked, 'routines' or 'statements': the first program of a namespace writes it, and all others read
-- it, so that the two never lock the same. ns: all but letters, digits and -_./: of ASCII as in a URL.
CREATE TABLE IF NOT EXISTS {form} (
  ns VARBINARY(765) NOT NULL,
  form VARBINARY(16) NOT NULL,
  PRIMARY KEY (ns)
) ENGINE=InnoDB DEFAULT CHARACTER SET ascii
//

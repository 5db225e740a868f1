-- The form in which each namespace is locked, 'routines' or 'statements': the first program of a namespace writes it, and all others read
-- it, so that the two never lock the same. ns: all but letters, digits and -_./: of ASCII as in a URL.
CREATE TABLE IF NOT EXISTS {form} (
  ns text COLLATE "C" NOT NULL,
  form text NOT NULL,
  PRIMARY KEY (ns)
);

-- For the application's own statements: whether the lock of an id is held under a fence, exclusively, as of now; and if
-- so, nobody else gets it before the application's transaction ends (which therefore has to be short: a renewal waits for
-- it, too). In the WHERE of a write it makes the write of a former holder change nothing:
--   UPDATE account SET balance = $1 WHERE id = 7 AND lockcore_v1_holds('default', 'account/7', $2)
CREATE OR REPLACE FUNCTION {v1_holds}(p_namespace text, p_id text, p_fence int8) RETURNS boolean
  LANGUAGE plpgsql VOLATILE AS {$}
DECLARE
  p_ns bytea := convert_to(p_namespace, 'UTF8');
  v_id bytea := convert_to(p_id, 'UTF8');
BEGIN
  PERFORM FROM {lock} WHERE ns = p_ns AND id = v_id AND busy & 65 = 1 AND fence = p_fence FOR SHARE;
  -- The time behind the lock of the row: that may have waited for a renewal.
  RETURN FOUND AND EXISTS (SELECT FROM {lock} WHERE ns = p_ns AND id = v_id AND busy & 65 = 1 AND fence = p_fence
    AND expires > {clock});
END {$};

CREATE TABLE IF NOT EXISTS {schema} (version int8 NOT NULL);

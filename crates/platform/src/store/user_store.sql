-- Identifier of the store that has the users of these tables.
CREATE TABLE user_store (
    id TEXT NOT NULL,
    PRIMARY KEY (id)
) WITHOUT ROWID, STRICT;

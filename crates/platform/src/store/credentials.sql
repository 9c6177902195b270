-- Tokens of devices and gateways, good until they are revoked. Only their digests are kept.
CREATE TABLE credential (
    id TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
    digest TEXT NOT NULL,                    -- SHA-256 of the token, in hexadecimal
    created_at INTEGER NOT NULL,
    expires_at INTEGER                       -- when it ends; null while nobody has said so
) WITHOUT ROWID, STRICT;
CREATE INDEX credential_account ON credential (account, created_at);

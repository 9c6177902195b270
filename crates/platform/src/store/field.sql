-- What meters sent that proved genuine: nothing of it counts twice.
CREATE TABLE frame_seen (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    radio_key TEXT NOT NULL,
    digest BLOB NOT NULL,
    counter INTEGER,
    at INTEGER NOT NULL,                     -- when it was received, as the receiver says
    PRIMARY KEY (twin, radio_key, digest)
) WITHOUT ROWID, STRICT;
CREATE TABLE instance (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    device TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT,
    app_version TEXT,
    account TEXT NOT NULL,                   -- whose it is
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (twin, device)
) WITHOUT ROWID, STRICT;
CREATE TABLE command (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL,
    device TEXT NOT NULL,
    id TEXT NOT NULL,
    command TEXT NOT NULL,
    args TEXT NOT NULL,                      -- JSON
    state TEXT NOT NULL,
    detail TEXT,
    given_by TEXT NOT NULL,
    given_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    UNIQUE (twin, id),
    FOREIGN KEY (twin, device) REFERENCES instance (twin, device) ON DELETE CASCADE
) STRICT;
CREATE INDEX command_device ON command (twin, device, seq);
CREATE TABLE telemetry (
    twin TEXT NOT NULL,
    device TEXT NOT NULL,
    at INTEGER NOT NULL,
    id TEXT NOT NULL,
    item TEXT NOT NULL,                      -- JSON
    PRIMARY KEY (twin, device, at, id),
    FOREIGN KEY (twin, device) REFERENCES instance (twin, device) ON DELETE CASCADE
) WITHOUT ROWID, STRICT;
CREATE TABLE photo (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    bytes BLOB NOT NULL,
    account TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (twin, id)
) STRICT;

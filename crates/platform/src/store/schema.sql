CREATE TABLE twin (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    lat REAL,
    lon REAL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE account (
    name TEXT PRIMARY KEY NOT NULL,
    display_name TEXT NOT NULL,
    password TEXT NOT NULL,                  -- argon2, PHC string
    server_admin INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE member (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
    role TEXT NOT NULL,
    PRIMARY KEY (twin, account)
) WITHOUT ROWID, STRICT;
-- Tokens that are good: one that is not here is revoked, whatever it says itself.
CREATE TABLE session (
    id TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL REFERENCES account (name) ON DELETE CASCADE,
    issued_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX session_account ON session (account, issued_at);
CREATE TABLE meter (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    address TEXT,                            -- as KAM-12345678-16-1b
    radio_key TEXT,                          -- the address's first two parts
    serial TEXT,
    manufacturer TEXT,
    medium TEXT NOT NULL,
    lat REAL,
    lon REAL,
    street TEXT,
    unit TEXT NOT NULL,
    register_digits INTEGER NOT NULL,
    aes_key BLOB,                            -- never leaves the server
    note TEXT,
    expected_low REAL,
    expected_high REAL,
    first_value REAL,                        -- where the rate of use is counted from
    first_at INTEGER,
    last_value REAL,
    last_at INTEGER,
    last_method TEXT,
    leak_since INTEGER,
    changed_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (twin, id)
) WITHOUT ROWID, STRICT;
CREATE UNIQUE INDEX meter_radio ON meter (twin, radio_key) WHERE radio_key IS NOT NULL;
CREATE INDEX meter_changed ON meter (twin, changed_at);
CREATE TABLE work_list (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    assignee TEXT,
    state TEXT NOT NULL,
    due INTEGER,
    created_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (twin, id)
) STRICT;
CREATE TABLE task (
    twin TEXT NOT NULL,
    work_list TEXT NOT NULL,
    meter TEXT NOT NULL,
    place INTEGER NOT NULL,                  -- in the list
    state TEXT NOT NULL,
    note TEXT,
    PRIMARY KEY (twin, work_list, meter),
    FOREIGN KEY (twin, work_list) REFERENCES work_list (twin, id) ON DELETE CASCADE,
    FOREIGN KEY (twin, meter) REFERENCES meter (twin, id) ON DELETE CASCADE
) WITHOUT ROWID, STRICT;
CREATE INDEX task_meter ON task (twin, meter);
CREATE TABLE reading (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL,
    id TEXT NOT NULL,
    meter TEXT NOT NULL,
    at INTEGER NOT NULL,
    value REAL NOT NULL,
    unit TEXT NOT NULL,
    method TEXT NOT NULL,
    photo TEXT,
    lat REAL,
    lon REAL,
    rssi_dbm REAL,
    note TEXT,
    implausible_confirmed INTEGER NOT NULL,
    work_list TEXT,
    reader TEXT NOT NULL,
    device TEXT,
    received_at INTEGER NOT NULL,
    flags TEXT NOT NULL,                     -- separated by spaces
    UNIQUE (twin, id),
    FOREIGN KEY (twin, meter) REFERENCES meter (twin, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX reading_meter ON reading (twin, meter, at);
CREATE INDEX reading_at ON reading (twin, at, seq);
CREATE INDEX reading_list ON reading (twin, work_list, meter) WHERE work_list IS NOT NULL;
-- Both ways round.
CREATE TABLE reading_conflict (
    twin TEXT NOT NULL,
    reading TEXT NOT NULL,
    other TEXT NOT NULL,
    PRIMARY KEY (twin, reading, other)
) WITHOUT ROWID, STRICT;

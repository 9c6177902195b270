ALTER TABLE twin ADD COLUMN kind TEXT NOT NULL DEFAULT 'meters';
-- Whether the usual alert rules have been made once.
ALTER TABLE twin ADD COLUMN rules_made INTEGER NOT NULL DEFAULT 0;
CREATE TABLE home (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    lat REAL,
    lon REAL,
    street TEXT,
    note TEXT,
    gateway TEXT,
    revision INTEGER NOT NULL,
    PRIMARY KEY (twin, id)
) WITHOUT ROWID, STRICT;
CREATE TABLE sensor (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    device TEXT NOT NULL,
    home TEXT,
    room TEXT,
    model TEXT,
    expected_every_s INTEGER,
    last_at INTEGER,                         -- when it measured last
    revision INTEGER NOT NULL,
    PRIMARY KEY (twin, device)
) WITHOUT ROWID, STRICT;
CREATE INDEX sensor_home ON sensor (twin, home);
-- A quantity of a device. What was measured is kept under its number.
CREATE TABLE series (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL,
    device TEXT NOT NULL,
    quantity TEXT NOT NULL,
    unit TEXT NOT NULL,
    last_at INTEGER,
    last_value REAL,
    UNIQUE (twin, device, quantity),
    FOREIGN KEY (twin, device) REFERENCES sensor (twin, device) ON DELETE CASCADE
) STRICT;
CREATE TABLE measurement (
    series INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value REAL NOT NULL,
    copy INTEGER NOT NULL,                   -- told apart only by their identifiers
    PRIMARY KEY (series, at, value, copy)
) WITHOUT ROWID, STRICT;
CREATE TABLE measurement_id (
    twin TEXT NOT NULL,
    id TEXT NOT NULL,
    day INTEGER NOT NULL,                    -- when it came, in days since 1970
    PRIMARY KEY (twin, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX measurement_id_day ON measurement_id (day);
CREATE TABLE series_hour (
    series INTEGER NOT NULL,
    at INTEGER NOT NULL,
    sum REAL NOT NULL,
    low REAL NOT NULL,
    high REAL NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (series, at)
) WITHOUT ROWID, STRICT;
CREATE TABLE series_day (
    series INTEGER NOT NULL,
    at INTEGER NOT NULL,
    sum REAL NOT NULL,
    low REAL NOT NULL,
    high REAL NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (series, at)
) WITHOUT ROWID, STRICT;
CREATE TABLE alert_rule (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    quantity TEXT,                           -- none: any, for rules of silence
    home TEXT,                               -- none: all
    severity TEXT NOT NULL,
    above REAL,
    below REAL,
    clear REAL,
    for_s INTEGER NOT NULL,
    averaging_s INTEGER NOT NULL,
    silent_s INTEGER,
    source TEXT,
    enabled INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (twin, id)
) WITHOUT ROWID, STRICT;
-- What a rule remembers of a series between measurements.
CREATE TABLE alert_state (
    twin TEXT NOT NULL,
    rule TEXT NOT NULL,
    series INTEGER NOT NULL,
    state TEXT NOT NULL,                     -- JSON
    PRIMARY KEY (twin, rule, series),
    FOREIGN KEY (twin, rule) REFERENCES alert_rule (twin, id) ON DELETE CASCADE
) WITHOUT ROWID, STRICT;
CREATE TABLE alert (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    rule TEXT NOT NULL,
    rule_name TEXT NOT NULL,
    home TEXT,
    device TEXT NOT NULL,
    quantity TEXT,
    severity TEXT NOT NULL,
    value REAL,
    peak REAL,
    unit TEXT NOT NULL,
    threshold REAL NOT NULL,
    raised_at INTEGER NOT NULL,              -- when it was measured
    noticed_at INTEGER NOT NULL,             -- when it was known here
    cleared_at INTEGER,
    acknowledged_at INTEGER,
    acknowledged_by TEXT,
    note TEXT,
    revision INTEGER NOT NULL,
    UNIQUE (twin, id)
) STRICT;
CREATE UNIQUE INDEX alert_open ON alert (twin, device, rule, coalesce(quantity, '')) WHERE cleared_at IS NULL;
CREATE INDEX alert_home ON alert (twin, home, seq);
CREATE INDEX alert_device ON alert (twin, device, rule, raised_at);
CREATE TABLE webhook (
    twin TEXT NOT NULL REFERENCES twin (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    url TEXT NOT NULL,
    least_severity TEXT NOT NULL,
    secret TEXT NOT NULL,                    -- never leaves the server
    PRIMARY KEY (twin, id)
) WITHOUT ROWID, STRICT;
-- What webhooks are still to be told.
CREATE TABLE webhook_event (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL,
    webhook TEXT NOT NULL,
    body TEXT NOT NULL,                      -- JSON
    attempts INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    FOREIGN KEY (twin, webhook) REFERENCES webhook (twin, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX webhook_event_due ON webhook_event (due_at);

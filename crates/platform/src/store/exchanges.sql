-- Exchanges of meters: readings before one are of the old register, those at or after it of the new one.
CREATE TABLE meter_exchange (
    twin TEXT NOT NULL,
    meter TEXT NOT NULL,
    id TEXT NOT NULL,                        -- chosen by the sender
    at INTEGER NOT NULL,
    final_value REAL NOT NULL,               -- the last of the old register
    first_value REAL NOT NULL,               -- of the new one
    old_serial TEXT,
    new_serial TEXT,
    note TEXT,
    entered_by TEXT NOT NULL,
    entered_at INTEGER NOT NULL,
    withdrawn_by TEXT,                       -- it was a mistake, and does not count
    withdrawn_at INTEGER,
    PRIMARY KEY (twin, meter, id),
    FOREIGN KEY (twin, meter) REFERENCES meter (twin, id) ON DELETE CASCADE
) WITHOUT ROWID, STRICT;
CREATE INDEX meter_exchange_at ON meter_exchange (twin, meter, at) WHERE withdrawn_at IS NULL;

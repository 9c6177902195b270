-- Numbers that are given once and never again, also when what they named is gone.
CREATE TABLE counter (
    name TEXT PRIMARY KEY NOT NULL,
    last INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
-- Nobody knows which numbers earlier versions gave: those of a database in use begin above them.
INSERT INTO counter (name, last)
    SELECT 'webhook_event', CASE WHEN EXISTS (SELECT 1 FROM twin) THEN 1000000000 ELSE 0 END;
ALTER TABLE reading ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
-- Whether it counts: neither superseded nor withdrawn.
ALTER TABLE reading ADD COLUMN holds INTEGER NOT NULL DEFAULT 1;
-- Whether another reading contradicts it and nobody has decided.
ALTER TABLE reading ADD COLUMN contested INTEGER NOT NULL DEFAULT 0;
-- What was sent, once that has been corrected: sent again it is still the same reading.
ALTER TABLE reading ADD COLUMN sent_value REAL;
ALTER TABLE reading ADD COLUMN sent_at INTEGER;
-- Number of the last entry of its audit trail.
ALTER TABLE reading ADD COLUMN last_change INTEGER;
UPDATE reading SET holds = 0 WHERE ' ' || flags || ' ' LIKE '% superseded %';
UPDATE reading SET contested = 1 WHERE EXISTS
    (SELECT 1 FROM reading_conflict c WHERE c.twin = reading.twin AND c.reading = reading.id);
CREATE INDEX reading_contested ON reading (twin, at, seq) WHERE contested = 1;
CREATE INDEX reading_method ON reading (twin, method, at, seq);
CREATE INDEX reading_list_at ON reading (twin, work_list, at, seq) WHERE work_list IS NOT NULL;
CREATE INDEX reading_sent ON reading (twin, meter, sent_at) WHERE sent_at IS NOT NULL;
-- The audit trail: entries are only ever added.
CREATE TABLE reading_change (
    seq INTEGER PRIMARY KEY,
    twin TEXT NOT NULL,
    reading TEXT NOT NULL,
    meter TEXT NOT NULL,
    action TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    reason TEXT,
    old_value REAL NOT NULL,
    new_value REAL NOT NULL,
    old_at INTEGER NOT NULL,
    new_at INTEGER NOT NULL,
    FOREIGN KEY (twin, reading) REFERENCES reading (twin, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX reading_change_meter ON reading_change (twin, meter, seq);
CREATE INDEX reading_change_reading ON reading_change (twin, reading, seq);

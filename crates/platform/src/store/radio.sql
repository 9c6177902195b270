-- The last reading before the meter's key or address changed: later ones are those of the device that is there now.
ALTER TABLE meter ADD COLUMN radio_after INTEGER;
-- Why a reading by radio may be another sender's than the meter's.
ALTER TABLE reading ADD COLUMN doubt TEXT;
-- What counts of a meter, and what does not, however much comes in its name.
CREATE INDEX reading_holds ON reading (twin, meter, at) WHERE holds = 1;
CREATE INDEX reading_lost ON reading (twin, meter, received_at) WHERE holds = 0;

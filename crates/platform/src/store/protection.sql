-- How messages by radio were protected, and what is known of each meter's, so that a forged one can be told from them.
ALTER TABLE reading ADD COLUMN protection TEXT;        -- NULL: not by radio, or stored by an earlier version
ALTER TABLE meter ADD COLUMN last_protection TEXT;     -- of the last reading
ALTER TABLE meter ADD COLUMN radio_security TEXT;      -- the best that its messages had
ALTER TABLE meter ADD COLUMN radio_model TEXT;         -- version and medium in them
ALTER TABLE meter ADD COLUMN radio_formats TEXT;       -- signatures, with a mark at those that came once
ALTER TABLE frame_seen ADD COLUMN clock INTEGER;       -- the meter's own, in seconds since 2000

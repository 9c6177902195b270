-- Series that are gone, for as long as what they measured is being deleted.
CREATE TABLE removed_series (
    series INTEGER NOT NULL,
    twin TEXT NOT NULL,
    device TEXT NOT NULL,
    quantity TEXT NOT NULL,
    PRIMARY KEY (series)
) WITHOUT ROWID, STRICT;

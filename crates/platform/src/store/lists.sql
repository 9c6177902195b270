-- Readings of one kind in one list: photos are few among what the radio brought.
CREATE INDEX reading_list_method ON reading (twin, work_list, method, at, seq) WHERE work_list IS NOT NULL;

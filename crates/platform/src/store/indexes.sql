-- What waits for a webhook, in order.
CREATE INDEX webhook_event_webhook ON webhook_event (twin, webhook, seq);
-- The series of a quantity, for rules about its silence.
CREATE INDEX series_quantity ON series (twin, quantity);

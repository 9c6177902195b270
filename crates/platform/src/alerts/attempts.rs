//! Attempts to deliver events to webhooks: in order, again and again at growing intervals, but not for ever.
//!
//! This module decides which attempts are due; the program makes them.

use super::delivery::Delivery;
use super::webhook_allowlist::WebhookAllowlist;
use crate::platform::Platform;
use crate::store::webhooks;
use crate::time::{SECOND_MS, Time};

/// Concurrent deliveries.
const MAX_AT_ONCE: usize = 16;
/// Attempts per event; the last is 43 minutes after the first.
const MAX_ATTEMPTS: u32 = 10;
/// Pause before the second attempt; it doubles with each further attempt. The longest is 21 minutes.
const FIRST_PAUSE_MS: i64 = 5 * SECOND_MS;

/// Pause before the next attempt; `None` if there is to be none.
fn pause_ms(attempts: u32) -> Option<i64> {
    if attempts + 1 >= MAX_ATTEMPTS {
        return None;
    }
    Some(FIRST_PAUSE_MS << attempts)
}

impl Platform {
    /// The deliveries that are due now: the oldest event of each webhook.
    ///
    /// # Errors
    /// The database cannot be read at the moment.
    pub async fn due_deliveries(&self) -> Result<Vec<Delivery>, crate::Error> {
        let due = |db: &crate::store::Db| Ok(webhooks::due(db, Time::now(), MAX_AT_ONCE)?);
        Ok(self.app().store.read(due).await?)
    }

    /// Says what became of an attempt: whether the receiver took it.
    ///
    /// # Errors
    /// It cannot be stored, for now: the attempt may be made again.
    pub async fn delivered(&self, delivery: &Delivery, taken: bool) -> Result<(), crate::Error> {
        let (number, attempts) = (delivery.number, delivery.attempts);
        let pause = if taken { None } else { pause_ms(attempts) };
        if !taken && pause.is_none() {
            tracing::warn!(number, attempts = attempts + 1, "webhook event given up");
        }
        let done = self.app().store.write(move |db| match pause {
            Some(pause) => Ok(webhooks::postpone(db, number, Time::now().plus_ms(pause))?),
            None => Ok(webhooks::forget(db, number)?),
        });
        Ok(done.await?)
    }

    /// Addresses to which webhooks may connect; to be checked before each connection.
    pub fn webhook_allowlist(&self) -> &WebhookAllowlist {
        &self.app().settings.webhook_allowlist
    }

    /// Returns when there may be something new for webhooks; for one waiter.
    pub async fn deliveries(&self) {
        self.app().deliveries.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end() {
        let pauses: Vec<i64> = (0..).map_while(pause_ms).collect();
        assert_eq!(pauses.len() + 1, MAX_ATTEMPTS as usize);
        let minutes = |ms: i64| (ms + 30 * SECOND_MS) / (60 * SECOND_MS);
        assert_eq!((minutes(pauses.iter().sum()), minutes(pauses[8])), (43, 21));
        assert_eq!(pause_ms(u32::MAX - 1), None);
    }
}

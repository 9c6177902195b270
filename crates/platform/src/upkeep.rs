//! Periodic work: detecting silent devices, and deleting what is not kept any longer or was removed.

use std::time::Duration;

use crate::alerts::{evaluate, handlers as alerts};
use crate::platform::Platform;
use crate::problem::Result;
use crate::sensors::removal::clear_value;
use crate::store::{Db, alerts as stored, removed, retention};
use crate::time::Time;

/// The interval of the checks for silent devices and removed ones.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The pause if there may be more of them: others want to store something, too, and announcements to be published.
const LOOK_ON: Duration = Duration::from_secs(1);
/// Before it is first looked: what the broker kept while the platform was away comes first.
const SETTLE: Duration = Duration::from_secs(30);
/// Interval at which old data is removed.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// Between two parts of it, so that others can store something.
const BREATH: Duration = Duration::from_millis(20);

impl Platform {
    /// Does it, for as long as it is polled.
    pub async fn keep_up(&self) {
        tokio::join!(
            self.watch_for_silence(),
            self.forget_what_is_old(),
            self.forget_what_is_removed(),
            self.end_what_expired(),
        );
    }

    async fn watch_for_silence(&self) {
        tokio::time::sleep(SETTLE).await;
        again_and_again("silent sensors", LOOK_ON, async || self.look_for_silence().await).await;
    }

    /// Deletes expired tokens, and settles what could not be when accounts were changed.
    async fn end_what_expired(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let app = self.app();
            if let Err(problem) = app.forget_expired_tokens().await {
                tracing::warn!("platform: expired tokens: {}", problem.detail());
            }
            if app.account_cache.has_due_names()
                && let Err(problem) = app.settle_names().await
            {
                tracing::warn!("platform: names of devices: {}", problem.detail());
            }
        }
    }

    /// Whether there may be more.
    async fn look_for_silence(&self) -> Result<bool> {
        let app = self.app();
        let changed = app.store.read(|db| {
            let now = Time::now();
            let quiet = stored::silences(db, now, 1)?.is_empty();
            Ok(!quiet || !stored::silences_over(db, now, 1)?.is_empty())
        });
        if !changed.await? {
            return Ok(false);
        }
        let notifications = app.store.write(|db| evaluate::silence(db, Time::now())).await?;
        let more = notifications.len() >= evaluate::MAX_SILENCES;
        for (twin, notification) in notifications {
            alerts::announce(app, &twin, &[notification]);
        }
        Ok(more)
    }

    async fn forget_what_is_old(&self) {
        loop {
            if let Err(problem) = self.forget_all_that_is_old().await {
                tracing::warn!("platform: old measurements: {}", problem.detail());
            }
            tokio::time::sleep(FORGET_EVERY).await;
        }
    }

    async fn forget_all_that_is_old(&self) -> Result<()> {
        let (store, now) = (&self.app().store, Time::now());
        let settings = self.app().settings.monitoring.clone();
        for (table, until) in retention::kept(&settings, now) {
            // Numbers of series begin with 1.
            let mut after = 0;
            loop {
                // Most series have nothing old: the writer has no work with them.
                let found =
                    store.read(move |db| Ok(retention::find(db, table, until, after)?)).await?;
                let mut series = found.series;
                while !series.is_empty() {
                    let part = series.clone();
                    let forget = move |db: &Db| Ok(retention::forget(db, table, &part, until)?);
                    series.drain(..store.write(forget).await?);
                    tokio::time::sleep(BREATH).await;
                }
                let Some(last) = found.last else { break };
                after = last;
            }
        }
        loop {
            let settings = settings.clone();
            let forget = move |db: &Db| Ok(retention::forget_identifiers(db, &settings, now)?);
            if !store.write(forget).await? {
                return Ok(());
            }
            tokio::time::sleep(BREATH).await;
        }
    }

    async fn forget_what_is_removed(&self) {
        again_and_again("removed sensors", BREATH, async || self.forget_a_removed_part().await)
            .await;
    }

    /// Deletes a part of what removed sensors measured. Whether there may be more.
    async fn forget_a_removed_part(&self) -> Result<bool> {
        let app = self.app();
        if !app.store.read(|db| Ok(removed::is_left(db)?)).await? {
            return Ok(false);
        }
        let gone = app.store.write(|db| Ok(removed::forget(db, removed::PART)?)).await?;
        // Once more: a value from before the removal may have been announced after it, or this been dropped.
        for series in gone {
            clear_value(app, &series.twin, &series.device, &series.quantity);
        }
        Ok(true)
    }
}

/// Does a part of the work for ever, after a short pause where there may be more of it.
async fn again_and_again(what: &str, short: Duration, part: impl AsyncFn() -> Result<bool>) {
    loop {
        let done = part().await;
        if let Err(problem) = &done {
            tracing::warn!("platform: {what}: {}", problem.detail());
        }
        tokio::time::sleep(if matches!(done, Ok(true)) { short } else { LOOK_EVERY }).await;
    }
}

//! Counts and state of a sink, for metrics, `/health/sinks` and the log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use fulmar_broker::Broker;
use fulmar_part::Health;
use fulmar_text::metrics::{Kind, Metrics};
use fulmar_transport::Clock;
use parking_lot::Mutex;

use crate::dead_letters::DeadLetters;
use crate::target::Fault;

/// Counts and state of a sink.
#[derive(Debug, Default)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) client_id: String,
    pub(crate) letters: DeadLetters,
    pub(crate) written: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) retries: AtomicU64,
    /// When the batch that is being written was received, in milliseconds since 1970; 0 without one.
    pub(crate) since_ms: AtomicU64,
    pub(crate) fault: Mutex<Option<Fault>>,
    pub(crate) broker: OnceLock<Weak<Broker>>,
}

impl Status {
    /// Sets the state, and logs it if it is new.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        let mut current = self.fault.lock();
        if *current == fault {
            return;
        }
        let sink = &self.name;
        match &fault {
            None => tracing::info!(sink, "sink: messages are written again"),
            Some(Fault::Target(text)) => {
                let text = text.escape_debug();
                tracing::error!(sink, "sink: messages wait until somebody corrects this: {text}");
            }
            Some(fault) => {
                tracing::warn!(sink, "sink: messages wait: {}", fault.text().escape_debug());
            }
        }
        *current = fault;
    }

    fn queued(&self) -> usize {
        let broker = self.broker.get().and_then(Weak::upgrade);
        let session = broker.and_then(|broker| broker.session_details(&self.client_id, 0));
        session.map_or(0, |session| session.summary.queued_messages + session.summary.in_flight)
    }

    /// One line of `/health/sinks`, and whether nothing requires the operator.
    fn line(&self) -> (bool, String) {
        let fault = self.fault.lock();
        let has_dead = self.letters.path().metadata().is_ok_and(|file| file.len() > 0);
        let dead = if has_dead { "; there are dead letters: `fulmar sink dead`" } else { "" };
        let state = fault.as_ref().map_or_else(
            || "ok".to_owned(),
            |fault| format!("messages wait: {}", fault.text().escape_debug()),
        );
        let good = !matches!(*fault, Some(Fault::Target(_)));
        (good, format!("{}: {state}{dead}\n", self.name))
    }
}

/// The state of all.
pub(crate) fn health(all: Vec<Arc<Status>>) -> Health {
    Arc::new(move || {
        all.iter()
            .map(|status| status.line())
            .fold((true, String::new()), |(good, text), line| (good && line.0, text + &line.1))
    })
}

/// Reports all metrics.
pub(crate) fn report(all: &[Arc<Status>], to: &mut Metrics) {
    let now_ms = Clock::wall().0;
    let age_s = |status: &Status| match status.since_ms.load(Relaxed) {
        0 => 0.0,
        since_ms => now_ms.saturating_sub(since_ms) as f64 / 1000.0,
    };
    let state = |status: &Status| match *status.fault.lock() {
        None => 0u8,
        Some(Fault::Target(_)) => 2,
        Some(_) => 1,
    };
    for status in all {
        let labels = [("sink", &status.name)];
        let mut counter = |name, help, count: &AtomicU64| {
            to.family(Kind::Counter, name, help).add(&labels, count.load(Relaxed));
        };
        counter("sink_written_total", "Messages that the target has stored", &status.written);
        counter("sink_dead_total", "Messages that became dead letters", &status.dead);
        counter("sink_retries_total", "Writes that failed and were repeated", &status.retries);
        let help = "Messages that wait for a sink, those being written included";
        to.family(Kind::Gauge, "sink_queued_messages", help).add(&labels, status.queued());
        let help = "Age of the batch that a sink is writing; 0 if none waits";
        to.family(Kind::Gauge, "sink_batch_age_seconds", help).add(&labels, age_s(status));
        let help = "State of a sink: 0 works, 1 waits for its target, 2 needs the operator";
        to.family(Kind::Gauge, "sink_state", help).add(&labels, state(status));
    }
}

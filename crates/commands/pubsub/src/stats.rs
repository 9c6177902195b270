//! Progress on a terminal, and the connection's statistics for `--stats` and `--json`.

use std::time::{Duration, Instant};

use fulmar_client::{Client, Event, PathStats};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

/// Interval at which statistics are written.
const EVERY: Duration = Duration::from_secs(1);

/// Shorter work needs no progress bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// History of the connection so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    connections: u32,
    early_data: bool,
    may_repeat: usize,
}

impl Log {
    /// Takes note of an event and says on standard error what a person should know.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Connected { transport, session_present, early_data, url } => {
                self.connections += 1;
                self.early_data = *early_data;
                let transport = transport.scheme();
                let again = if self.connections > 1 { "connected again" } else { "connected" };
                tracing::info!(%url, transport, session_present, early_data, "{again}");
            }
            Event::Disconnected { reason, retry_in: Some(wait) } => {
                tracing::warn!("{reason}; trying again in {:.1} s", wait.as_secs_f64());
            }
            Event::Migrated { local } => tracing::info!(%local, "moved to another address"),
            Event::MayRepeat { messages } => {
                self.may_repeat += messages;
                tracing::warn!(messages, "the broker lost the session: these may arrive twice");
            }
            _ => {}
        }
    }

    /// All there is to say about the connection.
    pub(super) fn json(&self, path: Option<PathStats>) -> Value {
        let mut value = json!({
            "connections": self.connections,
            "early_data": self.early_data,
            "may_repeat": self.may_repeat,
        });
        if let Some(path) = path {
            value["transport"] = path.transport.scheme().into();
        }
        if let Some((path, rtt)) = path.and_then(|path| Some((path, path.rtt?))) {
            value["rtt_ms"] = (rtt.as_secs_f64() * 1000.0).into();
            value["migrations"] = path.migrations.into();
            value["lost_packets"] = path.lost_packets.into();
            value["copies"] = path.copies.into();
            value["data_streams"] = path.data_streams.into();
            value["sent_bytes"] = path.sent_bytes.into();
            value["received_bytes"] = path.received_bytes.into();
        }
        value
    }
}

/// Counts messages and writes statistics to standard error, where asked to.
#[derive(Debug)]
pub(super) struct Counter {
    wanted: bool,
    json: bool,
    start: Instant,
    told: Instant,
    told_messages: u64,
    pub(super) messages: u64,
}

impl Counter {
    pub(super) fn new(wanted: bool, json: bool) -> Counter {
        let now = Instant::now();
        Counter { wanted, json, start: now, told: now, told_messages: 0, messages: 0 }
    }

    /// Waits until the next statistics are due; for ever, where none are wanted.
    pub(super) async fn due(&self) {
        if !self.wanted {
            return std::future::pending().await;
        }
        tokio::time::sleep_until((self.told + EVERY).into()).await;
    }

    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Messages per second from the beginning.
    pub(super) fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds().max(1e-9)
    }

    /// Writes a line if any are wanted.
    pub(super) async fn log_rate(&mut self, client: &Client, log: &Log) {
        if !self.wanted {
            return;
        }
        let now = Instant::now();
        let rate = (self.messages - self.told_messages) as f64
            / now.duration_since(self.told).as_secs_f64().max(1e-9);
        (self.told, self.told_messages) = (now, self.messages);
        let path = client.path_stats().await;
        if self.json {
            let mut line = log.json(path);
            line["messages"] = self.messages.into();
            line["messages_per_second"] = rate.into();
            eprintln!("{line}");
            return;
        }
        let mut line = format!("{} messages, {rate:.0}/s", self.messages);
        match path {
            None => line += ", not connected",
            Some(path) => {
                line += &format!(", {}", path.transport.scheme());
                if let Some(rtt) = path.rtt {
                    line += &format!(
                        ", RTT {:.1} ms, {} packets lost, {} migrations, {} data streams",
                        rtt.as_secs_f64() * 1000.0,
                        path.lost_packets,
                        path.migrations,
                        path.data_streams
                    );
                }
            }
        }
        eprintln!("{line}");
    }
}

/// A progress bar on a terminal, once it is clear that there is something to wait for.
pub(super) struct Progress {
    bar: ProgressBar,
    total: Option<u64>,
    shown: bool,
    start: Instant,
}

impl Progress {
    pub(super) fn new(wanted: bool, total: Option<u64>) -> Progress {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        Progress { bar, total, shown: !wanted, start: Instant::now() }
    }

    /// This many messages are delivered.
    pub(super) fn at(&mut self, messages: u64) {
        self.bar.set_position(messages);
        if !self.shown && self.start.elapsed() >= PATIENCE {
            self.shown = true;
            // Goes nowhere where standard error is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            let template = match self.total {
                Some(_) => "{bar:30} {human_pos}/{human_len} delivered, {per_sec}, {eta} left",
                None => "{human_pos} delivered, {per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
        }
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

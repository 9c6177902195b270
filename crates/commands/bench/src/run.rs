//! The course of a run: connect, let messages flow, warm up, measure, drain, say goodbye.
//!
//! Every phase ends by the clock; an interrupt ends the run early with what was measured so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::load::{Load, Totals};
use super::plan::Scenario;
use super::process::Processes;
use super::progress::Progress;
use super::report::{BrokerUse, Connections, Latency, Report, Traffic};

/// All connections must stand by then, whatever their number.
const CONNECT_LIMIT: Duration = Duration::from_secs(300);

/// Time for the broker to settle before its memory is read.
const SETTLE: Duration = Duration::from_secs(1);

/// Time for what is under way to arrive after publishing stopped.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Between progress checks.
const TICK: Duration = Duration::from_secs(1);

/// A transport: moves the load's bytes.
pub(super) trait Driver {
    /// Starts the next connection, in order of number.
    fn open(&mut self, load: &mut Load) -> anyhow::Result<()>;
    /// Writes what a lane has to say, as far as the transport takes it.
    fn flush(&mut self, load: &mut Load, lane: usize) -> anyhow::Result<()>;
    /// Waits for the network until then, and hands what came to the load.
    fn turn(&mut self, load: &mut Load, until: Instant) -> anyhow::Result<()>;
    /// Connections to have in their handshake at once.
    fn parallel(&self) -> usize;
    /// Ends all connections.
    fn close(&mut self, load: &mut Load) -> anyhow::Result<()>;
}

/// Durations of the phases, and the processes whose CPU time is measured.
pub(super) struct Settings {
    pub(super) warm_up: Duration,
    pub(super) measure: Duration,
    pub(super) broker: Processes,
}

/// Resources and messages of both ends at one moment.
struct Snapshot {
    at: Instant,
    totals: Totals,
    broker_cpu_s: f64,
    own_cpu_s: f64,
}

pub(super) struct Run<'a> {
    pub(super) load: Load,
    pub(super) driver: Box<dyn Driver>,
    pub(super) settings: Settings,
    pub(super) progress: Progress,
    pub(super) stop: &'a AtomicBool,
    pub(super) next_tick: Instant,
}

impl Run<'_> {
    /// The whole run.
    pub(super) fn run(mut self) -> anyhow::Result<Report> {
        let connections = self.connect_all()?;
        let traffic = match self.load.plan().scenario {
            Scenario::Conns { .. } => None,
            _ => Some(self.traffic()?),
        };
        self.goodbye()?;
        self.progress.finish();
        let interrupted = self.stopped();
        Ok(Report::new(self.load.plan(), connections, traffic, interrupted))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn connect_all(&mut self) -> anyhow::Result<Connections> {
        let (count, streams) = (self.load.plan().connections(), self.load.plan().streams);
        self.progress.phase("connecting", count as u64);
        let rss_before_kib = self.rss_kib()?;
        let cpu_before = self.settings.broker.cpu_seconds()?;
        let start = Instant::now();
        let mut opened = 0;
        while self.load.ready_lanes() < self.load.plan().lanes() && !self.stopped() {
            if start.elapsed() > CONNECT_LIMIT {
                bail!("only {} of {count} connections are open", self.load.ready_lanes() / streams);
            }
            let waiting = opened - self.load.ready_lanes() / streams;
            let more = self.driver.parallel().saturating_sub(waiting).min(count - opened);
            for _ in 0..more {
                self.driver.open(&mut self.load)?;
                opened += 1;
            }
            self.cycle(Instant::now() + TICK)?;
            self.progress.set((self.load.ready_lanes() / streams) as u64);
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu_s = self.settings.broker.cpu_seconds()? - cpu_before;
        self.idle(SETTLE)?;
        let rss_after_kib = self.rss_kib()?;
        Ok(Connections { count, seconds, cpu_s, rss_before_kib, rss_after_kib })
    }

    fn rss_kib(&self) -> anyhow::Result<Option<u64>> {
        if self.settings.broker.is_empty() {
            return Ok(None);
        }
        self.settings.broker.rss_kib().map(Some)
    }

    fn traffic(&mut self) -> anyhow::Result<Traffic> {
        self.load.set_publishing(true);
        self.progress.phase("warming up", 0);
        self.idle(self.settings.warm_up)?;
        self.load.latency.reset();
        let start = self.snapshot()?;
        self.progress.phase("measuring", self.settings.measure.as_secs());
        self.idle(self.settings.measure)?;
        let end = self.snapshot()?;
        let latency = Latency::from_histogram(&self.load.latency);
        let rss_kib = self.rss_kib()?;
        let lost = self.drain()?;
        let seconds = (end.at - start.at).as_secs_f64();
        let delivered = end.totals.delivered - start.totals.delivered;
        let broker_cpu_s = end.broker_cpu_s - start.broker_cpu_s;
        let generator_cpu_s = end.own_cpu_s - start.own_cpu_s;
        Ok(Traffic {
            seconds,
            published: end.totals.published - start.totals.published,
            delivered,
            lost,
            delivered_per_s: delivered as f64 / seconds,
            latency,
            generator_cpu_s,
            broker: rss_kib
                .map(|rss| BrokerUse::new(broker_cpu_s, rss, delivered, generator_cpu_s)),
        })
    }

    /// Stops publishing and waits for the rest; messages that never came.
    fn drain(&mut self) -> anyhow::Result<u64> {
        self.load.set_publishing(false);
        self.progress.phase("draining", 0);
        let receivers = self.load.plan().receivers();
        let end = Instant::now() + DRAIN_LIMIT;
        loop {
            let missing =
                (self.load.totals.published * receivers).saturating_sub(self.load.totals.delivered);
            if missing == 0 || Instant::now() >= end {
                return Ok(missing);
            }
            // What was still under way is not lost; only what had been given up on before.
            if self.stopped() {
                return Ok(self.load.totals.lost);
            }
            self.cycle(end)?;
        }
    }

    fn goodbye(&mut self) -> anyhow::Result<()> {
        // After an interrupt some connections may not have been opened.
        if !self.stopped() {
            for connection in 0..self.load.plan().connections() {
                self.load.end(connection);
            }
            self.flush()?;
        }
        self.driver.close(&mut self.load)
    }

    fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Ok(Snapshot {
            at: Instant::now(),
            totals: self.load.totals,
            broker_cpu_s: self.settings.broker.cpu_seconds()?,
            own_cpu_s: Processes::own().cpu_seconds()?,
        })
    }

    /// Lets the load and the driver work for so long.
    fn idle(&mut self, time: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        let end = start + time;
        while Instant::now() < end && !self.stopped() {
            self.cycle(end)?;
            self.progress.set(start.elapsed().as_secs());
        }
        Ok(())
    }

    fn cycle(&mut self, until: Instant) -> anyhow::Result<()> {
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.load.check_progress();
        }
        let mut until = until.min(self.next_tick);
        if let Some(left_ns) = self.load.pace() {
            until = until.min(Instant::now() + Duration::from_nanos(left_ns));
        }
        self.flush()?;
        self.driver.turn(&mut self.load, until)
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        while let Some(lane) = self.load.next_dirty() {
            self.driver.flush(&mut self.load, lane)?;
        }
        Ok(())
    }
}

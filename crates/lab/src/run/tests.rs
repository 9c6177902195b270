//! The runner with real programs and a fake network.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::*;
use crate::experiment::{Document, load};
use crate::link::ConfigError;
use crate::network::{CapturedPacket, Lateness, Loopback, Network, NetworkPlan, Observed};
use crate::observe::Kind;

/// Records the plans that it is given, and has seen one packet.
#[derive(Default)]
struct Fake(Mutex<Vec<NetworkPlan>>);

struct FakeNetwork;

impl NetworkFactory for Fake {
    fn check(&self, _settings: &[(String, String)]) -> Result<(), ConfigError> {
        Ok(())
    }

    fn open(&self, plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>> {
        self.0.lock().unwrap().push(plan.clone());
        Ok(Box::new(FakeNetwork))
    }
}

impl Network for FakeNetwork {
    fn address(&self, host: &str, changes: u32) -> Option<IpAddr> {
        Loopback.address(host, changes)
    }

    fn free_port(&mut self, _host: &str) -> std::io::Result<u16> {
        Ok(1883)
    }

    fn spawn(&mut self, _host: &str, command: &mut Command) -> std::io::Result<Child> {
        command.spawn()
    }

    fn close(self: Box<Self>) -> Observed {
        let seen = CapturedPacket {
            at_ns: 1,
            host: "client".to_owned(),
            sent: true,
            bytes: 60,
            kind: Kind::Handshake,
        };
        let lateness = Lateness { p50_us: 1.0, p99_us: 2.0, max_us: 3.0 };
        Observed { packets: vec![seen], lateness: Some(lateness), ..Observed::default() }
    }
}

const EXPERIMENT: &str = r#"
title = "A test"
repetitions = 2
timeout_s = 20
cores = 0.5
alone = 0.5
hosts = ["client", "server"]

[[links]]
between = ["client", "server"]
set = { loss_pct = "{loss}" }

[matrix]
loss = [0, 5, 10]

[files]
"told.txt" = "{{port}} {port.mqtt}\n"

[roles.server]
host = "server"
run = ["sh", "-c", "echo listening; exec sleep 600"]
service = true
ready = "listening"

[roles.client]
host = "client"
run = ["sh", "-c", 'cat told.txt; echo "{{\"ms\": {loss}, \"seed\": {seed}}}"']

[measures.ms]
title = "Time"
unit = "ms"
from = "lines"
role = "client"
field = "ms"

[measures.packets]
title = "Packets"
unit = "packets"
from = "packets"
host = "client"
what = "count"
"#;

struct Bench {
    folder: tempfile::TempDir,
    networks: Fake,
}

impl Bench {
    fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap(), networks: Fake::default() }
    }

    fn run(&self, text: &str, stop_after: usize) -> Result<(Tally, Vec<Sample>), StoreError> {
        let path = self.folder.path().join("test.toml");
        std::fs::write(&path, text).unwrap();
        let Ok(Document::Experiment(experiment, text)) = load(&path, &self.networks) else {
            panic!("{}", load(&path, &self.networks).unwrap_err());
        };
        let results = self.folder.path().join("results");
        let plan = Plan {
            experiment: &experiment,
            text: &text,
            source: self.folder.path(),
            folder: &results,
            fulmar: "fulmar".into(),
            version: "0.0.0",
            jobs: Some(2),
            repetitions: None,
            only: BTreeMap::new(),
            keep: false,
        };
        let stop = AtomicBool::new(false);
        let mut taken = 0;
        let tally = run(&plan, &self.networks, &stop, &mut |step| {
            if let Step::Sample(_) = step {
                taken += 1;
                stop.store(taken >= stop_after, Ordering::Relaxed);
            }
        })?;
        Ok((tally, read(&results).unwrap()))
    }
}

#[test]
fn every_cell_is_sampled_with_its_own_seed() {
    let bench = Bench::new();
    let (tally, samples) = bench.run(EXPERIMENT, usize::MAX).unwrap();
    let reasons: Vec<&str> = samples.iter().map(|sample| sample.reason.as_str()).collect();
    assert_eq!(tally, Tally { ok: 6, ..Tally::default() }, "{reasons:?}");
    let mut seeds: Vec<u64> = samples.iter().map(|sample| sample.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 6);
    for sample in &samples {
        let loss: f64 = sample.cell["loss"].parse().unwrap();
        assert_eq!(sample.values["ms"], loss);
        assert_eq!(sample.values["packets"], 1.0);
        assert_eq!(sample.points["ms"][0][1], loss);
        assert_eq!(sample.lateness.unwrap().p99_us, 2.0);
        assert!(sample.environment.kernel.starts_with("Linux "));
    }
    assert!(samples.iter().any(|sample| sample.alone));
    let plans = bench.networks.0.lock().unwrap();
    assert!(plans.iter().any(|plan| {
        plan.links[0].settings == [("loss_pct".to_owned(), "5".to_owned())]
            && plan.hosts == ["client", "server"]
    }));
    // Good samples leave no folder behind.
    assert!(!bench.folder.path().join("results").join("work").exists());
}

#[test]
fn a_run_that_was_stopped_goes_on_and_a_cut_line_is_taken_again() {
    let bench = Bench::new();
    let (tally, samples) = bench.run(EXPERIMENT, 2).unwrap();
    assert!(tally.left > 0 && samples.len() < 6, "{tally:?}");
    let path = bench.folder.path().join("results").join(FILE);
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"experiment\": \"te");
    std::fs::write(&path, text).unwrap();
    let (tally, all) = bench.run(EXPERIMENT, usize::MAX).unwrap();
    assert_eq!((tally.ok, all.len()), (6, 6));
    assert_eq!(all[..samples.len()], samples[..]);
    let mut keys: Vec<_> = all.iter().map(|s| (s.cell.clone(), s.repetition)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6);
}

#[test]
fn another_experiment_does_not_get_into_the_same_folder() {
    let bench = Bench::new();
    bench.run(EXPERIMENT, 1).unwrap();
    let other = bench.run(&EXPERIMENT.replace("[0, 5, 10]", "[0, 5]"), 1);
    assert!(matches!(other, Err(StoreError::Other { .. })));
    // More repetitions and other texts are the same experiment.
    let more = EXPERIMENT.replace("repetitions = 2", "repetitions = 3").replace("A test", "Test");
    let (tally, _) = bench.run(&more, usize::MAX).unwrap();
    assert_eq!(tally.ok, 9);
}

#[test]
fn failures_and_timeouts_are_kept_with_their_reason() {
    let one = EXPERIMENT.replace("[0, 5, 10]", "[0]").replace("repetitions = 2", "repetitions = 1");
    let client = r#"run = ["sh", "-c", 'cat told.txt"#;
    for (from, to, outcome, part) in [
        (
            client,
            "run = [\"sh\", \"-c\", 'echo no way >&2; exit 3; echo",
            Outcome::Failed,
            "no way",
        ),
        (client, "run = [\"/nonexistent\", '", Outcome::Failed, "cannot start `/nonexistent"),
        ("timeout_s = 20", "timeout_s = 0.3\n", Outcome::Timeout, "waiting for an end"),
        ("echo listening;", "echo deaf;", Outcome::Timeout, "waiting for server to be ready"),
        ("exec sleep 600", "exit 1", Outcome::Failed, "server ended early"),
        ("field = \"ms\"", "field = \"s\"", Outcome::Failed, "none with a number `s`"),
    ] {
        let mut text = one.replace(from, to);
        if outcome == Outcome::Timeout {
            text = text.replace("timeout_s = 20", "timeout_s = 0.3");
            text = text.replace("'cat told.txt", "'sleep 5; cat told.txt");
        }
        if to == "exit 1" {
            text = text.replace("'cat told.txt", "'sleep 5; cat told.txt");
        }
        let (_, samples) = Bench::new().run(&text, usize::MAX).unwrap();
        assert_eq!(samples[0].outcome, outcome, "{}", samples[0].reason);
        assert!(samples[0].reason.contains(part), "{part} is not in: {}", samples[0].reason);
        assert!(samples[0].values.is_empty());
    }
}

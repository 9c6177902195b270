//! What durability costs here: `cargo bench -p fulmar-store [-- FOLDER]`.
//!
//! Prints, for the disk under FOLDER (default: the temporary folder), operations per second, CPU time
//! per operation, and how long a batch waits to become durable. Each number is of one run; compare runs on the same
//! machine only.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{Delivery, FlowId, Op, Position, Progress, Seq, SessionKey, Storage};
use fulmar_mqtt::QoS;
use fulmar_store::{Options, SqliteStorage};

const PAYLOAD: [u8; 64] = [b'x'; 64];
const SESSIONS: u64 = 100;
const RUN: Duration = Duration::from_secs(4);

struct Bench {
    storage: SqliteStorage,
    woken: Receiver<()>,
    next: u64,
    cpu_before: Duration,
}

impl Bench {
    fn open(path: &Path, options: &Options) -> Bench {
        let (wake, woken) = sync_channel(1);
        let wake = Box::new(move || {
            // A wake-up that is already waiting is enough.
            let _ = wake.try_send(());
        });
        let (storage, _) = SqliteStorage::open(path, options, wake).unwrap();
        Bench { storage, woken, next: 0, cpu_before: cpu_time() }
    }

    fn enqueue(&mut self) -> Op {
        self.next += 1;
        let parts = MessageParts {
            topic: "plant/line-4/sensor",
            properties: &[],
            payload: &PAYLOAD,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at: None,
            publisher: 1,
        };
        Op::Enqueue {
            session: SessionKey(1 + self.next % SESSIONS),
            flow: FlowId::CONTROL,
            position: Position(self.next),
            message: Message::new(MessageId(self.next), &parts),
            delivery: Delivery {
                qos: QoS::AtLeastOnce,
                retain: false,
                identifiers: Box::default(),
                share: 0,
            },
            progress: Progress::Queued,
        }
    }

    fn wait(&self, seq: Seq) {
        while self.storage.committed() < seq {
            self.woken.recv().unwrap();
        }
    }

    fn finish(self, name: &str, start: Instant, mut waits: Vec<Duration>) {
        self.storage.close().unwrap();
        let wall = start.elapsed();
        let stats = self.storage.stats();
        let cpu = cpu_time() - self.cpu_before;
        waits.sort_unstable();
        let at = |part: usize| waits.get(waits.len() * part / 1000).map_or(0, Duration::as_micros);
        println!(
            "{name:<44} {:>9.0} ops/s {:>6.2} CPU µs/op {:>7} commits {:>6} ops/commit \
             {:>3} % cancelled; durable after p50 {} p99 {} max {} µs; {} checkpoints",
            stats.ops as f64 / wall.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / stats.ops as f64,
            stats.commits,
            stats.ops / stats.commits.max(1),
            stats.cancelled_ops * 100 / stats.ops,
            at(500),
            at(990),
            waits.last().map_or(0, Duration::as_micros),
            stats.checkpoints,
        );
    }
}

fn dequeue(position: u64) -> Op {
    Op::Dequeue {
        session: SessionKey(1 + position % SESSIONS),
        flow: FlowId::CONTROL,
        position: Position(position),
    }
}

/// CPU time of this process, all threads.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Keeps `window` batches of `size` new messages in flight; each message is taken from its
/// queue when `lag` more have come (0: as soon as it is durable).
fn flood(path: &Path, name: &str, options: &Options, window: usize, size: u64, lag: u64) {
    let mut bench = Bench::open(path, options);
    let mut under_way: VecDeque<(Seq, Instant)> = VecDeque::new();
    let mut waits = Vec::new();
    let mut taken = 0;
    let mut batch = Vec::new();
    let start = Instant::now();
    while start.elapsed() < RUN {
        while under_way.len() >= window {
            let (seq, since) = under_way[0];
            bench.wait(seq);
            waits.push(since.elapsed());
            under_way.pop_front();
        }
        batch.extend((0..size).map(|_| bench.enqueue()));
        while taken + lag + size <= bench.next {
            taken += 1;
            batch.push(dequeue(taken));
        }
        under_way.push_back((bench.storage.submit(&mut batch), Instant::now()));
    }
    bench.finish(name, start, waits);
}

/// One message at a time on an idle store, each durable before the next.
fn sparse(path: &Path) {
    let mut bench = Bench::open(path, &Options::default());
    let mut waits = Vec::new();
    let start = Instant::now();
    for _ in 0..1_000 {
        let op = bench.enqueue();
        let since = Instant::now();
        let seq = bench.storage.submit(&mut vec![op]);
        bench.wait(seq);
        waits.push(since.elapsed());
    }
    bench.finish("one message at a time", start, waits);
}

fn restore(path: &Path, messages: u64) {
    let mut bench = Bench::open(path, &Options::default());
    for _ in 0..messages / 1_000 {
        let mut batch: Vec<Op> = (0..1_000).map(|_| bench.enqueue()).collect();
        bench.storage.submit(&mut batch);
    }
    bench.storage.close().unwrap();
    drop(bench);
    let timed = |what| {
        let start = Instant::now();
        let (storage, restored) =
            SqliteStorage::open(path, &Options::default(), Box::new(|| ())).unwrap();
        println!(
            "restore of {} queued messages, {what}: {:?}",
            restored.queued.len(),
            start.elapsed()
        );
        storage
    };
    // What a crash leaves behind: the mark in the file is still "in use".
    let copy = path.with_extension("copy");
    let storage = timed("after a clean end");
    std::fs::copy(path, &copy).unwrap();
    std::fs::copy(path.with_extension("db-wal"), copy.with_extension("copy-wal")).unwrap();
    drop(storage);
    let start = Instant::now();
    let (_storage, restored) =
        SqliteStorage::open(&copy, &Options::default(), Box::new(|| ())).unwrap();
    println!(
        "restore of {} queued messages, after a crash: {:?}",
        restored.queued.len(),
        start.elapsed()
    );
}

fn main() {
    let folder = std::env::args().skip(1).find(|a| !a.starts_with("--"));
    let folder = folder.map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).unwrap();
    let path = |name: &str| folder.path().join(format!("{name}.db"));
    sparse(&path("sparse"));
    for interval_ms in [0, 1, 2, 5] {
        let options =
            Options { commit_interval: Duration::from_millis(interval_ms), ..Options::default() };
        let name = |what: &str| format!("{what}, interval {interval_ms} ms");
        flood(
            &path(&format!("a{interval_ms}")),
            &name("all written (lag 20,000)"),
            &options,
            64,
            32,
            20_000,
        );
        flood(
            &path(&format!("b{interval_ms}")),
            &name("50 publishers, 1 message each"),
            &options,
            50,
            1,
            50,
        );
        flood(
            &path(&format!("c{interval_ms}")),
            &name("taken in the next turn"),
            &options,
            64,
            32,
            32,
        );
    }
    restore(&path("restore"), 1_000_000);
}

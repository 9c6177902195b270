//! Streams in simulated time: data arrives in order whatever the link does, losses are reported, and memory stays
//! within limits.
#![allow(clippy::unwrap_used, missing_docs)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::SenderConfig;
use fulmar_bulk::encryption::{ReceiverEncryption, Secret, SenderEncryption};
use fulmar_bulk::stream::{
    Piece, STREAM_BLOCK_SYMBOLS, StreamConfig, StreamEvent, StreamReceiver, StreamReceiverConfig,
    StreamSender,
};

const MS: Duration = Duration::from_millis(1);

/// A datagram: arrival time, order, receiver (`None` is the sender), bytes.
type Flying = (Duration, u64, Option<usize>, Vec<u8>);

/// The data that one receiver has read.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    /// For each gap: the bytes read before it, and the number of lost bytes.
    gaps: Vec<(usize, Option<u32>)>,
    /// Delays of messages, if the source sends one per tick.
    delays: Vec<Duration>,
    ended: bool,
}

struct Scene {
    seed: u64,
    loss: f64,
    delay: Duration,
    config: StreamConfig,
    receiver: StreamReceiverConfig,
    receivers: usize,
    /// When each receiver joins.
    joins: fn(usize) -> Duration,
    /// Receivers do not read during this time.
    pause: std::ops::Range<Duration>,
    /// Bytes of a message, the interval of messages (without one, as fast as possible), and their number.
    message: usize,
    every: Option<Duration>,
    messages: usize,
    until: Duration,
    encrypted: bool,
}

fn config(rate: u64) -> StreamConfig {
    let sender = SenderConfig {
        rate_bytes_per_s: rate,
        symbol_bytes: 1400,
        block_symbols: STREAM_BLOCK_SYMBOLS,
        parity_symbols: 223,
        ..SenderConfig::default()
    };
    StreamConfig { sender, buffer_bytes: 2 << 20, push: false }
}

impl Default for Scene {
    fn default() -> Self {
        Scene {
            seed: 1,
            loss: 0.0,
            delay: 25 * MS,
            config: config(1_250_000),
            receiver: StreamReceiverConfig::default(),
            receivers: 1,
            joins: |_| Duration::ZERO,
            pause: Duration::ZERO..Duration::ZERO,
            message: 1000,
            every: None,
            messages: 1000,
            until: Duration::from_secs(120),
            encrypted: false,
        }
    }
}

/// A message: its number and time, then bytes derived from the number.
fn message(number: usize, now: Duration, bytes: usize) -> Vec<u8> {
    let mut text = format!("{number:08} {:012} ", now.as_micros()).into_bytes();
    text.resize(bytes - 1, b'a' + (number % 26) as u8);
    text.push(b'\n');
    text
}

struct Outcome {
    readers: Vec<Reader>,
    written: Vec<u8>,
    events: Vec<StreamEvent>,
    sent_bytes: u64,
    receivers: Vec<StreamReceiver>,
    ended_at: Option<Duration>,
    most_taken: usize,
}

impl Scene {
    fn play(&self) -> Outcome {
        let secret = Secret::new([7; 32]);
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut sender = StreamSender::new(self.config.clone(), Duration::ZERO).unwrap();
        let mut sender_encryption = SenderEncryption::new(&secret, [1; 8]);
        let mut receivers: Vec<StreamReceiver> = (0..self.receivers)
            .map(|n| {
                let (node, seed) = (100 + n as u32, self.seed + n as u64);
                let encrypted = self.encrypted;
                StreamReceiver::new(StreamReceiverConfig {
                    node,
                    seed,
                    encrypted,
                    ..self.receiver.clone()
                })
            })
            .collect();
        let mut ends: Vec<ReceiverEncryption> = (0..self.receivers)
            .map(|n| ReceiverEncryption::new(secret.receiver(100 + n as u32), [2 + n as u8; 8]))
            .collect();
        let address: SocketAddr = "192.0.2.1:6003".parse().unwrap();
        let mut readers: Vec<Reader> = (0..self.receivers).map(|_| Reader::default()).collect();
        let mut air: BinaryHeap<Reverse<Flying>> = BinaryHeap::new();
        let (mut written, mut events, mut count) = (Vec::new(), Vec::new(), 0u64);
        let (mut pending, mut made, mut closed) = (VecDeque::new(), 0, false);
        let (mut now, mut ended_at, mut most_taken) = (Duration::ZERO, None, 0);
        let (mut out, mut encrypted) = (Vec::new(), Vec::new());
        while now < self.until {
            // The source.
            let due = |made: usize| self.every.is_none_or(|every| now >= every * made as u32);
            while pending.is_empty() && made < self.messages && due(made) && sender.has_room() {
                pending.extend(message(made, now, self.message));
                made += 1;
                sender.end_message();
                let taken = sender.write(pending.make_contiguous());
                written.extend(pending.drain(..taken));
                if self.every.is_some() {
                    sender.flush();
                }
            }
            if !pending.is_empty() {
                let taken = sender.write(pending.make_contiguous());
                written.extend(pending.drain(..taken));
            }
            most_taken = most_taken
                .max(written.len() - readers.iter().map(|r| r.bytes.len()).min().unwrap_or(0));
            if made == self.messages && pending.is_empty() && !closed {
                closed = sender.close();
            }
            while sender.poll_transmit(now, &mut out) {
                let datagram = if self.encrypted {
                    sender_encryption.encrypt(&out, &mut encrypted).unwrap();
                    encrypted.clone()
                } else {
                    out.clone()
                };
                for n in 0..self.receivers {
                    if random.f64() >= self.loss && now >= (self.joins)(n) {
                        count += 1;
                        air.push(Reverse((now + self.delay, count, Some(n), datagram.clone())));
                    }
                }
            }
            for (n, receiver) in receivers.iter_mut().enumerate() {
                while !self.pause.contains(&now)
                    && let Some(piece) = receiver.read()
                {
                    readers[n].take(piece, now, self.message);
                }
                while receiver.poll_transmit(now, &mut out).is_some() {
                    let datagram = if self.encrypted {
                        ends[n].encrypt(&out, &mut encrypted).unwrap();
                        encrypted.clone()
                    } else {
                        out.clone()
                    };
                    if random.f64() >= self.loss {
                        count += 1;
                        air.push(Reverse((now + self.delay, count, None, datagram)));
                    }
                }
            }
            while let Some(event) = sender.poll_event() {
                if matches!(event, StreamEvent::Ended { .. }) {
                    ended_at = Some(now);
                }
                events.push(event);
            }
            if ended_at.is_some() {
                break;
            }
            now += MS / 2;
            while air.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Some(Reverse((_, _, to, mut datagram))) = air.pop() else { break };
                match to {
                    None if self.encrypted => {
                        if let Ok(message) = sender_encryption.decrypt(&mut datagram) {
                            sender.receive(now, message);
                        }
                    }
                    None => sender.receive(now, &datagram),
                    Some(n) if self.encrypted => {
                        if let Ok(message) = ends[n].decrypt(&mut datagram) {
                            receivers[n].receive(now, address, message);
                        }
                    }
                    Some(n) => receivers[n].receive(now, address, &datagram),
                }
            }
        }
        for (n, receiver) in receivers.iter_mut().enumerate() {
            while let Some(piece) = receiver.read() {
                readers[n].take(piece, now, self.message);
            }
        }
        let sent_bytes = sender.progress().sent_bytes;
        Outcome { readers, written, events, sent_bytes, receivers, ended_at, most_taken }
    }
}

impl Reader {
    fn take(&mut self, piece: Piece, now: Duration, length: usize) {
        match piece {
            Piece::Data(bytes) => self.bytes.extend(bytes),
            Piece::Lost(bytes) => self.gaps.push((self.bytes.len(), bytes)),
            Piece::End => self.ended = true,
        }
        while self.gaps.is_empty() && self.bytes.len() >= (self.delays.len() + 1) * length {
            let text = &self.bytes[self.delays.len() * length..][9..21];
            let sent: u64 = std::str::from_utf8(text).unwrap().parse().unwrap();
            self.delays.push(now.saturating_sub(Duration::from_micros(sent)));
        }
    }
}

impl Outcome {
    fn assert_whole(&self, what: &str) {
        for (n, reader) in self.readers.iter().enumerate() {
            assert!(
                reader.bytes == self.written,
                "{what}, {n}: {} of {}",
                reader.bytes.len(),
                self.written.len()
            );
            assert!(reader.ended && reader.gaps.is_empty(), "{what}, {n}: {:?}", reader.gaps);
        }
        assert!(
            self.events.contains(&StreamEvent::Ended { complete: true }),
            "{what}: {:?}",
            self.events
        );
    }
}

#[test]
fn everything_arrives_in_order_whatever_is_lost() {
    for loss in [0.0, 0.05, 0.2, 0.5, 0.65] {
        for encrypted in [false, true] {
            let scene = Scene { loss, encrypted, messages: 3000, ..Scene::default() };
            let outcome = scene.play();
            outcome.assert_whole(&format!("{loss}, {encrypted}"));
            let seconds = outcome.ended_at.unwrap().as_secs_f64();
            let share = 3_000_000.0 / (1.0 - loss) / 1_250_000.0 / seconds;
            eprintln!(
                "loss {loss} encrypted {encrypted}: {seconds:.2} s, {:.0} % of the limit",
                share * 100.0
            );
            assert!(share > 0.6, "{loss}: {share}");
        }
    }
}

#[test]
fn messages_that_trickle_are_not_held_up_long() {
    for seed in 1..4 {
        for (loss, mean, most) in [(0.0, 26, 30), (0.2, 45, 200), (0.5, 80, 400)] {
            let scene = Scene {
                seed,
                loss,
                message: 200,
                every: Some(20 * MS),
                messages: 1500,
                ..Scene::default()
            };
            let outcome = scene.play();
            outcome.assert_whole(&loss.to_string());
            let mut delays = outcome.readers[0].delays.clone();
            delays.sort();
            let sum: Duration = delays.iter().sum();
            let (average, late) = (sum / delays.len() as u32, delays[delays.len() * 99 / 100]);
            eprintln!(
                "loss {loss}: mean {average:?}, 99 % {late:?}, sent {:.1} times",
                outcome.sent_bytes as f64 / outcome.written.len() as f64
            );
            assert!(average < mean * MS && late < most * MS, "{loss}: {average:?} {late:?}");
        }
    }
}

#[test]
fn a_group_is_served_by_one_transmission() {
    let mut config = config(1_250_000);
    (config.sender.backoff, config.sender.receivers) = (1, 5);
    let scene = Scene { loss: 0.2, config, receivers: 5, messages: 3000, ..Scene::default() };
    let outcome = scene.play();
    outcome.assert_whole("group");
    assert!(outcome.sent_bytes < 6_000_000, "{}", outcome.sent_bytes);
}

#[test]
fn who_comes_late_begins_with_a_message() {
    let mut config = config(1_250_000);
    config.buffer_bytes = 300_000;
    let scene = Scene {
        loss: 0.1,
        config,
        receivers: 2,
        joins: |n| if n == 1 { Duration::from_secs(4) } else { Duration::ZERO },
        message: 300,
        every: Some(5 * MS),
        messages: 4000,
        ..Scene::default()
    };
    let outcome = scene.play();
    let [first, late] = [&outcome.readers[0], &outcome.readers[1]];
    assert!(first.bytes == outcome.written && first.gaps.is_empty());
    assert!(late.ended && late.gaps.is_empty(), "{:?}", late.gaps);
    let got = late.bytes.len();
    assert!(got > 300 * 2000 && got < outcome.written.len() && got.is_multiple_of(300), "{got}");
    assert!(outcome.written.ends_with(&late.bytes));
    assert!(outcome.receivers[1].progress().late);
}

#[test]
fn who_reads_slowly_holds_the_source_up_and_loses_nothing() {
    let mut config = config(1_250_000);
    config.buffer_bytes = 400_000;
    let pause = Duration::from_secs(1)..Duration::from_secs(6);
    let scene = Scene { loss: 0.2, config, pause, messages: 3000, ..Scene::default() };
    let outcome = scene.play();
    outcome.assert_whole("slow");
    assert!(outcome.most_taken < 600_000, "{}", outcome.most_taken);
}

#[test]
fn who_pushes_is_not_held_up_and_who_falls_behind_is_told() {
    let mut config = config(1_250_000);
    (config.buffer_bytes, config.push) = (400_000, true);
    let receiver =
        StreamReceiverConfig { buffer_bytes: 400_000, ..StreamReceiverConfig::default() };
    let scene = Scene {
        loss: 0.2,
        config,
        receiver,
        pause: Duration::from_secs(1)..Duration::from_secs(6),
        message: 1000,
        every: Some(2 * MS),
        messages: 5000,
        ..Scene::default()
    };
    let outcome = scene.play();
    let reader = &outcome.readers[0];
    assert_eq!(outcome.written.len(), 5_000_000, "all was taken at once");
    assert!(reader.ended && !reader.gaps.is_empty());
    let lost: usize = reader.gaps.iter().map(|(_, bytes)| bytes.unwrap() as usize).sum();
    let progress = outcome.receivers[0].progress();
    assert_eq!((progress.gaps as usize, progress.lost_bytes as usize), (reader.gaps.len(), lost));
    assert_eq!(reader.bytes.len() + lost, outcome.written.len(), "what is missing was told");
    // After each gap a message begins.
    for &(at, _) in &reader.gaps {
        assert!(reader.bytes[at..].len() < 9 || reader.bytes[at + 8] == b' ', "at {at}");
    }
    assert!(outcome.written.ends_with(&reader.bytes[reader.gaps.last().unwrap().0..]));
}

#[test]
fn without_a_receiver_it_ends_and_says_so() {
    let mut config = config(1_250_000);
    config.sender.patience = Duration::from_secs(2);
    let scene = Scene { loss: 1.0, config, ..Scene::default() };
    let outcome = scene.play();
    assert_eq!(outcome.events, [StreamEvent::Ended { complete: false }]);
    assert!(outcome.ended_at.unwrap() < Duration::from_secs(4), "{:?}", outcome.ended_at);
}

#[test]
fn garbage_is_counted_and_does_no_harm() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut receiver = StreamReceiver::new(StreamReceiverConfig::default());
    let mut sender = StreamSender::new(config(1_000_000), Duration::ZERO).unwrap();
    sender.write(&vec![7; 100_000]);
    sender.flush();
    let from: SocketAddr = "192.0.2.1:6003".parse().unwrap();
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    for _ in 0..20_000 {
        now += MS;
        if sender.poll_transmit(now, &mut out) {
            let mut datagram = out.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..datagram.len().min(60));
                datagram[at] = random.u8(..);
            }
            receiver.receive(now, from, &datagram);
            while receiver.read().is_some() {}
        }
        if receiver.poll_transmit(now, &mut out).is_some() {
            let at = random.usize(..out.len());
            out[at] = random.u8(..);
            sender.receive(now, &out);
        }
    }
    assert!(receiver.progress().strange > 0);
}

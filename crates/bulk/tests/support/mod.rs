//! A sender and receivers in simulated time, with a bad link to each: loss, delay, jitter (and so
//! reordering), duplication and corruption, all drawn from one seed.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each of those that include this uses a part of it, and it is no library's interface"
)]

pub mod bbr;
pub mod cubic;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bbr::Bbr;
use cubic::{Cubic, PACKET_BYTES};
use fulmar_bulk::{
    Kind, ObjectKey, Partition, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig,
    SenderEvent, SenderProgress, Storage,
};

/// The impairments of a link, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    pub delay: Duration,
    pub jitter: Duration,
    /// The link's rate towards the receivers in bytes per second, and the size of its queue; `None` is no limit.
    pub bottleneck: Option<(f64, f64)>,
    /// The longest time for which the link stalls now and then, because the machine is busy.
    pub stalls: Duration,
}

/// About how often it stalls.
const STALLS_EVERY: Duration = Duration::from_millis(200);

impl Default for Link {
    fn default() -> Self {
        let (delay, jitter) = (Duration::from_millis(25), Duration::ZERO);
        Link {
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            delay,
            jitter,
            bottleneck: None,
            stalls: Duration::ZERO,
        }
    }
}

/// Objects in memory. The info is the object's checksum, as in the program.
#[derive(Debug, Default)]
pub struct Memory {
    pub open: HashMap<ObjectKey, Vec<u8>>,
    pub complete: HashMap<u16, Vec<u8>>,
    pub refused: usize,
    /// The objects that an earlier run left, by their info: complete blocks, and all bytes.
    pub earlier: HashMap<Vec<u8>, (Vec<u32>, Vec<u8>)>,
    /// Nothing is stored under its name, as on a full disk.
    pub full: bool,
    /// Blocks reported complete.
    pub kept: usize,
    pub prefix: HashMap<ObjectKey, u64>,
}

/// FNV-1a, which is enough to detect differences.
pub fn checksum(bytes: &[u8]) -> Vec<u8> {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).to_be_bytes().to_vec()
}

impl Storage for Memory {
    fn open(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()> {
        // A file of that length may be sparse; memory may not.
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes <= 64 << 20);
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        // Unwritten bytes must not look like written ones.
        self.open.insert(object, vec![0xEE; bytes]);
        Ok(())
    }

    fn identify(
        &mut self,
        object: ObjectKey,
        info: &[u8],
        _parts: &Partition,
    ) -> io::Result<Vec<u32>> {
        let Some((blocks, bytes)) = self.earlier.remove(info) else { return Ok(Vec::new()) };
        self.open.insert(object, bytes);
        self.prefix.remove(&object);
        Ok(blocks)
    }

    fn block_complete(
        &mut self,
        _object: ObjectKey,
        _parts: &Partition,
        _block: u32,
    ) -> io::Result<()> {
        self.kept += 1;
        Ok(())
    }

    fn write(&mut self, object: ObjectKey, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = offset as usize;
        assert!(
            offset as u64 >= *self.prefix.get(&object).unwrap_or(&0),
            "what is done was changed"
        );
        self.open.get_mut(&object).unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, object: ObjectKey, offset: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.open[&object][offset as usize..][..to.len()]);
        Ok(())
    }

    fn advance(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()> {
        assert!(bytes <= self.open[&object].len() as u64);
        let before = self.prefix.insert(object, bytes);
        assert!(before.unwrap_or(0) < bytes, "an advance goes on");
        Ok(())
    }

    fn finish(&mut self, object: ObjectKey, info: &[u8]) -> io::Result<()> {
        if self.full || !info.is_empty() && checksum(&self.open[&object]) != info {
            self.refused += 1;
            return Err(io::Error::other("another checksum"));
        }
        self.complete.insert(object.object, self.open.remove(&object).unwrap());
        self.prefix.remove(&object);
        Ok(())
    }

    fn abandon(&mut self, object: ObjectKey) {
        self.open.remove(&object);
        self.prefix.remove(&object);
    }
}

/// The result of a run.
pub struct Outcome {
    /// When the sender ended, and whether it reports that all receivers have everything.
    pub ended: Option<(Duration, bool)>,
    pub sender: SenderProgress,
    pub receivers: Vec<Receiver<Memory>>,
    /// When each receiver had completed its last object.
    pub completed_at: Vec<Duration>,
    pub failed: usize,
    /// Datagrams that the bottleneck's queue dropped.
    pub dropped: u64,
    /// Bytes that the TCP flow delivered while the sender sent.
    pub tcp_bytes: u64,
}

/// The settings of a run.
pub struct Scene {
    pub seed: u64,
    pub link: Link,
    pub sender: SenderConfig,
    pub receiver: ReceiverConfig,
    pub receivers: usize,
    /// When each receiver joins.
    pub joins: fn(usize) -> Duration,
    pub objects: Vec<Vec<u8>>,
    /// The objects that receivers have at the beginning.
    pub storage: fn(&Scene) -> Memory,
    pub until: Duration,
    /// When the sender begins.
    pub begins: Duration,
    /// A TCP flow through the same bottleneck, from the beginning on.
    pub tcp: Option<Congestion>,
}

impl Default for Scene {
    fn default() -> Self {
        let sender = SenderConfig { rate_bytes_per_s: 1_250_000, ..SenderConfig::default() };
        Scene {
            seed: 1,
            link: Link::default(),
            sender,
            receiver: ReceiverConfig::default(),
            receivers: 1,
            joins: |_| Duration::ZERO,
            objects: Vec::new(),
            storage: |_| Memory::default(),
            until: Duration::from_secs(300),
            begins: Duration::ZERO,
            tcp: None,
        }
    }
}

/// The congestion control of a TCP flow.
#[derive(Clone, Copy, Debug)]
pub enum Congestion {
    Cubic,
    Bbr,
}

enum Tcp {
    Cubic(Cubic),
    Bbr(Bbr),
}

impl Tcp {
    fn new(congestion: Congestion) -> Tcp {
        match congestion {
            Congestion::Cubic => Tcp::Cubic(Cubic::default()),
            Congestion::Bbr => Tcp::Bbr(Bbr::default()),
        }
    }

    /// When the next packet may be sent, unless acknowledgements must arrive first.
    fn next(&self) -> Option<Duration> {
        match self {
            Tcp::Cubic(cubic) => cubic.may_send().then_some(Duration::ZERO),
            Tcp::Bbr(bbr) => bbr.next(),
        }
    }

    fn sent(&mut self, now: Duration) {
        match self {
            Tcp::Cubic(cubic) => cubic.sent(),
            Tcp::Bbr(bbr) => bbr.sent(now),
        }
    }

    fn acknowledged(&mut self, now: Duration, rtt: Duration) {
        match self {
            Tcp::Cubic(cubic) => cubic.acknowledged(now, rtt),
            Tcp::Bbr(bbr) => bbr.acknowledged(now, rtt),
        }
    }

    fn lost(&mut self, now: Duration, rtt: Duration) {
        match self {
            Tcp::Cubic(cubic) => cubic.lost(now, rtt),
            Tcp::Bbr(bbr) => bbr.lost(now),
        }
    }

    fn delivered_bytes(&self) -> u64 {
        match self {
            Tcp::Cubic(cubic) => cubic.delivered_bytes,
            Tcp::Bbr(bbr) => bbr.delivered_bytes,
        }
    }
}

/// Bytes that differ everywhere.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noise = vec![0; bytes];
    random.fill(&mut noise);
    noise
}

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 6003))
}

/// A datagram in flight: arrival time, number, destination (0 is the sender), bytes.
type Flying = (Duration, u64, usize, Vec<u8>);

/// The destination of the TCP flow's acknowledgements; their bytes are the time at which the packet was sent.
const TCP_ACKNOWLEDGEMENT: usize = usize::MAX;
const TCP_LOSS: usize = usize::MAX - 1;

struct Net {
    link: Link,
    random: fastrand::Rng,
    flying: BinaryHeap<Reverse<Flying>>,
    count: u64,
    /// When the bottleneck's queue will be empty.
    idle_at: Duration,
    dropped: u64,
    tcp: Option<Tcp>,
    /// The beginning and end of the latest stall.
    stall: (Duration, Duration),
}

impl Net {
    /// How long a datagram waits in the bottleneck's queue; `None` if there is no room.
    fn queue(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let Some((rate, room)) = self.link.bottleneck else { return Some(Duration::ZERO) };
        let waits = self.idle_at.saturating_sub(now);
        if waits.as_secs_f64() * rate > room {
            self.dropped += 1;
            return None;
        }
        let waits = waits + Duration::from_secs_f64((bytes + 28) as f64 / rate);
        self.idle_at = now + waits;
        Some(waits)
    }

    /// When a datagram that is ready at this time arrives.
    fn after_stall(&mut self, at: Duration) -> Duration {
        if self.link.stalls.is_zero() {
            return at;
        }
        while at > self.stall.1 {
            let from = self.stall.1 + STALLS_EVERY.mul_f64(2.0 * self.random.f64());
            // Most stalls are short.
            self.stall = (from, from + self.link.stalls.mul_f64(self.random.f64().powi(3)));
        }
        if at >= self.stall.0 { self.stall.1 } else { at }
    }

    /// Sends the packets that the TCP flow may send.
    fn send_tcp(&mut self, now: Duration) {
        while self.tcp.as_ref().and_then(Tcp::next).is_some_and(|at| at <= now) {
            let waits = self.queue(now, PACKET_BYTES - 28);
            if let Some(tcp) = &mut self.tcp {
                tcp.sent(now);
            }
            // A loss is detected by a later packet, which waits in a full queue.
            let (to, rtt) = match waits {
                Some(waits) => (TCP_ACKNOWLEDGEMENT, waits + 2 * self.link.delay),
                None => (TCP_LOSS, self.idle_at.saturating_sub(now) + 2 * self.link.delay),
            };
            self.count += 1;
            self.flying.push(Reverse((
                now + rtt,
                self.count,
                to,
                now.as_nanos().to_be_bytes().to_vec(),
            )));
        }
    }

    fn hear_tcp(&mut self, now: Duration, to: usize, sent: &[u8]) {
        let sent = u128::from_be_bytes(sent.try_into().unwrap());
        let rtt = now - Duration::from_nanos(sent as u64);
        let Some(tcp) = &mut self.tcp else { return };
        if to == TCP_LOSS { tcp.lost(now, rtt) } else { tcp.acknowledged(now, rtt) }
    }

    fn send(&mut self, now: Duration, to: usize, datagram: &[u8]) {
        let waits = if to == 1 { self.queue(now, datagram.len()) } else { Some(Duration::ZERO) };
        let Some(waits) = waits else { return };
        let copies = 1 + usize::from(self.random.f64() < self.link.duplicate);
        for _ in 0..copies {
            if self.random.f64() < self.link.loss {
                continue;
            }
            let mut datagram = datagram.to_vec();
            if self.random.f64() < self.link.corrupt {
                let at = self.random.usize(..datagram.len());
                datagram[at] ^= 1 << self.random.u8(..8);
            }
            let at = now + waits + self.link.delay + self.link.jitter.mul_f64(self.random.f64());
            let at = self.after_stall(at);
            self.count += 1;
            self.flying.push(Reverse((at, self.count, to, datagram)));
        }
    }
}

impl Scene {
    /// Runs until the sender ends or the time is over.
    pub fn play(&self) -> Outcome {
        let mut sender = Sender::new(self.sender.clone(), self.begins).unwrap();
        for object in &self.objects {
            let (bytes, info) = (object.len() as u64, checksum(object));
            sender.add(object.clone(), bytes, info, Kind::Memory).unwrap();
        }
        sender.finish();
        let receiver = |number: usize| {
            let node = 100 + number as u32;
            let seed = self.seed + number as u64;
            let config = ReceiverConfig { node, seed, ..self.receiver.clone() };
            Receiver::new(config, (self.storage)(self))
        };
        let receivers = (0..self.receivers).map(receiver).collect();
        let random = fastrand::Rng::with_seed(self.seed);
        let net = Net {
            link: self.link,
            random,
            flying: BinaryHeap::new(),
            count: 0,
            idle_at: Duration::ZERO,
            dropped: 0,
            tcp: self.tcp.map(Tcp::new),
            stall: (Duration::ZERO, Duration::ZERO),
        };
        let completed_at = vec![Duration::ZERO; self.receivers];
        self.run(sender, receivers, net, completed_at)
    }

    fn run(
        &self,
        mut sender: Sender<Vec<u8>>,
        mut receivers: Vec<Receiver<Memory>>,
        mut net: Net,
        mut completed_at: Vec<Duration>,
    ) -> Outcome {
        let (mut ended, mut failed, mut out) = (None, 0, Vec::new());
        let (mut now, mut tcp_before) = (Duration::ZERO, None);
        while ended.is_none() && now < self.until {
            net.send_tcp(now);
            let tcp_bytes = net.tcp.as_ref().map_or(0, Tcp::delivered_bytes);
            if now >= self.begins {
                tcp_before.get_or_insert(tcp_bytes);
            }
            while sender.poll_transmit(now, &mut out) {
                for number in 0..receivers.len() {
                    net.send(now, number + 1, &out);
                }
            }
            for (number, receiver) in receivers.iter_mut().enumerate() {
                while receiver.poll_transmit(now, &mut out).is_some() {
                    net.send(now, 0, &out);
                }
                while let Some(event) = receiver.poll_event() {
                    match event {
                        ReceiverEvent::Complete(..) => completed_at[number] = now,
                        ReceiverEvent::Failed(..) => failed += 1,
                        _ => {}
                    }
                }
            }
            while let Some(event) = sender.poll_event() {
                if let SenderEvent::Ended { complete } = event {
                    ended = Some((now, complete));
                }
            }
            let deadlines = receivers.iter().filter_map(Receiver::deadline);
            let next = net.flying.peek().map(|Reverse((at, ..))| *at);
            let tcp = net.tcp.as_ref().and_then(Tcp::next);
            let next = deadlines.chain(sender.deadline()).chain(next).chain(tcp).min();
            let Some(next) = next else { break };
            now = now.max(next);
            while let Some(Reverse((at, ..))) = net.flying.peek()
                && *at <= now
            {
                let Some(Reverse((_, _, to, datagram))) = net.flying.pop() else { break };
                if to >= TCP_LOSS {
                    net.hear_tcp(now, to, &datagram);
                    continue;
                }
                match to.checked_sub(1) {
                    None => sender.receive(now, &datagram),
                    Some(number) if now < (self.joins)(number) => {}
                    Some(number) => receivers[number].receive(now, address(), &datagram),
                }
            }
        }
        let sender = sender.progress();
        let tcp_bytes = net.tcp.as_ref().map_or(0, Tcp::delivered_bytes) - tcp_before.unwrap_or(0);
        Outcome { ended, sender, receivers, completed_at, failed, dropped: net.dropped, tcp_bytes }
    }
}

impl Outcome {
    /// Checks that every receiver has every object, byte by byte, and that the sender knows.
    pub fn assert_complete(&mut self, scene: &Scene) {
        let (seed, link) = (scene.seed, scene.link);
        for (number, receiver) in self.receivers.iter_mut().enumerate() {
            let progress = receiver.progress();
            let complete = &receiver.storage().complete;
            for (id, object) in scene.objects.iter().enumerate() {
                let got = complete.get(&(id as u16));
                let what = format!("seed {seed}, receiver {number}, object {id}, {link:?}");
                assert!(got.is_some(), "{what} is missing: {progress:?} {:?}", self.sender);
                assert!(got == Some(object), "{what} differs");
            }
        }
        assert!(
            matches!(self.ended, Some((_, true))),
            "seed {seed}: {:?} {:?}",
            self.ended,
            self.sender
        );
    }
}

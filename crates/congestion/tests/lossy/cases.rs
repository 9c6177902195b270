//! What thin connections do: messages now and then, requests and answers in succession, one request each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fulmar_congestion::copies::Copied;
use quinn_proto::{Connection, Dir, StreamId};

use super::{Keys, Mode, Pair, Path};

/// A message of 64 bytes with MQTT's header.
const MESSAGE_BYTES: usize = 72;
/// Acknowledgement.
const ANSWER_BYTES: usize = 4;
/// A line of a live stream.
const LINE_BYTES: usize = 200;
const TOPICS: usize = 4;
const PERIOD: Duration = Duration::from_millis(20);
/// Steps that no run needs.
const MOST_STEPS: usize = 10_000_000;

/// What was sent by all ends of a run, and copies of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) sent: Copied,
    pub(crate) copied: Copied,
}

impl Cost {
    fn add(&mut self, pair: &Pair) {
        for end in &pair.ends {
            for (sum, part) in [(&mut self.sent, end.sent), (&mut self.copied, end.copied)] {
                sum.datagrams += part.datagrams;
                sum.bytes += part.bytes;
            }
        }
    }
}

/// Lets time pass until `work` says that it is done. It is asked after everything that happens, and says when else.
fn run(
    pairs: &mut [Pair],
    now: &mut Duration,
    mut work: impl FnMut(&mut [Pair], Duration) -> Option<Duration>,
) {
    for _ in 0..MOST_STEPS {
        let Some(own) = work(pairs, *now) else { return };
        for pair in &mut *pairs {
            pair.act(*now);
        }
        let next = pairs.iter_mut().filter_map(Pair::next).min().map_or(own, |next| next.min(own));
        assert!(next < Duration::MAX, "nothing happens any more");
        *now = next.max(*now);
        for pair in &mut *pairs {
            pair.act(*now);
        }
    }
    panic!("it never ends");
}

fn inner(pair: &mut Pair, end: usize) -> Option<&mut Connection> {
    pair.ends[end].connection.as_mut().map(|(_, connection)| connection)
}

/// Everything that can be read, by stream; streams the other end opens are accepted.
fn read(connection: &mut Connection, into: &mut HashMap<StreamId, Vec<u8>>) {
    while connection.poll().is_some() {}
    while let Some(id) = connection.streams().accept(Dir::Bi) {
        into.entry(id).or_default();
    }
    for (id, bytes) in into {
        let mut stream = connection.recv_stream(*id);
        let Ok(mut chunks) = stream.read(true) else { continue };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            bytes.extend_from_slice(&chunk.bytes);
        }
        let _ = chunks.finalize();
    }
}

/// The whole packets of this size at the beginning.
fn packets(bytes: &mut Vec<u8>, size: usize) -> Vec<Vec<u8>> {
    let whole = bytes.len() / size * size;
    bytes.drain(..whole).collect::<Vec<_>>().chunks(size).map(<[u8]>::to_vec).collect()
}

fn open(connection: &mut Connection) -> StreamId {
    connection.streams().open(Dir::Bi).unwrap()
}

fn write(connection: &mut Connection, id: StreamId, bytes: &[u8]) {
    assert_eq!(connection.send_stream(id).write(bytes).unwrap(), bytes.len());
}

fn is_up(pair: &mut Pair) -> bool {
    (0..2).all(|end| inner(pair, end).is_some_and(|inner| !inner.is_handshaking()))
}

/// Messages each 20 ms on four topics from a client by way of a broker to another: how long each takes, in milliseconds.
pub(crate) fn thin(
    keys: &Keys,
    path: Path,
    mode: Mode,
    messages: usize,
    seed: u64,
) -> (Vec<f64>, Cost) {
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut pairs =
        [0, 1].map(|hop| Pair::new(keys, path, mode, None, (start, now), 2 * seed + hop));
    pairs.iter_mut().for_each(|pair| pair.loses = false);
    let (mut up, mut down): (Vec<StreamId>, Vec<StreamId>) = Default::default();
    let (mut at_broker, mut at_end) = (HashMap::new(), HashMap::new());
    let mut subscriptions = HashMap::new();
    let (mut begun, mut written) = (None, 0);
    let mut took = vec![None; messages];
    run(&mut pairs, &mut now, |pairs, now| {
        if !pairs.iter_mut().all(is_up) {
            return Some(Duration::MAX);
        }
        let [publisher, subscriber] = pairs else { unreachable!() };
        if up.is_empty() {
            up = (0..TOPICS).map(|_| open(inner(publisher, 0).unwrap())).collect();
            for _ in 0..TOPICS {
                let own = inner(subscriber, 0).unwrap();
                let id = open(own);
                write(own, id, b"s");
                down.push(id);
                at_end.insert(id, Vec::new());
            }
            begun = Some(now + Duration::from_secs(1));
        }
        let begun = begun.unwrap();
        read(inner(subscriber, 1).unwrap(), &mut subscriptions);
        if now >= begun {
            publisher.loses = true;
            subscriber.loses = true;
        }
        let due = |number: usize| begun + PERIOD * u32::try_from(number).unwrap();
        while written < messages && due(written) <= now {
            let mut message = vec![b'x'; MESSAGE_BYTES];
            message[..8].copy_from_slice(&(written as u64).to_be_bytes());
            write(inner(publisher, 0).unwrap(), up[written % TOPICS], &message);
            written += 1;
        }
        read(inner(publisher, 1).unwrap(), &mut at_broker);
        for (id, bytes) in &mut at_broker {
            for packet in packets(bytes, MESSAGE_BYTES) {
                let topic = up.iter().position(|own| own == id).unwrap();
                write(inner(subscriber, 1).unwrap(), down[topic], &packet);
            }
        }
        read(inner(subscriber, 0).unwrap(), &mut at_end);
        for bytes in at_end.values_mut() {
            for packet in packets(bytes, MESSAGE_BYTES) {
                let number = u64::from_be_bytes(packet[..8].try_into().unwrap()) as usize;
                took[number].get_or_insert((now - due(number)).as_secs_f64() * 1e3);
            }
        }
        let left = took.iter().any(Option::is_none);
        left.then(|| if written < messages { due(written) } else { Duration::MAX })
    });
    let mut cost = Cost::default();
    pairs.iter().for_each(|pair| cost.add(pair));
    (took.into_iter().flatten().collect(), cost)
}

/// Requests on one connection, each after the answer to the one before: how long all take, in seconds.
pub(crate) fn succession(
    keys: &Keys,
    path: Path,
    mode: Mode,
    count: usize,
    seed: u64,
) -> (f64, Cost) {
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut pair = [Pair::new(keys, path, mode, None, (start, now), seed)];
    pair[0].loses = false;
    let (mut requests, mut answers) = (HashMap::new(), HashMap::new());
    let (mut asks, mut begun, mut left) = (None, Duration::ZERO, count);
    run(&mut pair, &mut now, |pair, now| {
        let pair = &mut pair[0];
        if !is_up(pair) {
            return Some(Duration::MAX);
        }
        if asks.is_none() {
            pair.loses = true;
            let own = inner(pair, 0).unwrap();
            let id = open(own);
            answers.insert(id, Vec::new());
            write(own, id, &[b'x'; MESSAGE_BYTES]);
            (asks, begun) = (Some(id), now);
        }
        answer(pair, &mut requests);
        let (own, id) = (inner(pair, 0).unwrap(), asks.unwrap());
        read(own, &mut answers);
        for _ in packets(answers.get_mut(&id).unwrap(), ANSWER_BYTES) {
            left -= 1;
            if left > 0 {
                write(own, id, &[b'x'; MESSAGE_BYTES]);
            }
        }
        (left > 0).then_some(Duration::MAX)
    });
    let mut cost = Cost::default();
    cost.add(&pair[0]);
    ((now - begun).as_secs_f64(), cost)
}

/// Lines at a fixed interval on one stream, to an end that sends no copies: how late each arrives, in order and in
/// milliseconds. As `fulmar lab lines` does it.
pub(crate) fn lines(
    keys: &Keys,
    path: Path,
    mode: Mode,
    count: usize,
    seed: u64,
) -> (Vec<f64>, Cost) {
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut pair = [Pair::new(keys, path, mode, None, (start, now), seed)];
    pair[0].ends[1].copier = None;
    pair[0].loses = false;
    let (mut out, mut begun, mut written) = (None, Duration::ZERO, 0);
    let (mut came, mut late) = (HashMap::new(), Vec::new());
    run(&mut pair, &mut now, |pair, now| {
        let pair = &mut pair[0];
        if !is_up(pair) {
            return Some(Duration::MAX);
        }
        if out.is_none() {
            pair.loses = true;
            (out, begun) = (Some(open(inner(pair, 0).unwrap())), now);
        }
        let due = |number: usize| begun + PERIOD * u32::try_from(number).unwrap();
        while written < count && due(written) <= now {
            write(inner(pair, 0).unwrap(), out.unwrap(), &[b'x'; LINE_BYTES]);
            written += 1;
        }
        read(inner(pair, 1).unwrap(), &mut came);
        for bytes in came.values_mut() {
            for _ in packets(bytes, LINE_BYTES) {
                late.push((now - due(late.len())).as_secs_f64() * 1e3);
            }
        }
        let next = if written < count { due(written) } else { Duration::MAX };
        (late.len() < count).then_some(next)
    });
    let mut cost = Cost::default();
    cost.add(&pair[0]);
    (late, cost)
}

/// The server answers each request that has come.
fn answer(pair: &mut Pair, requests: &mut HashMap<StreamId, Vec<u8>>) {
    let Some(server) = inner(pair, 1) else { return };
    read(server, requests);
    for (id, bytes) in requests {
        for _ in packets(bytes, MESSAGE_BYTES) {
            write(server, *id, &[b'a'; ANSWER_BYTES]);
        }
    }
}

/// Requests of a returning client in its first flight, on a new connection each: how long each takes, in milliseconds.
/// Each connection stays until its ticket has come. `server_knows`: so does the server from connections before.
pub(crate) fn exchanges(
    keys: &Keys,
    path: Path,
    mut mode: Mode,
    server_knows: bool,
    count: usize,
    seed: u64,
) -> (Vec<f64>, Cost) {
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let (mut took, mut cost) = (Vec::new(), Cost::default());
    for number in 0..=count {
        let (is_first, begun) = (number == 0, now);
        let round_trip = (!is_first).then_some(2 * path.delay);
        let seed = seed * 1000 + number as u64;
        let mut pair = [Pair::new(keys, path, mode, round_trip, (start, now), seed)];
        pair[0].loses = !is_first;
        let own = inner(&mut pair[0], 0).unwrap();
        assert!(own.has_0rtt() || is_first, "no ticket has come");
        let (mut asks, mut done) = (None, None);
        let (mut requests, mut answers) = (HashMap::new(), HashMap::new());
        run(&mut pair, &mut now, |pair, now| {
            let pair = &mut pair[0];
            let own = inner(pair, 0).unwrap();
            if asks.is_none() && (own.has_0rtt() || !own.is_handshaking()) {
                let id = open(own);
                answers.insert(id, Vec::new());
                write(own, id, &[b'x'; MESSAGE_BYTES]);
                asks = Some(id);
            }
            answer(pair, &mut requests);
            let Some(id) = asks else { return Some(Duration::MAX) };
            read(inner(pair, 0).unwrap(), &mut answers);
            if answers[&id].len() >= ANSWER_BYTES {
                let done = *done.get_or_insert(now);
                // Later messages of the server bring the ticket.
                let rest = done + Duration::from_secs(5);
                return (now < rest).then_some(rest);
            }
            Some(Duration::MAX)
        });
        if !is_first {
            took.push((done.unwrap() - begun).as_secs_f64() * 1e3);
            cost.add(&pair[0]);
        }
        if mode.copies {
            let server = if server_knows { pair[0].known_by_server() } else { 0.0 };
            mode.known = [pair[0].known(), server];
        }
    }
    (took, cost)
}

/// How long a client without a ticket takes from its first datagram to CONNACK, in seconds.
pub(crate) fn connect(keys: &Keys, path: Path, mode: Mode, seed: u64) -> (f64, Cost) {
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut pair = [Pair::new(keys, path, mode, None, (start, now), seed)];
    let (mut requests, mut answers) = (HashMap::new(), HashMap::new());
    let mut asks = None;
    run(&mut pair, &mut now, |pair, _| {
        let pair = &mut pair[0];
        answer(pair, &mut requests);
        let own = inner(pair, 0).unwrap();
        if asks.is_none() && !own.is_handshaking() {
            let id = open(own);
            answers.insert(id, Vec::new());
            write(own, id, &[b'x'; MESSAGE_BYTES]);
            asks = Some(id);
        }
        read(own, &mut answers);
        let is_done = asks.is_some_and(|id| answers[&id].len() >= ANSWER_BYTES);
        (!is_done).then_some(Duration::MAX)
    });
    let mut cost = Cost::default();
    cost.add(&pair[0]);
    (now.as_secs_f64(), cost)
}

//! A server whose address changes, in simulated time: the gap in both directions. And the rules of a search.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ServerConfig, StreamId,
};

use super::*;
use crate::quic::tests::configs;

const MS: Duration = Duration::from_millis(1);
/// A message each way this often.
const INTERVAL: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_secs(30);

/// A silence that is just long enough, on a short path.
fn observed(now: Instant, acks: u64) -> Observed {
    Observed { now, silence: LEAST_SILENCE, round_trip: MS, acks }
}

fn address(last: u8) -> SocketAddr {
    ([192, 0, 2, last], 1).into()
}

struct Site {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    stream: Option<StreamId>,
    /// Messages written and received, each of two bytes, and when the last was received.
    written: u16,
    received: u16,
    partial: Vec<u8>,
    heard_at: Duration,
    /// The longest time between two messages.
    gap: Duration,
}

/// A datagram in flight.
struct Datagram {
    to_server: bool,
    /// The server's address, to which it goes or from which it comes.
    server: SocketAddr,
    client: SocketAddr,
    bytes: Vec<u8>,
}

/// A run's conditions.
#[derive(Clone, Copy, Debug)]
struct Link {
    one_way: Duration,
    loss: f64,
    moves_at: Duration,
    /// The client only receives.
    listens: bool,
}

struct World {
    link: Link,
    start: Instant,
    now: Duration,
    random: fastrand::Rng,
    client: Site,
    server: Site,
    arrivals: BinaryHeap<Reverse<(Duration, usize)>>,
    datagrams: Vec<Option<Datagram>>,
    /// The client's port, its socket's remote address, and that of the socket before.
    local: SocketAddr,
    remote: [SocketAddr; 2],
    /// The address to which the client sent last, as the server has learned it.
    answers_from: SocketAddr,
    unanswered: Unanswered,
    arrivals_seen: Arrivals,
    search: Search,
    silent: bool,
    found: Option<SocketAddr>,
}

impl World {
    fn new(link: Link, seed: u64) -> World {
        let (client, server) = configs();
        let start = Instant::now();
        let site = |server: Option<ServerConfig>| Site {
            endpoint: Endpoint::new(
                Arc::new(EndpointConfig::default()),
                server.map(Arc::new),
                true,
                Some([seed as u8; 32]),
            ),
            connection: None,
            stream: None,
            written: 0,
            received: 0,
            partial: Vec::new(),
            heard_at: Duration::ZERO,
            gap: Duration::ZERO,
        };
        let (mut near, far) = (site(None), site(Some(server)));
        let connected = near.endpoint.connect(start, client, address(1), "localhost");
        near.connection = Some(connected.unwrap());
        World {
            link,
            start,
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            client: near,
            server: far,
            arrivals: BinaryHeap::new(),
            datagrams: Vec::new(),
            local: ([198, 51, 100, 1], 1000).into(),
            remote: [address(1); 2],
            answers_from: address(1),
            unanswered: Unanswered::new(start),
            arrivals_seen: Arrivals::new(start),
            search: Search::default(),
            silent: false,
            found: None,
        }
    }

    fn server_is_at(&self) -> SocketAddr {
        address(if self.now < self.link.moves_at { 1 } else { 2 })
    }

    fn run(mut self) -> World {
        while self.now < END {
            self.work(true);
            self.work(false);
            self.search();
            let timers = [&mut self.client, &mut self.server].map(|site| {
                let at = site.connection.as_mut().and_then(|(_, conn)| conn.poll_timeout());
                at.map(|at| at.saturating_duration_since(self.start))
            });
            let asks = [self.search.deadline(), self.arrivals_seen.ask_at()];
            let asks = asks.map(|at| at.map(|at| at.saturating_duration_since(self.start)));
            let arrival = self.arrivals.peek().map(|next| next.0.0);
            let tick = INTERVAL * (self.now.as_millis() as u32 / 100 + 1);
            let next = timers.into_iter().chain(asks).chain([arrival, Some(tick)]).flatten().min();
            // A deadline in the past is one that waits for something else.
            self.now = next.unwrap().max(self.now + MS / 10);
            self.receive();
        }
        self
    }

    fn work(&mut self, is_client: bool) {
        let (now, due) = (self.start + self.now, self.now.min(END - 20 * INTERVAL));
        let due = (due.as_millis() / INTERVAL.as_millis()) as u16;
        let asks = is_client && self.arrivals_seen.ask_at().is_some_and(|at| at <= now);
        let site = if is_client { &mut self.client } else { &mut self.server };
        let Some((handle, connection)) = &mut site.connection else { return };
        connection.handle_timeout(now);
        while let Some(event) = connection.poll() {
            assert!(!matches!(event, Event::ConnectionLost { .. }), "{:?}: {event:?}", self.now);
        }
        if is_client && !connection.is_handshaking() && site.stream.is_none() {
            site.stream = connection.streams().open(Dir::Bi);
        } else if !is_client && site.stream.is_none() {
            site.stream = connection.streams().accept(Dir::Bi);
        }
        if let Some(id) = site.stream {
            // The first opens the stream.
            let silent = is_client && self.link.listens && site.written > 0;
            while site.written < due && !silent {
                connection.send_stream(id).write(&site.written.to_be_bytes()).unwrap();
                site.written += 1;
            }
            if asks {
                self.arrivals_seen.asked();
                connection.send_stream(id).write(&u16::MAX.to_be_bytes()).unwrap();
            }
            let mut stream = connection.recv_stream(id);
            if let Ok(mut chunks) = stream.read(true) {
                while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                    site.partial.extend_from_slice(&chunk.bytes);
                    if is_client {
                        self.arrivals_seen.arrived(now);
                    }
                }
                let _ = chunks.finalize();
            }
        }
        for message in site.partial.drain(..).collect::<Vec<_>>().chunks_exact(2) {
            let number = u16::from_be_bytes(message.try_into().unwrap());
            if number == u16::MAX {
                continue;
            }
            assert_eq!(number, site.received, "in order and once");
            site.received += 1;
            if self.now > Duration::from_secs(3) {
                site.gap = site.gap.max(self.now - site.heard_at);
            }
            site.heard_at = self.now;
        }
        let (mut buffer, mut sent) = (Vec::new(), Vec::new());
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            sent.push((transmit.destination, buffer[..transmit.size].to_vec()));
            buffer.clear();
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = site.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        for (destination, bytes) in sent {
            let (server, client) = if is_client {
                self.silent |= self.unanswered.sent(|| now);
                (self.remote[0], self.local)
            } else {
                (self.answers_from, destination)
            };
            self.send(Datagram { to_server: is_client, server, client, bytes });
        }
    }

    fn send(&mut self, datagram: Datagram) {
        // What the server sends from an address that it has no more, its kernel refuses.
        let is_void = !datagram.to_server && datagram.server != self.server_is_at();
        if is_void || self.random.f64() < self.link.loss {
            return;
        }
        self.arrivals.push(Reverse((self.now + self.link.one_way, self.datagrams.len())));
        self.datagrams.push(Some(datagram));
    }

    fn receive(&mut self) {
        while self.arrivals.peek().is_some_and(|next| next.0.0 <= self.now) {
            let Some(Reverse((_, at))) = self.arrivals.pop() else { break };
            let datagram = self.datagrams[at].take().unwrap();
            let now = self.start + self.now;
            let mut answer = Vec::new();
            let (site, from) = if datagram.to_server {
                if datagram.server != self.server_is_at() {
                    continue;
                }
                (&mut self.server, datagram.client)
            } else {
                // Sockets are connected: what comes from elsewhere is not read.
                if !self.remote.contains(&datagram.server) {
                    continue;
                }
                self.unanswered.heard();
                if datagram.server == self.remote[0] {
                    self.search.heard(now);
                }
                (&mut self.client, address(1))
            };
            let bytes = datagram.bytes[..].into();
            match site.endpoint.handle(now, from, None, None, bytes, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    let (_, connection) = site.connection.as_mut().unwrap();
                    let before = connection.stats().udp_rx.datagrams;
                    connection.handle_event(event);
                    if datagram.to_server && connection.stats().udp_rx.datagrams > before {
                        self.answers_from = datagram.server;
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let accepted = site.endpoint.accept(incoming, now, &mut answer, None);
                    site.connection = Some(accepted.unwrap());
                }
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
    }

    fn search(&mut self) {
        let now = self.start + self.now;
        let (_, connection) = self.client.connection.as_mut().unwrap();
        let observed = Observed {
            now,
            silence: self.unanswered.silence(now),
            round_trip: connection.rtt(),
            acks: connection.stats().frame_rx.acks,
        };
        let mut step = self.search.on_deadline(&observed);
        if std::mem::take(&mut self.silent)
            && step == Step::Nothing
            && self.client.stream.is_some()
            && self.search.begins(&observed)
        {
            // Another address that nobody has, and the server's next.
            let others = [address(9), address(2), address(1)];
            let places = others.into_iter().filter(|place| *place != self.remote[0]);
            step = self.search.resolved(places.chain([self.remote[0]]).collect(), &observed);
        }
        match step {
            Step::Nothing => {}
            Step::Try(address) => {
                self.unanswered.set_trial(true);
                self.remote = [address, self.remote[0]];
                self.local.set_port(self.local.port() + 1);
                connection.local_address_changed();
                self.work(true);
            }
            Step::Found(address) => {
                self.found = Some(address);
                self.unanswered.set_trial(false);
            }
            Step::Ended => self.unanswered.set_trial(false),
        }
    }
}

#[test]
fn a_server_that_moves_is_found_within_two_seconds_and_nothing_is_lost() {
    for listens in [false, true] {
        for (one_way, loss) in [(5, 0.0), (35, 0.0), (35, 0.05), (150, 0.0)] {
            // A pause is no surprise to a listener on a path with losses: it waits for the keep-alive.
            if listens && loss > 0.0 {
                continue;
            }
            let mut gaps = Vec::new();
            for seed in 1..=20 {
                let moves_at = Duration::from_millis(20_000 + 7 * seed);
                let link = Link { one_way: one_way * MS, loss, moves_at, listens };
                let world = World::new(link, seed).run();
                let about = format!("{link:?}, seed {seed}");
                assert_eq!(world.found, Some(address(2)), "{about}");
                assert_eq!(world.client.received, world.server.written, "{about}");
                assert_eq!(world.server.received, world.client.written, "{about}");
                let gap =
                    if listens { world.client.gap } else { world.client.gap.max(world.server.gap) };
                gaps.push(gap);
            }
            gaps.sort();
            // A listener asks first, after a pause.
            let most = if listens && one_way > 100 { 2500 } else { 2000 };
            assert!(gaps[19] <= most * MS, "{one_way} ms, {loss}, listens: {listens}: {gaps:?}");
        }
    }
}

#[test]
fn questions_are_paid_by_arrivals_and_asked_in_unusual_pauses() {
    let start = Instant::now();
    let mut arrivals = Arrivals::new(start);
    let mut now = start;
    for _ in 0..ARRIVALS {
        now += INTERVAL;
        arrivals.arrived(now);
    }
    assert_eq!(arrivals.ask_at(), Some(now + LEAST_PAUSE));
    arrivals.asked();
    assert_eq!(arrivals.ask_at(), None);
    arrivals.arrived(now + LEAST_PAUSE);
    assert_eq!(arrivals.ask_at(), None, "one question for so many arrivals");
    for _ in 0..2 * ARRIVALS {
        now += 4 * INTERVAL;
        arrivals.arrived(now);
    }
    assert_eq!(arrivals.ask_at(), Some(now + 8 * INTERVAL));
    // Rare messages are nothing to wait for.
    arrivals.arrived(now + 10 * INTERVAL);
    assert_eq!(arrivals.ask_at(), None);
}

/// Goes on with a search in which nothing but datagrams without an acknowledgement come, such as another server's resets;
/// the addresses that it tries.
fn fail(search: &mut Search, mut step: Step, acks: u64) -> (Vec<SocketAddr>, Instant) {
    let mut tried = Vec::new();
    loop {
        let Step::Try(address) = step else { panic!("{step:?}") };
        tried.push(address);
        let mut now = search.deadline().unwrap();
        search.heard(now);
        step = Step::Nothing;
        while step == Step::Nothing {
            now = search.deadline().unwrap();
            step = search.on_deadline(&observed(now, acks));
        }
        if step == Step::Ended {
            return (tried, now);
        }
    }
}

/// Waits for the next search; how long that is.
fn wait(search: &mut Search, ended: Instant, acks: u64) -> Duration {
    let mut now = ended;
    while !search.begins(&observed(now, acks)) {
        now += 100 * MS;
    }
    now - ended
}

#[test]
fn a_search_that_finds_nothing_ends_where_it_began_and_waits_longer_each_time() {
    let (mut now, mut search) = (Instant::now(), Search::default());
    let mut waits = Vec::new();
    for _ in 0..8 {
        let silent = observed(now, 7);
        assert!(!search.begins(&Observed { silence: LEAST_SILENCE / 2, ..silent }), "too short");
        assert!(!search.begins(&Observed { round_trip: LEAST_SILENCE, ..silent }), "a long path");
        waits.push(wait(&mut search, now, 7));
        now += waits[waits.len() - 1];
        assert!(!search.begins(&observed(now, 7)), "one at a time");
        let step = search.resolved(vec![address(2), address(1)], &observed(now, 7));
        let (tried, ended) = fail(&mut search, step, 7);
        assert_eq!(tried, [address(2), address(1)].repeat(3));
        now = ended;
    }
    assert_eq!(waits[0], Duration::ZERO);
    assert!(waits[1] <= PAUSES[0] + 100 * MS && waits[7] >= PAUSES[1] / 2, "{waits:?}");
    assert!(search.begins(&observed(now + PAUSES[1], 7)));
    let step = search.resolved(vec![address(1)], &observed(now + PAUSES[1], 7));
    assert_eq!(step, Step::Ended, "no other address");
}

#[test]
fn a_server_that_has_answered_since_the_last_search_is_looked_for_at_once() {
    let (mut now, mut search) = (Instant::now(), Search::default());
    for _ in 0..8 {
        now += wait(&mut search, now, 7);
        let step = search.resolved(vec![address(2), address(1)], &observed(now, 7));
        now = fail(&mut search, step, 7).1;
    }
    assert!(!search.begins(&observed(now + PAUSES[0], 7)), "it is off");
    assert!(!search.begins(&observed(now + PAUSES[0] / 4, 8)), "a bad link");
    assert!(search.begins(&observed(now + PAUSES[0], 8)), "another silence");
}

#[test]
fn a_server_that_answers_while_its_name_is_resolved_is_not_left() {
    let (now, mut search) = (Instant::now(), Search::default());
    assert!(search.begins(&observed(now, 7)));
    let answered = Observed { silence: Duration::ZERO, ..observed(now, 8) };
    let step = search.resolved(vec![address(2), address(1)], &answered);
    assert_eq!((step, search.failures), (Step::Nothing, 0));
    assert!(search.begins(&observed(now, 8)), "the next silence");
}

#[test]
fn a_late_answer_leads_back_to_the_address_before() {
    let (mut now, mut search) = (Instant::now(), Search::default());
    assert!(search.begins(&observed(now, 7)));
    let addresses = vec![address(2), address(3), address(1)];
    let mut step = search.resolved(addresses, &observed(now, 7));
    let mut tried = Vec::new();
    for acks in [7, 8, 9, 9] {
        if let Step::Try(address) = step {
            tried.push(address);
        }
        now = search.deadline().unwrap();
        step = search.on_deadline(&observed(now, acks));
    }
    // The first address had answered when the second was tried already.
    assert_eq!(tried, [address(2), address(3), address(2), address(1)]);
}

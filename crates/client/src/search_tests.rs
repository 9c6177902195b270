//! A server whose address changes, in simulated time: the gap in both directions. And the rules of a search.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    RandomConnectionIdGenerator, ServerConfig, StreamId,
};

use super::*;
use crate::quic::tests::configs;

const MS: Duration = Duration::from_millis(1);
/// A message each way this often.
const INTERVAL: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_secs(30);

/// A silence that is just long enough, on a short path.
fn observed(now: Instant, acks: u64) -> Observed {
    Observed { now, silence: LEAST_SILENCE, round_trip: MS, acks, is_late: false }
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
    /// From when on, and for how long, the link holds everything back.
    held: [Duration; 2],
    /// At another address is a server that resets connections that it does not know.
    strange: bool,
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
    stranger: Endpoint,
    resets: u32,
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
    found: Vec<SocketAddr>,
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
        let mut strange = EndpointConfig::default();
        // Which does not see that others have made the identifiers.
        strange.cid_generator(|| Box::new(RandomConnectionIdGenerator::default()));
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
            stranger: Endpoint::new(Arc::new(strange), Some(Arc::new(configs().1)), true, None),
            resets: 0,
            arrivals: BinaryHeap::new(),
            datagrams: Vec::new(),
            local: ([198, 51, 100, 1], 1000).into(),
            remote: [address(1); 2],
            answers_from: address(1),
            unanswered: Unanswered::new(start, address(1)),
            arrivals_seen: Arrivals::new(start),
            search: Search::default(),
            silent: false,
            found: Vec::new(),
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
        let exists = [self.server_is_at(), address(9)].contains(&datagram.server);
        let is_void = !datagram.to_server && !exists;
        if is_void || self.random.f64() < self.link.loss {
            return;
        }
        let [from, hold] = self.link.held;
        let is_held = (from..from + hold).contains(&self.now) && datagram.server != address(9);
        let sent = if is_held { from + hold } else { self.now };
        self.arrivals.push(Reverse((sent + self.link.one_way, self.datagrams.len())));
        self.datagrams.push(Some(datagram));
    }

    fn receive(&mut self) {
        while self.arrivals.peek().is_some_and(|next| next.0.0 <= self.now) {
            let Some(Reverse((_, at))) = self.arrivals.pop() else { break };
            let datagram = self.datagrams[at].take().unwrap();
            let now = self.start + self.now;
            let mut answer = Vec::new();
            let (site, from) = if datagram.to_server {
                if datagram.server == address(9) {
                    self.reset(&datagram);
                    continue;
                }
                if datagram.server != self.server_is_at() {
                    continue;
                }
                (&mut self.server, datagram.client)
            } else {
                // Sockets are connected: what comes from elsewhere is not read.
                let Some(at) = self.remote.iter().position(|from| *from == datagram.server) else {
                    continue;
                };
                self.unanswered.heard(datagram.server);
                if at == 0 {
                    // quinn drops the socket before.
                    self.remote[1] = self.remote[0];
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

    fn reset(&mut self, datagram: &Datagram) {
        let (mut bytes, now) = (Vec::new(), self.start + self.now);
        let received = datagram.bytes[..].into();
        let answer = self.stranger.handle(now, datagram.client, None, None, received, &mut bytes);
        if let Some(DatagramEvent::Response(_)) = answer
            && self.link.strange
        {
            self.resets += 1;
            let Datagram { server, client, .. } = *datagram;
            self.send(Datagram { to_server: false, server, client, bytes });
        }
    }

    fn search(&mut self) {
        let now = self.start + self.now;
        let (_, connection) = self.client.connection.as_mut().unwrap();
        let received = connection.stats().frame_rx;
        let frames = received.acks + received.stream + received.ping;
        let observed = Observed {
            now,
            silence: self.unanswered.silence(now, frames),
            round_trip: connection.rtt(),
            acks: received.acks,
            is_late: self.unanswered.is_late(),
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
                self.unanswered.moved_to(address);
                self.unanswered.doubt(frames);
                self.remote = [address, self.remote[0]];
                self.local.set_port(self.local.port() + 1);
                connection.local_address_changed();
                self.work(true);
            }
            Step::Found(address) => {
                self.found.push(address);
                self.unanswered.doubt(frames);
            }
            Step::Ended => self.unanswered.doubt(frames),
        }
    }
}

#[test]
fn a_server_that_moves_is_found_within_two_seconds_and_nothing_is_lost() {
    for listens in [false, true] {
        let links = [(5, 0.0), (35, 0.0), (35, 0.05), (150, 0.0)];
        for ((one_way, loss), strange) in
            links.into_iter().flat_map(|link| [(link, false), (link, true)])
        {
            // A pause is no surprise to a listener on a path with losses: it waits for the keep-alive.
            if listens && loss > 0.0 {
                continue;
            }
            let mut gaps = Vec::new();
            for seed in 1..=20 {
                let moves_at = Duration::from_millis(20_000 + 7 * seed);
                let held = [moves_at, Duration::ZERO];
                let link = Link { one_way: one_way * MS, loss, moves_at, held, strange, listens };
                let world = World::new(link, seed).run();
                let about = format!("{link:?}, seed {seed}");
                assert_eq!(world.found.last(), Some(&address(2)), "{about}");
                assert!(!world.found.contains(&address(9)), "{about}");
                assert_eq!(world.client.received, world.server.written, "{about}");
                assert_eq!(world.server.received, world.client.written, "{about}");
                let gap =
                    if listens { world.client.gap } else { world.client.gap.max(world.server.gap) };
                gaps.push(gap);
            }
            gaps.sort();
            // A listener asks first, after a pause. And what answers has twice the time.
            let slow = if one_way > 100 { 500 } else { 0 };
            let most = 2000 + (u32::from(listens) + 2 * u32::from(strange)) * slow;
            let about = format!("{one_way} ms, {loss}, listens: {listens}, strange: {strange}");
            assert!(gaps[19] <= most * MS, "{about}: {gaps:?}");
        }
    }
}

/// A radio link that holds everything back for a while, and another server at the next address.
#[test]
fn a_server_that_is_late_is_not_left_for_one_that_resets_the_connection() {
    let mut resets = 0;
    for hold in (300..=1500).step_by(20) {
        let held = [Duration::from_millis(20_000 + hold / 7), hold as u32 * MS];
        let link = Link {
            one_way: 35 * MS,
            loss: 0.0,
            moves_at: END * 2,
            held,
            strange: true,
            listens: false,
        };
        let world = World::new(link, hold).run();
        let about = format!("{hold} ms, found: {:?}", world.found);
        assert!(!world.found.contains(&address(9)), "{about}");
        assert_eq!(world.client.received, world.server.written, "{about}");
        assert_eq!(world.server.received, world.client.written, "{about}");
        let gap = world.client.gap.max(world.server.gap);
        assert!(gap <= held[1] + 1500 * MS, "{about}, {gap:?}");
        resets += world.resets;
    }
    assert!(resets > 50, "{resets}");
}

#[test]
fn resets_do_not_end_the_silence_of_a_server_that_was_found_lately() {
    let start = Instant::now();
    let unanswered = Unanswered::new(start, address(1));
    let send = |from: u32| {
        for at in 0..UNANSWERED {
            unanswered.sent(|| start + MS * (from + 150 * at));
            unanswered.heard(address(1));
        }
    };
    send(0);
    assert_eq!(unanswered.silence(start + 500 * MS, 7), Duration::ZERO, "before any doubt");
    unanswered.doubt(7);
    send(1000);
    assert_eq!(unanswered.silence(start + 1500 * MS, 7), 500 * MS);
    assert_eq!(unanswered.silence(start + 1500 * MS, 8), Duration::ZERO, "a frame is proof");
    send(2000);
    assert_eq!(unanswered.silence(start + 2500 * MS, 8), Duration::ZERO, "the doubt is over");
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
    assert_eq!(arrivals.ask_at(), None, "at most one PINGREQ for so many arrivals");
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

#[test]
fn an_address_that_refuses_is_left_at_once_and_the_search_goes_on() {
    let (now, mut search) = (Instant::now(), Search::default());
    let silent = observed(now, 7);
    assert_eq!(search.refused(&silent), None, "the connection's own address");
    assert!(search.begins(&silent));
    assert_eq!(search.refused(&silent), None, "no address is tried yet");
    let mut step = search.resolved(vec![address(2), address(3), address(1)], &silent);
    let mut tried = Vec::new();
    while let Step::Try(address) = step {
        tried.push(address);
        step = search.refused(&silent).unwrap();
    }
    assert_eq!((step, search.refused(&silent)), (Step::Ended, None));
    assert_eq!(tried, [address(2), address(3), address(1)].repeat(3));
}

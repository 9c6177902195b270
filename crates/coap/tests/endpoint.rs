//! Client and server together, over links that lose, double and reorder; in simulated time.

#![allow(clippy::unwrap_used)]

mod site;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fulmar_coap::{
    ClientEvent, ClientLimits, Event, Failure, Limits, Rejected, Response, Server, Timing, Trust,
    code,
};
use proptest::prelude::*;
use site::{Link, Site};

const HOUR: Duration = Duration::from_secs(3600);

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

/// Patient enough that nothing is given up at the losses that are tried: of an exchange's 21 attempts, each fails with
/// less than 44 %.
fn patient() -> Timing {
    Timing { max_retransmit: 20, exchange_lifetime: site::PATIENCE, ..Timing::default() }
}

fn lossy(seed: u64, loss: u32, doubled: u32) -> Site {
    let link = Link { seed, loss, doubled, delay: Duration::from_millis(50) };
    let limits = Limits { timing: patient(), ..Limits::default() };
    Site::with(link, limits, ClientLimits { timing: patient(), ..ClientLimits::default() })
}

#[test]
fn a_value_is_set_and_read() {
    let mut site = Site::new(Link::GOOD);
    site.get("a", false);
    assert_eq!(site.response().code, code::NOT_FOUND);
    site.put("a", "21.5");
    assert_eq!(site.response().code, code::CHANGED);
    site.get("a", false);
    assert_eq!(site.response().payload, "21.5");
    assert_eq!(site.datagrams, 6, "each answer is in its acknowledgement");
}

#[test]
fn a_slow_answer_comes_on_its_own() {
    let mut site = Site::new(Link::GOOD);
    site.slow = Duration::from_secs(20);
    site.put("a", "x");
    assert_eq!(site.response().code, code::CHANGED);
    assert_eq!(site.puts.len(), 1);
    site.step(site.now);
    assert_eq!(site.datagrams, 4, "request, acknowledgement, response, acknowledgement");
}

#[test]
fn a_server_that_is_not_there_is_given_up() {
    let mut site = Site::new(Link { loss: 1000, ..Link::GOOD });
    site.get("a", false);
    let event = site.event(Duration::from_secs(94)).unwrap();
    assert!(matches!(event, ClientEvent::Failed { failure: Failure::Timeout, .. }), "{event:?}");
}

#[test]
fn an_observer_is_told_until_it_says_no() {
    let mut site = Site::new(Link::GOOD);
    site.change("a", "1");
    let id = site.get("a", true);
    assert_eq!(site.response().payload, "1");
    for value in ["2", "3"] {
        site.change("a", value);
        let Some(ClientEvent::Notification { response, .. }) = site.event(HOUR) else { panic!() };
        assert_eq!(response.payload, value);
    }
    assert_eq!(site.server.observations(), 1);
    site.client.cancel(id);
    site.event(Duration::from_secs(1));
    assert_eq!(site.server.observations(), 0);
}

#[test]
fn an_observer_that_is_gone_is_forgotten() {
    let mut site = Site::new(Link::GOOD);
    site.change("a", "1");
    site.get("a", true);
    site.response();
    let start = site.now;
    site.change("a", "2");
    while let Some((_, _)) = site.server.poll_transmit() {}
    while site.server.observations() > 0 {
        site.now = site.server.deadline().unwrap();
        site.server.on_deadline(site.now);
        while site.server.poll_transmit().is_some() {}
    }
    assert!(site.now - start <= Duration::from_secs(93), "MAX_TRANSMIT_WAIT");
    while site.server.peers() > 0 {
        site.now = site.server.deadline().unwrap();
        site.server.on_deadline(site.now);
    }
    assert_eq!(site.server.buffered_bytes(), 0);
}

#[test]
fn a_server_that_forgot_its_observers_is_asked_again() {
    let mut site = Site::new(Link::GOOD);
    site.change("a", "1");
    site.get("a", true);
    site.response();
    site.server.forget(site::peer());
    // Max-Age of 60 s and up to 15 s more.
    assert!(site.event(Duration::from_secs(76)).is_none(), "nothing new");
    assert_eq!(site.server.observations(), 1);
    site.change("a", "2");
    let Some(ClientEvent::Notification { response, .. }) = site.event(HOUR) else { panic!() };
    assert_eq!(response.payload, "2");
}

#[test]
fn large_bodies_are_refused_before_they_come() {
    let limits = Limits { max_body_bytes: 5000, ..Limits::default() };
    let mut site = Site::with(Link::GOOD, limits, ClientLimits::default());
    site.put("a", body(5001));
    assert_eq!(site.response().code, code::TOO_LARGE);
    assert_eq!(site.datagrams, 2);
    site.put("a", body(5000));
    assert_eq!(site.response().code, code::CHANGED);
}

#[test]
fn smaller_blocks_are_agreed_on() {
    for (ours, theirs) in [(6, 2), (2, 6), (0, 0)] {
        let limits = Limits { max_szx: theirs, ..Limits::default() };
        let client = ClientLimits { max_szx: ours, ..ClientLimits::default() };
        let mut site = Site::with(Link::GOOD, limits, client);
        site.put("a", body(3000));
        assert_eq!(site.response().code, code::CHANGED);
        assert_eq!(site.puts, [body(3000)]);
        site.get("a", false);
        assert_eq!(site.response().payload, body(3000));
        assert!(site.largest <= 64 + (16 << theirs));
    }
}

#[test]
fn a_body_that_changes_on_its_way_is_of_one_state() {
    let mut site = Site::new(Link::GOOD);
    site.change("a", vec![1; 5000]);
    site.get("a", false);
    for _ in 0..4 {
        site.step(site.now + HOUR);
    }
    site.change("a", vec![2; 5000]);
    let payload = site.response().payload;
    assert!(payload == vec![1; 5000] || payload == vec![2; 5000]);
}

#[test]
fn strangers_get_little_until_they_have_answered() {
    let mut site = Site::new(Link::GOOD);
    site.trust = Trust::Claimed;
    site.change("small", "21.5");
    site.get("small", false);
    assert_eq!(site.response().payload, "21.5");
    assert_eq!(site.datagrams, 2, "a reading needs no proof");
    site.change("large", body(3000));
    site.get("large", false);
    let before = site.largest;
    site.step(site.now + HOUR);
    site.step(site.now + HOUR);
    assert!(site.largest <= before.max(64), "the first answer is a challenge");
    assert_eq!(site.response().payload, body(3000));
    // A stranger that cannot answer is no observer.
    let mut site = Site::new(Link::GOOD);
    site.trust = Trust::Claimed;
    site.change("a", "1");
    site.get("a", true);
    site.response();
    assert_eq!(site.server.observations(), 1, "it has answered");
}

#[test]
fn a_stranger_that_is_asked_for_proof_gives_it_and_asks_again() {
    let mut site = Site::new(Link::GOOD);
    site.trust = Trust::Claimed;
    site.wants_proof = true;
    site.change("small", "21.5");
    site.get("small", false);
    assert_eq!(site.response().payload, "21.5");
    assert_eq!(site.datagrams, 4, "request, question, request with the answer, response");
}

/// Octets of IPv4's and UDP's headers.
const HEADERS: usize = 28;

/// A server, and what was sent from an address and to it, headers included.
struct Forged {
    server: Server<SocketAddr>,
    now: Instant,
    came: usize,
    went: usize,
}

impl Forged {
    fn new() -> Forged {
        let now = Instant::now();
        Forged { server: Server::new(Limits::default(), &[7; 32], now), now, came: 0, went: 0 }
    }

    /// A datagram comes; each request is answered with this, so much later.
    fn say(&mut self, datagram: &[u8], payload: &[u8], slow: Duration) {
        self.came += datagram.len() + HEADERS;
        self.server.receive(self.now, site::peer(), Trust::Claimed, datagram).unwrap();
        self.pass(slow);
        while let Some(event) = self.server.poll_event() {
            let Event::Request(request) = event else { panic!("{event:?}") };
            let payload = payload.to_vec().into();
            let response = Response { payload, ..Response::new(code::CONTENT) };
            match request.observe {
                Some(_) => drop(self.server.observe(self.now, request.exchange, response)),
                None => self.server.respond(self.now, request.exchange, response),
            }
        }
        self.pass(Duration::ZERO);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.server.on_deadline(self.now);
        while let Some((_, datagram)) = self.server.poll_transmit() {
            self.went += datagram.len() + HEADERS;
        }
    }
}

#[test]
fn a_forged_address_is_sent_three_times_what_came_at_most() {
    let padding = [0x3D, 60].into_iter().chain([b'x'; 73]).collect::<Vec<u8>>();
    let request = |id: u8, options: &[u8]| [&[0x41, 1, 0, id, 0x5A], options].concat();
    let core = request(1, b"\xBB.well-known\x04core");
    let long = request(2, &[&padding[..], b"\x81a"].concat());
    let observe = request(3, b"\x60\x51a");
    let block = request(4, b"\xB1a\xC1\x56");
    let loose = [&[0x51, 1, 0, 5, 0x5A], &b"\xB1a"[..]].concat();
    // A message id of 2 again, in as few bytes as there are.
    let short = [0x40, 1, 0, 2];
    for slow in [Duration::ZERO, Duration::from_secs(1)] {
        for length in [0, 10, 60, 110, 1000, 5000] {
            for first in [&core, &long, &observe, &block, &loose] {
                let mut forged = Forged::new();
                forged.say(first, &body(length), slow);
                for _ in 0..20 {
                    forged.say(&short, &body(length), slow);
                }
                // Somebody tries all message ids: that proves nothing.
                for id in (0..=u16::MAX).filter(|_| length == 0) {
                    let [high, low] = id.to_be_bytes();
                    let ack = [0x60, 0, high, low];
                    let (server, now) = (&mut forged.server, forged.now);
                    server.receive(now, site::peer(), Trust::Claimed, &ack).unwrap();
                }
                forged.say(&observe, &body(length), Duration::ZERO);
                assert_eq!(forged.server.observations(), 0);
                for _ in 0..100 {
                    forged.pass(Duration::from_secs(2));
                }
                let Forged { came, went, .. } = forged;
                assert!(went <= 3 * came, "{went} for {came}: {length}, {slow:?}, {first:x?}");
            }
        }
    }
}

#[test]
fn a_stranger_that_waits_for_a_slow_answer_gets_it_over_a_lossy_link() {
    for seed in 0..20 {
        let mut site = lossy(seed, 250, 100);
        site.trust = Trust::Claimed;
        site.slow = Duration::from_secs(5);
        site.put("a", "21.5");
        assert_eq!(site.response().code, code::CHANGED);
        assert_eq!(site.puts.len(), 1, "it was done once");
    }
}

#[test]
fn half_bodies_of_strangers_keep_nobody_from_sending_a_whole_one() {
    const MOST: usize = 20_000;
    let limits = Limits { max_buffered_bytes: MOST, ..Limits::default() };
    let now = Instant::now();
    let mut server: Server<SocketAddr> = Server::new(limits, &[7; 32], now);
    // PUT of /a in blocks of 1024 bytes.
    let block = |number: u8, more: bool| {
        let head = [0x40, 3, 0, number, 0xB1, b'a', 0xD1, 3, number << 4 | u8::from(more) << 3 | 6];
        [&head[..], &[0xFF], &[b'x'; 1024]].concat()
    };
    let flood = |server: &mut Server<SocketAddr>, network: u8| {
        for host in 0..100 {
            let stranger = ([198, 51, network, host], 5683).into();
            server.receive(now, stranger, Trust::Claimed, &block(0, true)).unwrap();
            assert!(server.buffered_bytes() <= MOST);
        }
    };
    flood(&mut server, 0);
    for number in 0..3 {
        server.receive(now, site::peer(), Trust::Proven, &block(number, number < 2)).unwrap();
        if number < 2 {
            flood(&mut server, number + 1);
        }
    }
    let Some(Event::Request(request)) = server.poll_event() else { panic!("it has no room") };
    assert_eq!((request.exchange.peer, request.payload.len()), (site::peer(), 3 * 1024));
}

#[test]
fn peers_make_room_for_others() {
    let limits = Limits { max_peers: 10, ..Limits::default() };
    let mut site = Site::with(Link::GOOD, limits, ClientLimits::default());
    let ping = [0x40, 0, 0, 1];
    for port in 1..100 {
        let peer = ([192, 0, 2, 7], port).into();
        site.server.receive(site.now, peer, Trust::Claimed, &ping).unwrap();
        assert!(site.server.peers() <= 10);
    }
    let resets = std::iter::from_fn(|| site.server.poll_transmit()).count();
    assert_eq!(resets, 99, "a ping is answered by a reset");
}

#[test]
fn a_rejected_datagram_is_malformed_or_has_no_room() {
    let limits = Limits { max_peers: 1, ..Limits::default() };
    let now = Instant::now();
    let mut server: Server<SocketAddr> = Server::new(limits, &[7; 32], now);
    let other = ([192, 0, 2, 7], 1).into();
    let request = [0x40, 1, 0, 1];
    server.receive(now, site::peer(), Trust::Claimed, &request).unwrap();
    let mut receive = |datagram: &[u8]| server.receive(now, other, Trust::Claimed, datagram);
    assert_eq!(receive(b"not CoAP"), Err(Rejected::Malformed));
    assert_eq!(
        receive(&request),
        Err(Rejected::NoRoom),
        "the other peer's request has no response yet"
    );
    assert_eq!(server.peers(), 1);
}

#[test]
fn a_confirmable_message_with_a_format_error_gets_a_reset() {
    let now = Instant::now();
    let mut server: Server<SocketAddr> = Server::new(Limits::default(), &[7; 32], now);
    let mut answer = |datagram: &[u8]| {
        let result = server.receive(now, site::peer(), Trust::Claimed, datagram);
        assert_eq!(result, Err(Rejected::Malformed), "{datagram:?}");
        assert_eq!(server.peers(), 0);
        server.poll_transmit().map(|(_, answer)| answer)
    };
    for bad in [
        &[0x49, 1, 3, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9][..],
        &[0x42, 1, 3, 7, 1],
        &[0x40, 1, 3, 7, 0xB5, b'a'],
        &[0x40, 1, 3, 7, 0xF1, b'a'],
        &[0x40, 1, 3, 7, 0xB1, b'a', 0xFF],
        &[0x41, 0, 3, 7, 9],
    ] {
        assert_eq!(answer(bad).as_deref(), Some(&[0x70, 0, 3, 7][..]), "{bad:?}");
        // The same as NON, ACK and RST, and in another version, is ignored silently.
        for kind in [0x10, 0x20, 0x30, 0x40] {
            assert_eq!(answer(&[&[bad[0] ^ kind], &bad[1..]].concat()), None, "{kind:x} {bad:?}");
        }
    }
    assert_eq!(answer(&[0x40, 1, 3]), None, "too short to have a message ID");
}

#[test]
fn an_option_of_a_wrong_length_is_refused_if_it_is_critical_and_ignored_otherwise() {
    let now = Instant::now();
    let mut server: Server<SocketAddr> = Server::new(Limits::default(), &[7; 32], now);
    let mut id = 0;
    let mut ask = |option: u8, length: u8| {
        id += 1;
        let mut datagram = vec![0x40, 1, 0, id];
        match option {
            0..=12 => datagram.push(option << 4 | length),
            _ => datagram.extend([0xD0 | length, option - 13]),
        }
        datagram.extend(vec![1; length.into()]);
        server.receive(now, site::peer(), Trust::Proven, &datagram).unwrap();
        let refused = server.poll_transmit().map(|(_, answer)| answer[1]);
        let request = match server.poll_event() {
            Some(Event::Request(request)) => Some(request),
            _ => None,
        };
        if let Some(request) = &request {
            server.respond(now, request.exchange, Response::new(code::CONTENT));
            server.poll_transmit();
        }
        (refused, request.map(|request| (request.content_format, request.observe)))
    };
    let (bad, none) = ((Some(code::BAD_OPTION), None), Some((None, None)));
    // Uri-Host, Uri-Port, Accept, Block2, Block1, Proxy-Scheme is refused anyway.
    for (critical, length) in [(3, 0), (7, 3), (17, 3), (23, 4), (27, 4)] {
        assert_eq!(ask(critical, length), bad, "option {critical}");
    }
    // ETag, Observe, Content-Format, Max-Age.
    for (elective, length) in [(4, 9), (6, 4), (12, 3), (14, 5)] {
        assert_eq!(ask(elective, length), (None, none), "option {elective}");
    }
    assert_eq!(ask(12, 1), (None, Some((Some(1), None))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the link does, bodies arrive whole, once, and in order.
    #[test]
    fn bodies_arrive_whole_and_once(seed: u64, loss in 0u32..250, doubled in 0u32..300,
                                    lens in prop::collection::vec(0usize..9000, 1..5)) {
        let mut site = lossy(seed, loss, doubled);
        for len in &lens {
            site.put("a", body(*len));
            prop_assert_eq!(site.response().code, code::CHANGED);
            site.get("a", false);
            prop_assert_eq!(site.response().payload, body(*len));
        }
        let expected: Vec<_> = lens.iter().map(|len| body(*len)).collect();
        prop_assert_eq!(&site.puts, &expected);
    }

    /// Observers get the last state in the end, and no state twice or in the wrong order.
    #[test]
    fn observers_learn_the_last_state(seed: u64, loss in 0u32..250, doubled in 0u32..300,
                                      changes in 1u64..40, pause_ms in 0u64..3000) {
        let mut site = lossy(seed, loss, doubled);
        site.change("a", "0");
        site.get("a", true);
        site.response();
        let mut told = vec![0];
        for value in 1..=changes {
            site.change("a", value.to_string());
            while let Some(event) = site.event(Duration::from_millis(pause_ms)) {
                let ClientEvent::Notification { response, .. } = event else { panic!("{event:?}") };
                told.push(std::str::from_utf8(&response.payload).unwrap().parse().unwrap());
            }
        }
        // And an hour more, for what should not come.
        let end = site.now + site::PATIENCE;
        while site.now < end {
            let rest = if told.last() == Some(&changes) { HOUR } else { end - site.now };
            let Some(event) = site.event(rest) else { break };
            let ClientEvent::Notification { response, .. } = event else { panic!("{event:?}") };
            told.push(std::str::from_utf8(&response.payload).unwrap().parse().unwrap());
        }
        prop_assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", told);
        prop_assert_eq!(told.last(), Some(&changes));
    }
}

#[test]
fn a_hundred_kilobytes_at_ten_percent_loss() {
    let mut site = Site::new(Link { loss: 100, seed: 3, ..Link::GOOD });
    site.put("a", body(100_000));
    assert_eq!(site.response().code, code::CHANGED);
    site.get("a", false);
    assert_eq!(site.response().payload, body(100_000));
}

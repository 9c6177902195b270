//! Fuzz targets of `fulmar-coap`: whatever peers send, what is remembered stays within its bounds, what is sent
//! can be read, strangers get little, and time goes on.

mod dtls;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use coap_lite::Packet;
use fulmar_coap::{
    Call, Client, ClientLimits, Event, Limits, Method, ObservationId, Observe, Response, Server,
    Timing, Trust, code, topics,
};

pub use dtls::dtls;

/// Small, so that they are reached.
const LIMITS: Limits = Limits {
    timing: Timing {
        ack_timeout: Duration::from_secs(2),
        max_retransmit: 2,
        processing_delay: Duration::from_millis(500),
        exchange_lifetime: Duration::from_secs(60),
    },
    max_peers: 3,
    max_body_bytes: 300,
    max_buffered_bytes: 4096,
    max_requests_per_peer: 2,
    max_observations_per_peer: 2,
    max_waiting_notifications: 2,
    max_szx: 2,
};

/// What one datagram or notification may add before a bound is looked at again: a message that waits, and
/// the names bodies have.
const SLACK_BYTES: usize = 16 * 1024;

/// Takes `count` bytes off the front, or what there is.
fn take<'a>(data: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (front, rest) = data.split_at(count.min(data.len()));
    *data = rest;
    front
}

struct Served {
    server: Server<SocketAddr>,
    observers: Vec<ObservationId>,
    now: Instant,
}

impl Served {
    /// Answers requests: a path's bytes are its value, many times over where it begins with an `L`.
    fn answer(&mut self) {
        while let Some(event) = self.server.poll_event() {
            let request = match event {
                Event::Ended(id) => {
                    assert!(self.observers.contains(&id), "what ends has begun");
                    self.observers.retain(|other| *other != id);
                    continue;
                }
                Event::Request(request) => request,
            };
            assert!(request.payload.len() <= LIMITS.max_body_bytes);
            let value = request.path.join("/");
            let times = if value.starts_with('L') { 40 } else { 1 };
            let payload = value.repeat(times).into_bytes().into();
            let response = match topics::topic(&request.path) {
                Ok(_) => Response { payload, ..Response::new(code::CONTENT) },
                Err(why) => Response::error(code::BAD_REQUEST, &why),
            };
            match (request.observe, request.path.first().is_some_and(|first| first == "slow")) {
                (Some(Observe::Register), _) => {
                    let id = self.server.observe(self.now, request.exchange, response);
                    self.observers.extend(id);
                }
                // Never answered: its peer is forgotten some day.
                (_, true) => {}
                _ => self.server.respond(self.now, request.exchange, response),
            }
        }
    }

    /// Checks that each datagram sent can be decoded and has at most `most` bytes.
    fn sent(&mut self, most: usize) {
        while let Some((_, datagram)) = self.server.poll_transmit() {
            assert!(datagram.len() <= most, "{} bytes, {most} allowed", datagram.len());
            Packet::from_bytes(&datagram).expect("what is sent can be read");
        }
    }
}

/// A script: a byte that chooses what happens, and for a datagram its peer and trust; then its length and bytes.
pub fn server(mut data: &[u8]) {
    let start = Instant::now();
    let server = Server::new(LIMITS, &[7; 32], start);
    let mut served = Served { server, observers: Vec::new(), now: start };
    while let [choice, size, ..] = *data {
        data = &data[2..];
        match choice % 8 {
            0 => served.now += Duration::from_millis(u64::from(size) * 100),
            1 => {
                let at = usize::from(size) % served.observers.len().max(1);
                if let Some(id) = served.observers.get(at) {
                    let payload = vec![b'n'; usize::from(size)].into();
                    let response = Response { payload, ..Response::new(code::CONTENT) };
                    served.server.notify(served.now, &[*id], &response);
                }
            }
            _ => {
                let datagram = take(&mut data, usize::from(size));
                let peer = ([192, 0, 2, 1], 1000 + u16::from(choice / 16)).into();
                let trust = if choice & 8 == 0 { Trust::Proven } else { Trust::Claimed };
                served.sent(usize::MAX);
                let peers = served.server.peers();
                if served.server.receive(served.now, peer, trust, datagram).is_err() {
                    assert_eq!(served.server.peers(), peers, "a rejected datagram has no effect");
                }
            }
        }
        served.answer();
        served.sent(2048);
        served.server.on_deadline(served.now);
        assert!(served.server.deadline().is_none_or(|at| at > served.now), "time goes on");
        served.answer();
        assert!(served.server.peers() <= LIMITS.max_peers);
        assert!(served.server.buffered_bytes() <= LIMITS.max_buffered_bytes + SLACK_BYTES);
        assert_eq!(served.server.observations(), served.observers.len());
    }
    // Left alone, everything is forgotten.
    while let Some(at) = served.server.deadline() {
        served.now = served.now.max(at);
        served.server.on_deadline(served.now);
        served.answer();
    }
    assert_eq!((served.server.peers(), served.server.buffered_bytes()), (0, 0));
    stranger(data);
}

/// Somebody whose address may be forged sends one datagram.
fn stranger(datagram: &[u8]) {
    let now = Instant::now();
    let server = Server::new(LIMITS, &[7; 32], now);
    let mut served = Served { server, observers: Vec::new(), now };
    let peer = ([192, 0, 2, 1], 1000).into();
    // What is not CoAP has no effect.
    let _ = served.server.receive(now, peer, Trust::Claimed, datagram);
    served.answer();
    served.sent(136.max(3 * datagram.len()));
}

/// Datagrams to a client that has asked for things; the first byte says which, and each datagram's length is
/// before it.
pub fn client(data: &[u8]) {
    let Some((choice, mut data)) = data.split_first() else { return };
    let limits =
        ClientLimits { max_body_bytes: 300, timing: LIMITS.timing, ..ClientLimits::default() };
    let mut now = Instant::now();
    let mut client = Client::new(limits, 7);
    let mut get = Call::new(Method::Get, topics::path("a"));
    get.observe = choice & 1 == 0;
    client.call(now, get);
    let mut put = Call::new(Method::Put, topics::path("b"));
    put.payload = vec![b'x'; usize::from(*choice) * 8].into();
    client.call(now, put);
    while let Some((&size, rest)) = data.split_first() {
        data = rest;
        client.receive(now, take(&mut data, usize::from(size)));
        drain(&mut client);
        now += Duration::from_millis(u64::from(size));
        client.on_deadline(now);
        drain(&mut client);
        assert!(client.deadline().is_none_or(|at| at > now), "time goes on");
    }
}

fn drain(client: &mut Client) {
    while let Some(datagram) = client.poll_transmit() {
        Packet::from_bytes(&datagram).expect("what is sent can be read");
    }
    while client.poll_event().is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmar_mqtt_fuzz::replay;

    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        replay(SEEDS.to_owned() + "coap-server", server);
        replay(SEEDS.to_owned() + "coap-client", client);
        replay(SEEDS.to_owned() + "coap-dtls", dtls);
    }
}

//! The small client over UDP, on this machine: connects, publishes, waits for its own command, and comes
//! back with a ticket and early data.
//!
//!     udp ADDRESS SERVER-NAME ED25519-PUBLIC-KEY-IN-HEX

use std::net::UdpSocket;
use std::time::{Duration, Instant as StdInstant};

use fulmar_tiny::{Client, Event, Instant, KeyPair, Options, QoS, Resume, Session, Trust, limits};

fn entropy() -> [u8; 32] {
    let mut bytes = [0; 32];
    std::io::Read::read_exact(
        &mut std::fs::File::open("/dev/urandom").expect("urandom"),
        &mut bytes,
    )
    .expect("entropy");
    bytes
}

/// One connection; gives its ticket.
fn connect(address: &str, options: &Options<'_>) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(address).expect("an address");
    let begin = StdInstant::now();
    let now = || Instant::from_millis(begin.elapsed().as_millis() as u32);
    let mut client = Box::new(Client::new());
    client.connect(options, &KeyPair::new(&entropy()), &entropy(), now()).expect("options");
    client.publish("tiny/reading", b"21.5", QoS::AtLeastOnce).expect("room");
    client.subscribe("tiny/command", QoS::AtLeastOnce).expect("room");
    let (mut ticket, mut subscribed, mut done) = (None, false, false);
    while begin.elapsed() < Duration::from_secs(10) {
        let mut got_ticket = false;
        while let Some(event) = client.poll(now()) {
            println!("{:4} ms {event:?}", begin.elapsed().as_millis());
            match event {
                Event::Ticket => got_ticket = true,
                Event::Subscribed { .. } => subscribed = true,
                Event::Message(_) => done = true,
                Event::Closed(_) => return ticket,
                _ => {}
            }
        }
        if got_ticket {
            ticket = client.ticket().map(Into::into);
        }
        if std::mem::take(&mut subscribed) {
            client.publish("tiny/command", b"sleep", QoS::AtLeastOnce).expect("room");
        }
        if done && ticket.is_some() && client.is_flushed() {
            client.close();
        }
        let mut datagram = [0; limits::RECEIVE_DATAGRAM_BYTES];
        while let Some(length) = client.transmit(&mut datagram, now()) {
            socket.send(&datagram[..length]).expect("sent");
        }
        let wait = client.next_deadline().map_or(1, |deadline| deadline.since(now()).clamp(1, 50));
        socket.set_read_timeout(Some(Duration::from_millis(wait.into()))).expect("a timeout");
        if let Ok(length) = socket.recv(&mut datagram) {
            client.receive(&mut datagram[..length], now());
        }
    }
    println!("gave up");
    std::process::exit(1);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name, key] = &arguments[..] else {
        eprintln!("udp ADDRESS SERVER-NAME ED25519-PUBLIC-KEY-IN-HEX");
        std::process::exit(2);
    };
    let digit = |at: usize| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).expect("hex digits");
    let key: [u8; 32] = std::array::from_fn(digit);
    let session = Session { client_id: "tiny", keep_alive_s: 30, ..Session::default() };
    let first = Options { server_name: name, trust: Trust::Ed25519(&key), resume: None, session };
    let ticket = connect(address, &first);
    let resume = ticket.as_deref().map(|ticket| Resume { ticket, age_ms: 50, early_data: true });
    connect(address, &Options { resume, ..first });
}

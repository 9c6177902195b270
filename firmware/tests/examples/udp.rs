//! The small client over UDP, on this machine: connects, publishes, waits for its own command, and comes
//! back with a ticket and early data. It says what happens, and exits with 1 unless both connections did
//! all of that; tests/interop/test_tiny.py runs it against servers we did not write.
//!
//!     udp ADDRESS SERVER-NAME PUBLIC-KEY-IN-HEX
//!
//! A key of 32 bytes is Ed25519, one of 65 P-256.

use std::error::Error;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant as StdInstant};

use fulmar_tiny::{
    Client, CloseReason, Event, Instant, KeyPair, Options, QoS, Resume, Session, Trust, limits,
};

/// For one connection; far above what any takes.
const PATIENCE: Duration = Duration::from_secs(30);
const COMMAND: &[u8] = b"sleep";

fn entropy() -> Result<[u8; 32], std::io::Error> {
    let mut bytes = [0; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// What is still to happen before the connection may be closed.
#[derive(Debug, Default)]
struct Done {
    published: bool,
    commanded: bool,
    ticket: Option<Vec<u8>>,
}

/// One connection: a reading, a command to ourselves, a ticket.
fn connect(address: &str, options: &Options<'_>) -> Result<Vec<u8>, Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    let begin = StdInstant::now();
    let now = || Instant::from_millis(begin.elapsed().as_millis() as u32);
    let mut client = Box::new(Client::new());
    client.connect(options, &KeyPair::new(&entropy()?), &entropy()?, now())?;
    let reading = client.publish("tiny/reading", b"21.5", QoS::AtLeastOnce)?;
    client.subscribe("tiny/command", QoS::AtLeastOnce)?;
    let mut done = Done::default();
    while begin.elapsed() < PATIENCE {
        let (mut got_ticket, mut subscribed) = (false, false);
        while let Some(event) = client.poll_event(now()) {
            println!("{:4} ms {event:?}", begin.elapsed().as_millis());
            match event {
                Event::Ticket => got_ticket = true,
                Event::Subscribed { reason, .. } => subscribed = reason < 0x80,
                Event::Published { id, reason } if id == reading => done.published = reason < 0x80,
                Event::Message(message) => done.commanded = message.payload == COMMAND,
                Event::Closed(CloseReason::Local) => {
                    return done.ticket.ok_or_else(|| "closed without a ticket".into());
                }
                Event::Closed(reason) => return Err(format!("closed: {reason:?}").into()),
                _ => {}
            }
        }
        if got_ticket {
            done.ticket = client.ticket().map(Into::into);
        }
        if subscribed {
            client.publish("tiny/command", COMMAND, QoS::AtLeastOnce)?;
        }
        if done.published && done.commanded && done.ticket.is_some() && client.is_flushed() {
            client.close();
        }
        let mut datagram = [0; limits::RECEIVE_DATAGRAM_BYTES];
        while let Some(length) = client.poll_transmit(&mut datagram, now()) {
            // What a server that has gone says to the last datagrams comes as an error of the next.
            drop(socket.send(&datagram[..length]));
        }
        let wait = client.deadline().map_or(1, |deadline| deadline.since(now()).clamp(1, 50));
        socket.set_read_timeout(Some(Duration::from_millis(wait.into())))?;
        if let Ok(length) = socket.recv(&mut datagram) {
            client.receive(&mut datagram[..length], now());
        }
    }
    Err(format!("gave up: {done:?}").into())
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok()).collect()
}

fn run(address: &str, name: &str, key: &[u8]) -> Result<(), Box<dyn Error>> {
    let trust = match (key.as_array::<32>(), key.as_array::<65>()) {
        (Some(key), _) => Trust::Ed25519(key),
        (_, Some(key)) => Trust::P256(key),
        _ => return Err("a public key has 32 bytes or 65".into()),
    };
    let session = Session { client_id: "tiny", keep_alive_s: 30, ..Session::default() };
    let first = Options { server_name: name, trust, resume: None, session };
    let ticket = connect(address, &first)?;
    let resume = Some(Resume { ticket: &ticket, age_ms: 50, early_data: true });
    connect(address, &Options { resume, ..first })?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, name, key) = match &arguments[..] {
        [address, name, key] if bytes(key).is_some() => (address, name, bytes(key)),
        _ => {
            eprintln!("udp ADDRESS SERVER-NAME PUBLIC-KEY-IN-HEX");
            return ExitCode::from(2);
        }
    };
    match run(address, name, &key.unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

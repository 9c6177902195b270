//! Ways in for fuzzing: what an attacker could only say with keys is said here without. Only for
//! `firmware/fuzz`; not part of the interface.

use crate::quic::{Connection, Space};
use crate::{Client, Event, Instant, KeyPair, Options, QoS, Session, Trust, limits};

const NOW: Instant = Instant::from_millis(1000);

fn options() -> Options<'static> {
    Options {
        server_name: "broker.example",
        #[cfg(feature = "x509")]
        trust: Trust::Authority { key: &[4; 65], unix_s: 1_800_000_000 },
        #[cfg(not(feature = "x509"))]
        trust: Trust::Ed25519(&[9; 32]),
        resume: None,
        session: Session { client_id: "fuzz", keep_alive_s: 60, ..Session::default() },
    }
}

fn connected(client: &mut Client) -> Option<&mut Connection> {
    let key = KeyPair { secret: [7; 32], public: [8; 32] };
    client.connect(&options(), &key, &[5; 32], NOW).ok()?;
    client.publish("t", b"1", QoS::AtLeastOnce).ok()?;
    Some(client.connection_mut())
}

/// Polls and transmits until there is nothing, as a caller would.
fn go_on(client: &mut Client) {
    for millis in [0, 30, 1000, 60_000] {
        let now = NOW.after(millis);
        while let Some(event) = client.poll_event(now) {
            if let Event::Message(message) = event {
                assert!(message.topic.len() + message.payload.len() <= limits::RECEIVE_BYTES);
            }
        }
        let mut datagram = [0; limits::DATAGRAM_BYTES];
        let mut count = 0;
        while client.poll_transmit(&mut datagram, now).is_some() {
            count += 1;
            assert!(count < 100, "a client that is never done");
        }
    }
}

/// A datagram as it comes from the network.
pub fn datagram(client: &mut Client, data: &mut [u8]) {
    if connected(client).is_some() {
        client.receive(data, NOW);
        go_on(client);
    }
}

/// Frames of authenticated packets. The first byte says in which space; before 1-RTT frames the handshake
/// counts as done.
pub fn frames(client: &mut Client, data: &[u8]) {
    let Some((first, frames)) = data.split_first() else { return };
    let Some(connection) = connected(client) else { return };
    let space = match first % 3 {
        0 => Space::Initial,
        1 => Space::Handshake,
        _ => Space::Data,
    };
    connection.pretend_level(space);
    // In two packets, so that the second meets what the first left.
    let (early, late) = frames.split_at(frames.len() / 2);
    for packet in [early, late] {
        connection.pretend_packet(space, packet, NOW);
    }
    go_on(client);
}

/// Handshake messages, in pieces whose lengths the first bytes choose.
pub fn handshake(client: &mut Client, data: &[u8]) {
    let Some((first, messages)) = data.split_first() else { return };
    let Some(connection) = connected(client) else { return };
    let space = if first & 1 == 0 { Space::Initial } else { Space::Handshake };
    connection.pretend_level(space);
    connection.pretend_crypto(space, messages, usize::from(first >> 1) + 1);
    go_on(client);
}

/// Passes data to the client as the server's on the session's stream.
pub fn mqtt(client: &mut Client, data: &[u8]) {
    let Some(connection) = connected(client) else { return };
    connection.pretend_level(Space::Data);
    for (index, piece) in data.chunks(limits::STREAM_RECEIVE_BYTES / 2).take(2).enumerate() {
        let offset = index * limits::STREAM_RECEIVE_BYTES / 2;
        client.connection_mut().pretend_stream(offset, piece);
        go_on(client);
    }
}

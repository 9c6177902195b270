//! What one connection takes, and is given before others have their turn.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read as _, Write as _};

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Limits, ListenerPolicy, TransportKind,
};

use super::*;
use crate::config::Carrier;
use crate::config::TransportLimits;

/// Messages at QoS 1 that wait for the client, and the payload of each.
const MESSAGES: usize = 300;
const PAYLOAD: usize = 1000;
/// What the core gives at a time, about: an outbox, and acknowledgements.
const OUTBOX_BYTES: usize = 64 * 1024;
const ONE_OUTPUT: usize = OUTBOX_BYTES + 4 * PAYLOAD;

/// An idle connection is this and what the session holds: everything else is boxed or empty.
#[test]
fn an_idle_connection_is_small() {
    let bytes = std::mem::size_of::<StreamConn>();
    assert!(
        bytes <= 456,
        "{bytes} bytes, {} of them the core's",
        std::mem::size_of::<Connection>()
    );
}

fn io(policy: &Arc<ListenerPolicy>) -> (Io, ListenerConfig) {
    let (access_control, client_statistics) = (AccessControl::default(), ClientStatistics::Nobody);
    let limits = Limits { max_outbox_bytes: OUTBOX_BYTES, ..Limits::default() };
    let config = BrokerConfig {
        workers: 1,
        limits,
        access_control,
        sys_interval_s: 0,
        client_statistics,
        internal_sessions: Vec::new(),
    };
    let now = Timestamp(1);
    let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), now);
    let shard = Shard::new(broker, 0, now, Arc::new(|| {}));
    let listener = ListenerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        carrier: Carrier::TCP,
        policy: Arc::clone(policy),
        proxies: None,
    };
    (Io::new(shard, TransportLimits::default(), Arc::default()), listener)
}

fn publish(number: usize) -> Vec<u8> {
    let length = 2 + 1 + 2 + 1 + PAYLOAD;
    let [high, low] = (number as u16 + 1).to_be_bytes();
    let fixed = [0x32, (length % 128) as u8 | 0x80, (length / 128) as u8];
    [&fixed[..], &[0, 1, b't', high, low, 0], &[number as u8; PAYLOAD]].concat()
}

/// Bytes the client has been sent.
fn arrived(client: &mut std::os::unix::net::UnixStream) -> usize {
    let (mut room, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match client.read(&mut room) {
            Ok(read) => bytes += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_client_for_whom_much_waits_is_given_a_part_of_it_a_turn() {
    let policy = Arc::new(ListenerPolicy { name: "test".into(), allow_anonymous: true });
    let (mut io, listener) = io(&policy);
    let (ours, mut client) = std::os::unix::net::UnixStream::pair().unwrap();
    // Room for all of it: nothing but the bound ends a flush.
    socket2::SockRef::from(&ours).set_send_buffer_size(1 << 20).unwrap();
    ours.set_nonblocking(true).unwrap();
    client.set_nonblocking(true).unwrap();
    let peer = Peer {
        address: listener.address,
        transport: TransportKind::Tcp,
        identity: None,
        listener: policy,
    };
    let socket = mio::net::UnixStream::from_std(ours);
    let handed = Handed { socket, peer, framing: Framing::Bytes, silence: None };
    let mut conn = StreamConn::handed(handed, Token(1), 0, &mut io).unwrap();
    let mut say = |bytes: &[u8]| {
        client.write_all(bytes).unwrap();
        conn.note_readable(false);
        assert_eq!(conn.readable(&mut io, &listener), After::Wait);
    };
    say(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a");
    say(b"\x82\x07\x00\x01\x00\x00\x01t\x01");
    for number in 0..MESSAGES {
        say(&publish(number));
    }
    let (mut turns, mut bytes) = (0, 0);
    while turns == 0 || conn.wants_flush() {
        assert_eq!(conn.flush(&mut io), After::Wait);
        assert!(!conn.write_blocked, "the socket has no room for it");
        let given = arrived(&mut client);
        assert!(given <= FLUSH_BYTES + ONE_OUTPUT, "{given} bytes in one turn");
        (turns, bytes) = (turns + 1, bytes + given);
    }
    assert!(bytes > MESSAGES * PAYLOAD && turns > 1, "{bytes} bytes in {turns} turns");
}

//! Datagrams before a DTLS session: any, and the second ClientHello of a real client with some bytes changed.

use std::time::Instant;

use fulmar_coap::dtls::{CookieExchange, Credentials, DtlsSession, Verdict, connection_id};

/// The client's address, and somebody else's.
const PEERS: [&[u8]; 2] = [b"\x7F\x00\x00\x01\x16\x34", b"\x7F\x00\x00\x02\x16\x34"];
/// Bytes sent to an address that is not validated, per byte received from it.
const MOST_PER_BYTE: usize = 3;

/// The first byte decides: a datagram of the rest, or changes of a ClientHello (a place in two bytes, and a value).
pub fn dtls(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let now = Instant::now();
    let Some(mut cookies) = CookieExchange::new(now) else { return };
    if kind % 2 == 0 {
        let _ = connection_id(rest);
        ask(&mut cookies, rest, now);
        return;
    }
    let Some((mut client, first)) = client(now) else { return };
    let Verdict::Ask(answer) = cookies.check(now, PEERS[0], &first) else {
        panic!("a client's first ClientHello is answered with a cookie");
    };
    client.receive(now, &answer).expect("a client takes the server's cookie");
    let mut second = client.poll_transmit().expect("and repeats its ClientHello with it");
    assert_eq!(cookies.check(now, PEERS[0], &second), Verdict::Proven);
    assert_ne!(
        cookies.check(now, PEERS[1], &second),
        Verdict::Proven,
        "a cookie is for one address"
    );
    for change in rest.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % second.len();
        second[at] = change[2];
    }
    assert_ne!(cookies.check(now, PEERS[1], &second), Verdict::Proven, "whatever else it says");
    ask(&mut cookies, &second, now);
}

/// A client, and its first datagram.
fn client(now: Instant) -> Option<(DtlsSession, Vec<u8>)> {
    let credentials = Credentials::Psk { identity: b"meter".to_vec(), key: vec![7; 16] };
    let mut client = DtlsSession::client(&credentials, now).ok()?;
    let first = client.poll_transmit()?;
    Some((client, first))
}

fn ask(cookies: &mut CookieExchange, datagram: &[u8], now: Instant) {
    if let Verdict::Ask(answer) = cookies.check(now, PEERS[0], datagram) {
        assert!(answer.len() <= MOST_PER_BYTE * datagram.len(), "{} bytes", answer.len());
    }
}

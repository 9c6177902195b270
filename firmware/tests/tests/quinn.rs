//! Against quinn: handshakes, resumption, and what happens to connections on good and bad links.

#![allow(clippy::unwrap_used)]

use fulmar_tiny::{CloseReason, Options, QoS, Resume, Session, Trust};
use fulmar_tiny_tests::{Identity, Link, Net, SERVER_NAME, quic};

fn session() -> Session<'static> {
    Session { client_id: "sensor-1", keep_alive_s: 20, ..Session::default() }
}

fn options<'a>(key: &'a [u8; 32], resume: Option<Resume<'a>>) -> Options<'a> {
    Options { server_name: SERVER_NAME, trust: Trust::Ed25519(key), resume, session: session() }
}

/// A net whose client has connected and spoken, with a ticket.
fn connected(link: Link, seed: u64) -> (Net, [u8; 32]) {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    let mut net = Net::new(quic(identity.tls()), link, seed);
    net.connect(&options(&key, None));
    net.speak();
    assert!(net.run_until(10_000, |net| net.is_answered() && net.told.ticket.is_some()));
    (net, key)
}

#[test]
fn a_handshake_a_publication_and_a_command() {
    let (mut net, _) = connected(Link::GOOD, 1);
    assert_eq!((net.told.handshakes, net.told.connected), (1, 1));
    assert!(!net.told.resumed && !net.told.early_data_accepted);
    assert_eq!(net.broker.published, [("s/1/radon".to_string(), b"37".to_vec())]);
    assert_eq!(net.passed_ms(), 4 * 20, "a round trip for keys, one for the publication");
    net.run(1000);
    assert_eq!(net.broker.acknowledged, 1, "the command was dealt with");
    assert!(net.client.is_flushed());
    net.client.close();
    net.run(1000);
    assert_eq!(net.told.closed, Some(CloseReason::Local));
    assert!(net.broker.disconnected);
    assert_eq!(net.broker.lost.as_deref(), Some("closed by peer: 0"));
}

#[test]
fn p256_and_what_is_not_pinned() {
    let identity = Identity::p256();
    let key: [u8; 65] = identity.public_key();
    let mut net = Net::new(quic(identity.tls()), Link::GOOD, 2);
    let good = Options { trust: Trust::P256(&key), ..options(&[0; 32], None) };
    net.connect(&good);
    net.speak();
    assert!(net.run_until(1000, Net::is_answered));

    let other: [u8; 65] = Identity::p256().public_key();
    net.connect(&Options { trust: Trust::P256(&other), ..good });
    net.speak();
    net.run(2000);
    assert_eq!(net.told.closed, Some(CloseReason::Tls(51)), "decrypt_error");
    assert_eq!(net.told.handshakes, 0);
    assert!(net.broker.published.is_empty(), "nothing is said to strangers");
}

#[test]
fn resumption_with_early_data_is_answered_after_one_round_trip() {
    let (mut net, key) = connected(Link::GOOD, 3);
    for _ in 0..3 {
        let ticket = net.told.ticket.clone().unwrap();
        let resume = Resume { ticket: &ticket, age_ms: 100, early_data: true };
        net.connect(&options(&key, Some(resume)));
        net.speak();
        let begin = net.passed_ms();
        assert!(net.run_until(1000, |net| !net.told.published.is_empty()));
        assert_eq!(net.passed_ms() - begin, 2 * 20);
        assert!(net.told.resumed && net.told.early_data_accepted);
        assert_eq!(net.sent[0].1.len(), 1200, "all of it in the first datagram");
        assert!(net.run_until(1000, |net| net.told.ticket.is_some()));
    }
}

#[test]
fn refused_early_data_is_sent_again() {
    let (mut net, key) = connected(Link::GOOD, 4);
    let ticket = net.told.ticket.clone().unwrap();
    let resume = Resume { ticket: &ticket, age_ms: 100, early_data: true };
    for server in ["which took the ticket before", "which takes no early data"] {
        net.connect(&options(&key, Some(resume)));
        net.speak();
        assert!(net.run_until(1000, Net::is_answered), "{server}");
        assert_eq!(net.broker.published.len(), 1, "{server}");
    }
    assert!(!net.told.resumed && !net.told.early_data_accepted);
}

#[test]
fn a_ticket_of_another_server_leads_to_a_full_handshake() {
    let (net, _) = connected(Link::GOOD, 5);
    let ticket = net.told.ticket.clone().unwrap();
    let (mut net, key) = connected(Link::GOOD, 6);
    let resume = Resume { ticket: &ticket, age_ms: 100, early_data: true };
    net.connect(&options(&key, Some(resume)));
    net.speak();
    assert!(net.run_until(1000, Net::is_answered));
    assert!(!net.told.resumed);
}

#[test]
fn all_of_100_connections_complete_at_ten_percent_loss() {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    let mut times = Vec::new();
    for seed in 0..100 {
        let mut net = Net::new(quic(identity.tls()), Link::BAD, seed);
        net.connect(&options(&key, None));
        net.speak();
        assert!(
            net.run_until(30_000, |net| net.is_answered() && net.told.ticket.is_some()),
            "seed {seed}: {:?}, {:?}",
            net.told,
            net.broker.lost
        );
        times.push(net.passed_ms());
        let ticket = net.told.ticket.clone().unwrap();
        let resume = Resume { ticket: &ticket, age_ms: 0, early_data: true };
        net.connect(&options(&key, Some(resume)));
        net.speak();
        assert!(net.run_until(30_000, Net::is_answered), "seed {seed}, resumed: {:?}", net.told);
        assert_eq!(net.broker.published.len(), 1, "seed {seed}");
    }
    times.sort_unstable();
    println!("first answers after {} ms, half; {} ms, all", times[50], times[99]);
}

/// The server has no more to say to an address it does not know, and the client has nothing on its way: only
/// the client's probe goes on from there, also if it is asked every millisecond what there is to send.
#[test]
fn a_handshake_that_stands_still_is_probed() {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    let mut net = Net::new(quic(identity.tls()), Link::GOOD, 1);
    net.polled = true;
    net.connect(&options(&key, None));
    assert!(net.run_until(1000, |net| net.has_flying_to_client()));
    assert!(net.leave_initial_packets());
    let sent = net.sent.len();
    // Whatever else the server has said or says is lost, and what the client answers to it.
    net.link.loss_percent = 100;
    net.run(10_000);
    let probes = net.sent.len() - sent;
    assert!((3..10).contains(&probes), "{probes} datagrams in ten seconds");
    net.link.loss_percent = 0;
    assert!(net.run_until(15_000, |net| net.told.handshakes == 1), "{:?}", net.told);
}

#[test]
fn retry() {
    for link in [Link::GOOD, Link::BAD] {
        let identity = Identity::ed25519();
        let key = identity.public_key();
        let mut net = Net::new(quic(identity.tls()), link, 7);
        net.retry = true;
        net.connect(&options(&key, None));
        net.speak();
        assert!(net.run_until(20_000, |net| net.is_answered() && net.told.ticket.is_some()));
        let ticket = net.told.ticket.clone().unwrap();
        let resume = Resume { ticket: &ticket, age_ms: 100, early_data: true };
        net.connect(&options(&key, Some(resume)));
        net.speak();
        assert!(net.run_until(20_000, Net::is_answered));
        assert!(net.told.resumed && net.told.early_data_accepted);
        assert_eq!(net.broker.published.len(), 1);
    }
}

#[test]
fn key_updates_of_both_sides() {
    for link in [Link::GOOD, Link::BAD] {
        let (mut net, _) = connected(link, 8);
        net.run(3000);
        for round in 0..10u8 {
            if round % 2 == 0 {
                assert!(net.client.update_keys(), "round {round}");
                assert!(!net.client.update_keys(), "one at a time");
            } else {
                net.server().force_key_update();
            }
            let id = net.client.publish("s", &[round], QoS::AtLeastOnce).unwrap();
            let acked = |net: &Net| net.told.published.contains(&id);
            assert!(net.run_until(20_000, acked), "round {round}: {:?}", net.told);
            net.run(5000);
            // With an acknowledgement in this phase the next may begin.
            net.client.publish("s", b"", QoS::AtMostOnce).unwrap();
            net.run(5000);
        }
        assert_eq!(net.told.closed, None);
    }
}

#[test]
fn a_new_address_is_validated() {
    let (mut net, _) = connected(Link::GOOD, 9);
    net.run(1000);
    net.client_port += 1;
    let id = net.client.publish("s", b"from elsewhere", QoS::AtLeastOnce).unwrap();
    assert!(net.run_until(2000, |net| net.told.published.contains(&id)));
    net.run(2000);
    let expected = net.client_port;
    assert_eq!(net.server().remote_address().port(), expected);
    assert_eq!(net.server().stats().path.lost_packets, 0);
}

#[test]
fn a_server_that_forgot_says_so() {
    let (mut net, _) = connected(Link::GOOD, 10);
    net.run(1000);
    net.forget();
    net.client.publish("s", b"is anybody there?", QoS::AtLeastOnce).unwrap();
    assert!(net.run_until(2000, |net| net.told.closed.is_some()));
    assert_eq!(net.told.closed, Some(CloseReason::Reset));
}

#[test]
fn keep_alive_and_idle_timeout() {
    let (mut net, _) = connected(Link::GOOD, 11);
    net.run(100_000);
    assert_eq!(net.told.closed, None);
    assert!(net.broker.pings >= 4, "{}", net.broker.pings);
    net.link.loss_percent = 100;
    let begin = net.passed_ms();
    assert!(net.run_until(100_000, |net| net.told.closed.is_some()));
    assert_eq!(net.told.closed, Some(CloseReason::IdleTimeout));
    let waited = net.passed_ms() - begin;
    assert!((20_000..62_000).contains(&waited), "{waited}");
}

#[test]
fn much_is_sent_and_received_on_both_streams() {
    let (mut net, _) = connected(Link::BAD, 12);
    net.broker.command = vec![7; 1900];
    for round in 0..200u32 {
        let payload = vec![round as u8; 400];
        let stream = (round % 2) as usize;
        let answers = net.told.messages.len();
        while net.client.publish_on(stream, "s/bulk", &payload, QoS::AtLeastOnce).is_err() {
            assert!(net.run_until(20_000, |net| net.client.is_flushed()), "{:?}", net.told);
        }
        if round % 10 == 0 {
            net.client.subscribe("c", QoS::AtLeastOnce).unwrap();
            assert!(net.run_until(20_000, |net| net.told.messages.len() > answers));
        }
    }
    assert!(net.run_until(20_000, |net| net.told.published.len() == 201), "{:?}", net.told.closed);
    let bulk = net.broker.published.iter().filter(|(topic, _)| topic == "s/bulk").count();
    assert_eq!(bulk, 200);
    assert!(net.told.messages.iter().skip(1).all(|(_, payload)| *payload == [7; 1900]));
}

#[test]
fn version_negotiation_is_believed_only_if_it_can_be_true() {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    let mut net = Net::new(quic(identity.tls()), Link::GOOD, 13);
    net.connect(&options(&key, None));
    net.run(0);
    let first = net.sent[0].1.clone();
    let ours = &first[6..14];
    let packet = |source: &[u8], versions: &[[u8; 4]]| {
        let mut packet = vec![0x80, 0, 0, 0, 0, 0, source.len() as u8];
        packet.extend(source);
        packet.extend(versions.concat());
        packet
    };
    net.inject(packet(&[1; 8], &[[0xff, 0, 0, 29]])); // not to this attempt
    net.inject(packet(ours, &[[0xff, 0, 0, 29], [0, 0, 0, 1]])); // we could speak that
    net.inject(packet(ours, &[]));
    assert!(net.client.deadline().is_some());
    net.inject(packet(ours, &[[0xff, 0, 0, 29], [0x0a, 0x1a, 0x2a, 0x3a]]));
    net.run(0);
    assert_eq!(net.told.closed, Some(CloseReason::Version));
}

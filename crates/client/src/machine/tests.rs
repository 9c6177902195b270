//! Sessions with a simulated server: single rules, and arbitrary losses.

#![allow(clippy::unwrap_used)]

use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Connack, Suback};
use fulmar_mqtt::properties::Properties;
use fulmar_mqtt::{PacketId, QoS};
use proptest::prelude::*;

use super::flow::put_publish;
use super::*;

type Session = Machine<u32, u32>;

/// A server that keeps one session, QoS state included, until a test makes it forget the session.
#[derive(Default)]
struct Server {
    has_session: bool,
    open: Vec<PacketId>,
    got: Vec<(String, QoS, bool)>,
    subscribed: Vec<String>,
    connects: usize,
    clean_starts: usize,
}

impl Server {
    /// Takes whole packets and answers them.
    fn take(&mut self, bytes: &[u8], limits: &PropertyBuf) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(frame) = peek_frame(&bytes[at..], 1 << 20).unwrap() {
            self.packet(decode(&frame, Version::V5).unwrap(), limits, &mut out);
            at += frame.len;
        }
        assert_eq!(at, bytes.len(), "the client writes whole packets");
        out
    }

    fn packet(&mut self, packet: Packet<'_>, limits: &PropertyBuf, out: &mut Vec<u8>) {
        let mut answer = |kind, id| ack::encode(out, Version::V5, kind, id, ReasonCode::Success);
        match packet {
            Packet::Connect(connect) => {
                self.connects += 1;
                self.clean_starts += usize::from(connect.clean_start);
                if connect.clean_start {
                    self.forget();
                }
                let session_present = std::mem::replace(&mut self.has_session, true);
                let properties = limits.as_properties();
                Connack { session_present, reason: ReasonCode::Success, properties }
                    .encode(Version::V5, out);
            }
            Packet::Publish(publish) => {
                let new = match publish.packet_id {
                    Some(id) if publish.qos == QoS::ExactlyOnce => {
                        answer(AckKind::Pubrec, id);
                        let new = !self.open.contains(&id);
                        if new {
                            self.open.push(id);
                        }
                        new
                    }
                    Some(id) => {
                        answer(AckKind::Puback, id);
                        true
                    }
                    None => true,
                };
                if new {
                    let text = String::from_utf8(publish.payload.to_vec()).unwrap();
                    self.got.push((text, publish.qos, publish.dup));
                }
            }
            Packet::Ack(AckKind::Pubrel, ack) => {
                self.open.retain(|id| *id != ack.packet_id);
                answer(AckKind::Pubcomp, ack.packet_id);
            }
            Packet::Subscribe(subscribe) => {
                let names: Vec<_> = subscribe.filters.iter().map(|(f, _)| f.to_owned()).collect();
                let codes = vec![1; names.len()];
                self.subscribed.extend(names);
                let packet_id = subscribe.packet_id;
                Suback { packet_id, properties: Properties::NONE, codes: &codes }
                    .encode(Version::V5, out);
            }
            Packet::Pingreq => Packet::Pingresp.encode(Version::V5, out),
            Packet::Disconnect(_) => {}
            other => panic!("unexpected {}", other.name()),
        }
    }

    fn forget(&mut self) {
        self.has_session = false;
        self.open.clear();
        self.subscribed.clear();
    }
}

struct Pair {
    now: Instant,
    session: Session,
    server: Server,
    limits: PropertyBuf,
    done: Vec<(u32, Result<ReasonCode, Error>)>,
    messages: Vec<Message>,
    doubtful: usize,
}

impl Pair {
    fn new() -> Pair {
        let mut options = Options::new("mqtt://h").unwrap();
        options.session_expiry_s = 100;
        let now = Instant::now();
        Pair {
            now,
            session: Machine::new(Arc::new(options), now),
            server: Server::default(),
            limits: PropertyBuf::new(),
            done: Vec::new(),
            messages: Vec::new(),
            doubtful: 0,
        }
    }

    fn flush(&mut self) -> Vec<u8> {
        let out = self.session.output(CONTROL).to_vec();
        self.session.sent(CONTROL, out.len(), self.now);
        out
    }

    /// One round trip; answers are lost if `lose_answers`. Returns whether anything was sent.
    fn round(&mut self, lose_answers: bool) -> bool {
        let out = self.flush();
        let answers = self.server.take(&out, &self.limits);
        if !lose_answers {
            self.give(&answers).unwrap();
        }
        !out.is_empty()
    }

    fn give(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let used = self.session.receive(self.now, CONTROL, bytes);
        while let Some(outcome) = self.session.poll_event() {
            match outcome {
                Outcome::Published(token, result) => self.done.push((token, result)),
                Outcome::Message(message) => self.messages.push(message),
                Outcome::Answered(_, result) => assert!(result.is_ok()),
                Outcome::Connected { .. } => {}
                Outcome::MayRepeat { messages } => self.doubtful += messages,
            }
        }
        used
    }

    fn settle(&mut self) {
        while self.round(false) {}
    }

    fn up(&mut self) {
        self.session.connect(self.now, false, false);
        self.settle();
        assert!(self.session.is_up());
    }

    fn publish(&mut self, qos: QoS, token: u32) {
        self.session.publish(Message::new("t", token.to_string()).qos(qos), token);
    }

    fn payloads(&self) -> Vec<u32> {
        self.server.got.iter().map(|(text, ..)| text.parse().unwrap()).collect()
    }
}

#[test]
fn every_quality_of_service_is_delivered_in_order() {
    let mut pair = Pair::new();
    for (token, qos) in
        [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().enumerate()
    {
        pair.publish(qos, token as u32);
    }
    pair.up();
    assert_eq!(pair.payloads(), [0, 1, 2]);
    assert!(pair.done.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(pair.done.len(), 3);
}

#[test]
fn mqtt_3_3_4_7_what_is_sent_again_keeps_to_the_new_receive_maximum() {
    let mut pair = Pair::new();
    pair.up();
    (0..5).for_each(|token| pair.publish(QoS::AtLeastOnce, token));
    pair.round(true);
    pair.session.disconnected();
    pair.server.got.clear();
    pair.limits.push(Property::ReceiveMaximum(2));
    pair.session.connect(pair.now, false, false);
    pair.round(false);
    pair.round(true);
    assert_eq!(pair.payloads(), [0, 1]);
    pair.session.disconnected();
    pair.up();
    assert_eq!(pair.payloads(), [0, 1, 0, 1, 2, 3, 4]);
    assert!(pair.session.is_idle());
}

#[test]
fn a_wrong_answer_ends_the_connection_and_not_the_request() {
    let mut pair = Pair::new();
    pair.up();
    pair.session.subscribe(vec![("a".to_owned(), SubscribeOptions::default())], 7);
    let out = pair.flush();
    let frame = peek_frame(&out, 1 << 20).unwrap().unwrap();
    let Ok(Packet::Subscribe(asked)) = decode(&frame, Version::V5) else { panic!("{frame:?}") };
    let packet_id = asked.packet_id;
    let mut answer = Vec::new();
    Suback { packet_id, properties: Properties::NONE, codes: &[0, 0] }
        .encode(Version::V5, &mut answer);
    assert!(matches!(pair.give(&answer), Err(Error::Protocol(_))));
    pair.session.disconnected();
    pair.up();
    assert_eq!(pair.server.subscribed, ["a"]);
    assert!(pair.session.is_idle());
}

#[test]
fn mqtt_4_4_0_1_a_resumed_session_sends_again_with_dup() {
    let mut pair = Pair::new();
    pair.up();
    pair.publish(QoS::AtLeastOnce, 1);
    pair.publish(QoS::ExactlyOnce, 2);
    pair.round(true);
    pair.session.disconnected();
    pair.up();
    // QoS 1 came twice, marked; QoS 2 once.
    let got: Vec<_> = pair.server.got.iter().map(|(text, _, dup)| (text.as_str(), *dup)).collect();
    assert_eq!(got, [("1", false), ("2", false), ("1", true)]);
    assert_eq!(pair.done.len(), 2);
    assert_eq!(pair.server.clean_starts, 1);
}

#[test]
fn a_lost_session_is_rebuilt() {
    let mut pair = Pair::new();
    pair.up();
    pair.session.subscribe(vec![("a/#".into(), SubscribeOptions::default())], 9);
    pair.settle();
    pair.publish(QoS::AtLeastOnce, 1);
    pair.session.disconnected();
    pair.server.forget();
    pair.up();
    assert_eq!(pair.server.subscribed, ["a/#"]);
    assert_eq!(pair.server.got, [("1".to_owned(), QoS::AtLeastOnce, false)]);
}

#[test]
fn mqtt_3_3_4_7_the_receive_maximum_holds() {
    let mut pair = Pair::new();
    pair.limits.push(Property::ReceiveMaximum(2));
    pair.up();
    (0..5).for_each(|token| pair.publish(QoS::AtLeastOnce, token));
    pair.round(true);
    assert_eq!(pair.payloads(), [0, 1]);
    pair.session.disconnected();
    pair.up();
    assert_eq!(pair.payloads(), [0, 1, 0, 1, 2, 3, 4]);
}

#[test]
fn what_the_server_does_not_take_is_refused_here() {
    let mut pair = Pair::new();
    pair.limits.push(Property::MaximumQoS(1)).push(Property::MaximumPacketSize(20));
    pair.limits.push(Property::RetainAvailable(false));
    pair.up();
    pair.publish(QoS::ExactlyOnce, 1);
    pair.session.publish(Message::new("t", vec![0; 20]), 2);
    pair.session.publish(Message::new("t", "x").retain(), 3);
    pair.settle();
    let reasons = pair.done.iter().map(|(_, result)| match result {
        Err(Error::Rejected(reason)) => *reason,
        other => panic!("{other:?}"),
    });
    use ReasonCode as R;
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [R::QosNotSupported, R::PacketTooLarge, R::RetainNotSupported]
    );
    assert!(pair.server.got.is_empty());
}

#[test]
fn a_subscribe_larger_than_the_server_takes_is_refused_here() {
    let mut pair = Pair::new();
    pair.up();
    pair.session.subscribe(vec![("a/#".into(), SubscribeOptions::default())], 1);
    pair.session.subscribe(vec![("b/#".into(), SubscribeOptions::default())], 2);
    pair.settle();
    // The next server has a smaller limit: the subscriptions are sent again in packets within it.
    pair.limits.push(Property::MaximumPacketSize(14));
    pair.session.disconnected();
    pair.server.forget();
    pair.up();
    assert_eq!(pair.server.subscribed, ["a/#", "b/#"]);
    pair.session.subscribe(vec![("c".repeat(20), SubscribeOptions::default())], 3);
    let refused = std::iter::from_fn(|| pair.session.poll_event()).any(|outcome| {
        let too_large = Error::Rejected(ReasonCode::PacketTooLarge).to_string();
        matches!(outcome, Outcome::Answered(3, Err(error)) if error.to_string() == too_large)
    });
    assert!(refused && pair.flush().is_empty());
}

#[test]
fn the_queue_is_bounded_by_bytes_until_they_are_delivered() {
    let mut pair = Pair::new();
    Arc::get_mut(&mut pair.session.options).unwrap().max_queued_bytes = 5000;
    for token in 0..4 {
        assert!(pair.session.has_room(), "{token}");
        pair.session.publish(Message::new("t", vec![b'0'; 1500]).qos1(), token);
    }
    assert!(!pair.session.has_room());
    pair.up();
    assert!(pair.session.has_room());
    assert_eq!(pair.session.desk.held_bytes, 0);
}

#[test]
fn a_lost_session_makes_unfinished_qos_2_doubtful_and_says_so() {
    let mut pair = Pair::new();
    pair.up();
    pair.publish(QoS::ExactlyOnce, 1);
    pair.round(true);
    pair.session.disconnected();
    pair.server.forget();
    pair.up();
    assert_eq!((pair.payloads(), pair.doubtful), (vec![1, 1], 1));
}

#[test]
fn mqtt_4_3_3_10_a_repeated_qos_2_message_is_told_once() {
    let mut pair = Pair::new();
    pair.up();
    let message = Message::new("t", "x").qos2();
    for dup in [false, true] {
        let mut bytes = Vec::new();
        put_publish(&mut bytes, Version::V5, &message, PacketId::new(7), dup);
        pair.give(&bytes).unwrap();
    }
    assert_eq!(pair.messages.len(), 1);
    // PUBREC both times.
    assert_eq!(pair.flush(), [0x50, 2, 0, 7, 0x50, 2, 0, 7]);
}

#[test]
fn mqtt_4_3_2_what_is_acknowledged_by_hand_is_so_on_its_own_connection_only() {
    let mut options = Options::new("mqtt://h").unwrap();
    options.session_expiry_s = 100;
    options.acknowledge_by_hand = true;
    let mut pair = Pair::new();
    pair.session = Machine::new(Arc::new(options), pair.now);
    pair.up();
    let come = |pair: &mut Pair, qos, id| {
        let mut bytes = Vec::new();
        let message = Message::new("t", "x").qos(qos);
        put_publish(&mut bytes, Version::V5, &message, PacketId::new(id), false);
        pair.give(&bytes).unwrap();
        pair.messages.pop().unwrap().receipt
    };
    let first = come(&mut pair, QoS::AtLeastOnce, 7).unwrap();
    let second = come(&mut pair, QoS::AtLeastOnce, 8).unwrap();
    assert_eq!(come(&mut pair, QoS::AtMostOnce, 9), None);
    assert!(pair.flush().is_empty(), "nobody has it for good");
    pair.session.acknowledge(&second);
    assert_eq!(pair.flush(), [0x40, 2, 0, 8]);
    // The server sends the other one again, and may use the identifier for something else.
    pair.session.disconnected();
    pair.up();
    pair.session.acknowledge(&first);
    assert!(pair.flush().is_empty());
    let again = come(&mut pair, QoS::AtLeastOnce, 7).unwrap();
    pair.session.acknowledge(&again);
    assert_eq!(pair.flush(), [0x40, 2, 0, 7]);
    assert_eq!(come(&mut pair, QoS::ExactlyOnce, 10), None);
    assert_eq!(pair.flush(), [0x50, 2, 0, 10]);
}

#[test]
fn early_data_goes_with_connect_and_again_when_refused() {
    let mut pair = Pair::new();
    pair.publish(QoS::AtMostOnce, 0);
    pair.publish(QoS::AtLeastOnce, 1);
    pair.session.connect(pair.now, true, false);
    let mut refused = Server::default();
    refused.take(&pair.flush(), &PropertyBuf::new());
    assert_eq!(refused.got.len(), 2, "both go with CONNECT");
    pair.session.early_data_rejected();
    pair.up();
    assert_eq!(pair.payloads(), [0, 1], "nothing of the refused flight is lost or doubled");

    let mut taken = Pair::new();
    taken.publish(QoS::AtMostOnce, 0);
    taken.publish(QoS::AtLeastOnce, 1);
    taken.session.connect(taken.now, true, false);
    taken.settle();
    assert_eq!(taken.payloads(), [0, 1]);
    assert_eq!(taken.done.len(), 2);
}

#[test]
fn mqtt_3_1_4_a_first_connection_asks_before_it_is_let_in_and_publishes_after() {
    let mut pair = Pair::new();
    pair.publish(QoS::AtMostOnce, 0);
    pair.session.subscribe(vec![("f".to_owned(), SubscribeOptions::default())], 1);
    pair.session.connect(pair.now, false, false);
    let flight = pair.flush();
    pair.server.take(&flight, &PropertyBuf::new());
    assert_eq!(pair.server.subscribed, ["f"]);
    assert!(pair.payloads().is_empty(), "only CONNACK tells what the server takes");

    // There was no answer: the request is sent again, on a later connection after CONNACK.
    pair.session.disconnected();
    pair.server = Server::default();
    pair.up();
    assert_eq!((pair.payloads(), &pair.server.subscribed[..]), (vec![0], &["f".to_owned()][..]));
    pair.session.disconnected();
    pair.session.subscribe(vec![("g".to_owned(), SubscribeOptions::default())], 2);
    pair.session.connect(pair.now, false, false);
    let flight = pair.flush();
    let connect = peek_frame(&flight, 1 << 20).unwrap().unwrap();
    assert_eq!(connect.len, flight.len(), "CONNECT and nothing else");
}

/// A session that may publish before CONNACK.
fn eager() -> Pair {
    let mut pair = Pair::new();
    let mut options = Options::clone(&pair.session.options);
    options.publish_before_connack = true;
    pair.session = Session::new(Arc::new(options), pair.now);
    pair
}

/// What the server receives in the flight that begins with CONNECT.
fn first_flight(pair: &mut Pair) -> Vec<String> {
    let mut server = Server::default();
    server.take(&pair.flush(), &PropertyBuf::new());
    server.got.into_iter().map(|(text, ..)| text).collect()
}

#[test]
fn mqtt_3_1_4_publications_go_with_connect_if_allowed_and_again_if_nobody_answers() {
    let mut pair = eager();
    pair.session.connect(pair.now, false, false);
    (0..20).for_each(|number| pair.publish(QoS::AtLeastOnce, number));
    let got = first_flight(&mut pair);
    assert_eq!(got, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(pair.done.is_empty(), "nothing is acknowledged by being sent");

    // The next attempt waits, because the first may have been refused because of the early packets.
    pair.session.disconnected();
    pair.session.connect(pair.now, false, false);
    assert_eq!(first_flight(&mut pair), [""; 0]);
    pair.session.disconnected();
    pair.up();
    assert_eq!(pair.payloads(), (0..20).collect::<Vec<_>>());
    assert_eq!(pair.done.len(), 20);
    // With nothing in flight the next may go ahead again.
    pair.session.disconnected();
    pair.publish(QoS::AtLeastOnce, 20);
    pair.session.connect(pair.now, false, false);
    assert_eq!(first_flight(&mut pair), ["20"]);
}

#[test]
fn what_a_server_may_refuse_waits_for_connack_and_so_does_what_is_behind_it() {
    let large = Message::new("t", vec![b'1'; 12_000]).qos1();
    let retained = Message { retain: true, ..Message::new("t", "1").qos1() };
    let others = [Message::new("t", "1"), Message::new("t", "1").qos2(), retained, large];
    for message in others {
        let mut pair = eager();
        pair.publish(QoS::AtLeastOnce, 0);
        pair.session.publish(message.clone(), 1);
        pair.publish(QoS::AtLeastOnce, 2);
        pair.session.connect(pair.now, false, false);
        assert_eq!(first_flight(&mut pair), ["0"], "{message:?}");
        pair.session.disconnected();
        pair.up();
        assert_eq!(pair.done.len(), 3);
    }
}

#[test]
fn what_a_refused_connection_took_along_is_not_delivered() {
    let mut pair = eager();
    pair.publish(QoS::AtLeastOnce, 0);
    pair.session.connect(pair.now, false, false);
    assert_eq!(first_flight(&mut pair), ["0"]);
    let mut refusal = Vec::new();
    let (reason, properties) = (ReasonCode::BadUserNameOrPassword, Properties::NONE);
    Connack { session_present: false, reason, properties }.encode(Version::V5, &mut refusal);
    let error = pair.give(&refusal).unwrap_err();
    pair.session.abandon(&error);
    pair.settle();
    assert!(matches!(pair.done[..], [(0, Err(_))]), "{:?}", pair.done);
}

#[test]
fn mqtt_3_1_2_20_a_quiet_client_pings_and_gives_up_on_a_silent_server() {
    let mut pair = Pair::new();
    pair.up();
    let due = pair.session.deadline().unwrap();
    assert_eq!(due - pair.now, Duration::from_millis(52_500));
    pair.session.on_deadline(due, true).unwrap();
    assert_eq!(pair.flush(), [0xC0, 0]);
    let late = pair.session.deadline().unwrap();
    assert!(pair.session.on_deadline(late, false).is_ok(), "nobody has listened");
    let later = pair.session.deadline().unwrap();
    assert!(matches!(pair.session.on_deadline(later, true), Err(Error::KeepAlive)));
}

#[test]
fn mqtt_3_1_2_22_a_server_that_writes_and_does_not_read_is_given_up_when_it_must_give_up_the_client()
 {
    let mut pair = Pair::new();
    pair.up();
    pair.publish(QoS::AtMostOnce, 1);
    let (since, waiting) = (pair.now, pair.session.output(CONTROL).len());
    for seconds in 1..90 {
        pair.now = since + Duration::from_secs(seconds);
        // A PUBREL each second is not silence.
        pair.give(&[0x62, 2, 0, 1]).unwrap();
        pair.session.on_deadline(pair.now, true).unwrap();
    }
    let grown = pair.session.output(CONTROL).len() - waiting;
    assert_eq!(grown, 89 * 5, "the answers, and no PINGREQ behind what waits");
    let late = since + Duration::from_secs(90);
    assert_eq!(pair.session.deadline(), Some(late));
    assert!(matches!(pair.session.on_deadline(late, true), Err(Error::KeepAlive)));
}

#[test]
fn a_ping_after_a_late_timer_has_time_for_its_answer() {
    let mut pair = Pair::new();
    pair.up();
    // As when the device was asleep.
    pair.now += Duration::from_secs(300);
    pair.session.on_deadline(pair.now, true).unwrap();
    assert_eq!(pair.session.deadline(), Some(pair.now + Duration::from_secs(30)));
    pair.session.on_deadline(pair.now, true).unwrap();
}

#[test]
fn mqtt_3_14_4_2_nothing_follows_disconnect() {
    let mut pair = Pair::new();
    pair.up();
    pair.session.close_now();
    pair.give(&[0x62, 2, 0, 1]).unwrap();
    assert!(pair.flush().ends_with(&[0xE0, 0]));
}

#[test]
fn a_server_that_breaks_the_protocol_is_told_so() {
    let mut pair = Pair::new();
    pair.up();
    assert!(matches!(pair.give(&[0x90, 4, 0, 9, 0, 0]), Err(Error::Protocol(_))));
    assert_eq!(pair.flush(), [0xE0, 1, ReasonCode::ProtocolError.as_u8()]);
    let mut early = Pair::new();
    early.session.connect(early.now, false, false);
    early.flush();
    assert!(matches!(early.give(&[0xD0, 0]), Err(Error::Protocol(_))));
}

/// A CONNECT of a version that does not exist was answered with a reason that no DISCONNECT may give.
#[test]
fn mqtt_4_13_1_packets_that_only_clients_send_are_protocol_errors_whatever_is_in_them() {
    for bytes in [
        &[0x10, 0][..],
        &[0x10, 7, 0, 4, b'M', b'Q', b'T', b'T', 9],
        &[0x10, 3, 0, 1, b'X'],
        &[0x82, 0],
        &[0xA2, 0],
        &[0xC0, 0],
        &[0xC0, 1, 0],
    ] {
        let mut pair = Pair::new();
        pair.up();
        assert!(matches!(pair.give(bytes), Err(Error::Protocol(_))), "{bytes:x?}");
        assert_eq!(pair.flush(), [0xE0, 1, ReasonCode::ProtocolError.as_u8()], "{bytes:x?}");
    }
}

#[test]
fn mqtt_3_4_2_1_a_reason_that_is_not_the_acknowledgements_is_a_protocol_error() {
    let (first, second) = (QoS::AtLeastOnce, QoS::ExactlyOnce);
    for (qos, bytes) in [
        (first, [0x40, 3, 0, 1, 0x92]),
        (second, [0x50, 3, 0, 1, 0x8F]),
        (second, [0x70, 3, 0, 1, 0x97]),
        (second, [0x62, 3, 0, 1, 0x10]),
    ] {
        let mut pair = Pair::new();
        pair.up();
        pair.publish(qos, 0);
        pair.flush();
        assert!(matches!(pair.give(&bytes), Err(Error::Protocol(_))), "{bytes:x?}");
        assert_eq!(pair.flush(), [0xE0, 1, ReasonCode::ProtocolError.as_u8()]);
    }
}

#[test]
fn mqtt_4_13_1_an_acknowledgement_of_the_other_quality_of_service_is_a_protocol_error() {
    for (qos, kind) in
        [(QoS::AtLeastOnce, 0x50), (QoS::AtLeastOnce, 0x70), (QoS::ExactlyOnce, 0x40)]
    {
        let mut pair = Pair::new();
        pair.up();
        pair.publish(qos, 0);
        pair.flush();
        assert!(matches!(pair.give(&[kind, 2, 0, 1]), Err(Error::Protocol(_))), "{kind:x}");
        assert_eq!(pair.flush(), [0xE0, 1, ReasonCode::ProtocolError.as_u8()]);
    }
}

#[test]
fn mqtt_4_3_3_4_a_pubrec_with_an_error_is_not_answered_with_pubrel() {
    let mut pair = Pair::new();
    pair.up();
    pair.publish(QoS::ExactlyOnce, 0);
    pair.flush();
    // Of a message that is in flight, and of none.
    for _ in 0..2 {
        pair.give(&[0x50, 3, 0, 1, 0x97]).unwrap();
        assert_eq!(pair.flush(), [0u8; 0]);
    }
    pair.settle();
    assert!(matches!(pair.done[..], [(0, Err(Error::Rejected(ReasonCode::QuotaExceeded)))]));
}

#[test]
fn a_refused_publication_is_over_its_identifier_free_and_it_is_never_sent_again() {
    for (qos, kind) in [(QoS::AtLeastOnce, 0x40), (QoS::ExactlyOnce, 0x50)] {
        let mut pair = Pair::new();
        // One may be in flight, so that the next is sent only when this one is finished.
        pair.limits.push(Property::ReceiveMaximum(1));
        pair.up();
        pair.publish(qos, 0);
        pair.publish(qos, 1);
        pair.flush();
        pair.give(&[kind, 3, 0, 1, ReasonCode::NotAuthorized.as_u8()]).unwrap();
        let full = Error::Rejected(ReasonCode::ImplementationSpecificError).to_string();
        assert!(full.contains("(0x83); of Fulmar, the broker cannot store"), "{full}");
        let refused = Error::Rejected(ReasonCode::NotAuthorized).to_string();
        assert!(matches!(&pair.done[..], [(0, Err(error))] if error.to_string() == refused));
        assert!(refused.contains("Not authorized"), "{refused}");
        let taken = pair.session.flows[CONTROL].outbound.replay().map(|one| one.packet_id().get());
        assert_eq!(taken.collect::<Vec<_>>(), [2], "{qos:?}: only the second has an identifier");
        let next = pair.session.output(CONTROL).to_vec();
        let flags = 0x30 | (qos as u8) << 1;
        assert_eq!(next, [flags, 7, 0, 1, b't', 0, 2, 0, b'1'], "{qos:?}");
        pair.session.disconnected();
        pair.up();
        assert_eq!(pair.payloads(), [1], "{qos:?}");
        assert!(matches!(pair.done[1..], [(1, Ok(_))]), "{:?}", pair.done);
    }
}

#[test]
fn closing_delivers_first() {
    let mut pair = Pair::new();
    pair.publish(QoS::ExactlyOnce, 1);
    pair.session.close();
    pair.session.connect(pair.now, false, false);
    pair.settle();
    assert!(pair.session.is_done());
    assert_eq!(pair.done.len(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish(u8),
    Round { lose_answers: bool },
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..3).prop_map(Step::Publish),
        3 => any::<bool>().prop_map(|lose_answers| Step::Round { lose_answers }),
        1 => Just(Step::Reconnect),
    ]
}

proptest! {
    /// Whatever is lost: QoS 1 messages arrive, QoS 2 messages arrive once, both in the order in which they were
    /// first sent, and every publication gets exactly one result.
    #[test]
    fn nothing_is_lost_whatever_the_connection_does(
        steps in proptest::collection::vec(step(), 0..60),
        window in 1u16..5,
    ) {
        let mut pair = Pair::new();
        pair.limits.push(Property::ReceiveMaximum(window));
        let mut sent: Vec<QoS> = Vec::new();
        let mut broken = true;
        for step in steps {
            match step {
                Step::Publish(qos) => {
                    let qos = QoS::try_from(qos).unwrap();
                    pair.publish(qos, sent.len() as u32);
                    sent.push(qos);
                }
                Step::Round { lose_answers } if !broken => {
                    pair.round(lose_answers);
                    // A stream that has lost bytes delivers nothing after them.
                    broken |= lose_answers;
                }
                Step::Round { .. } => {}
                Step::Reconnect => {
                    pair.session.disconnected();
                    pair.session.connect(pair.now, false, false);
                    broken = false;
                }
            }
        }
        pair.session.disconnected();
        pair.up();
        let got = pair.payloads();
        for (token, qos) in sent.iter().enumerate() {
            let times = got.iter().filter(|seen| **seen == token as u32).count();
            match qos {
                QoS::AtMostOnce => prop_assert!(times <= 1),
                QoS::AtLeastOnce => prop_assert!(times >= 1),
                QoS::ExactlyOnce => prop_assert_eq!(times, 1),
            }
        }
        let mut first: Vec<u32> = Vec::new();
        for token in got.into_iter().filter(|token| sent[*token as usize] != QoS::AtMostOnce) {
            if !first.contains(&token) {
                first.push(token);
            }
        }
        prop_assert!(first.is_sorted(), "{:?}", first);
        let mut told: Vec<_> = pair.done.iter().map(|(token, _)| *token).collect();
        told.sort_unstable();
        prop_assert_eq!(told, (0..sent.len() as u32).collect::<Vec<_>>());
    }

    /// Arbitrary bytes from a server end in an error or wait for more; they never panic.
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut pair = Pair::new();
        pair.up();
        drop(pair.give(&bytes));
    }
}

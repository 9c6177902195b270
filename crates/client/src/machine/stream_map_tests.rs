//! Sessions with data streams: what is sent on which stream, and the state after a stream is lost.

#![allow(clippy::unwrap_used)]

use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::flow::{self, FlowFlags, FlowHeader, StreamError};
use fulmar_mqtt::packet::{Connack, RetainHandling, Suback};
use fulmar_mqtt::properties::Properties;
use fulmar_mqtt::{PacketId, QoS};

use super::*;
use crate::options::Streams;

type Session = Machine<u32, u32>;

/// A session on `streams` data streams at most.
fn session(persistent_flows: bool) -> Session {
    let mut options = Options::new("quic://h").unwrap();
    options.session_expiry_s = 100;
    options.streams = Streams::PerTopicAndSubscription;
    options.max_data_streams = 2;
    options.persistent_flows = persistent_flows;
    Machine::new(Arc::new(options), Instant::now())
}

/// Takes a flow's output: names and payloads or filters of its packets, after its header if any.
fn take(session: &mut Session, flow: usize) -> (Option<FlowHeader>, Vec<String>) {
    let out = session.output(flow).to_vec();
    session.sent(flow, out.len(), Instant::now());
    let mut rest = &out[..];
    let mut header = None;
    if rest.first().is_some_and(|first| flow != CONTROL && flow::is_flow_header(*first)) {
        let (found, used) = flow::decode(rest).unwrap().unwrap();
        (header, rest) = (Some(found), &rest[used..]);
    }
    let mut packets = Vec::new();
    while let Some(frame) = peek_frame(rest, 1 << 20).unwrap() {
        packets.push(match decode(&frame, Version::V5).unwrap() {
            Packet::Publish(publish) => {
                let text = String::from_utf8_lossy(publish.payload);
                format!("{} {text}{}", publish.topic, if publish.dup { " dup" } else { "" })
            }
            Packet::Subscribe(subscribe) => {
                let filters = subscribe.filters.iter().map(|(filter, options)| {
                    let again = options.retain_handling == RetainHandling::IfNew;
                    format!("{filter}{}", if again { " if new" } else { "" })
                });
                format!("SUBSCRIBE {}", filters.collect::<Vec<_>>().join(" "))
            }
            other => other.name().to_owned(),
        });
        rest = &rest[frame.len..];
    }
    assert!(rest.is_empty(), "whole packets only");
    (header, packets)
}

fn connack(session: &mut Session, session_present: bool) {
    let mut bytes = Vec::new();
    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
    Connack { session_present, reason, properties }.encode(Version::V5, &mut bytes);
    session.receive(Instant::now(), CONTROL, &bytes).unwrap();
}

fn up(session: &mut Session, session_present: bool) {
    session.connect(Instant::now(), false, true);
    take(session, CONTROL);
    connack(session, session_present);
}

fn publish(session: &mut Session, topic: &str, token: u32, qos: QoS) {
    session.publish(Message::new(topic, token.to_string()).qos(qos), token);
}

/// The first packet identifier a flow gives out is acknowledged.
fn acknowledge(session: &mut Session, flow: usize, kind: AckKind) {
    let mut bytes = Vec::new();
    ack::encode(&mut bytes, Version::V5, kind, PacketId::FIRST, ReasonCode::Success);
    session.receive(Instant::now(), flow, &bytes).unwrap();
}

fn may_repeat(session: &mut Session) -> usize {
    let mut sum = 0;
    while let Some(outcome) = session.poll_event() {
        if let Outcome::MayRepeat { messages } = outcome {
            sum += messages;
        }
    }
    sum
}

fn flags(header: Option<FlowHeader>) -> (u64, FlowFlags) {
    match header {
        Some(FlowHeader::ClientData(flow)) => (flow.id, flow.flags),
        other => panic!("{other:?}"),
    }
}

#[test]
fn topics_have_streams_of_their_own_and_share_when_there_are_too_many() {
    let mut session = session(false);
    up(&mut session, false);
    assert_eq!(session.stream_wanted(), None, "nothing to send yet");
    for (topic, token) in [("a", 1), ("b", 2), ("c", 3), ("a", 4)] {
        publish(&mut session, topic, token, QoS::AtMostOnce);
    }
    let mut streams = Vec::new();
    while let Some(flow) = session.stream_wanted() {
        session.stream_opened(flow);
        let (header, packets) = take(&mut session, flow);
        assert_eq!(header, None, "plain streams have no header");
        streams.push(packets);
    }
    assert_eq!(streams.len(), 2);
    assert_eq!(streams.iter().map(Vec::len).sum::<usize>(), 4);
    let with = |name: &str| streams.iter().position(|stream| stream.contains(&name.to_owned()));
    assert_eq!(with("a 1"), with("a 4"), "a topic keeps its stream");
    assert_ne!(with("a 1"), with("b 2"));
    assert!(session.output(CONTROL).is_empty());
}

#[test]
fn qos_2_stays_off_plain_streams_where_it_could_arrive_twice() {
    let mut session = session(false);
    up(&mut session, false);
    publish(&mut session, "a", 1, QoS::ExactlyOnce);
    assert_eq!(session.stream_wanted(), None);
    assert_eq!(take(&mut session, CONTROL).1, ["a 1"]);
}

#[test]
fn a_persistent_flow_resumes_on_a_new_stream() {
    let mut session = session(true);
    up(&mut session, false);
    publish(&mut session, "a", 1, QoS::ExactlyOnce);
    session.stream_opened(1);
    let (header, packets) = take(&mut session, 1);
    let kept = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
    assert_eq!(flags(header), (2, FlowFlags(kept)));
    assert_eq!(packets, ["a 1"]);
    acknowledge(&mut session, 1, AckKind::Pubrec);
    session.stream_lost(1, StreamLoss::Reset(0));
    assert_eq!(session.stream_wanted(), Some(1));
    session.stream_opened(1);
    let (header, packets) = take(&mut session, 1);
    assert_eq!(flags(header), (2, FlowFlags(kept | FlowFlags::ABORT_IF_NO_STATE)));
    assert_eq!(packets, ["PUBREL"]);
    assert_eq!(may_repeat(&mut session), 0);
}

#[test]
fn a_flow_the_server_has_lost_is_made_anew() {
    let mut session = session(true);
    up(&mut session, false);
    session.subscribe(vec![("f".to_owned(), SubscribeOptions::default())], 9);
    session.stream_opened(1);
    assert_eq!(take(&mut session, 1).1, ["SUBSCRIBE f"]);
    let mut suback = Vec::new();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    Suback { packet_id, properties, codes: &[0] }.encode(Version::V5, &mut suback);
    session.receive(Instant::now(), 1, &suback).unwrap();
    publish(&mut session, "f", 1, QoS::ExactlyOnce);
    assert_eq!(take(&mut session, 1).1, ["f 1"]);
    session.disconnected();
    up(&mut session, true);
    session.stream_opened(1);
    assert_eq!(take(&mut session, 1).1, ["f 1 dup"]);
    session.stream_lost(1, StreamLoss::Reset(StreamError::NoFlowState as u64));
    assert_eq!(session.stream_wanted(), Some(1));
    session.stream_opened(1);
    let (header, packets) = take(&mut session, 1);
    assert!(!flags(header).1.has(FlowFlags::ABORT_IF_NO_STATE));
    assert_eq!(packets, ["SUBSCRIBE f if new", "f 1"]);
    assert_eq!(may_repeat(&mut session), 1, "and it is said that it may arrive twice");
}

#[test]
fn a_server_that_takes_no_data_streams_gets_everything_on_the_control_stream() {
    for loss in [StreamLoss::NotOpened, StreamLoss::Reset(7)] {
        let mut session = session(true);
        up(&mut session, false);
        publish(&mut session, "a", 1, QoS::AtLeastOnce);
        if loss != StreamLoss::NotOpened {
            session.stream_opened(1);
            take(&mut session, 1);
        }
        session.stream_lost(1, loss);
        publish(&mut session, "a", 2, QoS::AtLeastOnce);
        assert_eq!(session.stream_wanted(), None, "{loss:?}");
        assert_eq!(take(&mut session, CONTROL).1, ["a 1", "a 2"], "{loss:?}");
    }
}

#[test]
fn without_streams_everything_moves_to_the_control_flow_and_back() {
    let mut session = session(true);
    up(&mut session, false);
    publish(&mut session, "a", 1, QoS::AtLeastOnce);
    session.stream_opened(1);
    take(&mut session, 1);
    session.disconnected();
    // TCP this time.
    session.connect(Instant::now(), false, false);
    take(&mut session, CONTROL);
    connack(&mut session, true);
    assert_eq!(take(&mut session, CONTROL).1, ["a 1"]);
    session.disconnected();
    // Back on QUIC: what is in flight on the control flow goes first.
    publish(&mut session, "a", 2, QoS::AtLeastOnce);
    up(&mut session, true);
    assert_eq!(take(&mut session, CONTROL).1, ["a 1 dup"]);
    session.stream_opened(1);
    assert_eq!(take(&mut session, 1).1, [""; 0]);
    acknowledge(&mut session, CONTROL, AckKind::Puback);
    assert_eq!(take(&mut session, 1).1, ["a 2"]);
}

#[test]
fn data_streams_end_before_the_goodbye() {
    let mut session = session(false);
    up(&mut session, false);
    publish(&mut session, "a", 1, QoS::AtMostOnce);
    session.stream_opened(1);
    session.close();
    assert!(session.is_finishing() && session.output(CONTROL).is_empty());
    take(&mut session, 1);
    session.streams_finished();
    assert_eq!(take(&mut session, CONTROL).1, ["DISCONNECT"]);
    assert!(session.is_done());
}

//! Regression tests: faults that `make simulate` or a code review found, each in the few steps that matter. A worker's
//! turn continues until the test ends it, and storage commits when the test calls `commit`. The seed "at the time" no
//! longer gives the fault's schedule, because the generator has changed.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{DropPolicy, Limits, StreamEnd, StreamKey, TransportKind};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::packet::{
    Ack, FilterList, Publish, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

fn world() -> (Arc<SimStorage>, World) {
    let storage = Arc::new(SimStorage::default());
    let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    (storage, world)
}

/// A client that has been let in by a worker.
fn connected(storage: &SimStorage, world: &mut World, worker: usize, hello: &Hello) -> Conn {
    let conn = world.open(worker);
    world.say_hello(conn, hello);
    storage.commit();
    world.settle();
    world.seen(conn);
    conn
}

fn publish(qos: QoS, retain: bool, payload: &[u8]) -> Packet<'_> {
    let (packet_id, properties) = (Some(PacketId::FIRST), Properties::NONE);
    let dup = false;
    Packet::Publish(Publish { dup, qos, retain, topic: "t", packet_id, properties, payload })
}

/// Seed 44771. A third connection would take the session over before storage knows of the second, whose
/// record would come behind the session's removal and stay.
#[test]
fn what_a_connection_says_after_it_was_taken_over_does_not_hide_its_successors_turn() {
    let (storage, mut world) = world();
    let first = connected(&storage, &mut world, 0, &lasting("c"));
    let second = world.open(1);
    world.say_hello_within_turn(second, &lasting("c"));
    world.send_within_turn(first, &publish(QoS::ExactlyOnce, false, b"late"));
    let third = world.open(0);
    world.say_hello_within_turn(third, &Hello { clean: true, ..lasting("c") });
    world.end_turn(0);
    world.end_turn(1);
    for _ in 0..3 {
        storage.commit();
        world.settle();
    }
    let sessions = storage.crash().1.sessions;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
}

/// Seed 88125. A worker whose turn takes long hands a retained message over behind a newer one that
/// has been acknowledged to its publisher.
#[test]
fn a_retained_message_does_not_reach_storage_behind_a_newer_one() {
    let (storage, mut world) = world();
    let slow = connected(&storage, &mut world, 0, &hello("slow"));
    let fast = connected(&storage, &mut world, 1, &hello("fast"));
    world.send_within_turn(slow, &publish(QoS::AtLeastOnce, true, b"old"));
    world.send_within_turn(fast, &publish(QoS::AtLeastOnce, true, b"new"));
    world.end_turn(1);
    storage.commit();
    world.end_turn(0);
    storage.commit();
    let retained = storage.crash().1.retained;
    assert_eq!(retained.len(), 1);
    assert_eq!(retained[0].payload(), b"new");
}

/// Seed 213212. What waits for the first message on the other stream waits for it still when later ones
/// have made the way back.
#[test]
fn a_subscription_that_moves_to_and_fro_keeps_its_order() {
    let (_storage, mut world) = world();
    let reader = world.open_over(0, TransportKind::Quic);
    world.say_hello(reader, &hello("reader"));
    let (publisher, _) = world.connect(0, &hello("publisher"));
    let (one, other) = (StreamKey(4), StreamKey(8));
    let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(options));
    for (payload, stream) in ["1", "2", "3", "4"].iter().zip([one, other, one, other]) {
        let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
        let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
        let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
        world.send_on(reader, stream, &subscribe);
        world.publish(publisher, "t", payload, QoS::AtLeastOnce, 1);
    }
    let mut published = |stream| {
        let seen = world.seen_on(reader, stream).into_iter();
        let texts = seen.filter_map(|seen| match seen {
            Seen::Publish(got) => Some(got.text()),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    assert_eq!(published(other), [""; 0], "the first is not acknowledged");
    assert_eq!(published(one), ["t 1"]);
}

/// Seed 839517. The first worker would store that the subscription is the control flow's now, behind what
/// the client's own worker stores for the session meanwhile.
#[test]
fn flows_that_expire_while_their_client_is_there_are_its_own_workers() {
    let (storage, mut world) = world();
    let conn = world.open_over(1, TransportKind::Quic);
    world.say_hello(conn, &lasting("c"));
    storage.commit();
    world.settle();
    let stream = StreamKey(4);
    let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
    let mut header = Vec::new();
    let flow = DataFlow { id: 4, expiry_s: 1000, flags: FlowFlags(keeps) };
    flow::encode(&FlowHeader::ClientData(flow), &mut header);
    world.send_bytes_on(conn, stream, &header);
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(SubscribeOptions::default()));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    world.send_on(conn, stream, &Packet::Subscribe(Subscribe { packet_id, properties, filters }));
    world.end_stream(conn, stream);
    world.wait_within_turn(Duration::from_secs(2000));
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", None);
    let filters = FilterList::from_encoded(&list, false, Version::V5).unwrap();
    let unsubscribe = Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters });
    world.send_within_turn(conn, &unsubscribe);
    world.end_turn(1);
    world.settle();
    storage.commit();
    let restored = storage.crash().1;
    assert!(restored.subscriptions.is_empty(), "{:?}", restored.subscriptions);
    assert!(restored.flows.is_empty(), "{:?}", restored.flows);
}

/// Seed 657991. The control flow did not get the event that the flow it waited for had ended, if it was the only one
/// left and had something else to send at that moment.
#[test]
fn a_session_does_not_go_silent_when_the_flow_it_waited_for_ends() {
    let (_storage, mut world) = world();
    let reader = world.open_over(0, TransportKind::Quic);
    world.say_hello(reader, &hello("reader"));
    let (publisher, _) = world.connect(0, &hello("publisher"));
    let stream = StreamKey(4);
    let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(options));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    world.send_on(reader, stream, &Packet::Subscribe(Subscribe { packet_id, properties, filters }));
    world.publish(publisher, "t", "1", QoS::AtLeastOnce, 1);
    assert_eq!(world.seen_on(reader, stream).len(), 2, "SUBACK and the message");
    world.subscribe(reader, "t", QoS::AtLeastOnce);
    world.publish(publisher, "t", "2", QoS::AtLeastOnce, 2);
    world.set_reading(reader, false);
    world.publish(publisher, "t", "at once", QoS::AtMostOnce, 0);
    world.end_stream(reader, stream);
    assert!(world.output(reader).more, "two messages wait");
    world.set_reading(reader, true);
    world.settle();
    assert_eq!(world.texts(reader), ["t 1", "t 2"]);
}

const STREAM: StreamKey = StreamKey(4);

/// Opens a stream with flow 4, which outlives the stream for so long.
fn open_flow(world: &mut World, conn: Conn, expiry_s: u64) {
    world.send_bytes_on(conn, STREAM, &header(expiry_s));
}

fn header(expiry_s: u64) -> Vec<u8> {
    header_with(expiry_s, 0)
}

fn header_with(expiry_s: u64, flag: u8) -> Vec<u8> {
    let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
    let mut header = Vec::new();
    let flow = DataFlow { id: 4, expiry_s, flags: FlowFlags(keeps | flag) };
    flow::encode(&FlowHeader::ClientData(flow), &mut header);
    header
}

fn subscribe_at_2(world: &mut World, conn: Conn) {
    let options = SubscribeOptions { qos: QoS::ExactlyOnce, ..SubscribeOptions::default() };
    world.send_bytes_on(conn, STREAM, &subscription(options));
}

/// A SUBSCRIBE packet.
fn subscription(options: SubscribeOptions) -> Vec<u8> {
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(options));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let mut bytes = Vec::new();
    Packet::Subscribe(Subscribe { packet_id, properties, filters }).encode(Version::V5, &mut bytes);
    bytes
}

/// How often the reader gets the message whose publisher sends it again after a crash now.
fn deliveries_after_crash(storage: &mut Arc<SimStorage>, world: &World) -> usize {
    let mut world = world.after_crash(storage);
    let reader = connected(storage, &mut world, 1, &lasting("reader"));
    let publisher = connected(storage, &mut world, 0, &lasting("publisher"));
    world.send(publisher, &publish(QoS::ExactlyOnce, false, b"once"));
    for _ in 0..3 {
        storage.commit();
        world.settle();
    }
    world.got(reader).len()
}

/// Seed 686706. The client comes back without streams while a message for its flow is in the hands of
/// the publisher's worker: stored as the control flow's before that worker's turn, it would outlive a
/// crash that makes the publisher send it again.
#[test]
fn a_message_moved_by_another_worker_does_not_outlive_its_publishers_turn() {
    let (mut storage, mut world) = world();
    let publisher = connected(&storage, &mut world, 0, &lasting("publisher"));
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &lasting("reader"));
    open_flow(&mut world, reader, 1000);
    subscribe_at_2(&mut world, reader);
    world.cut(reader);
    storage.commit();
    world.settle();
    world.send_within_turn(publisher, &publish(QoS::ExactlyOnce, false, b"once"));
    let back = world.open(1);
    world.say_hello_within_turn(back, &lasting("reader"));
    world.end_turn(1);
    storage.commit();
    assert_eq!(deliveries_after_crash(&mut storage, &world), 1);
}

/// Seed 909805. The same for a flow that ends with its stream and did not when it began. What the new
/// worker does with the message reaches storage behind what the old one has kept back.
#[test]
fn a_message_moved_when_its_flow_ends_leaves_nothing_behind() {
    let (mut storage, mut world) = world();
    let publisher = connected(&storage, &mut world, 0, &lasting("publisher"));
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &lasting("reader"));
    open_flow(&mut world, reader, 1000);
    subscribe_at_2(&mut world, reader);
    world.end_stream(reader, STREAM);
    open_flow(&mut world, reader, 0);
    storage.commit();
    world.settle();
    world.send_within_turn(publisher, &publish(QoS::ExactlyOnce, false, b"once"));
    world.cut_within_turn(reader);
    world.end_turn(1);
    storage.commit();
    // Also where its session ends meanwhile, on a worker that has kept nothing back itself.
    let anew = world.open(1);
    world.say_hello_within_turn(anew, &Hello { clean: true, ..lasting("reader") });
    world.end_turn(1);
    storage.commit();
    let early = storage.crash().1;
    assert!(early.queued.is_empty(), "{:?}", early.queued);
    world.end_turn(0);
    world.end_turn(1);
    world.settle();
    storage.commit();
    let late = storage.crash().1;
    assert!(late.queued.is_empty(), "{:?}", late.queued);
    assert_eq!(late.sessions.len(), 2);
    assert_eq!(deliveries_after_crash(&mut storage, &world), 0, "it was for the session before");
}

/// Seed 128 at the time. A message whose identifier storage took long to store expires
/// meanwhile: nothing of it is out yet, and nothing may go out, also where its connection is taken over
/// in between ([MQTT-3.3.2-5]).
#[test]
fn a_message_that_expires_while_it_waits_for_storage_is_not_sent() {
    for taken_over in [false, true] {
        let (storage, mut world) = world();
        let mut reader = connected(&storage, &mut world, 1, &lasting("reader"));
        world.subscribe(reader, "t", QoS::ExactlyOnce);
        let publisher = connected(&storage, &mut world, 0, &hello("publisher"));
        let mut properties = PropertyBuf::new();
        properties.push(Property::MessageExpiryInterval(5));
        let properties = properties.as_properties();
        world.publish_with(publisher, "t", "stale", QoS::ExactlyOnce, 1, false, properties);
        if taken_over {
            reader = world.open(1);
            world.say_hello(reader, &lasting("reader"));
        }
        world.wait(Duration::from_secs(6));
        storage.commit();
        world.settle();
        world.publish(publisher, "t", "fresh", QoS::ExactlyOnce, 2);
        storage.commit();
        world.settle();
        assert_eq!(world.texts(reader), ["t fresh"], "taken over: {taken_over}");
        storage.commit();
        assert_eq!(storage.crash().1.queued.len(), 1, "what is in flight is all there is");
    }
}

/// Seed 388217 at the time. A flow that gets another stream is not sent the PUBREL that waits
/// for storage: the client would forget the message, and get it anew after a crash.
#[test]
fn a_new_stream_does_not_bring_pubrel_before_pubrec_is_stored() {
    let (storage, mut world) = world();
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &lasting("reader"));
    open_flow(&mut world, reader, 1000);
    subscribe_at_2(&mut world, reader);
    let publisher = connected(&storage, &mut world, 0, &hello("publisher"));
    world.publish(publisher, "t", "once", QoS::ExactlyOnce, 1);
    storage.commit();
    world.settle();
    let published = |seen: &Seen| match seen {
        Seen::Publish(got) => Some(got.id),
        _ => None,
    };
    let id = world.seen_on(reader, STREAM).iter().find_map(published).unwrap();
    let ack = Ack {
        packet_id: PacketId::new(id).unwrap(),
        reason: ReasonCode::Success,
        properties: Properties::NONE,
    };
    world.send_on(reader, STREAM, &Packet::Ack(AckKind::Pubrec, ack));
    let next = StreamKey(8);
    world.send_bytes_on(reader, next, &header(1000));
    assert_eq!(world.seen_on(reader, next), [], "PUBREC is not stored");
    storage.commit();
    world.settle();
    let pubrel = Seen::Ack(AckKind::Pubrel, id, ReasonCode::Success);
    assert_eq!(world.seen_on(reader, next), [pubrel]);
}

/// Seed 288580 at the time. A message that takes the place of the only one that waited for
/// another flow waits for that flow too.
#[test]
fn a_message_that_displaces_the_only_one_that_waits_goes_out_when_that_would_have() {
    let limits =
        Limits { max_queued_messages: 1, drop_policy: DropPolicy::Oldest, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let reader = world.open_over(0, TransportKind::Quic);
    world.say_hello(reader, &hello("reader"));
    world.subscribe(reader, "t", QoS::AtLeastOnce);
    let (publisher, _) = world.connect(0, &hello("publisher"));
    world.publish(publisher, "t", "1", QoS::AtLeastOnce, 1);
    open_flow(&mut world, reader, 1000);
    // Retained messages that it is owed would have the stream looked at in any case.
    let retain_handling = RetainHandling::Never;
    let options =
        SubscribeOptions { qos: QoS::ExactlyOnce, retain_handling, ..SubscribeOptions::default() };
    world.send_bytes_on(reader, STREAM, &subscription(options));
    let seen = world.seen_on(reader, STREAM);
    assert!(matches!(seen[..], [Seen::Suback(_)]), "{seen:?}");
    for (id, payload) in [(2, "2"), (3, "3")] {
        world.publish(publisher, "t", payload, QoS::AtLeastOnce, id);
    }
    // Nobody asks for the stream's output meanwhile: that would note anew what it waits for.
    assert!(!world.ready_streams(reader).contains(&STREAM), "the first is not acknowledged");
    let publishes = |seen: Vec<Seen>| {
        let texts = seen.into_iter().filter_map(|seen| match seen {
            Seen::Publish(got) => Some(got.text()),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    let first = world.got(reader).remove(0);
    assert_eq!(first.text(), "t 1");
    world.ack(reader, AckKind::Puback, first.id);
    assert!(world.ready_streams(reader).contains(&STREAM), "its transport has to be told");
    assert_eq!(publishes(world.seen_on(reader, STREAM)), ["t 3"], "2 made room");
}

/// Found by a code review (5baf506). The stream to whose flow the route led ends
/// before the message gets there, on another worker.
#[test]
fn a_message_whose_flow_ends_while_it_is_delivered_is_the_control_flows() {
    let (_storage, mut world) = world();
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &hello("reader"));
    subscribe_at_2(&mut world, reader);
    let (publisher, _) = world.connect(0, &hello("publisher"));
    let packet = publish(QoS::AtLeastOnce, false, b"1");
    world.publish_interleaved(publisher, &packet, reader, |shard, connection| {
        connection.stream_ended(shard, STREAM, StreamEnd::Reset(0));
    });
    world.settle();
    let acknowledged = Seen::Ack(AckKind::Puback, 1, ReasonCode::Success);
    assert_eq!(world.seen(publisher), [acknowledged]);
    assert_eq!(world.texts(reader), ["t 1"]);
}

/// Found by a code review (5baf506). Another flow waits for a message that is displaced. It continues when the
/// message that displaced it is acknowledged, so no promise is broken without this, but it waits without need.
#[test]
fn a_flow_that_waits_for_a_dropped_message_gets_an_event() {
    let limits =
        Limits { max_queued_messages: 2, drop_policy: DropPolicy::Oldest, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let reader = world.open_over(0, TransportKind::Quic);
    world.say_hello(reader, &Hello { receive_maximum: Some(1), ..hello("reader") });
    world.subscribe(reader, "t", QoS::AtLeastOnce);
    world.subscribe(reader, "u", QoS::AtLeastOnce);
    let (publisher, _) = world.connect(0, &hello("publisher"));
    for (id, payload) in [(1, "1"), (2, "2")] {
        world.publish(publisher, "t", payload, QoS::AtLeastOnce, id);
    }
    open_flow(&mut world, reader, 1000);
    subscribe_at_2(&mut world, reader);
    world.publish(publisher, "t", "3", QoS::AtLeastOnce, 3);
    let first = world.got(reader).remove(0);
    world.set_reading(reader, false);
    world.ack(reader, AckKind::Puback, first.id);
    let seen = world.seen_on(reader, STREAM);
    assert!(matches!(seen[..], [Seen::Suback(_)]), "2 is still to come: {seen:?}");
    assert!(!world.ready_streams(reader).contains(&STREAM));
    world.publish(publisher, "u", "4", QoS::AtLeastOnce, 4);
    assert!(world.ready_streams(reader).contains(&STREAM), "4 displaced 2");
}

/// Found by a code review (5baf506). One worker has ended a flow, and the other
/// stores what it had delivered to it before, with what came to the control flow later.
#[test]
fn what_an_ended_flow_held_comes_in_its_order_after_a_crash() {
    let (mut storage, mut world) = world();
    let publisher = connected(&storage, &mut world, 0, &lasting("publisher"));
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &lasting("reader"));
    open_flow(&mut world, reader, 1000);
    subscribe_at_2(&mut world, reader);
    world.cut(reader);
    storage.commit();
    world.settle();
    world.send_within_turn(publisher, &publish(QoS::AtLeastOnce, false, b"1"));
    let back = world.open(1);
    world.say_hello_within_turn(back, &lasting("reader"));
    world.cut_within_turn(back);
    world.end_turn(1);
    storage.commit();
    world.send_within_turn(publisher, &publish(QoS::AtLeastOnce, false, b"2"));
    world.end_turn(0);
    storage.commit();
    let mut world = world.after_crash(&mut storage);
    let reader = world.open(1);
    world.say_hello(reader, &lasting("reader"));
    storage.commit();
    world.settle();
    assert_eq!(world.texts(reader), ["t 1", "t 2"]);
}

/// Seed 776531 at the time. The publisher's worker stores a message for a flow, and sends it, before the
/// client's own worker has stored the flow: after a crash the message would come again on the control flow.
#[test]
fn nothing_is_sent_on_a_flow_that_storage_does_not_know() {
    let (storage, mut world) = world();
    let publisher = connected(&storage, &mut world, 0, &lasting("publisher"));
    let reader = world.open_over(1, TransportKind::Quic);
    world.say_hello(reader, &lasting("reader"));
    storage.commit();
    world.settle();
    let options = SubscribeOptions { qos: QoS::ExactlyOnce, ..SubscribeOptions::default() };
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(options));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let mut bytes = header(1000);
    Packet::Subscribe(Subscribe { packet_id, properties, filters }).encode(Version::V5, &mut bytes);
    world.send_bytes_on_within_turn(reader, STREAM, &bytes);
    world.send_within_turn(publisher, &publish(QoS::ExactlyOnce, false, b"once"));
    for _ in 0..3 {
        world.end_turn(0);
        storage.commit();
    }
    assert_eq!(world.read_stream(reader, STREAM), 0, "neither SUBACK nor the message");
    for _ in 0..3 {
        world.settle();
        storage.commit();
    }
    let seen = world.seen_on(reader, STREAM);
    assert!(matches!(seen[..], [Seen::Suback(_), Seen::Publish(_)]), "{seen:?}");
}

/// Found by a code review. A flow is removed and opened again within a turn
/// that goes on, and another worker is sooner with a message for the new one.
#[test]
fn a_flow_that_is_removed_and_opened_again_keeps_what_another_worker_stores_for_it() {
    for clean in [true, false] {
        let (mut storage, mut world) = world();
        let publisher = connected(&storage, &mut world, 0, &lasting("publisher"));
        let reader = world.open_over(1, TransportKind::Quic);
        world.say_hello(reader, &lasting("reader"));
        open_flow(&mut world, reader, 1000);
        if !clean {
            // It is to end with its stream, and storage keeps it under its name until then.
            world.end_stream(reader, STREAM);
            open_flow(&mut world, reader, 0);
        }
        world.subscribe(reader, "t", QoS::AtLeastOnce);
        storage.commit();
        world.settle();
        let mut bytes = header_with(1000, if clean { FlowFlags::CLEAN } else { 0 });
        if !clean {
            world.end_stream_within_turn(reader, STREAM);
        }
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
        bytes.extend(subscription(options));
        world.send_bytes_on_within_turn(reader, StreamKey(8), &bytes);
        world.send_within_turn(publisher, &publish(QoS::AtLeastOnce, false, b"kept"));
        world.end_turn(0);
        storage.commit();
        world.end_turn(0);
        let acknowledged = Seen::Ack(AckKind::Puback, 1, ReasonCode::Success);
        assert_eq!(world.seen(publisher), [acknowledged]);
        world.end_turn(1);
        storage.commit();
        let mut world = world.after_crash(&mut storage);
        let reader = world.open(1);
        world.say_hello(reader, &lasting("reader"));
        storage.commit();
        world.settle();
        assert_eq!(world.texts(reader), ["t kept"], "clean: {clean}");
    }
}

/// Found when the simulator's model learned of retained messages that expire. No worker looks for one that is not
/// restored.
#[test]
fn a_retained_message_that_has_expired_before_a_restart_is_removed_from_storage() {
    let (storage, mut world) = world();
    let publisher = connected(&storage, &mut world, 0, &hello("publisher"));
    let mut properties = PropertyBuf::new();
    properties.push(Property::MessageExpiryInterval(5));
    let properties = properties.as_properties();
    world.publish_with(publisher, "t", "stale", QoS::AtLeastOnce, 1, true, properties);
    storage.commit();
    let (storage, restored) = storage.crash();
    assert_eq!(restored.retained.len(), 1);
    let now = world.now() + Duration::from_secs(10);
    let setup = Setup { storage: Arc::clone(&storage) as _, restored, now, ..Setup::default() };
    drop(World::with(setup));
    storage.commit();
    assert!(storage.crash().1.retained.is_empty());
}

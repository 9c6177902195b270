//! Topic aliases that the server sets (MQTT 5.0 section 3.3.2.3.4).

#![allow(clippy::unwrap_used)]

use fulmar_mqtt::QoS;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::Publish;

use super::*;

type Session = Machine<u32, u32>;

/// A session whose client is let in, and the aliases that its CONNECT allows.
fn connect(session: &mut Session) -> u16 {
    let now = Instant::now();
    session.connect(now, false, false);
    let out = session.output(CONTROL).to_vec();
    session.sent(CONTROL, out.len(), now);
    let frame = peek_frame(&out, 1 << 20).unwrap().unwrap();
    let Packet::Connect(connect) = decode(&frame, Version::V5).unwrap() else {
        panic!("not CONNECT: {out:x?}")
    };
    let allowed = fulmar_mqtt::find_property!(connect.properties, TopicAliasMaximum);
    session.receive(now, CONTROL, &[0x20, 3, 0, 0, 0]).unwrap();
    allowed.unwrap()
}

fn up() -> (Session, u16) {
    let options = Options::new("mqtt://h").unwrap();
    let mut session = Machine::new(Arc::new(options), Instant::now());
    let allowed = connect(&mut session);
    (session, allowed)
}

/// A message with an alias. The topic that the application sees.
fn give(session: &mut Session, topic: &str, alias: u16) -> Result<String, Error> {
    let mut properties = PropertyBuf::new();
    properties.push(Property::TopicAlias(alias));
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: properties.as_properties(),
        payload: b"x",
    };
    let mut bytes = Vec::new();
    Packet::Publish(publish).encode(Version::V5, &mut bytes);
    session.receive(Instant::now(), CONTROL, &bytes)?;
    let mut topics = Vec::new();
    while let Some(outcome) = session.poll_event() {
        if let Outcome::Message(message) = outcome {
            topics.push(message.topic);
        }
    }
    assert_eq!(topics.len(), 1);
    Ok(topics.remove(0))
}

#[test]
fn mqtt_3_3_2_3_4_the_servers_aliases_are_resolved_and_may_be_set_anew() {
    let (mut session, allowed) = up();
    for (topic, alias, wanted) in [
        ("plant/a", 1, "plant/a"),
        ("", 1, "plant/a"),
        ("plant/b", allowed, "plant/b"),
        ("", 1, "plant/a"),
        ("plant/c", 1, "plant/c"),
        ("", 1, "plant/c"),
        ("", allowed, "plant/b"),
    ] {
        assert_eq!(give(&mut session, topic, alias).unwrap(), wanted);
    }
}

#[test]
fn mqtt_3_3_2_7_a_new_connection_begins_without_aliases() {
    let (mut session, _) = up();
    give(&mut session, "plant/a", 1).unwrap();
    session.disconnected();
    connect(&mut session);
    assert!(matches!(give(&mut session, "", 1), Err(Error::Protocol(_))));
}

#[test]
fn mqtt_3_3_2_11_an_alias_that_was_not_allowed_is_refused() {
    let (mut session, allowed) = up();
    assert!(matches!(give(&mut session, "plant/a", allowed + 1), Err(Error::Protocol(_))));
    let disconnect = [0xE0, 1, ReasonCode::TopicAliasInvalid.as_u8()];
    assert_eq!(session.output(CONTROL), disconnect);
}

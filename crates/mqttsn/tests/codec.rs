//! Whatever is written can be read, and nothing that is read makes the decoder stumble.

use fulmar_mqtt::QoS;
use fulmar_mqttsn::{Message, Publish, ReturnCode, TopicName, TopicRef, WillTopic};
use proptest::prelude::*;

fn qos(level: u8) -> QoS {
    QoS::try_from(level % 3).unwrap_or_default()
}

fn code(number: u8) -> ReturnCode {
    use ReturnCode::{Accepted, Congestion, InvalidTopicId, NotSupported};
    [Accepted, Congestion, InvalidTopicId, NotSupported][usize::from(number % 4)]
}

/// Every message there is, made of these.
fn messages<'a>(
    a: u16,
    b: u16,
    c: u8,
    flag: bool,
    text: &'a str,
    bytes: &'a [u8],
) -> Vec<Message<'a>> {
    let (qos, code) = (qos(c), code(c));
    let will = flag.then_some(WillTopic { qos, retain: c > 7, topic: text });
    let names =
        [TopicName::Name(text), TopicName::Predefined(a), TopicName::Short(a.to_be_bytes())];
    let topics = [TopicRef::Normal(a), TopicRef::Predefined(a), TopicRef::Short(a.to_be_bytes())];
    let mut all = vec![
        Message::Advertise { gateway_id: c, duration_s: a },
        Message::SearchGw { radius: c },
        Message::GwInfo { gateway_id: c, address: bytes },
        Message::Connect { will: flag, clean: c > 7, keep_alive_s: a, client_id: text },
        Message::Connack(code),
        Message::WillTopicReq,
        Message::WillTopic(will),
        Message::WillMsgReq,
        Message::WillMsg(bytes),
        Message::Register { topic_id: a, msg_id: b, topic: text },
        Message::Regack { topic_id: a, msg_id: b, code },
        Message::Puback { topic_id: a, msg_id: b, code },
        Message::Pubrec(a),
        Message::Pubrel(a),
        Message::Pubcomp(a),
        Message::Suback { qos, topic_id: a, msg_id: b, code },
        Message::Unsuback(a),
        Message::Pingreq((!text.is_empty()).then_some(text)),
        Message::Pingresp,
        Message::Disconnect { duration_s: flag.then_some(a) },
        Message::WillTopicUpd(will),
        Message::WillTopicResp(code),
        Message::WillMsgUpd(bytes),
        Message::WillMsgResp(code),
    ];
    for topic in names {
        all.push(Message::Subscribe { dup: flag, qos, msg_id: b, topic });
        all.push(Message::Unsubscribe { msg_id: b, topic });
    }
    for topic in topics {
        let qos = (c != 0).then_some(qos);
        let publish = Publish { dup: flag, qos, retain: c > 7, topic, msg_id: b, payload: bytes };
        all.push(Message::Publish(publish));
    }
    all
}

proptest! {
    #[test]
    fn what_is_written_can_be_read(
        a: u16, b: u16, c: u8, flag: bool, text in ".{0,90}", bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        for message in messages(a, b, c, flag, &text, &bytes) {
            let datagram = message.encode().unwrap_or_default();
            prop_assert_eq!(Message::decode(&datagram), Ok(message));
            let node = &bytes[..bytes.len().min(200)];
            let forwarded = Message::Forwarded { radius: c & 3, node, message: &datagram };
            let wrapped = forwarded.encode().unwrap_or_default();
            prop_assert_eq!(Message::decode(&wrapped), Ok(forwarded));
            for cut in 0..datagram.len().min(12) {
                prop_assert!(Message::decode(&datagram[..cut]).is_err(), "it is cut short");
            }
        }
    }
}

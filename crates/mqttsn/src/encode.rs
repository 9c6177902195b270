//! Encodes messages as datagrams (section 5); `message` decodes them.

use fulmar_mqtt::QoS;

use crate::message::{
    Message, PROTOCOL_ID, Publish, ReturnCode, TopicName, TopicRef, WillTopic, flag, kind,
};

/// The largest length in one octet (section 5.2.1).
const MAX_SHORT: usize = 255;
/// The largest length in three octets.
const MAX_LONG: usize = 65_535;

impl Message<'_> {
    /// The message as a datagram; `None` if it would be longer than 65,535 octets, the largest length.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut body = Vec::with_capacity(16);
        let kind = self.encode_body(&mut body);
        let mut datagram = Vec::with_capacity(body.len() + 4);
        if body.len() + 2 <= MAX_SHORT {
            datagram.push(u8::try_from(body.len() + 2).ok()?);
        } else {
            let length = body.len() + 4;
            if length > MAX_LONG {
                return None;
            }
            datagram.push(1);
            datagram.extend_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
        }
        datagram.push(kind);
        datagram.extend_from_slice(&body);
        if let Message::Forwarded { message, .. } = self {
            datagram.extend_from_slice(message);
        }
        Some(datagram)
    }

    /// Appends the body; returns the message's type.
    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        match *self {
            Message::Advertise { gateway_id, duration_s } => {
                out.push(gateway_id);
                put_u16(out, duration_s);
                kind::ADVERTISE
            }
            Message::SearchGw { radius } => put_u8(out, radius, kind::SEARCHGW),
            Message::GwInfo { gateway_id, address } => {
                out.push(gateway_id);
                put_bytes(out, address, kind::GWINFO)
            }
            Message::Connect { will, clean, keep_alive_s, client_id } => {
                let flags = if will { flag::WILL } else { 0 } | if clean { flag::CLEAN } else { 0 };
                out.extend_from_slice(&[flags, PROTOCOL_ID]);
                put_u16(out, keep_alive_s);
                put_bytes(out, client_id.as_bytes(), kind::CONNECT)
            }
            Message::Connack(code) => put_code(out, code, kind::CONNACK),
            Message::WillTopicReq => kind::WILLTOPICREQ,
            Message::WillTopic(will) => put_will(out, will, kind::WILLTOPIC),
            Message::WillMsgReq => kind::WILLMSGREQ,
            Message::WillMsg(payload) => put_bytes(out, payload, kind::WILLMSG),
            Message::Register { topic_id, msg_id, topic } => {
                put_u16(out, topic_id);
                put_u16(out, msg_id);
                put_bytes(out, topic.as_bytes(), kind::REGISTER)
            }
            Message::Regack { topic_id, msg_id, code } => {
                put_ack(out, topic_id, msg_id, code, kind::REGACK)
            }
            Message::Publish(publish) => put_publish(out, &publish),
            Message::Puback { topic_id, msg_id, code } => {
                put_ack(out, topic_id, msg_id, code, kind::PUBACK)
            }
            _ => self.put_rest(out),
        }
    }

    /// The same for the second half of table 3.
    fn put_rest(&self, out: &mut Vec<u8>) -> u8 {
        match *self {
            Message::Pubrec(msg_id) => put_id(out, msg_id, kind::PUBREC),
            Message::Pubrel(msg_id) => put_id(out, msg_id, kind::PUBREL),
            Message::Pubcomp(msg_id) => put_id(out, msg_id, kind::PUBCOMP),
            Message::Subscribe { dup, qos, msg_id, topic } => {
                let dup = if dup { flag::DUP } else { 0 };
                put_filter(out, dup | qos_flags(Some(qos)), msg_id, topic, kind::SUBSCRIBE)
            }
            Message::Suback { qos, topic_id, msg_id, code } => {
                out.push(qos_flags(Some(qos)));
                put_ack(out, topic_id, msg_id, code, kind::SUBACK)
            }
            Message::Unsubscribe { msg_id, topic } => {
                put_filter(out, 0, msg_id, topic, kind::UNSUBSCRIBE)
            }
            Message::Unsuback(msg_id) => put_id(out, msg_id, kind::UNSUBACK),
            Message::Pingreq(client_id) => {
                put_bytes(out, client_id.unwrap_or_default().as_bytes(), kind::PINGREQ)
            }
            Message::Disconnect { duration_s } => {
                duration_s.into_iter().for_each(|duration| put_u16(out, duration));
                kind::DISCONNECT
            }
            Message::WillTopicUpd(will) => put_will(out, will, kind::WILLTOPICUPD),
            Message::WillTopicResp(code) => put_code(out, code, kind::WILLTOPICRESP),
            Message::WillMsgUpd(payload) => put_bytes(out, payload, kind::WILLMSGUPD),
            Message::WillMsgResp(code) => put_code(out, code, kind::WILLMSGRESP),
            Message::Forwarded { radius, node, .. } => {
                out.push(radius & 0x03);
                put_bytes(out, node, kind::FORWARDED)
            }
            _ => kind::PINGRESP,
        }
    }
}

fn put_publish(out: &mut Vec<u8>, publish: &Publish<'_>) -> u8 {
    let (topic_kind, topic) = match publish.topic {
        TopicRef::Normal(_) => (0, publish.topic.number()),
        TopicRef::Predefined(_) => (1, publish.topic.number()),
        TopicRef::Short(_) => (2, publish.topic.number()),
    };
    let dup = if publish.dup { flag::DUP } else { 0 };
    let retain = if publish.retain { flag::RETAIN } else { 0 };
    out.push(dup | qos_flags(publish.qos) | retain | topic_kind);
    put_u16(out, topic);
    put_u16(out, publish.msg_id);
    put_bytes(out, publish.payload, kind::PUBLISH)
}

fn put_filter(out: &mut Vec<u8>, flags: u8, msg_id: u16, topic: TopicName<'_>, kind: u8) -> u8 {
    let topic_kind = match topic {
        TopicName::Name(_) => 0,
        TopicName::Predefined(_) => 1,
        TopicName::Short(_) => 2,
    };
    out.push(flags | topic_kind);
    put_u16(out, msg_id);
    match topic {
        TopicName::Name(name) => out.extend_from_slice(name.as_bytes()),
        TopicName::Predefined(id) => put_u16(out, id),
        TopicName::Short(name) => out.extend_from_slice(&name),
    }
    kind
}

fn put_will(out: &mut Vec<u8>, will: Option<WillTopic<'_>>, kind: u8) -> u8 {
    if let Some(will) = will {
        out.push(qos_flags(Some(will.qos)) | if will.retain { flag::RETAIN } else { 0 });
        out.extend_from_slice(will.topic.as_bytes());
    }
    kind
}

fn qos_flags(qos: Option<QoS>) -> u8 {
    qos.map_or(flag::QOS, |qos| (qos as u8) << 5)
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u8(out: &mut Vec<u8>, value: u8, kind: u8) -> u8 {
    out.push(value);
    kind
}

fn put_id(out: &mut Vec<u8>, msg_id: u16, kind: u8) -> u8 {
    put_u16(out, msg_id);
    kind
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], kind: u8) -> u8 {
    out.extend_from_slice(bytes);
    kind
}

fn put_code(out: &mut Vec<u8>, code: ReturnCode, kind: u8) -> u8 {
    out.push(code as u8);
    kind
}

fn put_ack(out: &mut Vec<u8>, topic_id: u16, msg_id: u16, code: ReturnCode, kind: u8) -> u8 {
    put_u16(out, topic_id);
    put_u16(out, msg_id);
    put_code(out, code, kind)
}

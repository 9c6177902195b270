//! How `fulmar sub` writes a message: plain, after a pattern (-F), or as JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use fulmar_client::Message;
use fulmar_command::terminal;
use fulmar_text::hex;

use super::properties::as_json;

/// A pattern of `-F`, checked.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Field(char),
}

/// Fields of a pattern, as mosquitto_sub names them.
const FIELDS: &str = "%t topic, %p payload, %x payload in hex, %l its length, %q QoS, %r retained, \
    %U seconds since 1970, %j JSON, %% a percent sign";

/// Parses a pattern.
pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    let mut parts = vec![];
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, c == '%' || c == '\\') {
            (c, false) => plain.push(c),
            ('\\', _) => match rest.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some('0') => plain.push('\0'),
                Some('\\') => plain.push('\\'),
                _ => return Err(r"after a backslash use n, t, 0 or \".to_owned()),
            },
            _ => match rest.next() {
                Some('%') => plain.push('%'),
                Some(field) if "tpxlqrUj".contains(field) => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Field(field));
                }
                _ => return Err(format!("fields are {FIELDS}")),
            },
        }
    }
    parts.push(Part::Text(plain));
    Ok(Pattern(parts))
}

impl Pattern {
    /// Appends a message; what it has itself is printable if `on_terminal`. The pattern is its user's.
    pub(super) fn write(&self, message: &Message, on_terminal: bool, line: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => line.extend_from_slice(text.as_bytes()),
                Part::Field('t') => push_topic(message, on_terminal, line),
                Part::Field('p') => push_payload(message, on_terminal, line),
                Part::Field('x') => {
                    line.extend_from_slice(hex::encode(&message.payload).as_bytes())
                }
                Part::Field('l') => {
                    line.extend_from_slice(message.payload.len().to_string().as_bytes());
                }
                Part::Field('q') => line.push(b'0' + message.qos as u8),
                Part::Field('r') => line.push(b'0' + u8::from(message.retain)),
                Part::Field('U') => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    let text = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
                    line.extend_from_slice(text.as_bytes());
                }
                Part::Field(_) => push_json(message, on_terminal, line),
            }
        }
    }
}

pub(super) fn push_topic(message: &Message, on_terminal: bool, line: &mut Vec<u8>) {
    match on_terminal {
        true => line.extend_from_slice(terminal::printable(&message.topic).as_bytes()),
        false => line.extend_from_slice(message.topic.as_bytes()),
    }
}

pub(super) fn push_payload(message: &Message, on_terminal: bool, line: &mut Vec<u8>) {
    match on_terminal {
        true => line.extend_from_slice(terminal::printable_bytes(&message.payload).as_bytes()),
        false => line.extend_from_slice(&message.payload),
    }
}

pub(super) fn push_json(message: &Message, on_terminal: bool, line: &mut Vec<u8>) {
    let text = json(message).to_string();
    let text = if on_terminal { terminal::printable(&text) } else { text };
    line.extend_from_slice(text.as_bytes());
}

/// A message as JSON: text as text, other payloads in hexadecimal.
pub(super) fn json(message: &Message) -> serde_json::Value {
    let mut value = serde_json::json!({
        "topic": message.topic,
        "qos": message.qos as u8,
        "retain": message.retain,
        "dup": message.dup,
    });
    match std::str::from_utf8(&message.payload) {
        Ok(text) => value["payload"] = text.into(),
        Err(_) => value["payload_hex"] = hex::encode(&message.payload).into(),
    }
    if let Some(properties) = as_json(&message.properties) {
        value["properties"] = properties;
    }
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn json_tells_text_from_other_bytes() {
        assert_eq!(json(&Message::new("t", "a\"b"))["payload"], "a\"b");
        let binary = json(&Message::new("t", vec![0xFF, 0x00]));
        assert_eq!(binary["payload_hex"], "ff00");
        assert!(binary.get("payload").is_none());
        assert!(binary.get("properties").is_none());
    }

    #[test]
    fn patterns_are_filled_in() {
        let message = Message::new("a/b", vec![b'x', 0xFF]).qos1();
        let mut line = Vec::new();
        pattern(r"%t\t%l %q%r 100%% %x").unwrap().write(&message, false, &mut line);
        assert_eq!(line, b"a/b\t2 10 100% 78ff");
        line.clear();
        let hostile = Message::new("a\u{9b}b", vec![0x1b, b'[', b'\n', 0xFF]);
        pattern("\u{1b}[1m%t %p %j").unwrap().write(&hostile, true, &mut line);
        let text = String::from_utf8(line).unwrap();
        assert!(text.starts_with("\u{1b}[1ma\\u009bb \\u001b[\n\\xff {"), "{text:?}");
        assert!(!text[1..].contains(['\u{1b}', '\u{9b}']), "{text:?}");
        assert!(pattern("%z").unwrap_err().contains("%t topic"));
        assert!(pattern("ends with %").is_err());
    }
}

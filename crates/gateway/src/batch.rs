//! Several small messages in one publication, for links on which every packet is expensive.
//!
//! A batch is a list of JSON objects, one per line, in order: `topic`, `at` and `id`, and `payload` if the payload is
//! text or `base64` if it is not. It is published with content type [`CONTENT_TYPE`]. If compression (zlib, RFC 1950)
//! makes it smaller, it is compressed, and has the user property `encoding` = `deflate`. The receiver must check
//! whether the sender may publish to the topics in it, because a batch can contain any topic.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use fulmar_mqtt::topic::{TopicError, check_name};
use serde::{Deserialize, Serialize};

use crate::outbox::Stored;

/// Content type of a batch.
pub const CONTENT_TYPE: &str = "application/vnd.fulmar.batch";
/// Name of the user property with a batch's encoding.
pub const ENCODING: &str = "encoding";
/// Value of that property for zlib.
pub const DEFLATE: &str = "deflate";
/// Maximum size of an unpacked batch in bytes; a larger one is refused before memory is allocated for it.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of messages in a batch.
pub const MAX_MESSAGES: usize = 4096;

/// Why a batch is invalid.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Not zlib, or broken.
    #[error("cannot be decompressed: {0}")]
    Compression(std::io::Error),
    /// An unknown encoding.
    #[error("unknown encoding {0:?}; use deflate or none")]
    Encoding(String),
    /// Too many bytes or messages.
    #[error("more than {MAX_BYTES} bytes or {MAX_MESSAGES} messages")]
    TooLarge,
    /// A line is not a JSON object of a batch.
    #[error("line {line}: {error}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Error of the JSON parser.
        error: serde_json::Error,
    },
    /// An invalid topic name.
    #[error("line {line}: {error}")]
    Topic {
        /// Counted from 1.
        line: usize,
        /// Fault in the topic.
        error: TopicError,
    },
    /// Not base64.
    #[error("line {line}: {error}")]
    Base64 {
        /// Counted from 1.
        line: usize,
        /// Fault in the encoding.
        error: base64::DecodeError,
    },
}

/// A message out of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// When the gateway accepted it (RFC 3339).
    pub at: String,
    /// Identifier of the message.
    pub id: String,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    topic: std::borrow::Cow<'a, str>,
    at: std::borrow::Cow<'a, str>,
    id: std::borrow::Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// A batch, and whether it is compressed.
#[must_use]
pub fn encode(messages: &[Stored], compress: bool) -> (Vec<u8>, bool) {
    let mut plain = Vec::new();
    for message in messages {
        let text = std::str::from_utf8(&message.payload).ok();
        let base64 = text.is_none().then(|| STANDARD.encode(&message.payload));
        let line = Line {
            topic: message.topic.as_str().into(),
            at: message.at.as_str().into(),
            id: message.id.as_str().into(),
            payload: text.map(Into::into),
            base64,
        };
        // Strings always have a JSON form, and writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut plain, &line);
        plain.push(b'\n');
    }
    if compress {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        let packed = encoder.write_all(&plain).and_then(|()| encoder.finish());
        if let Ok(packed) = packed
            && packed.len() < plain.len()
        {
            return (packed, true);
        }
    }
    (plain, false)
}

/// The messages of a batch, in order. `encoding` is the user property of that name.
///
/// # Errors
/// The batch is invalid, or larger than [`MAX_BYTES`] or [`MAX_MESSAGES`].
pub fn decode(payload: &[u8], encoding: Option<&str>) -> Result<Vec<Message>, BatchError> {
    let unpacked;
    let plain = match encoding {
        None | Some("none" | "") => payload,
        Some(DEFLATE) => {
            unpacked = unpack(payload)?;
            &unpacked
        }
        Some(other) => return Err(BatchError::Encoding(other.chars().take(40).collect())),
    };
    if plain.len() > MAX_BYTES {
        return Err(BatchError::TooLarge);
    }
    let mut messages = Vec::new();
    let lines = plain.split(|byte| *byte == b'\n');
    for (line, text) in (1..).zip(lines).filter(|(_, text)| !text.trim_ascii().is_empty()) {
        if messages.len() == MAX_MESSAGES {
            return Err(BatchError::TooLarge);
        }
        messages.push(message(line, text)?);
    }
    Ok(messages)
}

fn unpack(payload: &[u8]) -> Result<Vec<u8>, BatchError> {
    let mut unpacked = Vec::new();
    // One byte more than allowed, to detect a batch that is too large.
    let mut limited = ZlibDecoder::new(payload).take(MAX_BYTES as u64 + 1);
    limited.read_to_end(&mut unpacked).map_err(BatchError::Compression)?;
    Ok(unpacked)
}

fn message(line: usize, text: &[u8]) -> Result<Message, BatchError> {
    let read: Line<'_> =
        serde_json::from_slice(text).map_err(|error| BatchError::Line { line, error })?;
    check_name(&read.topic).map_err(|error| BatchError::Topic { line, error })?;
    let payload = match (read.payload, read.base64) {
        (_, Some(base64)) => {
            STANDARD.decode(base64).map_err(|error| BatchError::Base64 { line, error })?
        }
        (payload, None) => payload.unwrap_or_default().into_owned().into_bytes(),
    };
    let (topic, at, id) = (read.topic.into(), read.at.into(), read.id.into());
    Ok(Message { topic, payload, at, id })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(number: u64) -> Stored {
        Stored {
            seq: number,
            topic: format!("fulmar/rural/sensor/probe-{}/co2", number % 5),
            payload: format!("{}.5", 400 + number).into(),
            id: format!("gw-1a2b3c4d5e6f7788-{number}"),
            at: format!("2026-01-01T00:00:{:02}.000Z", number % 60),
            ..Stored::default()
        }
    }

    #[test]
    fn readings_become_a_fraction_and_come_back_in_order() {
        let readings: Vec<Stored> = (0..50).map(reading).collect();
        let (plain, packed) = encode(&readings, false);
        assert!(!packed);
        let (small, packed) = encode(&readings, true);
        assert!(packed && small.len() * 5 < plain.len(), "{} of {}", small.len(), plain.len());
        for (bytes, encoding) in [(&plain, None), (&small, Some(DEFLATE))] {
            let messages = decode(bytes, encoding).unwrap();
            assert_eq!(messages.len(), 50);
            for (message, reading) in messages.iter().zip(&readings) {
                assert_eq!((&message.topic, &message.id), (&reading.topic, &reading.id));
                assert_eq!(
                    (&message.payload[..], &message.at),
                    (&reading.payload[..], &reading.at)
                );
            }
        }
    }

    #[test]
    fn bombs_and_nonsense_are_refused() {
        let mut bomb = ZlibEncoder::new(Vec::new(), Compression::best());
        bomb.write_all(&vec![b'\n'; MAX_BYTES + 1]).unwrap();
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 10_000);
        assert!(matches!(decode(&bomb, Some(DEFLATE)), Err(BatchError::TooLarge)));
        assert!(matches!(decode(b"x", Some(DEFLATE)), Err(BatchError::Compression(_))));
        assert!(matches!(decode(b"x", Some("br")), Err(BatchError::Encoding(_))));
        assert!(matches!(decode(b"\n{\"topic\":1}", None), Err(BatchError::Line { line: 2, .. })));
        let wild = br#"{"topic":"a/#","at":"","id":""}"#;
        assert!(matches!(decode(wild, None), Err(BatchError::Topic { line: 1, .. })));
        let many = br#"{"topic":"a","at":"","id":""}"#.to_vec();
        let many = [many.as_slice(), b"\n"].concat().repeat(MAX_MESSAGES + 1);
        assert!(matches!(decode(&many, None), Err(BatchError::TooLarge)));
    }

    proptest! {
        #[test]
        fn any_payload_comes_back(payload in proptest::collection::vec(any::<u8>(), 0..300), compress: bool) {
            let stored = Stored { payload: payload.clone().into(), ..reading(1) };
            let (bytes, packed) = encode(&[stored], compress);
            let messages = decode(&bytes, packed.then_some(DEFLATE)).unwrap();
            prop_assert_eq!(&messages[0].payload, &payload);
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300), packed: bool) {
            drop(decode(&bytes, packed.then_some(DEFLATE)));
        }
    }
}

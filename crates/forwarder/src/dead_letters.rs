//! The dead-letter file: messages that the upstream broker or the local one can never accept, for the operator. It has
//! one JSON object per line, with topic, payload (base64), reason, direction and times.
//!
//! Its size is bounded: a full file is renamed to FILE.1, replacing an earlier one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fulmar_gateway::identity::MessageIdentity;
use fulmar_gateway::outbox::Stored;
use fulmar_mqtt::{Properties, ReasonCode};
use serde::Serialize;
use tokio::sync::oneshot;

use super::wall_clock::{now_ms, time_of};

/// A message and why it was refused.
#[derive(Debug)]
pub(super) struct DeadLetter {
    pub(super) message: Stored,
    pub(super) reason: &'static str,
    pub(super) way: Direction,
    /// The log's text.
    pub(super) text: &'static str,
}

impl DeadLetter {
    /// A topic whose mapped name is invalid: too long, of too many levels, or empty.
    pub(super) fn nameless(
        topic: &str,
        payload: &[u8],
        properties: Properties<'_>,
        way: Direction,
    ) -> DeadLetter {
        let identity = MessageIdentity::read(properties);
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let message = Stored {
            topic: topic.to_owned(),
            payload: Bytes::copy_from_slice(payload),
            id: text(identity.id),
            at: text(identity.at),
            ..Stored::default()
        };
        let reason = ReasonCode::TopicNameInvalid.text();
        DeadLetter {
            message,
            reason,
            way,
            text: "dropped: the mapping rules give no valid topic name",
        }
    }
}

/// A message's direction.
#[derive(Debug)]
pub(super) enum Direction {
    /// From the outbox to the upstream broker.
    Up,
    /// From the local broker to the outbox, which cannot store it.
    Refused,
    /// From upstream to the local broker; notified when the message may be acknowledged upstream.
    Down(oneshot::Sender<()>),
}

impl Direction {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Direction::Up | Direction::Refused => "up",
            Direction::Down(_) => "down",
        }
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct DeadLetters {
    path: PathBuf,
    /// Size in bytes at which a new file is begun.
    max_bytes: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    way: &'a str,
    reason: &'a str,
    topic: &'a str,
    payload: String,
    qos: u8,
    retain: bool,
    id: &'a str,
    at: &'a str,
}

impl DeadLetters {
    /// Opens the file for writing.
    pub(super) fn open(path: &Path, max_bytes: u64) -> std::io::Result<DeadLetters> {
        let letters = DeadLetters { path: path.to_owned(), max_bytes };
        letters.file()?;
        Ok(letters)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> std::io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)
    }

    /// Writes messages, with one fsync. After an error, none of them is there.
    pub(super) fn append(&mut self, letters: &[DeadLetter]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for DeadLetter { message, reason, way, .. } in letters {
            let line = Line {
                time: time_of(now_ms()),
                way: way.name(),
                reason,
                topic: &message.topic,
                payload: STANDARD.encode(&message.payload),
                qos: message.qos as u8,
                retain: message.retain,
                id: &message.id,
                at: &message.at,
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        let mut file = self.file()?;
        let mut size = file.metadata()?.len();
        if size > 0 && size + lines.len() as u64 > self.max_bytes {
            let mut earlier = self.path.clone().into_os_string();
            earlier.push(".1");
            std::fs::rename(&self.path, earlier)?;
            file = self.file()?;
            size = 0;
        }
        let written = file.write_all(&lines).and_then(|()| file.sync_data());
        if written.is_err() {
            // The caller tries again: half a line would spoil the next one.
            file.set_len(size)?;
        }
        written
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_lines_and_the_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.jsonl");
        let mut letters = DeadLetters::open(&path, 300).unwrap();
        let message =
            Stored { topic: "a".into(), payload: vec![0, 255].into(), ..Stored::default() };
        let letter =
            DeadLetter { message, reason: "Topic Name invalid", way: Direction::Up, text: "" };
        letters.append(std::slice::from_ref(&letter)).unwrap();
        let line: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((&line["topic"], &line["way"]), (&"a".into(), &"up".into()));
        assert_eq!(line["payload"], "AP8=");
        assert_eq!(line["reason"], "Topic Name invalid");
        for _ in 0..20 {
            letters.append(std::slice::from_ref(&letter)).unwrap();
        }
        let files: Vec<u64> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|bytes| *bytes <= 300), "{files:?}");
    }
}

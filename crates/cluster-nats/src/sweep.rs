//! Removes what uploads that failed or were given up have left in the object store: an object refers to its chunks by
//! the last part of their subject, and is stored behind the last of them.
//!
//! The stream's leader is asked for everything: a replica that is far behind does not know the newest objects.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use async_nats::datetime::parse_rfc3339;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::object_store::ObjectInfo;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::error::Error;
use crate::give_up::GiveUp;
use crate::snapshots::{BUCKET, Snapshots};

/// Age of chunks without an object that no upload will refer to. An upload takes ten minutes at most; the clocks of two
/// servers that lead one after the other may differ.
pub const LEFT_OVER: Duration = Duration::from_secs(3600);
/// For one sweep. What it does not finish is the next one's.
const SWEEP: Duration = Duration::from_secs(30);
const WHAT: &str = "removing what uploads of snapshots have left";

impl Snapshots {
    /// Removes the chunks that no object refers to and whose newest is `age` old by the clock of the stream's leader,
    /// and what is that old and reports that an object was removed. Returns of how many uploads there were chunks.
    ///
    /// # Errors
    /// JetStream's, or [`Error::GivenUp`].
    pub fn sweep(&self, age: Duration, give_up: &GiveUp) -> Result<usize, Error> {
        self.connection.wait_or_give_up(WHAT, SWEEP, give_up, async {
            let sweep = Sweep::begin(&self.connection, age).await?;
            // Objects after chunks: of an upload whose last chunk is so old, the object is there or will never be.
            let chunks = sweep.subjects("C").await?;
            let used = sweep.used().await?;
            let mut uploads = 0;
            for subject in chunks.iter().filter(|subject| !used.contains(last_part(subject))) {
                uploads += usize::from(sweep.remove_chunks(subject).await?);
            }
            Ok(uploads)
        })
    }
}

struct Sweep {
    stream: Stream<()>,
    now: SystemTime,
    age: Duration,
}

impl Sweep {
    async fn begin(connection: &Connection, age: Duration) -> Result<Sweep, Error> {
        let (jetstream, name) = (connection.jetstream(), format!("OBJ_{BUCKET}"));
        let info: Value = jetstream
            .request(format!("STREAM.INFO.{name}"), &json!({}))
            .await
            .map_err(|error| Error::new(WHAT, &error))?;
        let now = info["ts"].as_str().and_then(|now| parse_rfc3339(now).ok());
        let now = now.ok_or_else(|| Error::new(WHAT, &"NATS does not report its time"))?;
        let stream = jetstream.get_stream_no_info(name).await;
        let stream = stream.map_err(|error| Error::new(WHAT, &error))?;
        Ok(Sweep { stream, now: now.into(), age })
    }

    /// The subjects of chunks (`C`), or of objects (`M`).
    async fn subjects(&self, kind: &str) -> Result<Vec<String>, Error> {
        let failed = |error| Error::new(WHAT, &error);
        let found = self.stream.info_with_subjects(format!("$O.{BUCKET}.{kind}.*")).await;
        let found = found.map_err(failed)?.map_ok(|(subject, _)| subject);
        found.try_collect().await.map_err(failed)
    }

    async fn newest(&self, subject: &str) -> Result<Option<StreamMessage>, Error> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(Error::new(WHAT, &error)),
        }
    }

    fn is_old(&self, message: &StreamMessage) -> bool {
        let age = self.now.duration_since(message.time.into());
        age.unwrap_or_default() >= self.age
    }

    /// Names under which objects have their chunks. Each object that was removed leaves a message; these would become
    /// more and more.
    async fn used(&self) -> Result<HashSet<String>, Error> {
        let mut used = HashSet::new();
        for subject in self.subjects("M").await? {
            let Some(message) = self.newest(&subject).await? else { continue };
            // Nothing is removed if one cannot be read: it may refer to any chunk.
            let object: ObjectInfo = serde_json::from_slice(&message.payload)
                .map_err(|error| Error::new(WHAT, &format!("{subject}: {error}")))?;
            if !object.deleted {
                used.insert(object.nuid);
            } else if self.is_old(&message) {
                self.remove(&subject, message.sequence).await?;
            }
        }
        Ok(used)
    }

    /// Whether they were old enough.
    async fn remove_chunks(&self, subject: &str) -> Result<bool, Error> {
        let newest = self.newest(subject).await?;
        let Some(newest) = newest.filter(|newest| self.is_old(newest)) else { return Ok(false) };
        self.remove(subject, newest.sequence).await?;
        Ok(true)
    }

    /// Only what was looked at: there may be something newer by now.
    async fn remove(&self, subject: &str, newest: u64) -> Result<(), Error> {
        let removed = self.stream.purge().filter(subject).sequence(newest + 1).await;
        removed.map(drop).map_err(|error| Error::new(WHAT, &error))
    }
}

fn last_part(subject: &str) -> &str {
    subject.rsplit('.').next().unwrap_or_default()
}

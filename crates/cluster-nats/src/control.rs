//! Records that are changed by compare-and-swap on their revision: who serves, and every node's address.

use std::time::Duration;

use async_nats::jetstream::kv::{Config, Store, UpdateErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, StorageType};
use bytes::Bytes;
use futures_util::StreamExt as _;

use crate::connection::{Connection, REQUEST};
use crate::error::{AppendError, Error};

const BUCKET: &str = "FULMAR_CONTROL";
/// The bucket as a stream, and what a record's subject begins with.
const STREAM: &str = "KV_FULMAR_CONTROL";
const SUBJECT: &str = "$KV.FULMAR_CONTROL.";
/// Largest value in bytes.
const MAX_VALUE: i32 = 64 << 10;
/// One attempt of a change. A lease is renewed more often than it runs out.
const ATTEMPT: Duration = Duration::from_millis(900);
/// One attempt to read a record.
const READ: Duration = Duration::from_millis(500);

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Revision of the entry; later ones are higher.
    pub revision: u64,
    /// Contents of the entry.
    pub value: Bytes,
}

/// The records.
#[derive(Clone)]
pub struct Control {
    connection: Connection,
    store: Store,
}

fulmar_text::opaque_debug!(Control {});

impl Control {
    /// Opens the bucket, or creates it with this number of replicas.
    ///
    /// # Errors
    /// JetStream's.
    pub fn open(connection: &Connection, replicas: usize) -> Result<Control, Error> {
        let what = "the cluster's control records";
        let config = Config {
            bucket: BUCKET.to_owned(),
            description: "Who serves in a Fulmar cluster".to_owned(),
            history: 1,
            max_value_size: MAX_VALUE,
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let store = connection.wait(what, REQUEST * 2, async {
            let jetstream = connection.jetstream();
            if let Ok(store) = jetstream.get_key_value(BUCKET).await {
                return Ok(store);
            }
            jetstream.create_key_value(config).await.map_err(|error| Error::new(what, &error))
        })?;
        Ok(Control { connection: connection.clone(), store })
    }

    /// A record as the leader has it; `None` if there is none.
    ///
    /// Any replica could answer; but NATS goes on asking one that is paused or cut off, whose answer does not come.
    ///
    /// # Errors
    /// JetStream's.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        let what = "a control record of the cluster";
        self.connection.wait(what, READ, async {
            let stream = self.connection.jetstream().get_stream_no_info(STREAM).await;
            let stream = stream.map_err(|error| Error::new(what, &error))?;
            let subject = format!("{SUBJECT}{key}");
            match stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => Ok(entry(message)),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(Error::new(what, &error)),
            }
        })
    }

    /// Changes a record that is at `revision` (0: there was never one), and returns the new revision.
    ///
    /// # Errors
    /// [`AppendError::Refused`]: somebody else has changed it. [`AppendError::Unknown`]: read it to find out.
    pub fn swap(&self, key: &str, value: &[u8], revision: u64) -> Result<u64, AppendError> {
        let value = Bytes::copy_from_slice(value);
        let answer = self.connection.wait("a control record", ATTEMPT, async {
            Ok(self.store.update(key, value, revision).await)
        });
        let refused = |kind| kind == UpdateErrorKind::WrongLastRevision;
        let answered = answer.as_ref().is_ok_and(|answer| {
            answer.as_ref().map_or_else(|error| refused(error.kind()), |_| true)
        });
        self.connection.note_change(answered);
        match answer {
            Ok(Ok(revision)) => Ok(revision),
            Ok(Err(error)) if refused(error.kind()) => {
                Err(AppendError::Refused(format!("another node has changed {key}")))
            }
            Ok(Err(error)) => Err(AppendError::Unknown(error.to_string())),
            Err(error) => Err(AppendError::Unknown(error.to_string())),
        }
    }

    /// Writes a record whatever is there.
    ///
    /// # Errors
    /// JetStream's.
    pub fn overwrite(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let what = "a control record of the cluster";
        let value = Bytes::copy_from_slice(value);
        self.connection.wait(what, ATTEMPT, async {
            let put = self.store.put(key, value).await;
            put.map(drop).map_err(|error| Error::new(what, &error))
        })
    }

    /// Removes a record.
    ///
    /// # Errors
    /// JetStream's.
    pub fn remove(&self, key: &str) -> Result<(), Error> {
        let what = "a control record of the cluster";
        self.connection.wait(what, REQUEST, async {
            self.store.purge(key).await.map_err(|error| Error::new(what, &error))
        })
    }

    /// The names of all records that begin with `prefix`.
    ///
    /// # Errors
    /// JetStream's.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let what = "the control records of the cluster";
        self.connection.wait(what, REQUEST, async {
            let mut keys = self.store.keys().await.map_err(|error| Error::new(what, &error))?;
            let mut found = Vec::new();
            while let Some(key) = keys.next().await {
                let key = key.map_err(|error| Error::new(what, &error))?;
                if key.starts_with(prefix) {
                    found.push(key);
                }
            }
            found.sort();
            Ok(found)
        })
    }
}

/// A record that was not removed.
fn entry(message: StreamMessage) -> Option<Entry> {
    let removed = message.headers.get("KV-Operation").is_some();
    (!removed).then_some(Entry { revision: message.sequence, value: message.payload })
}

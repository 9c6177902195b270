//! The log: a stream in which a message is a record, and a message's sequence the record's number.
//!
//! An append names the sequence behind which it belongs, so that of two writers one is refused. That is safe with one
//! append at a time only: with several, those behind a refused one could match again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SEQUENCE;
use async_nats::jetstream::context::{GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, RawMessageErrorKind, RetentionPolicy, StorageType,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{timeout, timeout_at};

use crate::REPLICAS;
use crate::connection::{Connection, REQUEST};
use crate::error::{AppendError, Error};

/// Largest record in bytes.
pub const MAX_RECORD_BYTES: usize = 512 << 10;
/// With the message's headers.
pub(crate) const MAX_MESSAGE_BYTES: usize = MAX_RECORD_BYTES + 1024;

const STREAM: &str = "FULMAR_LOG";
const SUBJECT: &str = "fulmar.log";
const DIRECT_GET: &str = "$JS.API.DIRECT.GET.FULMAR_LOG";
/// Names the cluster, in the stream's metadata.
const CLUSTER: &str = "fulmar-cluster";
/// Version of what is stored.
const FORMAT: &str = "fulmar-format";
const FORMAT_NOW: &str = "1";

/// One attempt of an append; the caller repeats it.
const ATTEMPT: Duration = Duration::from_secs(2);
/// For one read, and for the first answer to it. NATS asks any replica, also one that is paused or cut off.
const READ: Duration = Duration::from_secs(2);
const FIRST_ANSWER: Duration = Duration::from_millis(500);
/// Maximum number of records per read.
const READ_RECORDS: usize = 256;
const READ_BYTES: usize = 4 << 20;
/// JetStream remembers an append's name for so long. An older one is recognised by its contents.
const DUPLICATES: Duration = Duration::from_secs(120);
/// For a look whether everything was removed.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two such looks.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const PURGE: Duration = Duration::from_secs(10);

/// Settings of a new log.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Names the cluster.
    pub cluster: String,
    /// Number of the first record, at least 1.
    pub first: u64,
    /// [`REPLICAS`], or 1 for trials.
    pub replicas: usize,
}

/// A record as it is in the log, or what somebody else has published there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record.
    pub number: u64,
    /// Bytes of the record.
    pub bytes: Bytes,
    /// Whether its publisher named the sequence behind which it belongs, as [`LogStream::append`] does.
    pub conditional: bool,
}

impl Record {
    fn new(number: u64, bytes: Bytes, headers: &HeaderMap) -> Record {
        let conditional = headers.get(NATS_EXPECTED_LAST_SEQUENCE).is_some();
        Record { number, bytes, conditional }
    }
}

/// State of the log's stream, as NATS reports it.
#[derive(Clone, Debug, Default)]
pub struct LogState {
    /// The oldest record that is there; one more than `last` if there is none.
    pub first: u64,
    /// The newest; 0 if there was none.
    pub last: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// On how many servers it is.
    pub replicas: usize,
    /// The server that leads it, if there is one.
    pub leader: Option<String>,
    /// Replicas that are in step with it, including itself.
    pub current: usize,
}

/// The log of a cluster.
#[derive(Clone, Debug)]
pub struct LogStream {
    connection: Connection,
    cluster: String,
    /// When an empty read was compared with the state.
    looked_at: Arc<Mutex<Option<Instant>>>,
}

impl LogStream {
    /// Creates the log.
    ///
    /// # Errors
    /// [`Error::Exists`]; or JetStream's, for example if there are fewer servers than replicas.
    pub fn create(connection: &Connection, creation: &Creation) -> Result<LogStream, Error> {
        match LogStream::open(connection, true) {
            // An attempt before this one had no answer.
            Ok(log) if log.cluster == creation.cluster => return Ok(log),
            Ok(log) => return Err(Error::Exists(log.cluster)),
            Err(Error::NoCluster) => {}
            Err(error) => return Err(error),
        }
        let what = "the cluster's log could not be created";
        let metadata = HashMap::from([
            (CLUSTER.to_owned(), creation.cluster.clone()),
            (FORMAT.to_owned(), FORMAT_NOW.to_owned()),
        ]);
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec![SUBJECT.to_owned()],
            description: Some("Log of a Fulmar cluster. Nothing else may write to it.".to_owned()),
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            num_replicas: creation.replicas,
            duplicate_window: DUPLICATES,
            max_message_size: i32::try_from(MAX_MESSAGE_BYTES).unwrap_or(-1),
            allow_direct: true,
            first_sequence: (creation.first > 1).then_some(creation.first),
            metadata,
            ..Config::default()
        };
        connection.wait(what, REQUEST * 2, async {
            let created = connection.jetstream().create_stream(config).await;
            created.map(drop).map_err(|error| Error::new(what, &error))
        })?;
        LogStream::open(connection, true)
    }

    /// Finds the log, and checks that it is one. Without `development`, it must survive the loss of a server.
    ///
    /// # Errors
    /// [`Error::NoCluster`], [`Error::Foreign`], or JetStream's.
    pub fn open(connection: &Connection, development: bool) -> Result<LogStream, Error> {
        let what = "the cluster's log";
        let info = connection.wait(what, REQUEST, async {
            let stream = connection.jetstream().get_stream(STREAM).await;
            let stream = stream.map_err(|error| match error.kind() {
                GetStreamErrorKind::JetStream(error) if error.code() == 404 => Error::NoCluster,
                _ => Error::new(what, &error),
            })?;
            Ok(stream.cached_info().clone())
        })?;
        let config = &info.config;
        let foreign = |why: &str| {
            Err(Error::Foreign(format!(
                "the stream {STREAM} on these NATS servers is no log of this Fulmar: {why}"
            )))
        };
        let Some(cluster) = config.metadata.get(CLUSTER) else {
            return foreign(
                "another program has made it; use a NATS account of its own for Fulmar",
            );
        };
        if config.metadata.get(FORMAT).map(String::as_str) != Some(FORMAT_NOW) {
            return foreign("another version has made it; upgrade this node");
        }
        if config.mirror.is_some() || config.sources.as_ref().is_some_and(|all| !all.is_empty()) {
            // NATS would leave out which sequence a record's publisher expected.
            return foreign("it is a copy of another stream; restore a backup instead");
        }
        if config.storage != StorageType::File || config.retention != RetentionPolicy::Limits {
            return foreign(
                "it is not kept in files, or forgets records; create the cluster again",
            );
        }
        if config.num_replicas < REPLICAS && !development {
            let text = format!(
                "it is on {} server(s), and acknowledged messages are lost with it. Run `nats stream edit {STREAM} \
                 --replicas {REPLICAS}`, or set [cluster] development = true for a trial",
                config.num_replicas
            );
            return foreign(&text);
        }
        let (connection, cluster) = (connection.clone(), cluster.clone());
        Ok(LogStream { connection, cluster, looked_at: Arc::default() })
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Connection to NATS that the log uses.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Asks for the state.
    ///
    /// # Errors
    /// JetStream's.
    pub fn state(&self) -> Result<LogState, Error> {
        self.state_within(REQUEST)
    }

    fn state_within(&self, limit: Duration) -> Result<LogState, Error> {
        let what = "the state of the cluster's log";
        let info = self.connection.wait(what, limit, async {
            let stream = self.connection.jetstream().get_stream(STREAM).await;
            Ok(stream.map_err(|error| Error::new(what, &error))?.cached_info().clone())
        })?;
        let cluster = info.cluster.as_ref();
        let followers = cluster.map_or(0, |c| c.replicas.iter().filter(|r| r.current).count());
        Ok(LogState {
            first: info.state.first_sequence.max(1),
            last: info.state.last_sequence,
            bytes: info.state.bytes,
            replicas: info.config.num_replicas,
            leader: cluster.and_then(|cluster| cluster.leader.clone()),
            current: followers + 1,
        })
    }

    /// Appends record `number`, directly behind the one before. `name` is the record's, and of no other.
    ///
    /// # Errors
    /// [`AppendError::Unknown`]: append the same again until it is accepted or refused, and no other before.
    /// [`AppendError::Displaced`]: something else has this number. [`AppendError::Refused`]: nothing has, and the log goes on
    /// elsewhere.
    pub fn append(&self, number: u64, name: &str, bytes: &[u8]) -> Result<(), AppendError> {
        let bytes = Bytes::copy_from_slice(bytes);
        let message = PublishMessage::build()
            .payload(bytes.clone())
            .message_id(name)
            .expected_stream(STREAM)
            .expected_last_sequence(number.saturating_sub(1));
        let unknown = |error: &dyn std::fmt::Display| AppendError::Unknown(error.to_string());
        let answer = self.connection.wait("the cluster's log", ATTEMPT, async {
            let sent = self.connection.jetstream().send_publish(SUBJECT, message).await;
            Ok(match sent {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            })
        });
        self.connection.note_change(matches!(&answer, Ok(Ok(_))));
        match answer.map_err(|error| unknown(&error))? {
            Ok(ack) if ack.sequence == number => Ok(()),
            Ok(ack) => Err(AppendError::Refused(format!(
                "record {name} is number {} of the log, not {number}",
                ack.sequence
            ))),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                self.compare(number, &bytes)
            }
            Err(error) => Err(AppendError::Unknown(explain(&error))),
        }
    }

    /// The log has gone on behind `number - 1`: perhaps with this very record, whose name JetStream has forgotten.
    fn compare(&self, number: u64, bytes: &Bytes) -> Result<(), AppendError> {
        match self.stored(number) {
            Ok(Some(stored)) if stored.bytes == *bytes => Ok(()),
            Ok(Some(stored)) => Err(AppendError::Displaced(stored)),
            Ok(None) => Err(AppendError::Refused(format!(
                "the log has no place for record {number}: it is shorter, or another node has gone on"
            ))),
            Err(error) => Err(AppendError::Unknown(error.to_string())),
        }
    }

    /// The record as the stream's leader has it.
    fn stored(&self, number: u64) -> Result<Option<Record>, Error> {
        let what = "a record of the cluster's log";
        self.connection.wait(what, READ, async {
            let stream = self.connection.jetstream().get_stream_no_info(STREAM).await;
            let stream = stream.map_err(|error| Error::new(what, &error))?;
            match stream.get_raw_message(number).await {
                Ok(message) => Ok(Some(Record::new(number, message.payload, &message.headers))),
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(Error::new(what, &error)),
            }
        })
    }

    /// Reads records from `number` on, at most a few MiB; none if there are no more yet. A replica that is behind may
    /// not have the newest.
    ///
    /// # Errors
    /// [`Error::Removed`], [`Error::Missing`], or JetStream's.
    pub fn read(&self, number: u64) -> Result<Vec<Record>, Error> {
        let what = "reading the cluster's log";
        let records = self.connection.wait(what, READ + FIRST_ANSWER, self.direct_get(number))?;
        for (record, wanted) in records.iter().zip(number..) {
            if record.number == wanted {
                continue;
            }
            let found = record.number;
            // The first records of all may have been removed behind a snapshot; none in the middle.
            let state = self.state()?;
            return Err(if wanted < state.first {
                Error::Removed { wanted: number, first: state.first }
            } else {
                Error::Missing { wanted, found }
            });
        }
        // Without a leader there is no state, and the next look is soon enough.
        if records.is_empty()
            && self.must_look()
            && let Ok(state) = self.state_within(LOOK)
            && number < state.first
        {
            return Err(Error::Removed { wanted: number, first: state.first });
        }
        Ok(records)
    }

    /// Whether an empty read may mean that all was removed; asked rarely, because a reader at the end reads often.
    fn must_look(&self) -> bool {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if due {
            *looked_at = Some(Instant::now());
        }
        due
    }

    async fn direct_get(&self, number: u64) -> Result<Vec<Record>, Error> {
        let what = "reading the cluster's log";
        let client = self.connection.client();
        let inbox = client.new_inbox();
        let failed = |error: &dyn std::fmt::Display| Error::new(what, error);
        let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
        let request = serde_json::json!({
            "seq": number, "batch": READ_RECORDS, "max_bytes": READ_BYTES, "next_by_subj": SUBJECT,
        });
        let request = Bytes::from(request.to_string());
        let sent = client.publish_with_reply(DIRECT_GET, inbox, request).await;
        sent.map_err(|error| failed(&error))?;
        let mut records = Vec::new();
        let end = tokio::time::Instant::now() + READ;
        let first = timeout(FIRST_ANSWER, answers.next()).await;
        let mut next = first.map_err(|_| Error::TimedOut { what, limit: FIRST_ANSWER })?;
        while let Some(answer) = next {
            match answer.status.map(|status| status.as_u16()) {
                // The end of the batch, and no such message.
                Some(204 | 404) => return Ok(records),
                Some(503) => return Err(failed(&"no server has the log at the moment")),
                Some(code) => {
                    let words = answer.description.unwrap_or_default();
                    return Err(failed(&format!("{code} {words}")));
                }
                None => {}
            }
            let headers = answer.headers.unwrap_or_default();
            let number = sequence(&headers);
            let number = number.ok_or_else(|| failed(&"a record without its number"))?;
            records.push(Record::new(number, answer.payload, &headers));
            // On a slow link, what has come is used, and the next read goes on behind it.
            next = match timeout_at(end, answers.next()).await {
                Ok(next) => next,
                Err(_) => return Ok(records),
            };
        }
        Err(failed(&"the connection has ended"))
    }

    /// Removes the log with all its records; then there is no cluster.
    ///
    /// # Errors
    /// JetStream's.
    pub fn remove(self) -> Result<(), Error> {
        let what = "removing the cluster's log";
        self.connection.wait(what, PURGE, async {
            let removed = self.connection.jetstream().delete_stream(STREAM).await;
            removed.map(drop).map_err(|error| Error::new(what, &error))
        })
    }

    /// Removes the records before `number`.
    ///
    /// # Errors
    /// JetStream's.
    pub fn remove_before(&self, number: u64) -> Result<(), Error> {
        let what = "removing records of the cluster's log";
        self.connection.wait(what, PURGE, async {
            let stream = self.connection.jetstream().get_stream_no_info(STREAM).await;
            let stream = stream.map_err(|error| Error::new(what, &error))?;
            let purged = stream.purge().sequence(number).await;
            purged.map(drop).map_err(|error| Error::new(what, &error))
        })
    }
}

fn sequence(headers: &HeaderMap) -> Option<u64> {
    headers.get("Nats-Sequence")?.as_str().parse().ok()
}

/// Explains what the operator can do about an append that JetStream does not accept now.
fn explain(error: &async_nats::jetstream::context::PublishError) -> String {
    if error.kind() == PublishErrorKind::StreamNotFound {
        return "no NATS server leads the log at the moment".to_owned();
    }
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let text = if source.is_empty() { error.to_string() } else { source };
    if text.contains("maximum bytes exceeded") || text.contains("maximum messages exceeded") {
        return format!(
            "the stream {STREAM} is full ({text}): raise its limits with `nats stream edit {STREAM}`"
        );
    }
    if text.contains("resource") || text.contains("insufficient storage") {
        return format!(
            "JetStream has no room left ({text}): free disk space on the NATS servers and restart those that have switched \
             JetStream off, or raise `max_file_store`"
        );
    }
    text
}

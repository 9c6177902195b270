//! Snapshots: copies of the database, each with its position in the log.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::{Duration, SystemTime};

use async_nats::jetstream::object_store::{
    Config, GetErrorKind, ObjectInfo, ObjectMetadata, ObjectStore,
};
use async_nats::jetstream::stream::StorageType;
use futures_util::StreamExt as _;
use ring::digest::{Context, SHA256};
use tokio::io::AsyncReadExt as _;

use crate::connection::{Connection, REQUEST};
use crate::error::Error;
use crate::give_up::GiveUp;

pub(crate) const BUCKET: &str = "FULMAR_SNAPSHOTS";
/// A whole snapshot, up or down.
const TRANSFER: Duration = Duration::from_secs(600);
const CHUNK: usize = 128 << 10;
const PREFIX: &str = "broker-";
const SHA: &str = "sha256";

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record of the log that it contains.
    pub number: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of its contents, in hexadecimal digits.
    pub sha256: String,
    /// When it was stored, by the clock of the program that did so.
    pub stored_at: Option<SystemTime>,
    /// Entries that were stored with the snapshot.
    pub notes: HashMap<String, String>,
}

impl Snapshot {
    fn name(number: u64) -> String {
        format!("{PREFIX}{number:020}")
    }
}

/// The snapshots of a cluster.
#[derive(Clone)]
pub struct Snapshots {
    pub(crate) connection: Connection,
    store: ObjectStore,
}

fulmar_text::opaque_debug!(Snapshots {});

impl Snapshots {
    /// Opens the object store, or creates it with this number of replicas.
    ///
    /// # Errors
    /// JetStream's.
    pub fn open(connection: &Connection, replicas: usize) -> Result<Snapshots, Error> {
        let what = "the cluster's snapshots";
        let config = Config {
            bucket: BUCKET.to_owned(),
            description: Some("Copies of a Fulmar broker's database".to_owned()),
            storage: StorageType::File,
            num_replicas: replicas,
            ..Config::default()
        };
        let store = connection.wait(what, REQUEST * 2, async {
            let jetstream = connection.jetstream();
            if let Ok(store) = jetstream.get_object_store(BUCKET).await {
                return Ok(store);
            }
            jetstream.create_object_store(config).await.map_err(|error| Error::new(what, &error))
        })?;
        Ok(Snapshots { connection: connection.clone(), store })
    }

    /// Stores a file as the snapshot up to record `number`.
    ///
    /// # Errors
    /// The file cannot be read, or JetStream's; or [`Error::GivenUp`]. What NATS has by then remains until a
    /// [`Snapshots::sweep`]; if all of it was there, the snapshot may be stored although NATS has not answered yet.
    pub fn upload(
        &self,
        number: u64,
        file: &Path,
        mut notes: HashMap<String, String>,
        give_up: &GiveUp,
    ) -> Result<Snapshot, Error> {
        let what = "storing a snapshot";
        let shown = file.display().to_string();
        let failed = |error| Error::File(shown.clone(), error);
        self.connection.wait_or_give_up(what, TRANSFER, give_up, async {
            let sha256 = digest(&mut File::open(file).map_err(failed)?, give_up).map_err(failed)?;
            notes.insert(SHA.to_owned(), sha256.ok_or(Error::GivenUp { what })?);
            let metadata = ObjectMetadata {
                name: Snapshot::name(number),
                chunk_size: Some(CHUNK),
                metadata: notes,
                ..ObjectMetadata::default()
            };
            let mut from = Contents(File::open(file).map_err(failed)?);
            let info = self.store.put(metadata, &mut from).await;
            let info = info.map_err(|error| Error::new(what, &error))?;
            Ok(snapshot(number, info))
        })
    }

    /// All, the newest first.
    ///
    /// # Errors
    /// JetStream's.
    pub fn list(&self) -> Result<Vec<Snapshot>, Error> {
        let what = "listing snapshots";
        self.connection.wait(what, REQUEST, async {
            let mut objects = self.store.list().await.map_err(|error| Error::new(what, &error))?;
            let mut found = Vec::new();
            while let Some(object) = objects.next().await {
                let object = object.map_err(|error| Error::new(what, &error))?;
                let number = object.name.strip_prefix(PREFIX).and_then(|n| n.parse().ok());
                found.extend(number.map(|number| snapshot(number, object)));
            }
            found.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.number));
            Ok(found)
        })
    }

    /// Writes a snapshot to a new file, and checks it.
    ///
    /// # Errors
    /// [`Error::Damaged`], JetStream's, or the file's. Then the file is to be removed.
    pub fn get(&self, snapshot: &Snapshot, file: &Path) -> Result<(), Error> {
        let what = "reading a snapshot";
        let shown = file.display().to_string();
        let failed = |error| Error::File(shown.clone(), error);
        let name = Snapshot::name(snapshot.number);
        self.connection.wait(what, TRANSFER, async {
            let mut object = self.store.get(&name).await.map_err(|error| match error.kind() {
                GetErrorKind::NotFound => Error::new(what, &format!("there is no {name}")),
                _ => Error::new(what, &error),
            })?;
            let private = File::options().write(true).create_new(true).mode(0o600).open(file);
            let mut to = private.map_err(failed)?;
            let (mut sha, mut bytes) = (Context::new(&SHA256), 0);
            let mut buffer = vec![0; CHUNK];
            loop {
                let read = object.read(&mut buffer).await;
                let read = read.map_err(|error| Error::new(what, &error))?;
                if read == 0 {
                    break;
                }
                bytes += read as u64;
                sha.update(&buffer[..read]);
                to.write_all(&buffer[..read]).map_err(failed)?;
            }
            to.sync_all().map_err(failed)?;
            if bytes != snapshot.bytes || hex(&sha) != snapshot.sha256 {
                return Err(Error::Damaged(name.clone()));
            }
            Ok(())
        })
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// JetStream's.
    pub fn remove(&self, number: u64) -> Result<(), Error> {
        let what = "removing a snapshot";
        self.connection.wait(what, REQUEST, async {
            let removed = self.store.delete(Snapshot::name(number)).await;
            removed.map_err(|error| Error::new(what, &error))
        })
    }
}

fn snapshot(number: u64, info: ObjectInfo) -> Snapshot {
    let sha256 = info.metadata.get(SHA).cloned().unwrap_or_default();
    let stored_at = info.modified.map(SystemTime::from);
    Snapshot { number, bytes: info.size as u64, sha256, stored_at, notes: info.metadata }
}

/// `None` if it is given up: a large file takes long.
fn digest(file: &mut File, give_up: &GiveUp) -> io::Result<Option<String>> {
    let (mut sha, mut buffer) = (Context::new(&SHA256), vec![0; CHUNK]);
    while !give_up.is_given_up() {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(hex(&sha))),
            read => sha.update(&buffer[..read]),
        }
    }
    Ok(None)
}

fn hex(sha: &Context) -> String {
    fulmar_text::hex::encode(sha.clone().finish().as_ref())
}

/// A file for [`ObjectStore::put`]. It is read on the caller's thread, which waits anyway, not on the connection's.
struct Contents(File);

impl tokio::io::AsyncRead for Contents {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Task<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.0.read(buffer.initialize_unfilled())?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

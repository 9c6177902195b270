//! `fulmar receive --via quic|tcp`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::connection::{Arrival, Channel, Listener, TlsArgs, Via};
use super::incoming::Incoming;
use super::{Have, Offer, PIECE, Verdict, receive_line, send_line};
use crate::manifest::Hash;
use crate::show::Show;
use crate::wait::interrupted;

/// The most concurrent connections; more wait.
const MAX_CONNECTIONS: usize = 64;
/// The most events of connections that wait to be handled.
const MAX_EVENTS: usize = 256;
/// A sender that is silent for this long is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for the end of a sender's connection once all files have been received.
const LINGER: Duration = Duration::from_secs(3);
/// The largest file that is accepted, as with NORM.
const MAX_BYTES: u64 = 64 << 30;

/// Transport, address and folder of a receiver of files.
pub(crate) struct Receiving<'a> {
    pub(crate) via: Via,
    pub(crate) from: SocketAddr,
    pub(crate) dir: &'a Path,
    pub(crate) tls: &'a TlsArgs,
    pub(crate) count: Option<u64>,
    pub(crate) json: bool,
    pub(crate) show: Show,
}

pub(super) enum Event {
    Progress {
        at: u64,
        bytes: u64,
    },
    File {
        name: String,
        bytes: u64,
        hash: Hash,
        resumed: u64,
    },
    Failed(String),
    /// A connection has ended.
    Over,
}

/// Receives until there are enough files, or a signal arrives.
pub(crate) async fn receive(receiving: Receiving<'_>) -> anyhow::Result<()> {
    let listener = Listener::bind(receiving.via, receiving.from, receiving.tls).await?;
    let bound = listener.address()?;
    if receiving.json {
        println!("{}", json!({ "event": "ready", "address": bound.to_string() }));
    } else {
        eprintln!("listening on {bound}");
    }
    receive_by(&listener, receiving, MAX_CONNECTIONS).await
}

/// Receives with at most this many concurrent connections.
async fn receive_by(
    listener: &Listener,
    receiving: Receiving<'_>,
    max_connections: usize,
) -> anyhow::Result<()> {
    let (told, mut events) = mpsc::channel(MAX_EVENTS);
    let room = Arc::new(Semaphore::new(max_connections));
    let mut stop = std::pin::pin!(interrupted());
    let mut run =
        Run { receiving, start: Instant::now(), complete: 0, failed: 0, open: 0, shown: 0 };
    loop {
        let enough = run.receiving.count.is_some_and(|count| run.complete + run.failed >= count);
        if enough && run.open == 0 {
            break;
        }
        tokio::select! {
            event = events.recv() => run.handle_event(event.context("events")?),
            arrived = accept(listener, &room), if !enough => {
                let (place, arrival, from) = arrived?;
                let (dir, told) = (run.receiving.dir.to_owned(), told.clone());
                run.open += 1;
                tokio::spawn(async move {
                    if let Err(error) = serve(arrival, dir, &told).await {
                        tracing::warn!(%from, error = format!("{error:#}"), "a connection failed");
                    }
                    drop(place);
                    // At the end there is no receiver for this.
                    let _ = told.send(Event::Over).await;
                });
            }
            () = tokio::time::sleep(LINGER), if enough => break,
            outcome = &mut stop => {
                outcome?;
                break;
            }
        }
    }
    run.tell_end();
    if run.failed > 0 {
        bail!("{} of {} files failed", run.failed, run.complete + run.failed);
    }
    Ok(())
}

/// Accepts a connection once there is room for it. Waiting for room is a part of this, because events must be taken
/// meanwhile: a connection whose event nobody takes never ends.
async fn accept(
    listener: &Listener,
    room: &Arc<Semaphore>,
) -> anyhow::Result<(OwnedSemaphorePermit, Arrival, SocketAddr)> {
    let place = Arc::clone(room).acquire_owned().await?;
    let (arrival, from) = listener.accept().await?;
    Ok((place, arrival, from))
}

async fn serve(arrival: Arrival, dir: PathBuf, told: &mpsc::Sender<Event>) -> anyhow::Result<()> {
    let mut channel = timeout(PATIENCE, arrival.open()).await.context("no handshake")??;
    let mut served = false;
    loop {
        let offer = match receive_line::<Offer>(&mut channel, PATIENCE).await {
            Ok(Some(offer)) => offer,
            Ok(None) => break,
            // After everything was served, the client may end the connection in any way.
            Err(_) if served => break,
            Err(error) => return Err(error),
        };
        served = true;
        let outcome = receive_file(&mut channel, &dir, &offer, told).await;
        match outcome {
            Ok(()) => send_line(&mut channel, &Verdict { done: true, error: None }).await?,
            Err(error) if error.is::<std::io::Error>() => return Err(error),
            Err(error) => {
                let reason = format!("{error:#}");
                told.send(Event::Failed(format!("{}: {reason}", offer.name))).await?;
                send_line(&mut channel, &Verdict { done: false, error: Some(reason) }).await?;
                break;
            }
        }
    }
    // A client that does not end its connection is not waited for.
    let _ = timeout(LINGER, channel.closed()).await;
    Ok(())
}

pub(super) async fn receive_file(
    channel: &mut Channel,
    dir: &Path,
    offer: &Offer,
    told: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    if offer.bytes > MAX_BYTES {
        bail!("{} bytes are too many", offer.bytes);
    }
    let mut incoming = Incoming::open(dir, offer)?;
    let resumed = incoming.have;
    send_line(channel, &Have { have: resumed }).await?;
    let mut piece = vec![0; PIECE];
    while incoming.have < incoming.bytes {
        let most = usize::try_from(incoming.bytes - incoming.have).unwrap_or(PIECE).min(PIECE);
        let read = timeout(PATIENCE, channel.read.read(&mut piece[..most]));
        let length =
            read.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        if length == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        incoming.write(&piece[..length])?;
        // A progress update may be lost.
        let _ = told.try_send(Event::Progress { at: incoming.have, bytes: incoming.bytes });
    }
    let bytes = incoming.bytes;
    let (path, hash) = incoming.finish(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    told.send(Event::File { name, bytes, hash, resumed }).await?;
    Ok(())
}

struct Run<'a> {
    receiving: Receiving<'a>,
    start: Instant,
    complete: u64,
    failed: u64,
    open: usize,
    /// The time of the last progress report, in whole seconds from the start.
    shown: u64,
}

impl Run<'_> {
    fn handle_event(&mut self, event: Event) {
        let seconds = self.start.elapsed().as_secs_f64();
        match event {
            Event::Over => self.open -= 1,
            Event::Progress { at, bytes } if self.receiving.json => {
                let second = seconds as u64;
                if std::mem::replace(&mut self.shown, second) < second {
                    let (total, received) = (bytes, at);
                    println!(
                        "{}",
                        json!({ "event": "progress", "seconds": seconds, "total_bytes": total,
                            "received_bytes": received })
                    );
                }
            }
            Event::Progress { at, bytes } => {
                self.receiving.show.set(at, bytes, format!("{} files", self.complete));
            }
            Event::File { name, bytes, hash, resumed } => {
                self.complete += 1;
                if self.receiving.json {
                    println!(
                        "{}",
                        json!({ "event": "file", "name": name, "bytes": bytes,
                            "sha256": hash.to_string(), "verified": true,
                            "resumed_bytes": resumed, "seconds": seconds })
                    );
                } else {
                    self.receiving.show.aside(|| println!("{hash}  {name}"));
                }
            }
            Event::Failed(reason) => {
                self.failed += 1;
                self.receiving.show.print_line(&format!("fulmar: {reason}"));
                if self.receiving.json {
                    println!("{}", json!({ "event": "failed", "reason": reason }));
                }
            }
        }
    }

    fn tell_end(&self) {
        if self.receiving.json {
            let seconds = self.start.elapsed().as_secs_f64();
            let (complete, failed) = (self.complete, self.failed);
            println!(
                "{}",
                json!({ "event": "end", "seconds": seconds, "complete": complete, "failed": failed })
            );
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ring::digest::{SHA256, digest};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::*;

    /// The most concurrent connections, and how many there are.
    const ROOM: usize = 2;
    const CLIENTS: usize = 12;
    /// Each client's bytes and in how many pieces it sends them, so that two clients cause more events than may wait.
    const BYTES: usize = 100_000;
    const PIECES: usize = 500;

    async fn client(number: usize, to: SocketAddr) {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let bytes = vec![number as u8; BYTES];
        let sha256 = Hash(digest(&SHA256, &bytes).as_ref().try_into().unwrap()).to_string();
        let mut offer =
            json!({ "name": number.to_string(), "bytes": BYTES, "sha256": sha256 }).to_string();
        offer.push('\n');
        stream.write_all(offer.as_bytes()).await.unwrap();
        let mut answer = [0; 100];
        assert_ne!(stream.read(&mut answer).await.unwrap(), 0);
        for piece in bytes.chunks(BYTES / PIECES) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_ne!(stream.read(&mut answer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn more_connections_than_there_is_room_for_all_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (tls, from) = (TlsArgs::default(), "127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(Via::Tcp, from, &tls).await.unwrap();
        let to = listener.address().unwrap();
        let (count, show) = (Some(CLIENTS as u64), Show::new(true));
        let (via, dir, tls) = (Via::Tcp, folder.path(), &tls);
        let receiving = Receiving { via, from, dir, tls, count, json: false, show };
        for number in 0..CLIENTS {
            tokio::spawn(client(number, to));
        }
        let received = timeout(PATIENCE, receive_by(&listener, receiving, ROOM)).await;
        received.expect("it does not end").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), CLIENTS);
    }
}

//! The data streams of a QUIC connection: opened when a flow wants one, polled all together.
//!
//! Moves bytes only; the machine decides which flow carries what, and what a loss means. The driver's task polls
//! everything here, and no state is in futures that may be dropped.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, WriteError};
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use crate::machine::{CONTROL, Machine, StreamLoss};

/// Room for one read, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// The longest wait for the server to allow another stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An event of a stream.
#[derive(Debug)]
pub(crate) enum Happened {
    Opened {
        flow: usize,
    },
    /// Bytes are in [`DataStreams::input`].
    Read {
        flow: usize,
    },
    Wrote {
        flow: usize,
        bytes: usize,
    },
    Lost {
        flow: usize,
        loss: StreamLoss,
    },
    /// Everything on every stream has arrived.
    Finished,
    ConnectionLost(ConnectionError),
}

struct DataStream {
    flow: usize,
    send: SendStream,
    receive: RecvStream,
    input: BytesMut,
    /// The server has finished its side.
    ended: bool,
    /// Set when the stream is finished: resolves when everything has arrived.
    finished: Option<Boxed<()>>,
}

struct Opening {
    flow: usize,
    stream: Boxed<Result<(SendStream, RecvStream), ConnectionError>>,
    patience: Pin<Box<Sleep>>,
}

/// All data streams of one connection; always none without QUIC.
pub(crate) struct DataStreams {
    connection: Option<Connection>,
    streams: Vec<DataStream>,
    opening: Option<Opening>,
    /// Where polling begins, so that a busy stream does not starve the others.
    next: usize,
    scratch: Box<[u8]>,
}

impl DataStreams {
    pub(crate) fn new(connection: Option<Connection>) -> DataStreams {
        let scratch = vec![0; if connection.is_some() { READ_BYTES } else { 0 }].into();
        DataStreams { connection, streams: Vec::new(), opening: None, next: 0, scratch }
    }

    /// Unparsed bytes of a stream.
    pub(crate) fn input(&mut self, flow: usize) -> Option<&mut BytesMut> {
        let stream = self.streams.iter_mut().find(|stream| stream.flow == flow);
        stream.map(|stream| &mut stream.input)
    }

    /// The next event; reads only if `listening`, and the machine allows it.
    pub(crate) fn poll<P, R>(
        &mut self,
        context: &mut Context<'_>,
        machine: &Machine<P, R>,
        listening: bool,
    ) -> Poll<Happened> {
        if let Some(happened) = self.poll_opening(context, machine) {
            return Poll::Ready(happened);
        }
        let count = self.streams.len();
        for offset in 0..count {
            let at = (self.next + offset) % count;
            let flow = self.streams[at].flow;
            let output = machine.output(flow);
            let reads = listening && machine.may_receive(flow);
            let scratch = reads.then_some(&mut self.scratch[..]);
            let Some(happened) = self.streams[at].poll(context, output, scratch) else {
                continue;
            };
            if matches!(happened, Happened::Lost { .. }) {
                self.streams.remove(at);
            }
            self.next = at + 1;
            return Poll::Ready(happened);
        }
        let written = |stream: &DataStream| machine.output(stream.flow).is_empty();
        if machine.is_finishing() && self.streams.iter().all(written) {
            return self.poll_finish(context);
        }
        Poll::Pending
    }

    fn poll_opening<P, R>(
        &mut self,
        context: &mut Context<'_>,
        machine: &Machine<P, R>,
    ) -> Option<Happened> {
        let connection = self.connection.as_ref()?;
        if self.opening.is_none() {
            let flow = machine.stream_wanted().filter(|flow| *flow != CONTROL)?;
            let connection = connection.clone();
            let stream = Box::pin(async move { connection.open_bi().await });
            let patience = Box::pin(tokio::time::sleep(OPEN_TIMEOUT));
            self.opening = Some(Opening { flow, stream, patience });
        }
        let opening = self.opening.as_mut()?;
        let flow = opening.flow;
        let happened = match opening.stream.as_mut().poll(context) {
            Poll::Ready(Ok((send, receive))) => {
                let input = BytesMut::new();
                let stream =
                    DataStream { flow, send, receive, input, ended: false, finished: None };
                self.streams.push(stream);
                Happened::Opened { flow }
            }
            Poll::Ready(Err(error)) => Happened::ConnectionLost(error),
            Poll::Pending => {
                if opening.patience.as_mut().poll(context).is_pending() {
                    return None;
                }
                Happened::Lost { flow, loss: StreamLoss::NotOpened }
            }
        };
        self.opening = None;
        Some(happened)
    }

    /// Finishes every stream and waits until the server has everything.
    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Happened> {
        let mut all = true;
        for stream in &mut self.streams {
            let finished = stream.finished.get_or_insert_with(|| {
                // Fails if it is finished or reset already, which `stopped` also reports.
                let _ = stream.send.finish();
                let stopped = stream.send.stopped();
                Box::pin(async move { drop(stopped.await) })
            });
            let ready = finished.as_mut().poll(context).is_ready();
            if ready {
                // It must not be polled again after its end.
                *finished = Box::pin(std::future::ready(()));
            }
            all &= ready;
        }
        if !all {
            return Poll::Pending;
        }
        self.streams.clear();
        Poll::Ready(Happened::Finished)
    }
}

impl DataStream {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        output: &[u8],
        scratch: Option<&mut [u8]>,
    ) -> Option<Happened> {
        let flow = self.flow;
        if !output.is_empty() && self.finished.is_none() {
            match pin!(self.send.write(output)).poll(context) {
                Poll::Ready(Ok(bytes)) => return Some(Happened::Wrote { flow, bytes }),
                Poll::Ready(Err(error)) => return Some(write_lost(flow, error)),
                Poll::Pending => {}
            }
        }
        let scratch = scratch.filter(|_| !self.ended)?;
        let mut buffer = ReadBuf::new(scratch);
        match self.receive.poll_read_buf(context, &mut buffer) {
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                self.input.extend_from_slice(buffer.filled());
                Some(Happened::Read { flow })
            }
            // The server may also have finished a stream that the client has finished.
            Poll::Ready(Ok(())) if self.finished.is_some() => {
                self.ended = true;
                None
            }
            Poll::Ready(Ok(())) => Some(Happened::Lost { flow, loss: StreamLoss::Finished }),
            Poll::Ready(Err(error)) => Some(read_lost(flow, error)),
            Poll::Pending => None,
        }
    }
}

fn read_lost(flow: usize, error: ReadError) -> Happened {
    match error {
        ReadError::ConnectionLost(error) => Happened::ConnectionLost(error),
        ReadError::Reset(code) => {
            Happened::Lost { flow, loss: StreamLoss::Reset(code.into_inner()) }
        }
        _ => Happened::Lost { flow, loss: StreamLoss::Finished },
    }
}

fn write_lost(flow: usize, error: WriteError) -> Happened {
    match error {
        WriteError::ConnectionLost(error) => Happened::ConnectionLost(error),
        WriteError::Stopped(code) => {
            Happened::Lost { flow, loss: StreamLoss::Reset(code.into_inner()) }
        }
        _ => Happened::Lost { flow, loss: StreamLoss::Finished },
    }
}

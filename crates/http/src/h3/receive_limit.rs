//! Limits the bytes that h3 accepts on each stream, because h3 itself does not.
//!
//! h3 0.0.8 buffers every frame except DATA until it is complete, however long the frame is, and flow control does not
//! stop that because h3 keeps reading. So each stream has a [`ReceiveLimit`]: a small one for headers and for control
//! streams, which the code that reads a body raises to the size that a body may have. Bytes pass unchanged.
//!
//! Until a request's headers are complete, its bytes count as those of an unfinished body of a client without a token
//! ([`crate::bodies`]), which makes room for others; and a connection has at most [`UNFINISHED_REQUESTS`] times the
//! size of one request's headers of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, RecvStream, SendStream, SendStreamUnframed,
    StreamErrorIncoming, StreamId, WriteBuf,
};
use parking_lot::Mutex;
use quinn::VarInt;

use crate::bodies::{BodyBudget, PART_BYTES, Share};
use crate::connection_slots::Activity;

/// Requests of a connection whose headers may be unfinished at once, if they are as long as headers may be; most are
/// a fraction of that, and arrive whole.
const UNFINISHED_REQUESTS: usize = 4;

/// Bytes that a control or QPACK stream may carry during a connection. Browsers send PRIORITY_UPDATE there, about
/// twenty bytes per request.
const CONTROL_BYTES: u64 = 1024 * 1024;

type Opened = (h3_quinn::BidiStream<Bytes>, ReceiveLimit);

/// The bytes that a stream may still receive; shared by the stream and the code that raises the limit.
#[derive(Clone, Debug)]
pub(super) struct ReceiveLimit(Arc<Limit>);

#[derive(Debug)]
struct Limit {
    left: AtomicU64,
    /// Headers that are counted until they are complete.
    headers: Mutex<Option<Headers>>,
}

/// The unfinished headers of one request.
#[derive(Debug)]
struct Headers {
    share: Share,
    bytes: usize,
    /// Those of all requests of the connection, and how many these may be.
    connection: Arc<AtomicUsize>,
    most: usize,
}

impl Headers {
    /// Counts received bytes; `None` if there is no room for them.
    fn count_bytes(&mut self, bytes: usize) -> Option<()> {
        self.bytes += bytes;
        let overall = self.connection.fetch_add(bytes, Relaxed) + bytes;
        (overall <= self.most && self.share.charge(bytes).is_ok()).then_some(())
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        self.connection.fetch_sub(self.bytes, Relaxed);
    }
}

impl ReceiveLimit {
    fn new(bytes: u64, headers: Option<Headers>) -> ReceiveLimit {
        ReceiveLimit(Arc::new(Limit { left: AtomicU64::new(bytes), headers: Mutex::new(headers) }))
    }

    /// The headers are complete: sets the bytes that may still be received.
    pub(super) fn set(&self, bytes: u64) {
        *self.0.headers.lock() = None;
        self.0.left.store(bytes, Relaxed);
    }

    /// Whether the stream was given up because unfinished requests have no room.
    pub(super) fn is_refused(&self) -> bool {
        self.0.headers.lock().as_ref().is_some_and(|headers| headers.share.is_refused())
    }

    /// Has the task woken when the stream is to be given up; `None` if it is.
    fn wait(&self, cx: &Context<'_>) -> Option<()> {
        let headers = self.0.headers.lock();
        headers.as_ref().map_or(Ok(()), |headers| headers.share.wait(cx.waker())).ok()
    }

    /// Subtracts received bytes, and returns them as they are to be kept; `None` if they exceed the limit.
    fn subtract(&self, data: Bytes) -> Option<Bytes> {
        let bytes = data.len();
        let left = self.0.left.load(Relaxed).checked_sub(bytes as u64)?;
        self.0.left.store(left, Relaxed);
        let Some(headers) = &mut *self.0.headers.lock() else { return Some(data) };
        headers.count_bytes(bytes + PART_BYTES)?;
        // They are part of a datagram, or of several, which they would keep alive.
        Some(Bytes::copy_from_slice(&data))
    }
}

pub(super) struct LimitedStream<S> {
    inner: S,
    limit: ReceiveLimit,
    /// The connection of a unidirectional stream whose type was not received yet.
    typed: Option<quinn::Connection>,
}

/// A connection whose streams have limits.
pub(super) struct Connection {
    inner: h3_quinn::Connection,
    quinn: quinn::Connection,
    header_bytes: u64,
    unfinished: Unfinished,
    /// The limit of the stream accepted last.
    accepted: LastAccepted,
}

/// The requests of a connection whose headers are not complete.
struct Unfinished {
    budget: BodyBudget,
    address: IpAddr,
    activity: Activity,
    bytes: Arc<AtomicUsize>,
}

impl Unfinished {
    /// Another one.
    fn headers(&self, header_bytes: u64) -> Headers {
        let most = usize::try_from(header_bytes).unwrap_or(usize::MAX);
        Headers {
            share: self.budget.share(self.address, None, &self.activity),
            bytes: 0,
            connection: Arc::clone(&self.bytes),
            most: most.saturating_mul(UNFINISHED_REQUESTS),
        }
    }
}

/// Hands the limit of the stream accepted last to the code that called `accept`.
#[derive(Clone, Debug, Default)]
pub(super) struct LastAccepted(Arc<Mutex<Option<ReceiveLimit>>>);

impl LastAccepted {
    /// The limit; take it right after the stream was accepted.
    pub(super) fn last(&self) -> Option<ReceiveLimit> {
        self.0.lock().take()
    }
}

impl Connection {
    /// Streams start with a limit of `header_bytes`, and count in `budget` until their headers are complete.
    pub(super) fn new(
        inner: quinn::Connection,
        header_bytes: u64,
        budget: BodyBudget,
        activity: Activity,
    ) -> (Connection, LastAccepted) {
        let accepted = LastAccepted::default();
        let (address, bytes) = (inner.remote_address().ip(), Arc::default());
        let unfinished = Unfinished { budget, address, activity, bytes };
        let (quinn, inner) = (inner.clone(), h3_quinn::Connection::new(inner));
        (
            Connection { inner, quinn, header_bytes, unfinished, accepted: accepted.clone() },
            accepted,
        )
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = LimitedStream<h3_quinn::RecvStream>;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_recv(&mut self.inner, cx))?;
        let (limit, typed) = (ReceiveLimit::new(CONTROL_BYTES, None), Some(self.quinn.clone()));
        Poll::Ready(Ok(LimitedStream { inner, limit, typed }))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_bidi(&mut self.inner, cx))?;
        let headers = self.unfinished.headers(self.header_bytes);
        let limit = ReceiveLimit::new(self.header_bytes, Some(headers));
        *self.accepted.0.lock() = Some(limit.clone());
        Poll::Ready(Ok(LimitedStream { inner, limit, typed: None }))
    }

    fn opener(&self) -> Opener {
        Opener(quic::Connection::<Bytes>::opener(&self.inner))
    }
}

/// Opens streams; the limit of the data received on them is that of control streams.
pub(super) struct Opener(h3_quinn::OpenStreams);

fn opened(stream: h3_quinn::BidiStream<Bytes>) -> LimitedStream<h3_quinn::BidiStream<Bytes>> {
    let (inner, limit): Opened = (stream, ReceiveLimit::new(CONTROL_BYTES, None));
    LimitedStream { inner, limit, typed: None }
}

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = LimitedStream<h3_quinn::BidiStream<Bytes>>;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        self.0.poll_open_bidi(cx).map_ok(opened)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.0.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<Bytes>::close(&mut self.0, code, reason);
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = LimitedStream<h3_quinn::BidiStream<Bytes>>;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        self.inner.poll_open_bidi(cx).map_ok(opened)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.inner.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<Bytes>::close(&mut self.inner, code, reason);
    }
}

impl<S: RecvStream<Buf = Bytes>> LimitedStream<S> {
    /// Wants no more of the stream.
    fn give_up(&mut self) -> StreamErrorIncoming {
        self.inner.stop_sending(Code::H3_EXCESSIVE_LOAD.value());
        StreamErrorIncoming::StreamTerminated { error_code: Code::H3_EXCESSIVE_LOAD.value() }
    }
}

impl<S: RecvStream<Buf = Bytes>> RecvStream for LimitedStream<S> {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        if self.limit.wait(cx).is_none() {
            // Without STOP_SENDING, which is not possible during a read: it is sent when the stream is dropped.
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated {
                error_code: Code::H3_EXCESSIVE_LOAD.value(),
            }));
        }
        let Some(data) = ready!(self.inner.poll_data(cx))? else { return Poll::Ready(Ok(None)) };
        if let (Some(connection), [0x01, ..] | [0x40, 0x01, ..]) = (self.typed.take(), &data[..]) {
            // h3 ignores a client's push stream, which is an error of the connection (RFC 9114 section 6.2.2).
            let code = VarInt::try_from(Code::H3_STREAM_CREATION_ERROR.value());
            connection.close(code.unwrap_or_default(), b"a client cannot push");
        }
        let kept = self.limit.subtract(data);
        Poll::Ready(kept.map(Some).ok_or_else(|| self.give_up()))
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.inner.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.inner.recv_id()
    }
}

impl<S: SendStream<Bytes>> SendStream<Bytes> for LimitedStream<S> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.inner.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.inner.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.inner.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.inner.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.inner.send_id()
    }
}

impl<S: SendStreamUnframed<Bytes>> SendStreamUnframed<Bytes> for LimitedStream<S> {
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        self.inner.poll_send(cx, buf)
    }
}

impl BidiStream<Bytes> for LimitedStream<h3_quinn::BidiStream<Bytes>> {
    type SendStream = h3_quinn::SendStream<Bytes>;
    type RecvStream = LimitedStream<h3_quinn::RecvStream>;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        let (send, recv) = self.inner.split();
        (send, LimitedStream { inner: recv, limit: self.limit, typed: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Bytes {
        vec![7; length].into()
    }

    #[test]
    fn a_limit_is_used_up_and_raised() {
        let own = ReceiveLimit::new(10, None);
        let other = own.clone();
        assert!(own.subtract(bytes(6)).is_some() && own.subtract(bytes(4)).is_some());
        assert!(own.subtract(bytes(1)).is_none());
        other.set(5);
        assert!(own.subtract(bytes(5)).is_some());
        assert!(own.subtract(bytes(1)).is_none());
    }

    fn connection(budget: &BodyBudget, last: u8) -> Unfinished {
        Unfinished {
            budget: budget.clone(),
            address: [192, 0, 2, last].into(),
            activity: Activity::default(),
            bytes: Arc::default(),
        }
    }

    fn stream(of: &Unfinished) -> ReceiveLimit {
        ReceiveLimit::new(1000, Some(of.headers(1000)))
    }

    #[test]
    fn a_connection_has_room_for_a_few_unfinished_requests_and_for_many_complete_ones() {
        let connection = connection(&BodyBudget::new(1 << 20), 1);
        let mut streams: Vec<_> = (0..4).map(|_| stream(&connection)).collect();
        assert!(streams.iter().all(|stream| stream.subtract(bytes(900)).is_some()));
        let another = stream(&connection);
        assert!(another.subtract(bytes(900)).is_none(), "a fifth");
        drop(another);
        streams.iter().for_each(|stream| stream.set(1 << 20));
        streams.extend((0..4).map(|_| stream(&connection)));
        assert!(streams.iter().all(|stream| stream.subtract(bytes(900)).is_some()));
        drop(streams);
        assert_eq!(connection.bytes.load(Relaxed), 0, "all of it is given back");
    }

    #[test]
    fn unfinished_requests_of_a_crowd_make_room_for_others() {
        // A quarter of it is for clients without a token.
        let budget = BodyBudget::new(8000);
        let crowd = [connection(&budget, 1), connection(&budget, 1)];
        let held: Vec<_> = crowd.iter().map(stream).collect();
        assert!(held.iter().all(|stream| stream.subtract(bytes(900)).is_some()));
        let honest = stream(&connection(&budget, 2));
        assert!(honest.subtract(bytes(300)).is_some());
        let waker = std::task::Waker::noop();
        let refused = |stream: &ReceiveLimit| stream.wait(&Context::from_waker(waker)).is_none();
        assert!(refused(&held[0]) && held[0].is_refused(), "the oldest of the crowd");
        assert!(!refused(&held[1]) && !refused(&honest) && !honest.is_refused());
    }
}

//! Limits the bytes that h3 accepts on each stream, because h3 itself does not.
//!
//! h3 0.0.8 buffers every frame except DATA until it is complete, however long the frame is, and flow control does not
//! stop that because h3 keeps reading. So each stream has a [`ReceiveLimit`]: a small one for headers and for control
//! streams, which the code that reads a body raises to the size that a body may have. Bytes pass unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, RecvStream, SendStream, SendStreamUnframed,
    StreamErrorIncoming, StreamId, WriteBuf,
};

/// Bytes that a control or QPACK stream may carry during a connection. Browsers send PRIORITY_UPDATE there, about
/// twenty bytes per request.
const CONTROL_BYTES: u64 = 1024 * 1024;

type Opened = (h3_quinn::BidiStream<Bytes>, ReceiveLimit);

/// The bytes that a stream may still receive; shared by the stream and the code that raises the limit.
#[derive(Clone, Debug)]
pub(super) struct ReceiveLimit(Arc<AtomicU64>);

impl ReceiveLimit {
    fn new(bytes: u64) -> ReceiveLimit {
        ReceiveLimit(Arc::new(AtomicU64::new(bytes)))
    }

    /// Sets the bytes that may still be received.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    /// Subtracts received bytes; `None` if they exceed the limit.
    fn take(&self, bytes: usize) -> Option<()> {
        let left = self.0.load(Relaxed).checked_sub(bytes as u64)?;
        self.0.store(left, Relaxed);
        Some(())
    }
}

/// A stream and its limit.
pub(super) struct LimitedStream<S> {
    inner: S,
    limit: ReceiveLimit,
}

/// A connection whose streams have limits.
pub(super) struct Connection {
    inner: h3_quinn::Connection,
    header_bytes: u64,
    /// The limit of the stream accepted last.
    accepted: LastAccepted,
}

/// Hands the limit of the stream accepted last to the code that called `accept`.
#[derive(Clone, Debug, Default)]
pub(super) struct LastAccepted(Arc<std::sync::Mutex<Option<ReceiveLimit>>>);

impl LastAccepted {
    /// The limit; take it right after the stream was accepted.
    pub(super) fn take(&self) -> Option<ReceiveLimit> {
        self.0.lock().ok()?.take()
    }
}

impl Connection {
    /// Streams start with a limit of `header_bytes`.
    pub(super) fn new(inner: quinn::Connection, header_bytes: u64) -> (Connection, LastAccepted) {
        let accepted = LastAccepted::default();
        let inner = h3_quinn::Connection::new(inner);
        (Connection { inner, header_bytes, accepted: accepted.clone() }, accepted)
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
        Poll::Ready(Ok(LimitedStream { inner, limit: ReceiveLimit::new(CONTROL_BYTES) }))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_bidi(&mut self.inner, cx))?;
        let limit = ReceiveLimit::new(self.header_bytes);
        if let Ok(mut accepted) = self.accepted.0.lock() {
            *accepted = Some(limit.clone());
        }
        Poll::Ready(Ok(LimitedStream { inner, limit }))
    }

    fn opener(&self) -> Opener {
        Opener(quic::Connection::<Bytes>::opener(&self.inner))
    }
}

/// Opens streams; the limit of the data received on them is that of control streams.
pub(super) struct Opener(h3_quinn::OpenStreams);

fn opened(stream: h3_quinn::BidiStream<Bytes>) -> LimitedStream<h3_quinn::BidiStream<Bytes>> {
    let (inner, limit): Opened = (stream, ReceiveLimit::new(CONTROL_BYTES));
    LimitedStream { inner, limit }
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

impl<S: RecvStream> RecvStream for LimitedStream<S> {
    type Buf = S::Buf;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<S::Buf>, StreamErrorIncoming>> {
        let data = ready!(self.inner.poll_data(cx))?;
        let length = data.as_ref().map_or(0, Buf::remaining);
        if self.limit.take(length).is_none() {
            self.inner.stop_sending(Code::H3_EXCESSIVE_LOAD.value());
            let error_code = Code::H3_EXCESSIVE_LOAD.value();
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code }));
        }
        Poll::Ready(Ok(data))
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
        (send, LimitedStream { inner: recv, limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_used_up_and_raised() {
        let own = ReceiveLimit::new(10);
        let other = own.clone();
        assert!(own.take(6).is_some() && own.take(4).is_some());
        assert!(own.take(1).is_none());
        other.set(5);
        assert!(own.take(5).is_some());
        assert!(own.take(1).is_none());
    }
}

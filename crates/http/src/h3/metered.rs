//! h3-quinn's streams with a bound on what a peer may send on each.
//!
//! h3 0.0.8 keeps every frame but DATA until it is complete, however long it says it is, and flow control
//! does not stop that because h3 reads on. So each stream has an allowance of bytes that whoever reads
//! it raises: little for headers and for control streams, then as much as a body may have. Nothing else
//! is changed on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, RecvStream, SendStream, SendStreamUnframed,
    StreamErrorIncoming, StreamId, WriteBuf,
};

/// Bytes a control or QPACK stream may carry in a connection's life. PRIORITY_UPDATE, some twenty bytes
/// a request, is what browsers send there.
const CONTROL_BYTES: u64 = 1024 * 1024;

type Opened = (h3_quinn::BidiStream<Bytes>, Allowance);

/// Bytes a stream may still receive; shared by the stream and who raises it.
#[derive(Clone, Debug)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Allowance {
    fn new(bytes: u64) -> Allowance {
        Allowance(Arc::new(AtomicU64::new(bytes)))
    }

    /// From now on so many.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    /// The allowance, less what has come; `None` when that is too much.
    fn take(&self, bytes: usize) -> Option<()> {
        let left = self.0.load(Relaxed).checked_sub(bytes as u64)?;
        self.0.store(left, Relaxed);
        Some(())
    }
}

/// A stream and its allowance.
pub(super) struct Metered<S> {
    inner: S,
    allowance: Allowance,
}

/// A connection whose streams are metered.
pub(super) struct Connection {
    inner: h3_quinn::Connection,
    header_bytes: u64,
    /// Of the stream accepted last.
    accepted: Slot,
}

/// Where a connection puts the allowance of the stream it has accepted last, for who asked for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot(Arc<std::sync::Mutex<Option<Allowance>>>);

impl Slot {
    /// The allowance; taken right after its stream was accepted.
    pub(super) fn take(&self) -> Option<Allowance> {
        self.0.lock().ok()?.take()
    }
}

impl Connection {
    /// Streams start with an allowance of `header_bytes`.
    pub(super) fn new(inner: quinn::Connection, header_bytes: u64) -> (Connection, Slot) {
        let accepted = Slot::default();
        let inner = h3_quinn::Connection::new(inner);
        (Connection { inner, header_bytes, accepted: accepted.clone() }, accepted)
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = Metered<h3_quinn::RecvStream>;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_recv(&mut self.inner, cx))?;
        Poll::Ready(Ok(Metered { inner, allowance: Allowance::new(CONTROL_BYTES) }))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_bidi(&mut self.inner, cx))?;
        let allowance = Allowance::new(self.header_bytes);
        if let Ok(mut accepted) = self.accepted.0.lock() {
            *accepted = Some(allowance.clone());
        }
        Poll::Ready(Ok(Metered { inner, allowance }))
    }

    fn opener(&self) -> Opener {
        Opener(quic::Connection::<Bytes>::opener(&self.inner))
    }
}

/// Opens streams; what comes back on them is metered as a request's headers are.
pub(super) struct Opener(h3_quinn::OpenStreams);

fn opened(stream: h3_quinn::BidiStream<Bytes>) -> Metered<h3_quinn::BidiStream<Bytes>> {
    let (inner, allowance): Opened = (stream, Allowance::new(CONTROL_BYTES));
    Metered { inner, allowance }
}

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = Metered<h3_quinn::BidiStream<Bytes>>;
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
    type BidiStream = Metered<h3_quinn::BidiStream<Bytes>>;
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

impl<S: RecvStream> RecvStream for Metered<S> {
    type Buf = S::Buf;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<S::Buf>, StreamErrorIncoming>> {
        let data = ready!(self.inner.poll_data(cx))?;
        let length = data.as_ref().map_or(0, Buf::remaining);
        if self.allowance.take(length).is_none() {
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

impl<S: SendStream<Bytes>> SendStream<Bytes> for Metered<S> {
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

impl<S: SendStreamUnframed<Bytes>> SendStreamUnframed<Bytes> for Metered<S> {
    fn poll_send<D: Buf>(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut D,
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        self.inner.poll_send(cx, buf)
    }
}

impl BidiStream<Bytes> for Metered<h3_quinn::BidiStream<Bytes>> {
    type SendStream = h3_quinn::SendStream<Bytes>;
    type RecvStream = Metered<h3_quinn::RecvStream>;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        let (send, recv) = self.inner.split();
        (send, Metered { inner: recv, allowance: self.allowance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_used_up_and_raised() {
        let own = Allowance::new(10);
        let other = own.clone();
        assert!(own.take(6).is_some() && own.take(4).is_some());
        assert!(own.take(1).is_none());
        other.set(5);
        assert!(own.take(5).is_some());
        assert!(own.take(1).is_none());
    }
}

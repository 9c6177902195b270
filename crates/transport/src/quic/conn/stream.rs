//! One stream of a QUIC connection: bytes from quinn to the core, and the core's back to quinn.
//!
//! Received bytes that are no whole packet yet are kept in [`IncompletePacket`], as TCP's are. What the core
//! has to say is taken only when the last of it is in quinn's hands.

use fulmar_broker::{Connection as Core, ReadState, Shard, StreamEnd, StreamKey};
use quinn_proto::{Connection, StreamId, VarInt, WriteError};

use crate::incomplete_packet::{IncompletePacket, PacketIntake};

/// See the module's words.
pub(super) struct Stream {
    pub(super) id: StreamId,
    /// Received bytes that the core could not use yet.
    incomplete: IncompletePacket,
    /// The core has taken something: what follows are packets. Before, a flow header may come.
    begun: bool,
    /// Output that quinn did not take, from `pending_at` on.
    pending: Vec<u8>,
    pending_at: usize,
    /// The core takes no more for now.
    pub(super) blocked: bool,
    /// The peer has finished or reset its side; the core is notified when everything has been read.
    pub(super) ended: Option<StreamEnd>,
    /// The core has said its last on it: to be finished when everything is written.
    pub(super) finish: bool,
}

impl Stream {
    pub(super) fn new(id: StreamId) -> Stream {
        Stream {
            id,
            incomplete: IncompletePacket::default(),
            begun: false,
            pending: Vec::new(),
            pending_at: 0,
            blocked: false,
            ended: None,
            finish: false,
        }
    }

    pub(super) fn key(&self) -> StreamKey {
        StreamKey(u64::from(VarInt::from(self.id)))
    }

    /// Memory held for an incomplete packet, in bytes.
    pub(super) fn incomplete_bytes(&self) -> usize {
        self.incomplete.capacity()
    }

    /// Whether everything the core has said is in quinn's hands.
    pub(super) fn is_written(&self) -> bool {
        self.pending.is_empty()
    }

    /// Hands received bytes to the core, behind what it could not use before.
    pub(super) fn feed(&mut self, core: &mut Core, shard: &mut Shard, bytes: &[u8]) {
        let key = self.key();
        // The length of a flow header is the core's to know: it is shown every byte at once.
        let as_packets = key == StreamKey::CONTROL || self.begun;
        let (begun, mut state) = (&mut self.begun, ReadState::More);
        let mut offer = |data: &[u8]| {
            let received = core.receive(shard, key, data);
            *begun |= received.consumed > 0;
            state = received.state;
            PacketIntake { consumed: received.consumed, go_on: received.state == ReadState::More }
        };
        if as_packets && !bytes.is_empty() {
            self.incomplete.feed(bytes, &mut offer);
        } else {
            self.incomplete.append(bytes);
            self.incomplete.offer_kept(&mut offer);
        }
        self.blocked = state == ReadState::Blocked;
        if state == ReadState::Closed {
            self.incomplete.clear();
        }
    }

    /// Writes what waits, then what the core has for it, for as long as quinn takes it.
    pub(super) fn write(
        &mut self,
        inner: &mut Connection,
        core: &mut Core,
        shard: &mut Shard,
        ready: bool,
    ) {
        let mut more = ready;
        while self.write_pending(inner, shard) && more {
            let output = core.output(shard, self.key());
            more = output.more && !output.bytes.is_empty();
            self.pending = output.bytes;
        }
    }

    /// Offers waiting output to quinn; true when none is left.
    fn write_pending(&mut self, inner: &mut Connection, shard: &mut Shard) -> bool {
        while self.pending_at < self.pending.len() {
            let left = &self.pending[self.pending_at..];
            match inner.send_stream(self.id).write(left) {
                Ok(written) => self.pending_at += written,
                Err(WriteError::Blocked) => return false,
                // The peer does not want it, or the stream is gone: so is its output.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
            }
        }
        self.pending_at = 0;
        shard.recycle(std::mem::take(&mut self.pending));
        true
    }

    /// Received data is no longer wanted.
    pub(super) fn forget_input(&mut self) {
        self.incomplete.clear();
    }

    /// Bytes that wait to be written.
    pub(super) fn unread_bytes(&self) -> usize {
        self.pending.len() - self.pending_at
    }

    /// Nobody will read the waiting data.
    pub(super) fn forget_pending(&mut self) {
        self.pending = Vec::new();
        self.pending_at = 0;
    }
}

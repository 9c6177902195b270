//! Lets another worker act within one publication, and clients send within turns that the test ends later.

use std::sync::Arc;

use fulmar_broker::{Connection, Shard, StreamKey};
use fulmar_mqtt::Packet;
use parking_lot::Mutex;

use super::{Conn, World};

impl World {
    /// Like [`World::send_within_turn`] for a publication: after its receivers are found, and before the first of them
    /// receives it, the last worker calls `act` for `other`, one of its connections.
    pub fn publish_interleaved(
        &mut self,
        conn: Conn,
        packet: &Packet<'_>,
        other: Conn,
        act: impl FnOnce(&mut Shard, &mut Connection) + Send + 'static,
    ) {
        let (shard, state) = (self.shards.pop().unwrap(), self.lines.remove(&other.0).unwrap());
        assert_eq!(state.shard, self.shards.len(), "not a connection of the last worker");
        let both = Arc::new(Mutex::new((shard, state)));
        let (others, mut act) = (Arc::clone(&both), Some(act));
        let hook = move || {
            if let Some(act) = act.take() {
                let (shard, state) = &mut *others.lock();
                act(shard, &mut state.connection);
            }
        };
        let at = self.lines[&conn.0].shard;
        self.shards[at].set_test_hook(Some(Box::new(hook)));
        self.send_within_turn(conn, packet);
        self.shards[at].set_test_hook(None);
        let (shard, state) = Arc::into_inner(both).unwrap().into_inner();
        self.shards.push(shard);
        self.lines.insert(other.0, state);
    }

    /// A client opens a further stream and sends `bytes` on it; its worker's turn continues.
    pub fn send_bytes_on_within_turn(&mut self, conn: Conn, stream: StreamKey, bytes: &[u8]) {
        let state = self.lines.get_mut(&conn.0).unwrap();
        let shard = &mut self.shards[state.shard];
        state.connection.stream_opened(shard, stream);
        let received = state.connection.receive(shard, stream, bytes);
        assert_eq!(received.consumed, bytes.len());
    }
}

//! Keeps the list of connections that operators read ([`crate::transports`]) up to date: a client is listed from its
//! CONNACK until its connection ends. Path statistics that a QUIC transport reports go into the list and the counters.

use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_auth::User;

use super::Connection;
use crate::peer::TransportStats;
use crate::session::Session;
use crate::shard::Shard;
use crate::transports::{Here, SharedHere};

impl Connection {
    /// Sets the path statistics. The transport calls this every few seconds while the connection is in use, and before
    /// [`Connection::lost`].
    pub fn set_transport_stats(&mut self, shard: &Shard, stats: TransportStats) {
        let old = self.here().set_stats(stats);
        shard.metrics().count_path(&old, &stats);
    }

    /// The client's address has changed, as QUIC allows.
    pub fn moved(&mut self, address: SocketAddr) {
        self.here().moved(address);
    }

    fn here(&mut self) -> &SharedHere {
        self.here.get_or_insert_with(|| Here::new(&self.peer, self.opened))
    }

    /// The client is authenticated: adds it to the list for operators.
    pub(super) fn list(&mut self, shard: &Shard, session: &Arc<Session>) {
        // The program's own sessions are not clients.
        if User::is_program(session.lock().user.as_ref()) {
            return;
        }
        let here = Arc::clone(self.here());
        shard.broker().transports.list(session, &here);
        self.listed = Some(session.key().0);
    }

    /// Removes it from the list for operators.
    pub(super) fn unlist(&mut self, shard: &Shard) {
        if let (Some(session), Some(here)) = (self.listed.take(), self.here.take()) {
            shard.broker().transports.forget(session, &here);
        }
    }
}

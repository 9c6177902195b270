//! Observes packets: what hosts sent, what arrived, what was lost.
//!
//! The router's thread calls an [`Observer`] for every packet, so it must be quick. It sees what a capture on the
//! hosts' interfaces would show, and the losses with their reasons. [`Flows`] counts and reads QUIC's spin bit, and
//! [`Capture`] writes pcapng.

mod flows;
mod kind;
mod pcapng;
mod spin;

use std::sync::{Arc, Mutex, PoisonError};

use crate::link::{DropReason, HostId};
use crate::units::Nanos;

pub use flows::{ByKind, FlowReport, FlowView, Flows, Volume};
pub use kind::{Kind, QuicHeader, begins_quic, kind, quic_header};
pub use pcapng::{Capture, add_secrets};
pub use spin::{PacketDirection, Quantiles, Sample, SpinBit, SpinReport};

/// Called for every packet. Times are ns of the run's clock.
pub trait Observer: Send {
    /// A host has sent a packet.
    fn sent(&mut self, at: Nanos, from: HostId, packet: &[u8]);
    /// A packet was handed to a host, maybe corrupted or for the second time.
    fn delivered(&mut self, at: Nanos, to: HostId, packet: &[u8]);
    /// A packet was lost.
    fn dropped(&mut self, at: Nanos, from: HostId, reason: DropReason, packet: &[u8]);
}

/// An observer that its owner can also read.
impl<O: Observer> Observer for Arc<Mutex<O>> {
    fn sent(&mut self, at: Nanos, from: HostId, packet: &[u8]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).sent(at, from, packet);
    }

    fn delivered(&mut self, at: Nanos, to: HostId, packet: &[u8]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).delivered(at, to, packet);
    }

    fn dropped(&mut self, at: Nanos, from: HostId, reason: DropReason, packet: &[u8]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).dropped(at, from, reason, packet);
    }
}

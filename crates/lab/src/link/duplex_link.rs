//! [`Link`], a full-duplex link: two simplex links, what they share (NAT, flows, log), and the order in which a
//! packet passes through them.

use std::collections::VecDeque;

use super::flow::FlowTable;
use super::impairment_sampler::ImpairmentSampler;
use super::nat::Nat;
use super::simplex_link::{LinkPacket, PacketOutcome, SimplexLink};
use super::splitmix::mix;
use super::{ConfigError, DecisionLog, Direction, DirectionStats, DropReason, LinkConfig};
use crate::units::Nanos;
use crate::wire::{PacketView, too_big};

/// Event at the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A packet arrives at the other end.
    Arrive {
        /// When, exactly.
        at: Nanos,
        /// Direction in which it went.
        direction: Direction,
        /// The packet, NAT and corruption applied.
        packet: Vec<u8>,
        /// The tag with which it was offered.
        tag: u64,
    },
    /// A packet is lost.
    Dropped {
        /// When.
        at: Nanos,
        /// Direction in which it was going.
        direction: Direction,
        /// The packet.
        packet: Vec<u8>,
        /// The tag with which it was offered.
        tag: u64,
        /// Why.
        reason: DropReason,
    },
    /// An ICMP error for the sender of a packet.
    Answer {
        /// When.
        at: Nanos,
        /// The error.
        packet: Vec<u8>,
        /// The tag of the packet that caused the error.
        tag: u64,
    },
    /// The first host's address is to change now.
    AddressChange {
        /// When it was due.
        at: Nanos,
        /// Number of changes, this one included.
        ordinal: u32,
    },
}

/// Maximum number of entries of a link's decision log.
const LOG_ROOM: usize = 1 << 20;

/// A link between two hosts, or between a host and the rest. See the [module](super).
#[derive(Debug)]
pub struct Link {
    directions: [SimplexLink; 2],
    samplers: [ImpairmentSampler; 2],
    flows: FlowTable,
    nat: Option<Nat>,
    log: DecisionLog,
    answers: VecDeque<(Nanos, Vec<u8>, u64)>,
    address_changes: super::Schedule,
    next_change: Option<Nanos>,
    changes: u32,
}

impl Link {
    /// Makes a link. Links of one experiment need different seeds.
    ///
    /// # Errors
    /// The configuration is impossible; see [`LinkConfig::check`].
    pub fn new(config: LinkConfig, seed: u64) -> Result<Link, ConfigError> {
        config.check()?;
        let LinkConfig { up, down, nat, address_changes, second_moves: _ } = config;
        Ok(Link {
            directions: [SimplexLink::new(up), SimplexLink::new(down)],
            samplers: Direction::ALL.map(|direction| ImpairmentSampler::new(seed, direction)),
            flows: FlowTable::default(),
            nat: nat.map(|nat| Nat::new(nat, mix(seed))),
            log: DecisionLog::new(LOG_ROOM),
            answers: VecDeque::new(),
            next_change: address_changes.next(0),
            address_changes,
            changes: 0,
        })
    }

    /// Receives a packet at a time (ns since the start). The tag comes back with the packet.
    ///
    /// Times should ascend in each direction; an earlier time counts as the latest so far.
    pub fn receive(&mut self, at: Nanos, direction: Direction, mut packet: Vec<u8>, tag: u64) {
        let one_way = &mut self.directions[direction as usize];
        let at = one_way.offer(at, packet.len());
        if direction == Direction::Down
            && let Some(nat) = &mut self.nat
            && !nat.inward(at, &mut packet)
        {
            one_way.discard(packet, tag, DropReason::Nat);
            return;
        }
        let impairments = one_way.impairments();
        if let Some(mtu) = impairments.mtu
            && packet.len() > usize::from(mtu)
        {
            let answer = if impairments.mtu_silent { None } else { too_big(&packet, mtu) };
            self.answers.extend(answer.map(|answer| (at, answer, tag)));
            one_way.discard(packet, tag, DropReason::TooBig);
            return;
        }
        if impairments.outage.is_down(at) {
            one_way.discard(packet, tag, DropReason::Down);
            return;
        }
        let Some(view) = PacketView::parse(&packet) else {
            one_way.discard(packet, tag, DropReason::Malformed);
            return;
        };
        let (flow, index) = self.flows.count(&view, direction);
        let sampler = self.samplers[direction as usize];
        let decision = sampler.draw(flow, direction, index, impairments);
        let key = flow.key;
        self.log.record(key, direction, index, decision);
        // The NAT stands between host and link; its flows are named by what is inside.
        if direction == Direction::Up
            && let Some(nat) = &mut self.nat
            && !nat.outward(at, &mut packet)
        {
            one_way.discard(packet, tag, DropReason::Nat);
            return;
        }
        one_way.send(LinkPacket::new(packet, tag, key.hash(), decision));
    }

    /// The next event up to `now`; call it until it returns `None`.
    ///
    /// The packets of a direction come in order of time.
    pub fn poll_event(&mut self, now: Nanos) -> Option<Output> {
        if let Some(due) = self.next_change
            && due <= now
        {
            self.next_change = self.address_changes.next(due);
            self.changes += 1;
            return Some(Output::AddressChange { at: due, ordinal: self.changes });
        }
        if let Some((at, packet, tag)) = self.answers.pop_front() {
            return Some(Output::Answer { at, packet, tag });
        }
        let earliest = |one_way: &SimplexLink| one_way.deadline().unwrap_or(Nanos::MAX);
        let mut order = Direction::ALL;
        order.sort_by_key(|direction| earliest(&self.directions[*direction as usize]));
        order.into_iter().find_map(|direction| {
            let PacketOutcome { at, packet, tag, drop_reason, .. } =
                self.directions[direction as usize].poll_event(now)?;
            Some(match drop_reason {
                Some(reason) => Output::Dropped { at, direction, packet, tag, reason },
                None => Output::Arrive { at, direction, packet, tag },
            })
        })
    }

    /// When to [`poll_event`](Link::poll_event) next, if no packet is received before; may be in the past.
    pub fn deadline(&self) -> Option<Nanos> {
        let answer = self.answers.front().map(|(at, ..)| *at);
        let directions = self.directions.iter().filter_map(SimplexLink::deadline);
        answer.into_iter().chain(self.next_change).chain(directions).min()
    }

    /// Whether no packet is in the link.
    pub fn is_idle(&self) -> bool {
        self.answers.is_empty()
            && self.directions.iter().all(|one_way| one_way.deadline().is_none())
    }

    /// Statistics of one direction.
    pub fn stats(&self, direction: Direction) -> &DirectionStats {
        self.directions[direction as usize].stats()
    }

    /// The decision log so far.
    pub fn log(&self) -> &DecisionLog {
        &self.log
    }
}

#[cfg(test)]
#[path = "duplex_link_tests.rs"]
mod tests;

//! The network to which an address belongs, for limits per client.

use std::net::{IpAddr, Ipv6Addr};

/// The address itself, or its /64 network in IPv6, of which a single host has all addresses.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

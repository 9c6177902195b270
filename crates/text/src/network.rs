//! Networks: the addresses that begin with the same bits.

use std::net::IpAddr;

/// The first address of the network of `bits` that this one is in; `None` if an address has fewer bits.
#[must_use]
pub fn first(address: IpAddr, bits: u8) -> Option<IpAddr> {
    let bits = u32::from(bits);
    Some(match address {
        IpAddr::V4(ip) => {
            let rest = u32::BITS.checked_sub(bits)?;
            IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
        IpAddr::V6(ip) => {
            let rest = u128::BITS.checked_sub(bits)?;
            IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
    })
}

/// The network that limits count as one: the address itself, or the /64 prefix of an IPv6 address.
#[must_use]
pub fn site(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    // An IPv4 address has fewer bits.
    first(address, 64).unwrap_or(address)
}

/// True if the first `bits` of both are the same. An IPv4 address in its IPv6 form is an IPv4 address.
#[must_use]
pub fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let address = address.to_canonical();
    let first_of_network = first(network, bits).filter(|_| address.is_ipv4() == network.is_ipv4());
    first_of_network.is_some() && first(address, bits) == first_of_network
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_addresses_that_begin_with_their_bits() {
        let v4 = |last| IpAddr::from([192, 0, 2, last]);
        assert_eq!(first(v4(7), 30), Some(v4(4)));
        assert_eq!(first(v4(7), 33), None);
        assert!(is_within(v4(7), v4(4), 30) && !is_within(v4(8), v4(4), 30));
        assert!(is_within("::ffff:192.0.2.7".parse().unwrap_or(v4(0)), v4(4), 30));
        assert!(!is_within("::1".parse().unwrap_or(v4(0)), v4(4), 0), "another family");
        assert!(is_within(v4(7), IpAddr::from([0, 0, 0, 0]), 0));
        assert!(!is_within(v4(7), v4(7), 33));
    }
}

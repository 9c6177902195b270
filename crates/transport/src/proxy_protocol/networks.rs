//! Networks as operators write them: `10.0.0.0/8`, `2001:db8::/32`, or a single address.

use std::net::IpAddr;
use std::str::FromStr;

use fulmar_text::network;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix_bits: u8,
}

/// Why a text names no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a network; write ADDRESS/BITS, such as 10.0.0.0/8 or fd00::/8, or an address"
)]
pub struct NetworkError(String);

impl Network {
    /// Whether `address` belongs to it; an IPv4 address does in its IPv6 form too.
    pub fn contains(&self, address: IpAddr) -> bool {
        network::is_within(address, self.first, self.prefix_bits)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if first.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(all), |bits| bits.parse().map_err(|_| wrong()))?;
        // Bits after the prefix are probably a mistake in one of the two.
        let network = network::first(first, prefix_bits).filter(|network| *network == first);
        Ok(Network { first: network.ok_or_else(wrong)?, prefix_bits })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("192.0.2.4/30", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "203.0.113.1", "2001:db8::1"),
            ("::/0", "2001:db8::1", "203.0.113.1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::1", "::1", "::2"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn everything_else_is_an_error() {
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "::/129", "proxy.lan", "10.0.0.0/", "10/8"] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
        }
    }
}

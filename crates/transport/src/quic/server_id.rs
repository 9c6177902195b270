//! Connection IDs that name a node of a cluster, in QUIC-LB's plain form (draft-ietf-quic-load-balancers-21, sections 3
//! and 5): a load balancer, which can read nothing else of a packet, sends it to its node although the client's address
//! has changed.
//!
//! | octets | |
//! |---|---|
//! | 0 | three bits for the configuration, 0; five for the number of octets that follow, 17 |
//! | 1 to 8 | the node's server ID |
//! | 9 to 17 | the nonce; its first octet names the worker ([`super::steering`]) |

use std::fmt;
use std::str::FromStr;

use ring::digest;

/// Octets of a server ID: what AWS' network load balancer requires.
const BYTES: usize = 8;
/// Octet 0.
const CONFIGURATION: u8 = (ServerId::CID_BYTES - 1) as u8;

/// Names a node in connection IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerId([u8; BYTES]);

impl ServerId {
    /// Octets of a connection ID with a server ID.
    pub const CID_BYTES: usize = 18;
    /// Octets before the nonce.
    pub const PREFIX_BYTES: usize = 1 + BYTES;

    /// That of a node of a cluster, by their names.
    pub fn of_node(cluster: &str, node: &str) -> ServerId {
        let name = format!("Fulmar QUIC server ID\0{cluster}\0{node}");
        let hash = digest::digest(&digest::SHA256, name.as_bytes());
        ServerId(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// Beginning of a connection ID.
    pub fn prefix(self) -> [u8; Self::PREFIX_BYTES] {
        let mut prefix = [CONFIGURATION; Self::PREFIX_BYTES];
        prefix[1..].copy_from_slice(&self.0);
        prefix
    }

    /// The server ID in a connection ID; `None` if it has none.
    pub fn read(cid: &[u8]) -> Option<ServerId> {
        let whole: &[u8; Self::CID_BYTES] = cid.first_chunk()?;
        let id = whole[1..].first_chunk().copied().map(ServerId);
        id.filter(|_| whole[0] == CONFIGURATION)
    }

    /// The server ID in a packet of an open connection.
    pub(super) fn of_short_packet(datagram: &[u8]) -> Option<ServerId> {
        ServerId::read(datagram.get(1..)?)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", u64::from_be_bytes(self.0))
    }
}

/// A text that is no server ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write 0x and 16 hexadecimal digits")]
pub struct NoServerId;

impl FromStr for ServerId {
    type Err = NoServerId;

    fn from_str(text: &str) -> Result<ServerId, NoServerId> {
        let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 2 * BYTES);
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.map(|number| ServerId(number.to_be_bytes())).ok_or(NoServerId)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_server_id_is_read_as_it_was_written() {
        let id: ServerId = "0x00c0ffee01234567".parse().unwrap();
        assert_eq!(id.to_string(), "0x00c0ffee01234567");
        let mut cid = id.prefix().to_vec();
        assert_eq!(cid[..3], [0b000_10001, 0x00, 0xC0]);
        cid.resize(ServerId::CID_BYTES, 9);
        assert_eq!(ServerId::read(&cid), Some(id));
        assert_eq!(ServerId::read(&cid[..17]), None);
        cid[0] = 0b001_10001;
        assert_eq!(ServerId::read(&cid), None, "another configuration");
        for text in ["", "0x1", "00c0ffee01234567", "0x00c0ffee0123456g", "0x+0c0ffee01234567"] {
            assert_eq!(text.parse::<ServerId>(), Err(NoServerId), "{text}");
        }
    }

    #[test]
    fn nodes_of_all_clusters_have_different_ids() {
        let ids = [("a", "n1"), ("a", "n2"), ("b", "n1"), ("an", "1")];
        let ids = ids.map(|(cluster, node)| ServerId::of_node(cluster, node).to_string());
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(id), "{ids:?}");
        }
        assert_eq!(ServerId::of_node("a", "n1"), ServerId::of_node("a", "n1"));
    }
}

//! Fuzz targets of `fulmar-broker`: the whole broker in simulated time, at the hands of hostile clients
//! ([`connection`]) and of honest ones whose subscriptions a naive list keeps too ([`tree`]).
//!
//! `rig` turns the workers and carries bytes, `disk` is the storage that commits on request,
//! `line` checks what goes out to a client, `witness` is the honest pair that must not notice anything. [`token`] is about
//! JSON Web Tokens, whose reader (of `fulmar-auth`) is compiled in as source files.

use fulmar_auth as admitted;
use fulmar_auth as time;
use fulmar_auth as user;

#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../../auth/src/jws.rs"]
mod jws;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../../auth/src/jwt.rs"]
mod jwt;

mod connection;
mod disk;
mod line;
mod rig;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "what the crate's own tests use")]
#[path = "../../tests/common/storage.rs"]
mod storage;
mod token;
mod tree;
mod witness;

pub use connection::connection;
pub use token::token;
pub use tree::tree;

#[cfg(test)]
mod tests {
    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        fulmar_mqtt_fuzz::replay(SEEDS.to_owned() + "broker-connection", super::connection);
        fulmar_mqtt_fuzz::replay(SEEDS.to_owned() + "broker-token", super::token);
        fulmar_mqtt_fuzz::replay(SEEDS.to_owned() + "broker-tree", super::tree);
    }
}

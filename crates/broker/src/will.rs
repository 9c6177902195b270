//! A will: the message that the broker publishes when its client's connection ends without DISCONNECT
//! (MQTT 5.0 section 3.1.2.5).
//!
//! The will of a durable session is stored with it. If the client was connected when the broker crashed, its will is
//! published after the restart, and its delay begins then: for the client a failure of the broker is like one of the
//! network, and it may reconnect in time.
//!
//! Whether its client may publish it is asked when it is published, as of a PUBLISH that comes then: a will outlives the
//! connection, and mostly the right that the client had when it connected (`crate::housekeeping`). What the answer needs to
//! know of the connection is kept with the will, for restarts too.

use std::net::IpAddr;

use fulmar_auth::{Timestamp, User};
use fulmar_mqtt::QoS;

/// A client's will, kept with its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic name.
    pub topic: Box<str>,
    /// Forwardable properties in MQTT 5.0 encoding.
    pub properties: Box<[u8]>,
    /// Application payload.
    pub payload: Box<[u8]>,
    /// Quality of service it is published with.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// Seconds between the loss of the connection and the publication.
    pub delay_s: u32,
    /// Seconds after its publication for which it can be delivered; `None` for ever.
    pub message_expiry_s: Option<u32>,
    /// As whom it is published.
    pub testator: Testator,
}

/// The client that has left a will, as it was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testator {
    /// Its user; in storage, that of its session.
    pub user: Option<User>,
    /// Where it was connected from; not known of wills that earlier versions have stored.
    pub address: Option<IpAddr>,
    /// When its credential expires.
    pub until: Timestamp,
    /// The credential that can be revoked before.
    pub credential: Option<Box<str>>,
    /// The number of its certificate.
    pub certificate: Option<u64>,
    /// The rules that came with its login allowed the will. After a restart they are not known any more.
    pub by_login: bool,
}

impl Default for Testator {
    fn default() -> Testator {
        let (user, address, credential, certificate) = (None, None, None, None);
        Testator {
            user,
            address,
            until: Timestamp::NEVER,
            credential,
            certificate,
            by_login: false,
        }
    }
}

impl Will {
    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let credential = self.testator.credential.as_ref().map_or(0, |credential| credential.len());
        let user = self.testator.user.as_ref().map_or(0, |user| user.text().len());
        let own = self.topic.len() + self.properties.len() + self.payload.len();
        size_of::<Will>() + own + credential + user
    }
}

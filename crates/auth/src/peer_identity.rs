//! The users of peers that a transport has authenticated.

use crate::time::Timestamp;
use crate::user::{User, UserNameError};

/// The user of a peer that the transport has authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity(Box<(User, Origin)>);

/// Where the name of a peer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    /// The program itself, a secret that it has checked, or the configuration.
    Given,
    /// A verified certificate.
    Certificate(PeerCertificate),
}

/// A certificate by which the transport has authenticated a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerCertificate {
    /// Identifies it among all, for revocation lists; `None` if it cannot be in one.
    pub number: Option<u64>,
    /// From then on, a handshake with it would fail.
    pub until: Timestamp,
}

impl PeerIdentity {
    /// The name in a certificate.
    ///
    /// # Errors
    /// It cannot be a user's name.
    pub fn certified(
        name: &str,
        certificate: PeerCertificate,
    ) -> Result<PeerIdentity, UserNameError> {
        let user = User::named(name)?;
        Ok(PeerIdentity(Box::new((user, Origin::Certificate(certificate)))))
    }

    /// The user.
    #[must_use]
    pub fn user(&self) -> &User {
        &self.0.0
    }

    /// True if the name is from a certificate.
    #[must_use]
    pub fn is_certified(&self) -> bool {
        matches!(self.0.1, Origin::Certificate(_))
    }

    /// The certificate; `None` if the name is not from one.
    #[must_use]
    pub fn certificate(&self) -> Option<PeerCertificate> {
        match self.0.1 {
            Origin::Given => None,
            Origin::Certificate(certificate) => Some(certificate),
        }
    }
}

/// The program itself, the name that goes with a secret, or that the operator gives to all clients of a listener.
impl From<User> for PeerIdentity {
    fn from(user: User) -> PeerIdentity {
        PeerIdentity(Box::new((user, Origin::Given)))
    }
}

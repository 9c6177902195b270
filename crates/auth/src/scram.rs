//! SCRAM-SHA-256 for the identity store's clients (enhanced authentication, section 4.12).
//!
//! It costs a few hashes and never waits, so it happens on the workers. A user who is unknown or has no verifier gets
//! the same answers as one with a wrong password, with a salt that stays the same and with iterations that other users have.
//! Guesses count as those by password do.

use std::net::IpAddr;

use fulmar_mqtt::ReasonCode;
use fulmar_scram::{ClientFirst, ScramError, ServerExchange};

use super::AccessControl;
use crate::admitted::Admitted;
use crate::identities::credential;
use crate::time::Timestamp;

/// An exchange that waits for the client's last message.
#[derive(Debug)]
pub struct ScramLogin {
    exchange: ServerExchange,
    /// Revision of the client's password.
    revision: Option<u64>,
    /// When the last message must have come.
    pub until: Timestamp,
}

impl ScramLogin {
    /// The user name in the client's first message.
    #[must_use]
    pub fn username(&self) -> &str {
        self.exchange.username()
    }

    /// Counts what it takes for this owner until it ends. False if the owner has no room for that.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.exchange.bytes()
    }

    /// Checks the client's last message; returns the server's last one.
    fn finish(self, message: &[u8]) -> Result<(Admitted, String), ReasonCode> {
        let ScramLogin { exchange, revision, .. } = self;
        let user: Box<str> = exchange.username().into();
        let known = exchange.is_known();
        let end = exchange.finish(message).map_err(|error| refused(error, Some(&user), known))?;
        let credential = revision.map(|revision| credential(revision, &user));
        let admitted = Admitted::named(&user).map_err(|_| ReasonCode::BadUserNameOrPassword)?;
        Ok((Admitted { credential, ..admitted }, end))
    }
}

impl AccessControl {
    /// Begins an exchange; returns the server's first message. A user name given beside it must be the same.
    pub fn begin_scram(
        &self,
        message: &[u8],
        username: Option<&str>,
        until: Timestamp,
    ) -> Result<(ScramLogin, String), ReasonCode> {
        let decoys = self.scram.as_ref().ok_or(ReasonCode::BadAuthenticationMethod)?;
        let first = ClientFirst::parse(message).map_err(|error| refused(error, username, true))?;
        if username.is_some_and(|given| given != first.username()) {
            return Err(ReasonCode::BadUserNameOrPassword);
        }
        // Also for users that exist: the time taken must not show which do.
        let shapes = self.identities.as_ref().map(|table| table.verifier_shapes());
        let decoy = decoys.verifier(first.username(), shapes.unwrap_or_default());
        let stored = self.identities.as_ref().and_then(|table| table.verifier(first.username()));
        let (verifier, revision) = stored.unzip();
        let begun = ServerExchange::begin(&first, verifier.as_deref(), &decoy);
        let (exchange, answer) = begun.map_err(|error| refused(error, username, true))?;
        Ok((ScramLogin { exchange, revision, until }, answer))
    }

    /// Checks the last message of a client at this address; returns the server's last one.
    pub fn finish_scram(
        &self,
        login: ScramLogin,
        message: &[u8],
        address: IpAddr,
    ) -> Result<(Admitted, String), ReasonCode> {
        let user: Box<str> = login.username().into();
        if !self.logins.may_guess(&user, address) {
            return Err(ReasonCode::ServerBusy);
        }
        let finished = login.finish(message);
        match &finished {
            Ok(_) => self.logins.guessed(&user, address, true),
            Err(ReasonCode::BadUserNameOrPassword) => self.logins.guessed(&user, address, false),
            Err(_) => {}
        }
        finished
    }
}

/// Logs why an exchange has failed; returns the code for the client.
fn refused(error: ScramError, user: Option<&str>, known: bool) -> ReasonCode {
    if known {
        tracing::info!(user, "SCRAM refused: {error}");
    } else {
        tracing::info!(
            user,
            "SCRAM refused: no such user, or its password was set without [auth] scram: set it again"
        );
    }
    match error {
        ScramError::ChannelBinding => ReasonCode::BadAuthenticationMethod,
        ScramError::Malformed(_) => ReasonCode::ProtocolError,
        ScramError::Random => ReasonCode::ServerUnavailable,
        _ => ReasonCode::BadUserNameOrPassword,
    }
}

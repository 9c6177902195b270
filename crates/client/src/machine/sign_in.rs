//! SCRAM-SHA-256 as a client's enhanced authentication (section 4.12): the password is not sent, and the server has to show
//! that it has the password's verifier.

use fulmar_mqtt::packet::{Auth, Connack};
use fulmar_mqtt::{Properties, Property, PropertyBuf, ReasonCode};
use fulmar_scram::{ClientExchange, ClientKeys, MECHANISM, ServerProof};

use super::Machine;
use super::stream_map::CONTROL;
use crate::error::Error;

/// Progress of this connection's authentication exchange.
#[derive(Debug, Default)]
pub(super) struct SignIn {
    step: Step,
    /// Keys of the last exchange: the next one with the same salt takes no time.
    keys: Option<ClientKeys>,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    None,
    /// The first message was sent.
    Begun(ClientExchange),
    /// The last message was sent.
    Shown(ServerProof),
}

impl SignIn {
    /// Begins, with the first message as a property of CONNECT. Without random numbers there is no message, and the server
    /// refuses.
    pub(super) fn begin(&mut self, username: &str, password: &[u8], connect: &mut PropertyBuf) {
        connect.push(Property::AuthenticationMethod(MECHANISM));
        self.step = match ClientExchange::begin(username, password) {
            Ok((exchange, first)) => {
                connect.push(Property::AuthenticationData(first.as_bytes()));
                Step::Begun(exchange)
            }
            Err(_) => Step::None,
        };
    }

    fn answer(&mut self, message: &[u8]) -> Result<String, Error> {
        let Step::Begun(exchange) = std::mem::take(&mut self.step) else {
            return Err(Error::SignIn("the server asks for more than SCRAM has".to_owned()));
        };
        let answered = exchange.answer(message, self.keys.take());
        let (last, proof, keys) = answered.map_err(|error| Error::SignIn(error.to_string()))?;
        self.step = Step::Shown(proof);
        self.keys = Some(keys);
        Ok(last)
    }

    /// The server has accepted the client: it has to show who it is.
    pub(super) fn check(&mut self, connack: &Connack<'_>) -> Result<(), Error> {
        let data = data(connack.properties).unwrap_or_default();
        match std::mem::take(&mut self.step) {
            Step::Shown(proof) => {
                proof.check(data).map_err(|error| Error::SignIn(error.to_string()))
            }
            _ => Err(Error::SignIn(
                "the server has accepted the client without a proof of the password".to_owned(),
            )),
        }
    }
}

impl<P, R> Machine<P, R> {
    /// The server's message before CONNACK.
    pub(super) fn sign_in(&mut self, auth: &Auth<'_>) -> Result<(), Error> {
        let same = |property| matches!(property, Property::AuthenticationMethod(MECHANISM));
        let goes_on =
            auth.reason == ReasonCode::ContinueAuthentication && auth.properties.iter().any(same);
        let message = data(auth.properties).filter(|_| goes_on && self.options.scram);
        let message = message.ok_or_else(|| Error::Protocol("an unexpected AUTH".to_owned()))?;
        let last = self.sign_in.answer(message)?;
        let mut properties = PropertyBuf::new();
        properties
            .push(Property::AuthenticationMethod(MECHANISM))
            .push(Property::AuthenticationData(last.as_bytes()));
        let (reason, properties) = (auth.reason, properties.as_properties());
        Auth { reason, properties }.encode(&mut self.flows[CONTROL].out);
        Ok(())
    }
}

fn data(properties: Properties<'_>) -> Option<&[u8]> {
    fulmar_mqtt::find_property!(properties, AuthenticationData)
}

#[cfg(test)]
#[path = "sign_in_tests.rs"]
#[allow(clippy::unwrap_used)]
mod tests;

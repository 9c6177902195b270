//! The client's side.

use std::num::NonZeroU32;

use subtle::ConstantTimeEq as _;

use crate::crypto::{self, Key};
use crate::error::ScramError;
use crate::message::{self, Attributes, encoded};
use crate::{MAX_ITERATIONS, MIN_ITERATIONS};

/// Without channel binding and authorization identity.
const GS2_HEADER: &str = "n,,";

/// An exchange that waits for the server's first message.
pub struct ClientExchange {
    password: Box<[u8]>,
    nonce: String,
    /// The first message without its header.
    bare: String,
}

// Never the password.
fulmar_text::opaque_debug!(ClientExchange, ServerProof, ClientKeys);

/// Proof that the server has to give at the end.
#[derive(Clone)]
pub struct ServerProof(Key);

/// Keys derived from the password with the salt of one server.
#[derive(Clone)]
pub struct ClientKeys {
    salt: Box<[u8]>,
    iterations: NonZeroU32,
    client_key: Key,
    server_key: Key,
}

impl ClientKeys {
    fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> ClientKeys {
        let salted = crypto::salted(&crypto::prepared(password), salt, iterations);
        ClientKeys {
            salt: salt.into(),
            iterations,
            client_key: crypto::hmac(&salted, b"Client Key"),
            server_key: crypto::hmac(&salted, b"Server Key"),
        }
    }
}

impl ClientExchange {
    /// Begins; returns the client's first message.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn begin(username: &str, password: &[u8]) -> Result<(ClientExchange, String), ScramError> {
        Ok(ClientExchange::begin_with(username, password, crypto::nonce()?))
    }

    fn begin_with(username: &str, password: &[u8], nonce: String) -> (ClientExchange, String) {
        let username = crypto::prepared(username.as_bytes());
        let username = String::from_utf8_lossy(&username);
        let bare = format!("n={},r={nonce}", message::escaped(&username));
        let first = format!("{GS2_HEADER}{bare}");
        (ClientExchange { password: password.into(), nonce, bare }, first)
    }

    /// Answers the server's first message. Takes as long as the server asks for, within [`MAX_ITERATIONS`], unless `keys`
    /// are those of an earlier exchange with the same password and salt. Also returns the keys for the next one.
    ///
    /// # Errors
    /// It is malformed, is not an answer to the first message, or asks for too few or too many iterations.
    pub fn answer(
        self,
        message: &[u8],
        keys: Option<ClientKeys>,
    ) -> Result<(String, ServerProof, ClientKeys), ScramError> {
        let text = message::text(message)?;
        let mut attributes = Attributes::new(text);
        let nonce = attributes.expect('r')?;
        let salt = message::decoded(attributes.expect('s')?)?;
        let iterations = attributes.expect('i')?.parse::<u32>();
        let iterations = iterations.map_err(|_| ScramError::Malformed("iterations"))?;
        attributes.end()?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() || salt.is_empty() {
            return Err(ScramError::OtherExchange);
        }
        let accepted = (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations);
        let count = NonZeroU32::new(iterations).filter(|_| accepted);
        let count = count.ok_or(ScramError::Iterations(iterations))?;
        let unsigned = format!("c={},r={nonce}", encoded(GS2_HEADER.as_bytes()));
        let signed = format!("{},{text},{unsigned}", self.bare);
        let keys = keys.filter(|keys| *keys.salt == *salt && keys.iterations == count);
        let keys = keys.unwrap_or_else(|| ClientKeys::derive(&self.password, &salt, count));
        let signature = crypto::hmac(&crypto::hash(&keys.client_key), signed.as_bytes());
        let proof = encoded(&crypto::xor(&keys.client_key, &signature));
        let server = ServerProof(crypto::hmac(&keys.server_key, signed.as_bytes()));
        Ok((format!("{unsigned},p={proof}"), server, keys))
    }
}

impl ServerProof {
    /// Checks the server's last message: only a server with the user's verifier can have made it.
    ///
    /// # Errors
    /// It is another server, or this one has refused the client.
    pub fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let text = message::text(message)?;
        if text.starts_with("e=") {
            return Err(ScramError::Refused);
        }
        let mut attributes = Attributes::new(text);
        let shown = message::decoded(attributes.expect('v')?)?;
        attributes.end()?;
        let right = bool::from(shown.as_slice().ct_eq(&self.0));
        right.then_some(()).ok_or(ScramError::WrongServer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::server::{ClientFirst, ServerExchange};
    use crate::verifier::{DecoyKey, Verifier};

    const ANSWER: &[u8] =
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn begun() -> ClientExchange {
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let (exchange, first) = ClientExchange::begin_with("user", b"pencil", nonce);
        assert_eq!(first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        exchange
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        let (last, server, keys) = begun().answer(ANSWER, None).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        let (again, ..) = begun().answer(ANSWER, Some(keys)).unwrap();
        assert_eq!(again, last);
        server.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
        let other = b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(server.check(other), Err(ScramError::WrongServer));
        assert_eq!(server.check(b"v="), Err(ScramError::WrongServer));
        assert_eq!(server.check(b"e=other-error"), Err(ScramError::Refused));
        assert!(server.check(b"").is_err());
    }

    #[test]
    fn a_server_cannot_weaken_the_proof_or_stall_the_client() {
        let text = std::str::from_utf8(ANSWER).unwrap();
        let answer = |text: String| begun().answer(text.as_bytes(), None).map(drop);
        for count in [0, 1, 4095, 5_000_001, u32::MAX] {
            let asked = text.replace("4096", &count.to_string());
            assert_eq!(answer(asked), Err(ScramError::Iterations(count)));
        }
        assert_eq!(answer(text.replace("r=rO", "r=sO")), Err(ScramError::OtherExchange));
        let same = "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".to_owned();
        assert_eq!(answer(same), Err(ScramError::OtherExchange));
        assert!(answer(text.replace("i=4096", "i=x")).is_err());
        assert!(answer(format!("m=1,{text}")).is_err());
    }

    #[test]
    fn passwords_are_prepared_alike_on_both_sides() {
        // RFC 4013, section 3: a soft hyphen is nothing, and the Roman numeral nine two letters.
        let decoy = DecoyKey::new([0; 32], 4096).verifier("ann", []);
        for (set, typed) in [("I\u{ad}X", "IX"), ("\u{2168}", "IX"), ("p\u{e4}", "pa\u{308}")] {
            let verifier = Verifier::new(set.as_bytes(), 4096).unwrap();
            assert!(agree("ann", typed.as_bytes(), &verifier, &decoy), "{set}");
        }
    }

    fn agree(name: &str, password: &[u8], verifier: &Verifier, decoy: &Verifier) -> bool {
        let (client, first) = ClientExchange::begin(name, password).unwrap();
        let first = ClientFirst::parse(first.as_bytes()).unwrap();
        let (server, answer) = ServerExchange::begin(&first, Some(verifier), decoy).unwrap();
        let (last, proof, _) = client.answer(answer.as_bytes(), None).unwrap();
        server.finish(last.as_bytes()).is_ok_and(|end| proof.check(end.as_bytes()).is_ok())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_right_password_and_no_other_is_accepted(
            name in "[^\0]{1,40}",
            password in proptest::collection::vec(any::<u8>(), 1..40),
            other in proptest::collection::vec(any::<u8>(), 1..40),
        ) {
            let verifier = Verifier::new(&password, 4096).unwrap();
            let decoy = DecoyKey::new([0; 32], 4096).verifier(&name, []);
            // A name of nothing but what preparation removes is none.
            prop_assume!(!crypto::prepared(name.as_bytes()).is_empty());
            prop_assert!(agree(&name, &password, &verifier, &decoy));
            let same = crypto::prepared(&password) == crypto::prepared(&other);
            prop_assert_eq!(agree(&name, &other, &verifier, &decoy), same);
        }

        #[test]
        fn no_message_makes_either_side_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(ClientFirst::parse(&message));
            drop(begun().answer(&message, None));
        }
    }
}

//! The server's side.

use subtle::ConstantTimeEq as _;

use crate::crypto::{self, Key};
use crate::error::ScramError;
use crate::message::{self, Attributes, encoded};
use crate::verifier::Verifier;

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst<'a> {
    username: String,
    nonce: &'a str,
    gs2_header: &'a str,
    bare: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// It is malformed, requires channel binding, or names another identity to act as.
    pub fn parse(message: &'a [u8]) -> Result<ClientFirst<'a>, ScramError> {
        let text = message::text(message)?;
        let mut parts = text.splitn(3, ',');
        let (flag, authorization, bare) = match (parts.next(), parts.next(), parts.next()) {
            (Some(flag), Some(authorization), Some(bare)) => (flag, authorization, bare),
            _ => return Err(ScramError::Malformed("no GS2 header")),
        };
        match flag {
            // With `y`, the client supports channel binding, and this server has not offered it.
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed("GS2 flag")),
        }
        let mut attributes = Attributes::new(bare);
        let username = message::unescaped(attributes.expect('n')?)?;
        let nonce = message::nonce(attributes.expect('r')?)?;
        attributes.end()?;
        if !authorization.is_empty() {
            let name = authorization.strip_prefix("a=");
            let name = name.ok_or(ScramError::Malformed("authorization identity"))?;
            if message::unescaped(name)? != username {
                return Err(ScramError::Authorization);
            }
        }
        let gs2_header = &text[..text.len() - bare.len()];
        Ok(ClientFirst { username, nonce, gs2_header, bare })
    }

    /// The user's name.
    #[must_use]
    pub fn username(&self) -> &str {
        &self.username
    }
}

/// An exchange that waits for the client's last message.
pub struct ServerExchange {
    username: Box<str>,
    /// Nonces of client and server.
    nonce: Box<str>,
    gs2_header: Box<str>,
    /// Text that both sides sign, up to the client's last message.
    transcript: String,
    stored_key: Key,
    server_key: Key,
    known: bool,
}

fulmar_text::opaque_debug!(ServerExchange { username });

impl ServerExchange {
    /// Begins, with the user's verifier or, if there is none, a decoy; returns the server's first message.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn begin(
        first: &ClientFirst<'_>,
        verifier: Option<&Verifier>,
        decoy: &Verifier,
    ) -> Result<(ServerExchange, String), ScramError> {
        let nonce = crypto::nonce()?;
        Ok(ServerExchange::begin_with(first, verifier, decoy, &nonce))
    }

    fn begin_with(
        first: &ClientFirst<'_>,
        verifier: Option<&Verifier>,
        decoy: &Verifier,
        own_nonce: &str,
    ) -> (ServerExchange, String) {
        let shown = verifier.unwrap_or(decoy);
        let nonce = format!("{}{own_nonce}", first.nonce);
        let answer = format!("r={nonce},s={},i={}", encoded(&shown.salt), shown.iterations);
        let exchange = ServerExchange {
            username: first.username.as_str().into(),
            nonce: nonce.into(),
            gs2_header: first.gs2_header.into(),
            transcript: format!("{},{answer}", first.bare),
            stored_key: shown.stored_key,
            server_key: shown.server_key,
            known: verifier.is_some(),
        };
        (exchange, answer)
    }

    /// The user's name.
    #[must_use]
    pub fn username(&self) -> &str {
        &self.username
    }

    /// Size in memory, in bytes: the client has chosen most of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = self.username.len() + self.nonce.len() + self.gs2_header.len();
        size_of::<ServerExchange>() + texts + self.transcript.capacity()
    }

    /// Whether there is a verifier of this user; for the log only.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Checks the client's last message. The client is authenticated if this returns the server's last message.
    ///
    /// # Errors
    /// It is malformed, or the password is wrong.
    pub fn finish(self, message: &[u8]) -> Result<String, ScramError> {
        let text = message::text(message)?;
        let (unsigned, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed("no proof"))?;
        let mut attributes = Attributes::new(unsigned);
        let binding = message::decoded(attributes.expect('c')?)?;
        let nonce = attributes.expect('r')?;
        attributes.end()?;
        let proof = message::decoded(proof)?;
        let proof = Key::try_from(proof).map_err(|_| ScramError::Malformed("proof"))?;
        if binding != self.gs2_header.as_bytes() || *nonce != *self.nonce {
            return Err(ScramError::OtherExchange);
        }
        let signed = format!("{},{unsigned}", self.transcript);
        let signature = crypto::hmac(&self.stored_key, signed.as_bytes());
        let client_key = crypto::xor(&proof, &signature);
        let right = crypto::hash(&client_key).ct_eq(&self.stored_key);
        if !bool::from(right) || !self.known {
            return Err(ScramError::WrongProof);
        }
        let signature = crypto::hmac(&self.server_key, signed.as_bytes());
        Ok(format!("v={}", encoded(&signature)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::verifier::DecoyKey;

    // RFC 7677, section 3.
    const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const OWN_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const ANSWER: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const END: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn verifier() -> Verifier {
        let salt = message::decoded("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Verifier::derive(b"pencil", &salt, NonZeroU32::new(4096).unwrap())
    }

    fn decoy() -> Verifier {
        DecoyKey::new([0; 32], 4096).verifier("user", [])
    }

    fn begun(verifier: Option<&Verifier>) -> ServerExchange {
        let first = ClientFirst::parse(FIRST.as_bytes()).unwrap();
        assert_eq!(first.username(), "user");
        let (exchange, answer) = ServerExchange::begin_with(&first, verifier, &decoy(), OWN_NONCE);
        assert!(verifier.is_none() || answer == ANSWER, "{answer}");
        exchange
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        assert_eq!(begun(Some(&verifier())).finish(LAST.as_bytes()).unwrap(), END);
    }

    #[test]
    fn what_differs_in_one_place_is_refused() {
        let finish = |message: &str| begun(Some(&verifier())).finish(message.as_bytes());
        let wrong = LAST.replace("p=dHz", "p=dHy");
        assert_eq!(finish(&wrong), Err(ScramError::WrongProof));
        assert_eq!(finish(&LAST.replace("r=rOp", "r=sOp")), Err(ScramError::OtherExchange));
        // The header of a client that would have bound the channel.
        assert_eq!(finish(&LAST.replace("biws", "eSws")), Err(ScramError::OtherExchange));
        assert_eq!(finish(&LAST.replace(",p=", ",x=1,p=")), Err(ScramError::WrongProof));
        for malformed in ["", "p=", ",p=", "c=biws,p=AA==", &LAST.replace(",p=", ",m=1,p=")] {
            assert!(matches!(finish(malformed), Err(ScramError::Malformed(_))), "{malformed}");
        }
        assert_eq!(begun(None).finish(LAST.as_bytes()), Err(ScramError::WrongProof));
    }

    /// The proof that fits a decoy's keys is not accepted either: nobody has them, but the code must not rely on that.
    #[test]
    fn a_decoy_lets_nobody_in() {
        let first = ClientFirst::parse(FIRST.as_bytes()).unwrap();
        let (exchange, _) = ServerExchange::begin_with(&first, None, &verifier(), OWN_NONCE);
        assert_eq!(exchange.finish(LAST.as_bytes()), Err(ScramError::WrongProof));
    }

    #[test]
    fn first_messages() {
        let parse = |text: &'static str| ClientFirst::parse(text.as_bytes());
        let name = |text| parse(text).map(|first| first.username);
        assert_eq!(name("y,,n=a=2Cb=3Dc,r=x").as_deref(), Ok("a,b=c"));
        assert_eq!(name("n,a=ann,n=ann,r=x,x=any").as_deref(), Ok("ann"));
        assert_eq!(name("n,a=bob,n=ann,r=x"), Err(ScramError::Authorization));
        let bound = "p=tls-exporter,,n=ann,r=x";
        assert_eq!(name(bound), Err(ScramError::ChannelBinding));
        for malformed in [
            "",
            "n,,",
            "n,n=ann,r=x",
            "x,,n=ann,r=x",
            "n,,n=,r=x",
            "n,,n=ann,r=",
            "n,,n=a=nn,r=x",
            "n,,n=a=2cb,r=x",
            "n,,n=ann",
            "n,,r=x,n=ann",
            "n,,m=1,n=ann,r=x",
            "n,,n=ann,r=x,m=1",
            "n,,n=ann,r=x,",
            "n,b=ann,n=ann,r=x",
            "n,,n=ann,r=x\0",
            "n,,n=ann,r=\u{e4}",
        ] {
            assert!(matches!(name(malformed), Err(ScramError::Malformed(_))), "{malformed:?}");
        }
        let long = format!("n,,n={},r=x", "a".repeat(crate::MAX_MESSAGE_BYTES));
        assert!(matches!(ClientFirst::parse(long.as_bytes()), Err(ScramError::Malformed(_))));
        assert!(ClientFirst::parse(b"n,,n=\xFF,r=x").is_err());
    }
}

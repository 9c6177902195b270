//! What a server keeps of a password, and what it shows of a user that it does not have.

use std::fmt;
use std::num::NonZeroU32;

use crate::crypto::{self, KEY_BYTES, Key};
use crate::error::ScramError;
use crate::message::{decoded, encoded};
use crate::{MAX_ITERATIONS, MECHANISM, MIN_ITERATIONS};

/// Bytes of the salts that are made here.
const SALT_BYTES: usize = 16;

/// Bytes of a salt that is accepted.
const MAX_SALT_BYTES: usize = 256;

/// Verifier of a password. Its text, `SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY`, is PostgreSQL's.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(crate) salt: Box<[u8]>,
    pub(crate) iterations: NonZeroU32,
    pub(crate) stored_key: Key,
    pub(crate) server_key: Key,
}

/// Properties of a verifier that a client sees: other settings or another program make another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerifierShape {
    iterations: NonZeroU32,
    salt_bytes: usize,
}

impl Verifier {
    /// Properties of the verifier that a client sees.
    #[must_use]
    pub fn shape(&self) -> VerifierShape {
        VerifierShape { iterations: self.iterations, salt_bytes: self.salt.len() }
    }

    /// The verifier of a password, with a random salt. Takes as long as there are iterations, which are brought within
    /// [`MIN_ITERATIONS`] and [`MAX_ITERATIONS`].
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(password: &[u8], iterations: u32) -> Result<Verifier, ScramError> {
        let salt: [u8; SALT_BYTES] = crypto::random()?;
        let iterations = iterations.clamp(MIN_ITERATIONS, MAX_ITERATIONS);
        Ok(Verifier::derive(
            password,
            &salt,
            NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN),
        ))
    }

    pub(crate) fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Verifier {
        let salted = crypto::salted(&crypto::prepared(password), salt, iterations);
        Verifier {
            salt: salt.into(),
            iterations,
            stored_key: crypto::hash(&crypto::hmac(&salted, b"Client Key")),
            server_key: crypto::hmac(&salted, b"Server Key"),
        }
    }

    /// Reads the text.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(text: &str) -> Result<Verifier, ScramError> {
        const FORM: ScramError = ScramError::Malformed("not a verifier");
        let rest = text.strip_prefix(MECHANISM).and_then(|rest| rest.strip_prefix('$'));
        let (first, second) = rest.and_then(|rest| rest.split_once('$')).ok_or(FORM)?;
        let (iterations, salt) = first.split_once(':').ok_or(FORM)?;
        let (stored, server) = second.split_once(':').ok_or(FORM)?;
        let iterations: NonZeroU32 = iterations.parse().map_err(|_| FORM)?;
        let key = |text| Key::try_from(decoded(text)?).map_err(|_| FORM);
        let salt = decoded(salt)?;
        let accepted = MIN_ITERATIONS..=MAX_ITERATIONS;
        let sized = (1..=MAX_SALT_BYTES).contains(&salt.len());
        if !sized || !accepted.contains(&iterations.get()) {
            return Err(FORM);
        }
        let salt = salt.into();
        Ok(Verifier { salt, iterations, stored_key: key(stored)?, server_key: key(server)? })
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verifier { salt, iterations, stored_key, server_key } = self;
        let (salt, stored, server) = (encoded(salt), encoded(stored_key), encoded(server_key));
        write!(f, "{MECHANISM}${iterations}:{salt}${stored}:{server}")
    }
}

fulmar_text::opaque_debug!(Verifier, DecoyKey);

/// Makes the salts of users that do not exist, so that nobody sees which do: always the same one for the same name. Keep
/// it over restarts.
#[derive(Clone)]
pub struct DecoyKey {
    key: Key,
    iterations: NonZeroU32,
}

impl DecoyKey {
    /// With the secret, and the iterations that new verifiers get.
    #[must_use]
    pub fn new(secret: [u8; KEY_BYTES], iterations: u32) -> DecoyKey {
        let iterations = iterations.clamp(MIN_ITERATIONS, MAX_ITERATIONS);
        DecoyKey { key: secret, iterations: NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN) }
    }

    /// Returns a verifier in place of that of a user who does not exist. Nobody knows a password for it. `shapes` are
    /// those of the users that do, each with their number: of the names that do not exist, the same share gets each.
    #[must_use]
    pub fn verifier(
        &self,
        username: &str,
        shapes: impl IntoIterator<Item = (VerifierShape, u32)>,
    ) -> Verifier {
        let of = |what: &[u8]| crypto::hmac(&self.key, &[what, username.as_bytes()].concat());
        // So that another number changes the shape of few names (weighted rendezvous hashing).
        let score = |(shape, count): (VerifierShape, u32)| {
            let VerifierShape { iterations, salt_bytes } = shape;
            let [a, b, c, d, ..] = of(format!("shape:{iterations}:{salt_bytes}:").as_bytes());
            let chance = f64::from(u32::from_be_bytes([a, b, c, d])) + 1.0;
            ((chance / (f64::from(u32::MAX) + 2.0)).ln() / f64::from(count.max(1)), shape)
        };
        let best = shapes.into_iter().map(score).max_by(|a, b| a.0.total_cmp(&b.0));
        let own = VerifierShape { iterations: self.iterations, salt_bytes: SALT_BYTES };
        let VerifierShape { iterations, salt_bytes } = best.map_or(own, |(_, shape)| shape);
        let mut salt = of(b"salt:").to_vec();
        for more in 1..=salt_bytes / KEY_BYTES {
            salt.extend_from_slice(&of(format!("salt{more}:").as_bytes()));
        }
        salt.truncate(salt_bytes);
        let (stored_key, server_key) = (of(b"stored:"), of(b"server:"));
        Verifier { salt: salt.into(), iterations, stored_key, server_key }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_the_same_after_it_was_written() {
        let verifier = Verifier::new(b"secret", 1).unwrap();
        assert_eq!(verifier.iterations.get(), MIN_ITERATIONS);
        let text = verifier.to_string();
        assert!(text.starts_with("SCRAM-SHA-256$4096:"), "{text}");
        assert_eq!(Verifier::parse(&text), Ok(verifier));
        for wrong in [
            "",
            "SCRAM-SHA-256$4096:$:",
            &text.replace("4096", "4095"),
            &text.replace("4096", "5000001"),
            &text.replace("SHA-256", "SHA-1"),
            &text[..text.len() - 2],
        ] {
            assert!(Verifier::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(format!("{:?}", Verifier::new(b"secret", 1)), "Ok(Verifier)");
    }

    #[test]
    fn a_decoy_stays_the_same_and_has_the_size_of_a_real_one() {
        let key = DecoyKey::new([7; 32], 10_000);
        let (one, other) = (key.verifier("ann", []), key.verifier("bob", []));
        assert_eq!(one, key.verifier("ann", []));
        assert_ne!(one.salt, other.salt);
        assert_ne!(one.salt, DecoyKey::new([8; 32], 10_000).verifier("ann", []).salt);
        let real = Verifier::new(b"secret", 10_000).unwrap();
        assert_eq!(one.shape(), real.shape());
    }

    #[test]
    fn decoys_have_the_shapes_of_real_ones_as_often_and_keep_them() {
        let key = DecoyKey::new([7; 32], 10_000);
        let salted = |bytes: usize, iterations| {
            Verifier::derive(b"", &vec![1; bytes], NonZeroU32::new(iterations).unwrap()).shape()
        };
        let (old, new, foreign) = (salted(16, 4_096), salted(16, 5_000), salted(100, 4_096));
        let shape = |name: usize, shapes: &[(VerifierShape, u32)]| {
            key.verifier(&name.to_string(), shapes.iter().copied()).shape()
        };
        let before = [(old, 75), (new, 20), (foreign, 5)];
        let shown: Vec<_> = (0..1_000).map(|name| shape(name, &before)).collect();
        let count = |of| shown.iter().filter(|shape| **shape == of).count();
        assert!((650..850).contains(&count(old)) && (120..280).contains(&count(new)));
        assert!((20..90).contains(&count(foreign)));
        // One user more.
        let after = [(old, 75), (new, 21), (foreign, 5)];
        let changed = (0..1_000).filter(|&name| shape(name, &after) != shown[name]).count();
        assert!(changed < 30, "{changed}");
    }
}

//! The key that a sender and its receivers share, and what is done with it to each datagram.
//!
//! Without a key messages go as RFC 5740 has them, which other programs understand and anybody can forge.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use fulmar_bulk::guard::{
    Counts, KEY_BYTES, OVERHEAD_BYTES, ReceiverGuard, ReceiverKeys, Rejected, SESSION_BYTES,
    Secret, SenderGuard, is_sealed,
};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use crate::exit::Usage;

/// The key's digits themselves, where there is no file.
const VARIABLE: &str = "FULMAR_BULK_KEY";
/// With a seal's 32 bytes and NORM's 32, what fits 1500 bytes with IPv4 and UDP headers.
const SEALED_SYMBOL_BYTES: u16 = 1408;

/// The option for it.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct KeyArgs {
    /// File with the key that sender and receivers share, 64 hexadecimal digits: `openssl rand -hex 32` creates one.
    /// The variable FULMAR_BULK_KEY can hold the digits instead
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl KeyArgs {
    /// The secret, if there is one.
    pub(super) fn secret(&self) -> anyhow::Result<Option<Secret>> {
        let (digits, place) = match (&self.key, std::env::var(VARIABLE)) {
            (Some(file), _) => (read(file)?, file.display().to_string()),
            (None, Ok(digits)) => (digits, VARIABLE.to_owned()),
            (None, Err(_)) => return Ok(None),
        };
        let key = parse(digits.trim()).ok_or_else(|| {
            Usage(format!("{place}: a key has 64 hexadecimal digits, see `openssl rand -hex 32`"))
        })?;
        Ok(Some(Secret::new(key)))
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let what = || file.display().to_string();
    let mode = std::fs::metadata(file).with_context(what)?.permissions().mode();
    if mode & 0o077 != 0 {
        let text = format!("{0}: the key is readable by others; run `chmod 600 {0}`", what());
        return Err(Usage(text).into());
    }
    std::fs::read_to_string(file).with_context(what)
}

/// Reads the digits of a key.
pub(super) fn parse(digits: &str) -> Option<[u8; KEY_BYTES]> {
    if digits.len() != 2 * KEY_BYTES || !digits.is_ascii() {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, digits) in key.iter_mut().zip(digits.as_bytes().as_chunks::<2>().0) {
        // A sign would be taken for a digit.
        let all = digits.iter().all(u8::is_ascii_hexdigit);
        *byte = u8::from_str_radix(str::from_utf8(digits).ok().filter(|_| all)?, 16).ok()?;
    }
    Some(key)
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .ok()
        .context("the system random number generator failed")?;
    Ok(bytes)
}

/// Says that datagrams are not protected, where others could send some.
pub(super) fn warn_if_plain(sealed: bool, peer: IpAddr) {
    if !sealed && !peer.is_loopback() {
        tracing::warn!("no --key: others on the network can read what is sent and forge datagrams");
    }
}

/// What the two ends have in common.
pub(super) trait Open {
    fn try_open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected>;
    fn counts(&self) -> Counts;
}

impl Open for SenderGuard {
    fn try_open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        self.open(datagram)
    }

    fn counts(&self) -> Counts {
        self.counts()
    }
}

impl Open for ReceiverGuard {
    fn try_open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        self.open(datagram)
    }

    fn counts(&self) -> Counts {
        self.counts()
    }
}

/// A guard, if there is a key, and what is said of datagrams that it refuses.
pub(super) struct Seal<G> {
    guard: Option<G>,
    sealed: Vec<u8>,
    warned: bool,
}

pub(super) type SenderSeal = Seal<SenderGuard>;
pub(super) type ReceiverSeal = Seal<ReceiverGuard>;

impl SenderSeal {
    pub(super) fn of_sender(secret: Option<&Secret>) -> anyhow::Result<SenderSeal> {
        let session = random::<SESSION_BYTES>()?;
        Ok(Seal::new(secret.map(|secret| SenderGuard::new(secret, session))))
    }

    /// The datagram to send for a message.
    pub(super) fn seal<'a>(&'a mut self, message: &'a [u8]) -> anyhow::Result<&'a [u8]> {
        let Some(guard) = &mut self.guard else { return Ok(message) };
        guard.seal(message, &mut self.sealed)?;
        Ok(&self.sealed)
    }

    /// What a symbol's length and a datagram's surplus are.
    pub(super) fn lengths(&self, plain_symbol: u16) -> (u16, u16) {
        match self.guard {
            Some(_) => (SEALED_SYMBOL_BYTES, OVERHEAD_BYTES as u16),
            None => (plain_symbol, 0),
        }
    }
}

impl ReceiverSeal {
    pub(super) fn of_receiver(keys: Option<ReceiverKeys>) -> anyhow::Result<ReceiverSeal> {
        let session = random::<SESSION_BYTES>()?;
        Ok(Seal::new(keys.map(|keys| ReceiverGuard::new(keys, session))))
    }

    /// The datagram to send for a message; none if there is nobody who could open it.
    pub(super) fn seal<'a>(&'a mut self, message: &'a [u8]) -> Option<&'a [u8]> {
        let Some(guard) = &mut self.guard else { return Some(message) };
        guard.seal(message, &mut self.sealed).ok()?;
        Some(&self.sealed)
    }
}

impl<G: Open> Seal<G> {
    fn new(guard: Option<G>) -> Seal<G> {
        Seal { guard, sealed: Vec::new(), warned: false }
    }

    pub(super) fn is_on(&self) -> bool {
        self.guard.is_some()
    }

    /// The message in a datagram, if it is to be believed.
    pub(super) fn open<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let Some(guard) = &mut self.guard else {
            if is_sealed(datagram) && !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(%from, "encrypted datagrams were dropped: there is no --key");
            }
            return Some(datagram);
        };
        match guard.try_open(datagram) {
            Ok(message) => Some(message),
            Err(reason) => {
                // Once for people; each for who looks closely.
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(%from, %reason,
                        "a datagram was dropped; further ones are only counted");
                }
                tracing::debug!(%from, %reason, "a datagram was dropped");
                None
            }
        }
    }

    /// Adds what was refused to figures.
    pub(super) fn tell(&self, figures: &mut Value) {
        let Some(guard) = &self.guard else { return };
        let Counts { foreign, forged, replayed } = guard.counts();
        figures["refused"] = json!({ "foreign": foreign, "forged": forged, "replayed": replayed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_and_nothing_else() {
        assert_eq!(parse(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(parse(&"Ff".repeat(32)), Some([255; 32]));
        for wrong in
            ["", "0f", &"0f".repeat(33), &"+f".repeat(32), &"gg".repeat(32), &"é".repeat(32)]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}

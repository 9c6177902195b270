//! The key that a sender and its receivers share, and the encryption of each datagram with it.
//!
//! Without a key, messages are sent as in RFC 5740: other programs can receive them, and anyone can forge them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use fulmar_bulk::encryption::{
    Counts, KEY_BYTES, OVERHEAD_BYTES, ReceiverEncryption, ReceiverKeys, Rejected, SESSION_BYTES,
    Secret, SenderEncryption, is_encrypted,
};
use fulmar_certs::{files, random};
use fulmar_text::hex;
use serde_json::{Value, json};

use crate::exit::Usage;

/// The environment variable with the key's digits, if there is no file.
const VARIABLE: &str = "FULMAR_BULK_KEY";
/// Bytes of a symbol that, with 32 bytes of encryption and 32 of NORM, fits 1500 bytes with IPv4 and UDP headers.
const ENCRYPTED_SYMBOL_BYTES: u16 = 1408;

/// The option for the key.
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
            (Some(file), _) => {
                let digits =
                    files::read_secret_line(file).map_err(|error| Usage(error.to_string()))?;
                (digits, file.display().to_string())
            }
            (None, Ok(digits)) => (digits, VARIABLE.to_owned()),
            (None, Err(_)) => return Ok(None),
        };
        let key = parse(digits.trim()).ok_or_else(|| {
            Usage(format!("{place}: a key has 64 hexadecimal digits, see `openssl rand -hex 32`"))
        })?;
        Ok(Some(Secret::new(key)))
    }
}

/// Reads the digits of a key.
pub(super) fn parse(digits: &str) -> Option<[u8; KEY_BYTES]> {
    hex::decode(digits)?.try_into().ok()
}

/// Warns that datagrams are not protected, if others could send some.
pub(super) fn warn_if_plain(encrypted: bool, peer: IpAddr) {
    if !encrypted && !peer.is_loopback() {
        tracing::warn!("no --key: others on the network can read what is sent and forge datagrams");
    }
}

/// The common interface of senders' and receivers' encryption.
pub(super) trait Decrypt {
    fn try_decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected>;
    fn counts(&self) -> Counts;
}

impl Decrypt for SenderEncryption {
    fn try_decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        self.decrypt(datagram)
    }

    fn counts(&self) -> Counts {
        self.counts()
    }
}

impl Decrypt for ReceiverEncryption {
    fn try_decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        self.decrypt(datagram)
    }

    fn counts(&self) -> Counts {
        self.counts()
    }
}

/// The encryption, if there is a key; logs refused datagrams.
pub(super) struct ChannelEncryption<G> {
    inner: Option<G>,
    encrypted: Vec<u8>,
    warned: bool,
}

pub(super) type SenderChannelEncryption = ChannelEncryption<SenderEncryption>;
pub(super) type ReceiverChannelEncryption = ChannelEncryption<ReceiverEncryption>;

impl SenderChannelEncryption {
    pub(super) fn of_sender(secret: Option<&Secret>) -> anyhow::Result<SenderChannelEncryption> {
        let session = random::<SESSION_BYTES>()?;
        Ok(ChannelEncryption::new(secret.map(|secret| SenderEncryption::new(secret, session))))
    }

    /// Encrypts a message to a datagram.
    pub(super) fn encrypt<'a>(&'a mut self, message: &'a [u8]) -> anyhow::Result<&'a [u8]> {
        let Some(inner) = &mut self.inner else { return Ok(message) };
        inner.encrypt(message, &mut self.encrypted)?;
        Ok(&self.encrypted)
    }

    /// A symbol's length, and the bytes that encryption adds to a datagram.
    pub(super) fn lengths(&self, plain_symbol: u16) -> (u16, u16) {
        match self.inner {
            Some(_) => (ENCRYPTED_SYMBOL_BYTES, OVERHEAD_BYTES as u16),
            None => (plain_symbol, 0),
        }
    }
}

impl ReceiverChannelEncryption {
    pub(super) fn of_receiver(
        keys: Option<ReceiverKeys>,
    ) -> anyhow::Result<ReceiverChannelEncryption> {
        let session = random::<SESSION_BYTES>()?;
        Ok(ChannelEncryption::new(keys.map(|keys| ReceiverEncryption::new(keys, session))))
    }

    /// Encrypts a message to a datagram; `None` if there is no sender yet that could decrypt it.
    pub(super) fn encrypt<'a>(&'a mut self, message: &'a [u8]) -> Option<&'a [u8]> {
        let Some(inner) = &mut self.inner else { return Some(message) };
        inner.encrypt(message, &mut self.encrypted).ok()?;
        Some(&self.encrypted)
    }
}

impl<G: Decrypt> ChannelEncryption<G> {
    fn new(inner: Option<G>) -> ChannelEncryption<G> {
        ChannelEncryption { inner, encrypted: Vec::new(), warned: false }
    }

    pub(super) fn is_on(&self) -> bool {
        self.inner.is_some()
    }

    /// The message in a datagram, if it is authentic.
    pub(super) fn decrypt<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let Some(inner) = &mut self.inner else {
            if is_encrypted(datagram) && !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(%from, "encrypted datagrams were dropped: there is no --key");
            }
            return Some(datagram);
        };
        match inner.try_decrypt(datagram) {
            Ok(message) => Some(message),
            Err(reason) => {
                // A warning once; each datagram in the debug log.
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(%from, %reason,
                        "a datagram was dropped; further ones are only counted");
                }
                tracing::debug!(%from, %reason, "a datagram was dropped");
                None
            }
        }
    }

    /// Adds the numbers of refused datagrams to the report.
    pub(super) fn add_refused(&self, statistics: &mut Value) {
        let Some(inner) = &self.inner else { return };
        let Counts { foreign, forged, replayed } = inner.counts();
        statistics["refused"] =
            json!({ "foreign": foreign, "forged": forged, "replayed": replayed });
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

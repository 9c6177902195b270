//! A file's NORM_INFO: its name, a zero byte, its SHA-256.
//!
//! NRL's programs put the name there and read it up to a zero byte, so each program understands the other.

use std::fmt;

use fulmar_text::hex;

use super::symlink_safe::PREFIX;

const HASH_BYTES: usize = 32;
/// The longest name in a folder.
const MAX_NAME_BYTES: usize = 255;

/// The SHA-256 of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(pub(super) [u8; HASH_BYTES]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) name: String,
    /// `None` for other senders than Fulmar's.
    pub(super) hash: Option<Hash>,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.name.as_bytes().to_vec();
        if let Some(Hash(hash)) = self.hash {
            bytes.push(0);
            bytes.extend(hash);
        }
        bytes
    }

    /// Decodes a sender's manifest; the name must be that of a file in a folder.
    pub(super) fn decode(bytes: &[u8]) -> Result<Manifest, &'static str> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        let (name, rest) = bytes.split_at(end);
        let name = std::str::from_utf8(name).map_err(|_| "its name is not UTF-8")?;
        check_name(name)?;
        let hash = match rest.get(1..) {
            None | Some([]) => None,
            Some(hash) => Some(Hash(hash.try_into().map_err(|_| "its hash is not a SHA-256")?)),
        };
        Ok(Manifest { name: name.to_owned(), hash })
    }
}

/// Whether a name, hidden or not, is valid in a folder and does not lead out of it.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err("its name must have 1 to 255 bytes");
    }
    if matches!(name, "." | "..") || name.contains('/') || name.chars().any(char::is_control) {
        return Err("its name is not a file name");
    }
    if name.starts_with(PREFIX) {
        return Err("its name is reserved for incomplete files");
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_as_it_went() {
        let long = "a".repeat(MAX_NAME_BYTES);
        for name in ["Karte 1.zip", "🗺.zip", "e\u{301}", "é", "-x", "a\\b", "\"q\"", &long] {
            for hash in [None, Some(Hash([7; 32]))] {
                let manifest = Manifest { name: name.into(), hash };
                assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
            }
        }
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in
            ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\nb", ".fulmar-0.state", "\u{1b}[2J"]
        {
            assert!(Manifest::decode(name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(Manifest::decode(&[b'a'; 256]).is_err());
        assert!(Manifest::decode(b"a\xff").is_err());
        assert!(Manifest::decode(b"a\0short").is_err());
    }
}

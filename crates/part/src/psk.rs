//! The file of pre-shared keys (`[coap] psk_file`), which authenticate users of DTLS without certificates (RFC 4279).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use fulmar_broker::User;
use fulmar_certs::files;
use fulmar_coap::dtls::Keys;
use fulmar_coap::psk::{MIN_KEY_BYTES, parse};

/// Reads the file.
///
/// # Errors
/// The file cannot be read, or other users can read it, or a line is wrong; the error has the line's number, never its
/// content.
pub fn read(path: &Path) -> anyhow::Result<Keys> {
    let text = String::from_utf8_lossy(&files::read_secret(path)?).into_owned();
    let mut keys = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end_matches('\r');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let place = || format!("[coap] psk_file {}:{}", path.display(), number + 1);
        let Some((user, key)) =
            line.split_once(':').and_then(|(user, key)| Some((user, parse(key)?)))
        else {
            bail!(
                "{}: expected USER:KEY, the key as text or as 0x and hexadecimal digits",
                place()
            );
        };
        User::check_name(user).with_context(place)?;
        if key.len() < MIN_KEY_BYTES {
            bail!(
                "{}: a key must have at least {MIN_KEY_BYTES} bytes, because shorter ones can be \
                 guessed",
                place()
            );
        }
        if keys.insert(user.as_bytes().to_vec(), key).is_some() {
            bail!("{}: this user already has a key", place());
        }
    }
    Ok(Arc::new(move |user| keys.get(user).cloned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn load(text: &str) -> anyhow::Result<Keys> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("psk");
        files::write(&path, text.as_bytes(), true).unwrap();
        read(&path)
    }

    #[test]
    fn keys_are_found_by_user() {
        let text =
            "# meters\nmeter-7:0123456789abcdef:x\n\nmeter-8:0x000102030405060708090a0b0c0d0e0f\n";
        let keys = load(text).unwrap();
        assert_eq!(keys(b"meter-7").unwrap(), b"0123456789abcdef:x");
        assert_eq!(keys(b"meter-8").unwrap(), (0..16).collect::<Vec<u8>>());
        assert!(keys(b"meter-9").is_none());
    }

    #[test]
    fn wrong_lines_are_named_without_what_they_say() {
        for bad in [
            "secret",
            ":0123456789abcdef",
            "a:short",
            "a:0xZZ",
            "a:0123456789abcdef\na:0123456789abcdeg",
        ] {
            let error = load(bad).err().unwrap().to_string();
            assert!(error.contains("psk_file") && !error.contains("secret"), "{error}");
        }
    }
}

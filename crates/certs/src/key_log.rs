//! [`KeyLogFile`]: the secrets of TLS and QUIC connections in a file, with which Wireshark decrypts a capture.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::CertError;

/// A key log (draft-ietf-tls-keylogfile). Anyone who reads it can read what the connections carried.
#[derive(Debug)]
pub struct KeyLogFile(Mutex<File>);

impl KeyLogFile {
    /// Opens a file to append to; a new one has mode 0600.
    ///
    /// # Errors
    /// The system refuses the file.
    pub fn open(path: &Path) -> Result<Arc<KeyLogFile>, CertError> {
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = opened.map_err(|source| CertError::File { path: path.to_owned(), source })?;
        Ok(Arc::new(KeyLogFile(Mutex::new(file))))
    }
}

impl rustls::KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = label.to_owned();
        for part in [client_random, secret] {
            line.push(' ');
            line.extend(part.iter().map(|byte| format!("{byte:02x}")));
        }
        line.push('\n');
        // In one piece, because another process may append to the same file. A connection does not end over its log.
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(file.write_all(line.as_bytes()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustls::KeyLog as _;

    use super::*;

    #[test]
    fn secrets_are_appended_where_only_their_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        for _ in 0..2 {
            KeyLogFile::open(&path).unwrap().log("CLIENT_RANDOM", &[0, 0xab], &[1, 0x0f]);
        }
        let line = "CLIENT_RANDOM 00ab 010f\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line.repeat(2));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

//! `replaced-hashes` in the data folder: the argon2 hashes that replace hashes of mosquitto in the password file.
//!
//! The password file is the operator's and often lies where the server cannot write. So each line here has the user's
//! name, SHA-256 of the hash that the password file has, and the argon2 hash: when the operator changes the password
//! file, the line no longer applies. Lines are only added; the last one of a user counts, and one that a power cut has
//! left incomplete is ignored.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use fulmar_broker::auth::{AccessControl, HashReplacements};
use fulmar_text::hex;
use parking_lot::Mutex;
use ring::digest;

use super::secrets;

pub(super) const FILE: &str = "replaced-hashes";

/// Lets the password file, if there is one, replace hashes of mosquitto.
///
/// # Errors
/// The file in the data folder cannot be read, or others can read it, too.
pub(super) fn install(access_control: &AccessControl, data: &Path) -> anyhow::Result<()> {
    if let Some(file) = access_control.logins.file() {
        file.replace_outdated(Arc::new(ReplacedHashes::open(&data.join(FILE))?));
    }
    Ok(())
}

struct ReplacedHashes {
    /// By user: the digest of the outdated hash, and the argon2 hash.
    known: Mutex<HashMap<String, (String, String)>>,
    file: Mutex<Option<File>>,
    path: Box<Path>,
}

impl fmt::Debug for ReplacedHashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplacedHashes").field("users", &self.known.lock().len()).finish()
    }
}

impl ReplacedHashes {
    fn open(path: &Path) -> anyhow::Result<ReplacedHashes> {
        let bytes = secrets::read(path)?.unwrap_or_default();
        let known = String::from_utf8_lossy(&bytes).lines().filter_map(parsed).collect();
        Ok(ReplacedHashes { known: Mutex::new(known), file: Mutex::new(None), path: path.into() })
    }

    fn append(&self, line: &str) -> std::io::Result<()> {
        let mut file = self.file.lock();
        let file = match &mut *file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                let opened = options.create(true).append(true).mode(0o600).open(&self.path)?;
                none.insert(opened)
            }
        };
        // It begins with the end of a line that may be incomplete.
        file.write_all(format!("\n{line}\n").as_bytes())?;
        file.sync_data()
    }
}

impl HashReplacements for ReplacedHashes {
    fn find(&self, user: &str, outdated: &str) -> Option<String> {
        let known = self.known.lock();
        let (of, argon2) = known.get(user)?;
        (*of == digest_of(outdated)).then(|| argon2.clone())
    }

    fn replace_hash(&self, user: &str, outdated: &str, argon2: &str) {
        let of = digest_of(outdated);
        match self.append(&format!("{user}:{of}:{argon2}")) {
            Ok(()) => tracing::info!(user, "mosquitto's password hash replaced by argon2"),
            // At the next start the next login tries again.
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(user, "cannot keep the argon2 hash in {path}: {error}");
            }
        }
        self.known.lock().insert(user.to_owned(), (of, argon2.to_owned()));
    }
}

fn parsed(line: &str) -> Option<(String, (String, String))> {
    let (user, rest) = line.split_once(':')?;
    let (of, argon2) = rest.split_once(':')?;
    Some((user.to_owned(), (of.to_owned(), argon2.to_owned())))
}

fn digest_of(outdated: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, outdated.as_bytes()).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn hashes_are_found_again_while_the_password_file_has_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let open = || ReplacedHashes::open(&path).unwrap();
        open().replace_hash("ann", "$6$a", "$argon2id$first");
        // As after a power cut.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"bob:12").unwrap();
        open().replace_hash("ann", "$6$b", "$argon2id$second");
        let hashes = open();
        assert_eq!(hashes.find("ann", "$6$b").as_deref(), Some("$argon2id$second"));
        assert_eq!(hashes.find("ann", "$6$a"), None);
        assert_eq!(hashes.find("bob", "$6$b"), None);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn without_hashes_of_mosquitto_there_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(ReplacedHashes::open(&path).unwrap().find("ann", "$6$a"), None);
        assert!(!path.exists());
    }
}

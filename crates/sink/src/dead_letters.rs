//! The dead letters of a sink: messages that its target can never accept in their form, for the operator. `NAME.jsonl` in
//! the folder `sinks` of the data folder has one JSON object per line; its size is bounded, and what has no room waits.
//! Server and command change it in turn: who does has a lock of the folder.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mapping::Letter;

/// The folder's name.
pub(crate) const FOLDER: &str = "sinks";

/// A message and why it was not written.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// The mapping's or the target's words.
    pub reason: String,
    /// The message.
    #[serde(flatten)]
    pub letter: Letter,
}

/// The file.
#[derive(Clone, Debug, Default)]
pub struct DeadLetters {
    folder: PathBuf,
    path: PathBuf,
    max_bytes: u64,
}

impl DeadLetters {
    /// The file of the sink with this name in a data folder.
    pub fn new(data: &Path, name: &str, max_bytes: u64) -> DeadLetters {
        let folder = data.join(FOLDER);
        DeadLetters { path: folder.join(format!("{name}.jsonl")), folder, max_bytes }
    }

    /// The path of the file, which may not exist.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the file against others until the result is dropped.
    ///
    /// # Errors
    /// Another process has it, or there is no folder.
    pub fn lock(&self) -> io::Result<File> {
        let folder = File::open(&self.folder)?;
        folder.try_lock()?;
        Ok(folder)
    }

    /// Appends letters; they are on disk when this returns. After an error, none of them is there.
    ///
    /// # Errors
    /// The file is full, locked, or cannot be written.
    pub(crate) fn append(&self, letters: &[DeadLetter]) -> io::Result<()> {
        let locked = self.lock()?;
        let lines = lines(letters)?;
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        let size = file.metadata()?.len();
        if size > 0 && size + lines.len() as u64 > self.max_bytes {
            let text = "the file of dead letters is full: correct the mapping and run `fulmar sink retry`, move the \
                        file away, or raise dead_letter_max_bytes";
            return Err(io::Error::other(text));
        }
        let written = file.write_all(&lines).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would spoil the next one.
            file.set_len(size)?;
        }
        written.and_then(|()| locked.sync_all())
    }

    /// Reads all letters; none, if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is damaged.
    pub fn read(&self) -> io::Result<Vec<DeadLetter>> {
        let text = match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let parse = |(number, line)| {
            let wrong = |error| io::Error::other(format!("line {number} is damaged: {error}"));
            serde_json::from_str(line).map_err(wrong)
        };
        (1..).zip(text.lines()).map(parse).collect()
    }

    /// Replaces all letters. The caller has the lock.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn replace(&self, letters: &[DeadLetter]) -> anyhow::Result<()> {
        Ok(fulmar_certs::files::write(&self.path, &lines(letters)?, true)?)
    }
}

fn lines(letters: &[DeadLetter]) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for letter in letters {
        serde_json::to_writer(&mut lines, letter)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapping::tests::letter;

    #[test]
    fn letters_are_bounded_and_survive() {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join(FOLDER)).unwrap();
        let file = DeadLetters::new(data.path(), "a", 300);
        assert_eq!(file.read().unwrap(), []);
        let dead = DeadLetter { reason: "it\nis wrong".into(), letter: letter("t", "\u{0}é") };
        let two = [dead.clone(), dead.clone()];
        file.append(&two).unwrap();
        let full = file.append(&two).unwrap_err().to_string();
        assert!(full.contains("fulmar sink retry"), "{full}");
        assert_eq!(file.read().unwrap(), two);
        let locked = file.lock().unwrap();
        assert!(file.append(&[]).is_err(), "two change it at the same time");
        file.replace(&two[1..]).unwrap();
        drop(locked);
        assert_eq!(file.read().unwrap(), two[1..]);
        // A letter that is larger than the bound is not lost: it is alone.
        let small = DeadLetters::new(data.path(), "b", 1);
        small.append(&two[1..]).unwrap();
        assert!(small.append(&two[1..]).is_err());
    }
}

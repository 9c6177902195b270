//! The dead letters of a sink: messages that its target can never accept in their form, for the operator. `NAME.jsonl` in
//! the folder `sinks` of the data folder has one JSON object per line; its size is bounded, and what has no room waits.
//! Server and command change it in turn: who does has a lock of `NAME.lock` beside it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
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
        let path = self.path.with_extension("lock");
        let mut options = OpenOptions::new();
        let file = match options.read(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                options.write(true).create(true).mode(0o600).open(&path)?
            }
            file => file?,
        };
        file.try_lock()?;
        Ok(file)
    }

    /// Appends letters; they are on disk when this returns. After an error, none of them is there.
    ///
    /// # Errors
    /// The file is full, locked, or cannot be written.
    pub(crate) fn append(&self, letters: &[DeadLetter]) -> io::Result<()> {
        let _locked = self.lock()?;
        let lines = lines(letters)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(&self.path)?;
        let size = remove_half_line(&file)?;
        if size > 0 && size + lines.len() as u64 > self.max_bytes {
            let text = "the file of dead letters is full: correct the mapping and run `fulmar sink retry`, move the \
                        file away, or raise dead_letter_max_bytes";
            return Err(io::Error::other(text));
        }
        let folder = File::open(&self.folder)?;
        let written = file.write_all(&lines).and_then(|()| file.sync_data());
        let written = written.and_then(|()| folder.sync_all());
        if written.is_err() {
            // Half a line would spoil the next one.
            file.set_len(size)?;
        }
        written
    }

    /// Reads all letters; none, if there is a folder without the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is damaged.
    pub fn read(&self) -> io::Result<Vec<DeadLetter>> {
        let bytes = match std::fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.folder.is_dir() => {
                return Ok(Vec::new());
            }
            bytes => bytes?,
        };
        let parse = |(number, line)| {
            let wrong = |error| io::Error::other(format!("line {number} is damaged: {error}"));
            serde_json::from_str(line).map_err(wrong)
        };
        // Behind the last line feed is what a process that was killed has written of a line.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let whole = String::from_utf8_lossy(&bytes[..end]);
        (1..).zip(whole.lines()).map(parse).collect()
    }

    /// Replaces all letters. The caller has the lock.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn replace(&self, letters: &[DeadLetter]) -> anyhow::Result<()> {
        Ok(fulmar_certs::files::write(&self.path, &lines(letters)?, true)?)
    }
}

/// Removes what a process that was killed has written of a line: its message comes again. Returns the file's size.
fn remove_half_line(file: &File) -> io::Result<u64> {
    let (size, mut last) = (file.metadata()?.len(), [b'\n']);
    if size > 0 {
        file.read_exact_at(&mut last, size - 1)?;
    }
    if last == [b'\n'] {
        return Ok(size);
    }
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut text, 0)?;
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
    file.set_len(end)?;
    Ok(end)
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
        // A process that was killed has left half a line.
        let mut half = OpenOptions::new().append(true).open(file.path()).unwrap();
        half.write_all(b"{\"reason\":").unwrap();
        assert_eq!(file.read().unwrap(), two[1..]);
        file.append(&two[1..]).unwrap();
        assert_eq!(file.read().unwrap(), two);
        // A letter that is larger than the bound is not lost: it is alone.
        let small = DeadLetters::new(data.path(), "b", 1);
        small.append(&two[1..]).unwrap();
        assert!(small.append(&two[1..]).is_err());
    }
}

//! Received objects become files of a folder.
//!
//! While an object is on its way it is in a hidden file there. It gets its name when it is whole, its SHA-256
//! is what the sender said, and it is on the disk; under that name there is never anything else. A file
//! that had the name before is replaced.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fulmar_bulk::{ObjectKey, Storage};
use ring::digest::{Context, SHA256};

use super::manifest::{Hash, Manifest};

/// Bytes hashed at a time.
const PIECE: usize = 1 << 16;

/// A file that is complete.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) hash: Hash,
    /// The sender said what the hash should be.
    pub(super) verified: bool,
}

struct Part {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Context,
    hashed: u64,
}

impl Part {
    /// Hashes what is done up to there.
    fn hash_to(&mut self, end: u64) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        while self.hashed < end {
            let length = usize::try_from(end - self.hashed).unwrap_or(PIECE).min(PIECE);
            self.file.read_exact_at(&mut piece[..length], self.hashed)?;
            self.hash.update(&piece[..length]);
            self.hashed += length as u64;
        }
        Ok(())
    }
}

/// The folder, what is on its way into it and what has come.
pub(super) struct Files {
    folder: PathBuf,
    parts: HashMap<ObjectKey, Part>,
    pub(super) received: Vec<Received>,
}

impl Files {
    pub(super) fn new(folder: &Path) -> Files {
        Files { folder: folder.to_owned(), parts: HashMap::new(), received: Vec::new() }
    }

    fn part(&mut self, object: ObjectKey) -> io::Result<&mut Part> {
        self.parts.get_mut(&object).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn complete(&self, mut part: Part, info: &[u8]) -> io::Result<Received> {
        part.hash_to(part.bytes)?;
        let digest = part.hash.clone().finish();
        let hash = Hash(digest.as_ref().try_into().map_err(io::Error::other)?);
        let manifest = Manifest::decode(info).map_err(io::Error::other)?;
        if manifest.hash.is_some_and(|expected| expected != hash) {
            let text = format!("{} arrived with another SHA-256 than it left", manifest.name);
            return Err(io::Error::other(text));
        }
        part.file.sync_all()?;
        let path = self.folder.join(&manifest.name);
        fs::rename(&part.path, &path)?;
        File::open(&self.folder)?.sync_all()?;
        Ok(Received { path, bytes: part.bytes, hash, verified: manifest.hash.is_some() })
    }
}

impl Storage for Files {
    fn open(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()> {
        let ObjectKey { sender, instance, object: number } = object;
        let name = format!(".fulmar-{sender:08x}-{instance:04x}-{number}.part");
        let path = self.folder.join(name);
        let file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path)?;
        // Holes take no room, so a lie about the length costs nothing.
        file.set_len(bytes)?;
        let part = Part { path, file, bytes, hash: Context::new(&SHA256), hashed: 0 };
        self.parts.insert(object, part);
        Ok(())
    }

    fn write(&mut self, object: ObjectKey, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.part(object)?.file.write_all_at(bytes, offset)
    }

    fn read(&mut self, object: ObjectKey, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.part(object)?.file.read_exact_at(to, offset)
    }

    fn advance(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()> {
        self.part(object)?.hash_to(bytes)
    }

    fn finish(&mut self, object: ObjectKey, info: &[u8]) -> io::Result<()> {
        let part = self.parts.remove(&object).ok_or(io::ErrorKind::NotFound)?;
        let path = part.path.clone();
        let received = self.complete(part, info).inspect_err(|_| discard(&path))?;
        self.received.push(received);
        Ok(())
    }

    fn abandon(&mut self, object: ObjectKey) {
        if let Some(part) = self.parts.remove(&object) {
            discard(&part.path);
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.parts.values().for_each(|part| discard(&part.path));
    }
}

fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "what had come of a file stays");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEY: ObjectKey = ObjectKey { sender: 1, instance: 2, object: 3 };

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn sha256(bytes: &[u8]) -> Hash {
        Hash(ring::digest::digest(&SHA256, bytes).as_ref().try_into().unwrap())
    }

    #[test]
    fn a_file_gets_its_name_only_when_it_is_whole_and_right() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path());
        for (hash, name) in [(sha256(b"abc"), "right"), (sha256(b"abd"), "wrong")] {
            files.open(KEY, 3).unwrap();
            files.write(KEY, 2, b"c").unwrap();
            files.write(KEY, 0, b"ab").unwrap();
            files.advance(KEY, 2).unwrap();
            assert!(!names(folder.path()).contains(&name.to_owned()));
            let manifest = Manifest { name: name.into(), hash: Some(hash) };
            assert_eq!(files.finish(KEY, &manifest.encode()).is_ok(), name == "right");
        }
        assert_eq!(names(folder.path()), ["right"], "nothing is left behind");
        assert_eq!(fs::read(folder.path().join("right")).unwrap(), b"abc");
        assert!(files.received[0].verified);
    }

    #[test]
    fn what_is_under_way_goes_with_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path());
        files.open(KEY, 1 << 40).unwrap();
        assert_eq!(names(folder.path()).len(), 1);
        drop(files);
        assert!(names(folder.path()).is_empty());
    }
}

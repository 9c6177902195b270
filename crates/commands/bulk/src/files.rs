//! Stores received objects as files in a folder.
//!
//! While an object is being received, it is in a hidden file in the folder. It gets its name when it is complete, has
//! the SHA-256 that the sender announced, and is on the disk; incomplete files never have that name. An earlier file
//! of that name is replaced. An interrupted file stays hidden for a later run if its SHA-256 is known and at least
//! one block is complete (`state`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fulmar_bulk::{NodeId, ObjectKey, Partition, Storage};
use ring::digest::{Context, SHA256};

use super::manifest::{Hash, Manifest};
use super::state::{self, State};
use super::symlink_safe;

/// Bytes hashed at a time.
const PIECE: usize = 1 << 16;

/// A file that is complete.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) hash: Hash,
    /// Whether the sender announced the hash.
    pub(super) verified: bool,
}

struct Part {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Context,
    hashed: u64,
    /// The paths of this file and its list, if it can be kept for a later run.
    places: Option<[PathBuf; 2]>,
    /// The state for a later run.
    state: Option<State>,
}

impl Part {
    fn new(path: PathBuf, file: File, bytes: u64) -> Part {
        let hash = Context::new(&SHA256);
        Part { path, file, bytes, hash, hashed: 0, places: None, state: None }
    }

    /// Hashes the complete bytes up to `end`.
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

/// The folder, the files that are being received and those that are complete.
pub(super) struct Files {
    folder: PathBuf,
    /// The receiver's identity, with which a later run continues.
    node: NodeId,
    parts: HashMap<ObjectKey, Part>,
    /// The only file to accept, if one was announced.
    expected: Option<Manifest>,
    pub(super) received: Vec<Received>,
}

impl Files {
    pub(super) fn new(folder: &Path, node: NodeId, expected: Option<Manifest>) -> Files {
        let (folder, parts) = (folder.to_owned(), HashMap::new());
        Files { folder, node, parts, expected, received: Vec::new() }
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
            let text = format!("{}: SHA-256 differs from the sender's", manifest.name);
            return Err(io::Error::other(text));
        }
        if self
            .expected
            .as_ref()
            .is_some_and(|expected| expected.name != manifest.name || expected.hash != Some(hash))
        {
            let text = format!("{} is not the announced file", manifest.name);
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
        let name = format!("{}{sender:08x}-{instance:04x}-{number}.part", symlink_safe::PREFIX);
        let path = self.folder.join(name);
        let file = symlink_safe::create(&path)?;
        state::try_lock(&file);
        // A sparse file takes no room, so a false length costs nothing.
        file.set_len(bytes)?;
        self.parts.insert(object, Part::new(path, file, bytes));
        Ok(())
    }

    fn identify(
        &mut self,
        object: ObjectKey,
        info: &[u8],
        parts: &Partition,
    ) -> io::Result<Vec<u32>> {
        // Without a hash, it would be unknown at the end whether the parts were of the same file.
        let whole = Manifest::decode(info).is_ok_and(|manifest| manifest.hash.is_some());
        if !whole || parts.blocks() == 0 {
            return Ok(Vec::new());
        }
        let [path, list] = state::places(&self.folder, info, parts);
        let part = self.part(object)?;
        if let Ok(file) = symlink_safe::reopen(&path) {
            if !state::try_lock(&file) {
                // Another process is receiving it; this one receives it without the earlier blocks.
                return Ok(Vec::new());
            }
            let same = file.metadata()?.len() == parts.bytes();
            let earlier = if same { State::open(list.clone(), &file, parts)? } else { None };
            if let Some((state, kept)) = earlier.filter(|(_, kept)| !kept.is_empty()) {
                discard(&part.path);
                *part = Part { state: Some(state), ..Part::new(path, file, parts.bytes()) };
                return Ok(kept);
            }
            discard(&path);
        }
        // Files are only kept once data has arrived, not for an announcement.
        part.places = Some([path, list]);
        Ok(Vec::new())
    }

    fn block_complete(
        &mut self,
        object: ObjectKey,
        parts: &Partition,
        block: u32,
    ) -> io::Result<()> {
        let node = self.node;
        let part = self.part(object)?;
        if let Some([path, list]) = part.places.take() {
            if fs::symlink_metadata(&path).is_ok() {
                // Another process has begun it in the meantime.
                return Ok(());
            }
            fs::rename(&part.path, &path)?;
            part.path = path;
            part.state = Some(State::create(list, node)?);
            state::prune(&self.folder, "state")?;
        }
        let Part { state, file, .. } = self.part(object)?;
        state.as_mut().map_or(Ok(()), |state| state.record_block(file, parts, block))
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
        let (path, state) =
            (part.path.clone(), part.state.as_ref().map(|state| state.path.clone()));
        let outcome = self.complete(part, info).inspect_err(|_| discard(&path));
        // A list of blocks that no longer exist would be useless.
        state.iter().for_each(|path| discard(path));
        self.received.push(outcome?);
        Ok(())
    }

    fn abandon(&mut self, object: ObjectKey) {
        self.parts.remove(&object).iter().for_each(leave);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.parts.values().for_each(leave);
    }
}

/// Files with a list of blocks stay for a later run.
fn leave(part: &Part) {
    if part.state.is_none() {
        discard(&part.path);
    }
}

fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove an incomplete file");
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
        let mut files = Files::new(folder.path(), 7, None);
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
    fn only_what_was_announced_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let announced = Manifest { name: "fw".into(), hash: Some(sha256(b"abc")) };
        let mut files = Files::new(folder.path(), 7, Some(announced.clone()));
        let other = Manifest { name: "fw".into(), hash: Some(sha256(b"abd")) };
        let renamed = Manifest { name: "other".into(), ..announced.clone() };
        for (manifest, bytes) in [(other, b"abd"), (renamed, b"abc"), (announced, b"abc")] {
            files.open(KEY, 3).unwrap();
            files.write(KEY, 0, bytes).unwrap();
            let right = manifest.name == "fw" && bytes == b"abc";
            assert_eq!(files.finish(KEY, &manifest.encode()).is_ok(), right);
        }
        assert_eq!(names(folder.path()), ["fw"]);
    }

    #[test]
    fn what_was_interrupted_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Partition::new(6, 1, 2).unwrap();
        let manifest = Manifest { name: "file".into(), hash: Some(sha256(b"abcdef")) };
        let info = manifest.encode();
        let mut files = Files::new(folder.path(), 7, None);
        files.open(KEY, 6).unwrap();
        assert!(files.identify(KEY, &info, &parts).unwrap().is_empty());
        files.write(KEY, 2, b"cd").unwrap();
        files.block_complete(KEY, &parts, 1).unwrap();
        drop(files);
        assert_eq!(state::interrupted(folder.path()).unwrap(), Some(7));

        let mut files = Files::new(folder.path(), 7, None);
        let again = ObjectKey { instance: 9, ..KEY };
        files.open(again, 6).unwrap();
        assert_eq!(files.identify(again, &info, &parts).unwrap(), [1]);
        files.write(again, 0, b"ab").unwrap();
        files.write(again, 4, b"ef").unwrap();
        files.advance(again, 6).unwrap();
        files.finish(again, &info).unwrap();
        assert_eq!(names(folder.path()), ["file"], "nothing is left behind");
        assert_eq!(state::interrupted(folder.path()).unwrap(), None);
    }

    #[test]
    fn what_is_only_announced_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Partition::new(6, 1, 2).unwrap();
        let mut files = Files::new(folder.path(), 7, None);
        for object in 0..100 {
            let key = ObjectKey { object, ..KEY };
            let manifest =
                Manifest { name: format!("forged {object}"), hash: Some(sha256(b"abcdef")) };
            files.open(key, 6).unwrap();
            files.identify(key, &manifest.encode(), &parts).unwrap();
            files.abandon(key);
        }
        assert!(names(folder.path()).is_empty());
        // Few of the files of which one block was sent are kept.
        for object in 0..100 {
            let key = ObjectKey { object, ..KEY };
            let manifest =
                Manifest { name: format!("forged {object}"), hash: Some(sha256(b"abcdef")) };
            files.open(key, 6).unwrap();
            files.identify(key, &manifest.encode(), &parts).unwrap();
            files.write(key, 0, b"xx").unwrap();
            files.block_complete(key, &parts, 0).unwrap();
            files.abandon(key);
        }
        assert!(names(folder.path()).len() <= 34, "{}", names(folder.path()).len());
    }

    #[test]
    fn a_link_in_the_folder_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        fs::write(elsewhere.path(), "as it was").unwrap();
        let parts = Partition::new(6, 1, 2).unwrap();
        let info = Manifest { name: "f".into(), hash: Some(sha256(b"abcdef")) }.encode();
        let [part, list] = state::places(folder.path(), &info, &parts);
        let first = folder.path().join(".fulmar-00000001-0002-3.part");
        for link in [&part, &list, &first] {
            std::os::unix::fs::symlink(elsewhere.path(), link).unwrap();
        }
        let mut files = Files::new(folder.path(), 7, None);
        files.open(KEY, 6).unwrap();
        files.identify(KEY, &info, &parts).unwrap();
        for (offset, bytes) in [(0, b"ab"), (2, b"cd"), (4, b"ef")] {
            files.write(KEY, offset, bytes).unwrap();
            files.block_complete(KEY, &parts, u32::try_from(offset / 2).unwrap()).unwrap();
        }
        files.finish(KEY, &info).unwrap();
        assert_eq!(fs::read(elsewhere.path()).unwrap(), b"as it was");
        assert_eq!(fs::read(folder.path().join("f")).unwrap(), b"abcdef");
    }

    #[test]
    fn what_is_under_way_goes_with_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path(), 7, None);
        files.open(KEY, 1 << 40).unwrap();
        assert_eq!(names(folder.path()).len(), 1);
        drop(files);
        assert!(names(folder.path()).is_empty());
    }
}

//! The state of incomplete files for a later run: next to the hidden file is a list of its complete blocks, each with
//! a hash, so that only unchanged blocks count.
//!
//! The list is appended to and never synced: hashes show what a machine's crash has lost of either file. The whole
//! file is verified by its SHA-256 at the end all the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fulmar_bulk::{NodeId, Partition};
use fulmar_text::hex;
use ring::digest::{SHA256, digest};

use super::symlink_safe;

const MAGIC: &[u8; 12] = b"fulmar-part1";
const HEADER_BYTES: usize = MAGIC.len() + 4;
const HASH_BYTES: usize = 16;
const RECORD_BYTES: usize = 4 + HASH_BYTES;
/// The longest possible list: the receiver accepts no object with more blocks.
const MAX_BYTES: u64 = (HEADER_BYTES + (RECORD_BYTES << 20) * 2) as u64;
/// The most files kept for a later run: those with the most bytes.
const MAX_KEPT: usize = 16;
/// Files that were not continued for this long are removed.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// A list of whole blocks.
pub(super) struct State {
    pub(super) path: PathBuf,
    file: File,
}

impl State {
    /// Creates a list.
    pub(super) fn create(path: PathBuf, node: NodeId) -> io::Result<State> {
        let mut file = symlink_safe::create(&path)?;
        file.write_all(&[&MAGIC[..], &node.to_be_bytes()].concat())?;
        Ok(State { path, file })
    }

    /// Opens a list if there is one, and checks which blocks in `part` are unchanged.
    pub(super) fn open(
        path: PathBuf,
        part: &File,
        parts: &Partition,
    ) -> io::Result<Option<(State, Vec<u32>)>> {
        let mut file = match symlink_safe::reopen(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let length = file.metadata()?.len();
        if length > MAX_BYTES || read_node(&file).is_none() {
            return Ok(None);
        }
        // A truncated record would misalign all later ones.
        let whole = (length as usize - HEADER_BYTES) / RECORD_BYTES * RECORD_BYTES;
        file.set_len((HEADER_BYTES + whole) as u64)?;
        file.seek(SeekFrom::End(0))?;
        let mut list = vec![0; whole];
        file.read_exact_at(&mut list, HEADER_BYTES as u64)?;
        let mut last = BTreeMap::new();
        for record in list.as_chunks::<RECORD_BYTES>().0 {
            let [a, b, c, d, hash @ ..] = *record;
            last.insert(u32::from_be_bytes([a, b, c, d]), hash);
        }
        last.retain(|&block, hash| hash_of(part, parts, block).is_ok_and(|now| now == *hash));
        Ok(Some((State { path, file }, last.into_keys().collect())))
    }

    /// Records a complete block.
    pub(super) fn record_block(
        &mut self,
        part: &File,
        parts: &Partition,
        block: u32,
    ) -> io::Result<()> {
        let hash = hash_of(part, parts, block)?;
        self.file.write_all(&[&block.to_be_bytes()[..], &hash].concat())
    }
}

fn hash_of(part: &File, parts: &Partition, block: u32) -> io::Result<[u8; HASH_BYTES]> {
    if block >= parts.blocks() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; parts.block_bytes(block)];
    part.read_exact_at(&mut bytes, parts.offset(block))?;
    let hash = digest(&SHA256, &bytes);
    hash.as_ref()[..HASH_BYTES].try_into().map_err(io::Error::other)
}

fn read_node(file: &File) -> Option<NodeId> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).ok()?;
    let node = header.strip_prefix(MAGIC)?;
    Some(NodeId::from_be_bytes(node.try_into().ok()?)).filter(|&node| (1..u32::MAX).contains(&node))
}

/// The paths of the two hidden files of an object, the same in each run.
pub(super) fn places(folder: &Path, info: &[u8], parts: &Partition) -> [PathBuf; 2] {
    let shape = [parts.bytes(), parts.symbol_bytes().into(), parts.blocks().into()];
    let bytes: Vec<u8> =
        shape.into_iter().flat_map(u64::to_be_bytes).chain(info.to_vec()).collect();
    let hash = digest(&SHA256, &bytes);
    let name = hex::encode(&hash.as_ref()[..12]);
    ["part", "state"].map(|kind| folder.join(format!("{}{name}.{kind}", symlink_safe::PREFIX)))
}

/// Locks the file; returns false if another process has it.
pub(super) fn try_lock(part: &File) -> bool {
    part.try_lock().is_ok()
}

/// Checks the files that earlier runs left in a folder: removes old, superfluous and useless ones, and returns the
/// identity of an interrupted receiver, for which its sender still waits.
pub(super) fn interrupted(folder: &Path) -> io::Result<Option<NodeId>> {
    for part in hidden(folder, "part")? {
        if is_free(&part) && fs::symlink_metadata(part.with_extension("state")).is_err() {
            remove(&part)?;
        }
    }
    prune(folder, "state")?;
    let mut lists = hidden(folder, "state")?.into_iter().filter(|list| is_free(list));
    Ok(lists.find_map(|list| symlink_safe::reopen(&list).ok().and_then(|file| read_node(&file))))
}

/// Removes old or superfluous files of a kind that are kept for a later run, lists of blocks together with their
/// files. Unknown senders may have begun any number: the files with the most bytes stay.
pub(super) fn prune(folder: &Path, kind: &str) -> io::Result<()> {
    let mut kept = Vec::new();
    for path in hidden(folder, kind)?.into_iter().filter(|path| is_free(path)) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let changed = metadata.modified()?;
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        if age > KEEP {
            remove(&path)?;
        } else {
            kept.push((metadata.len(), changed, path));
        }
    }
    kept.sort();
    let surplus = kept.len().saturating_sub(MAX_KEPT);
    kept.iter().take(surplus).try_for_each(|(_, _, path)| remove(path))
}

/// The hidden files of a kind.
fn hidden(folder: &Path, kind: &str) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(symlink_safe::PREFIX)
            && path.extension().is_some_and(|extension| extension == kind)
        {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Whether no process has locked a file, or a list's file.
fn is_free(path: &Path) -> bool {
    let is_list = path.extension().is_some_and(|kind| kind == "state");
    let file = if is_list { path.with_extension("part") } else { path.to_owned() };
    symlink_safe::reopen(&file).map_or(true, |file| try_lock(&file))
}

/// Removes a file, for a list together with its file. Another process may have done so already.
fn remove(path: &Path) -> io::Result<()> {
    let part = path.extension().is_some_and(|kind| kind == "state");
    let paths = part.then(|| path.with_extension("part"));
    for path in paths.iter().map(PathBuf::as_path).chain([path]) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_are_as_they_were_count() {
        let folder = tempfile::tempdir().unwrap();
        let [part, state] = ["part", "state"].map(|name| folder.path().join(name));
        let parts = Partition::new(40, 4, 2).unwrap();
        fs::write(&part, [7; 40]).unwrap();
        let file = symlink_safe::reopen(&part).unwrap();
        let mut list = State::create(state.clone(), 9).unwrap();
        for block in [0, 1, 3] {
            list.record_block(&file, &parts, block).unwrap();
        }
        drop(list);
        // A byte of block 1 changes; the list's end is lost.
        file.write_all_at(b"x", 9).unwrap();
        let mut cut = fs::OpenOptions::new().append(true).open(&state).unwrap();
        cut.write_all(b"cut").unwrap();
        let (mut list, kept) = State::open(state.clone(), &file, &parts).unwrap().unwrap();
        assert_eq!(kept, [0, 3]);
        list.record_block(&file, &parts, 1).unwrap();
        let (_, kept) = State::open(state.clone(), &file, &parts).unwrap().unwrap();
        assert_eq!(kept, [0, 1, 3], "the later record counts, and none is out of step");
        fs::write(&state, "anything").unwrap();
        assert!(State::open(state, &file, &parts).unwrap().is_none());
    }

    #[test]
    fn little_is_kept_and_of_that_what_most_has_come_of() {
        let folder = tempfile::tempdir().unwrap();
        let pair = |name: &str| {
            ["part", "state"].map(|kind| folder.path().join(format!(".fulmar-{name}.{kind}")))
        };
        let mut held = Vec::new();
        for number in 0..3 * MAX_KEPT {
            let [part, state] = pair(&number.to_string());
            let file = symlink_safe::create(&part).unwrap();
            State::create(state, 9).unwrap();
            if number == 0 {
                // Another process is receiving it.
                assert!(try_lock(&file));
                held.push(file);
            }
        }
        let [part, state] = pair("honest");
        symlink_safe::create(&part).unwrap();
        let mut list = State::create(state, 7).unwrap();
        list.file.write_all(&[0; RECORD_BYTES]).unwrap();
        // A crash left the file before it had a list.
        symlink_safe::create(&pair("crashed")[0]).unwrap();
        interrupted(folder.path()).unwrap();
        assert_eq!(hidden(folder.path(), "state").unwrap().len(), MAX_KEPT + 1);
        assert_eq!(hidden(folder.path(), "part").unwrap().len(), MAX_KEPT + 1);
        assert!(part.exists() && pair("0")[0].exists());
    }
}

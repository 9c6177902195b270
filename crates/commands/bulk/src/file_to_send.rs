//! Files to send: opened and hashed, with the manifest that is sent with them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use fulmar_bulk::Source;
use ring::digest;
use serde_json::{Value, json};

use super::manifest::{Hash, Manifest, check_name};
use crate::exit::Usage;

/// Bytes hashed at a time.
const PIECE: usize = 1 << 16;

/// A file's bytes.
pub(super) struct FileSource(pub(super) File);

impl Source for FileSource {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(to, offset)
    }
}

pub(super) struct FileToSend {
    pub(super) source: FileSource,
    pub(super) bytes: u64,
    pub(super) manifest: Manifest,
    pub(super) hash: Hash,
}

impl FileToSend {
    /// Opens and hashes a file.
    pub(super) fn open(path: &Path) -> anyhow::Result<FileToSend> {
        let shown = || path.display().to_string();
        let name = path.file_name().unwrap_or_default().to_str().ok_or("its name is not UTF-8");
        let name = name.and_then(|name| check_name(name).map(|()| name));
        let name = name.map_err(|reason| Usage(format!("{}: {reason}", shown())))?;
        // Opening a pipe would wait for its other end.
        let kind = std::fs::metadata(path).with_context(shown)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Usage(format!("{}: neither a file nor a block device", shown())).into());
        }
        let opened = File::open(path).and_then(|file| Ok((hash(&file)?, file)));
        let ((bytes, hash), file) = opened.with_context(shown)?;
        let manifest = Manifest { name: name.to_owned(), hash: Some(hash) };
        Ok(FileToSend { source: FileSource(file), bytes, manifest, hash })
    }

    /// The same file, for another reader.
    pub(super) fn again(&self) -> io::Result<FileToSend> {
        let (source, manifest) = (FileSource(self.source.0.try_clone()?), self.manifest.clone());
        Ok(FileToSend { source, manifest, ..*self })
    }

    /// Returns the file's entry in the final report.
    pub(super) fn told(&self) -> Value {
        let (name, sha256) = (&self.manifest.name, self.hash.to_string());
        json!({ "name": name, "bytes": self.bytes, "sha256": sha256 })
    }
}

/// Opens files, which must have different names; for a folder, the files in it.
pub(super) fn open_all(paths: &[PathBuf]) -> anyhow::Result<Vec<FileToSend>> {
    let (mut names, mut files) = (HashSet::new(), Vec::new());
    for path in &expand(paths)? {
        let file = FileToSend::open(path)?;
        if !names.insert(file.manifest.name.clone()) {
            return Err(Usage(format!("two files have the name {}", file.manifest.name)).into());
        }
        files.push(file);
    }
    Ok(files)
}

/// The given paths, with folders replaced by their files in order of name. Receivers keep files in one folder, so
/// subfolders and hidden files are not sent.
fn expand(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let shown = || path.display().to_string();
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).with_context(shown)? {
            let entry = entry.with_context(shown)?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            match entry.path() {
                _ if hidden => {}
                folder if folder.is_dir() => {
                    tracing::warn!(folder = %folder.display(), "not sent: a subfolder");
                }
                file => inside.push(file),
            }
        }
        if inside.is_empty() {
            return Err(Usage(format!("{}: no files to send in this folder", shown())).into());
        }
        inside.sort();
        all.append(&mut inside);
    }
    Ok(all)
}

/// A file's length and SHA-256.
pub(super) fn hash(file: &File) -> io::Result<(u64, Hash)> {
    let mut bytes = file.metadata()?.len();
    if bytes == 0 {
        // So it is of a block device, which has an end, and of what the kernel writes when it is read, such as /proc/version.
        bytes = (&mut &*file).seek(SeekFrom::End(0)).unwrap_or(0);
        if bytes == 0 && file.read_at(&mut [0], 0)? > 0 {
            return Err(io::Error::other("its length is unknown; copy it into a file first"));
        }
    }
    let mut context = digest::Context::new(&digest::SHA256);
    let (mut at, mut piece) = (0, vec![0; PIECE]);
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
        file.read_exact_at(&mut piece[..length], at)?;
        context.update(&piece[..length]);
        at += length as u64;
    }
    let hash = context.finish().as_ref().try_into().map_err(io::Error::other)?;
    Ok((bytes, Hash(hash)))
}

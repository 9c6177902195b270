//! Files to send: opened and hashed, with the manifest that is sent with them.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
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

/// A file to send.
pub(super) struct FileToSend {
    pub(super) source: FileSource,
    pub(super) bytes: u64,
    pub(super) manifest: Manifest,
    pub(super) hash: Hash,
}

impl FileToSend {
    /// Opens and hashes a file.
    pub(super) fn open(path: &Path) -> anyhow::Result<FileToSend> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        check_name(name).map_err(|reason| Usage(format!("{}: {reason}", path.display())))?;
        let opened = File::open(path).and_then(|file| Ok((hash(&file)?, file)));
        let ((bytes, hash), file) = opened.with_context(|| path.display().to_string())?;
        let manifest = Manifest { name: name.to_owned(), hash: Some(hash) };
        Ok(FileToSend { source: FileSource(file), bytes, manifest, hash })
    }

    /// The same file, for another reader.
    pub(super) fn again(&self) -> io::Result<FileToSend> {
        let (source, manifest) = (FileSource(self.source.0.try_clone()?), self.manifest.clone());
        Ok(FileToSend { source, manifest, ..*self })
    }

    /// Its entry in the final report.
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
    let bytes = file.metadata()?.len();
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

//! Backups: a tar archive whose first file lists the others with their sizes and digests.
//!
//! An archive is restored into a folder that does not exist or is empty: beside it first, and under its name only when
//! everything is there and right.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use fulmar_text::hex;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, EntryType, Header};

/// The name of the list.
const MANIFEST: &str = "MANIFEST.json";
/// The form of archives that this version writes and reads.
const FORMAT: u32 = 1;
/// Bytes of a list at most.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Contents of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of the archive.
    format: u32,
    /// The version of Fulmar that wrote it.
    pub version: String,
    /// When, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// Descriptions of what is not in it.
    pub left_out: Vec<String>,
    /// The files by their path in the data folder.
    files: BTreeMap<String, Listed>,
}

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    bytes: u64,
    sha256: String,
}

/// Why an archive is not restored. The folder is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The folder has something in it.
    #[error(
        "{0} is not empty: restore into another folder; or stop the broker that uses this one, and move it away"
    )]
    NotEmpty(String),
    /// It is no archive of Fulmar.
    #[error("this is not a backup of Fulmar: {0}")]
    NotABackup(String),
    /// A newer version wrote it.
    #[error("Fulmar {0} wrote this backup in a newer form: restore it with that version")]
    Newer(String),
    /// It is incomplete or was changed.
    #[error("the backup is damaged: {0}; use another one")]
    Damaged(String),
}

fn files(folder: &Path, below: &str, found: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = if below.is_empty() { name } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files(&entry.path(), &name, found)?;
        } else if kind.is_file() {
            found.insert(name, entry.path());
        }
    }
    Ok(())
}

fn digest(mut from: impl Read, mut to: impl Write) -> io::Result<Listed> {
    let (mut context, mut bytes, mut piece) = (Context::new(&SHA256), 0, vec![0; 64 << 10]);
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        context.update(&piece[..length]);
        to.write_all(&piece[..length])?;
        bytes += length as u64;
    }
    Ok(Listed { bytes, sha256: hex::encode(context.finish().as_ref()) })
}

/// Writes an archive of all files of a folder, which nobody changes meanwhile.
pub(crate) fn write(
    folder: &Path,
    version: &str,
    created_ms: i64,
    left_out: Vec<String>,
    to: impl Write,
) -> io::Result<()> {
    let mut paths = BTreeMap::new();
    files(folder, "", &mut paths)?;
    let mut listed = BTreeMap::new();
    for (name, path) in &paths {
        listed.insert(name.clone(), digest(File::open(path)?, io::sink())?);
    }
    let manifest = Manifest {
        format: FORMAT,
        version: version.to_owned(),
        created_ms,
        left_out,
        files: listed,
    };
    let text = serde_json::to_vec_pretty(&manifest)?;
    let mut archive = Builder::new(to);
    let header = |bytes: u64| {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(created_ms / 1000).unwrap_or(0));
        header.set_size(bytes);
        header
    };
    archive.append_data(&mut header(text.len() as u64), MANIFEST, &*text)?;
    for (name, path) in &paths {
        let bytes = manifest.files[name].bytes;
        archive.append_data(&mut header(bytes), name, File::open(path)?.take(bytes))?;
    }
    archive.into_inner()?.flush()
}

/// Restores an archive into a data folder, and returns what is in it.
///
/// # Errors
/// [`RestoreError`]; the folder is as it was.
pub fn restore(archive: &Path, data: &Path) -> Result<Manifest, RestoreError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| RestoreError::Io { path: path.clone(), source }
    };
    match fs::read_dir(data).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return Err(RestoreError::NotEmpty(data.display().to_string())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(data)(error)),
        _ => {}
    }
    let file = File::open(archive).map_err(failed(archive))?;
    let name = data.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let beside = data.with_file_name(format!(".{name}.restoring-{}", std::process::id()));
    if let Some(above) = data.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).map_err(failed(above))?;
    }
    fs::DirBuilder::new().mode(0o700).create(&beside).map_err(failed(&beside))?;
    let outcome = unpack(file, &beside).and_then(|manifest| {
        // Only an empty folder is replaced.
        fs::rename(&beside, data).map_err(failed(data))?;
        Ok(manifest)
    });
    if outcome.is_err() {
        // Nothing there is of use, and the error that matters is the first one.
        let _ = fs::remove_dir_all(&beside);
    }
    outcome
}

fn unpack(file: File, folder: &Path) -> Result<Manifest, RestoreError> {
    let broken = |error: io::Error| RestoreError::Damaged(error.to_string());
    let foreign = |why: &str| RestoreError::NotABackup(why.to_owned());
    let mut archive = Archive::new(io::BufReader::new(file));
    let mut entries = archive.entries().map_err(|error| foreign(&error.to_string()))?;
    let first = entries.next().ok_or_else(|| foreign("it is empty"))?;
    let mut first = first.map_err(|error| foreign(&error.to_string()))?;
    if first.path().map_err(broken)? != Path::new(MANIFEST) {
        return Err(foreign(&format!("its first file is not {MANIFEST}")));
    }
    let mut text = Vec::new();
    first.by_ref().take(MAX_MANIFEST_BYTES).read_to_end(&mut text).map_err(broken)?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| RestoreError::Damaged(error.to_string()))?;
    if manifest.format > FORMAT {
        return Err(RestoreError::Newer(manifest.version));
    }
    let mut missing: BTreeMap<&str, &Listed> =
        manifest.files.iter().map(|(name, listed)| (name.as_str(), listed)).collect();
    for entry in entries {
        let entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        let name = path.to_string_lossy().into_owned();
        let expected = missing.remove(name.as_str());
        let expected = expected
            .filter(|_| entry.header().entry_type() == EntryType::Regular && is_inside(&path))
            .ok_or_else(|| RestoreError::Damaged(format!("{name:?} is not in its list")))?;
        if *expected != write_entry(entry, &folder.join(&path))? {
            return Err(RestoreError::Damaged(format!(
                "{name} has another checksum than its list says"
            )));
        }
    }
    match missing.keys().next() {
        Some(name) => Err(RestoreError::Damaged(format!("{name} is missing"))),
        None => Ok(manifest),
    }
}

/// Whether a path stays within the folder to which it is relative.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn write_entry(entry: impl Read, path: &Path) -> Result<Listed, RestoreError> {
    let failed = |source| RestoreError::Io { path: path.display().to_string(), source };
    if let Some(above) = path.parent() {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(above).map_err(failed)?;
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let listed = digest(entry, &mut file).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(listed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn archive(folder: &Path) -> Vec<u8> {
        let from = folder.join("from");
        fs::create_dir_all(from.join("ca")).unwrap();
        fs::write(from.join("broker.db"), vec![7; 200_000]).unwrap();
        fs::write(from.join("ca/ca.pem"), "pem").unwrap();
        let mut bytes = Vec::new();
        write(&from, "1.2.3", 5000, vec!["outbox".to_owned()], &mut bytes).unwrap();
        bytes
    }

    fn restored(folder: &Path, bytes: &[u8]) -> Result<Manifest, RestoreError> {
        let file = folder.join("backup.tar");
        fs::write(&file, bytes).unwrap();
        let outcome = restore(&file, &folder.join("to"));
        let left: Vec<_> =
            fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name()).collect();
        let hidden = left.iter().any(|name| name.to_string_lossy().contains("restoring"));
        assert!(!hidden, "{left:?}");
        outcome
    }

    #[test]
    fn what_was_backed_up_is_restored_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let bytes = archive(folder.path());
        let manifest = restored(folder.path(), &bytes).unwrap();
        assert_eq!((&*manifest.version, manifest.left_out.len()), ("1.2.3", 1));
        let file = folder.path().join("to/ca/ca.pem");
        assert_eq!(fs::read(&file).unwrap(), b"pem");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(folder.path().join("to/broker.db")).unwrap(), vec![7; 200_000]);
        let again = restored(folder.path(), &bytes).unwrap_err();
        assert!(matches!(again, RestoreError::NotEmpty(_)), "{again}");
    }

    #[test]
    fn a_damaged_archive_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = archive(folder.path());
        let mut changed = bytes.clone();
        let at = changed.iter().rposition(|byte| *byte == 7).unwrap();
        changed[at] = 8;
        let half = &bytes[..bytes.len() / 2];
        let no_end = &bytes[..bytes.len() - 3000];
        for wrong in [&changed[..], half, no_end, b"no archive", b""] {
            let error = restored(folder.path(), wrong).unwrap_err();
            let kind = matches!(
                error,
                RestoreError::Damaged(_) | RestoreError::NotABackup(_) | RestoreError::Io { .. }
            );
            assert!(kind, "{error}");
            assert!(!folder.path().join("to").exists());
        }
    }

    #[test]
    fn a_name_cannot_leave_the_folder() {
        for (path, inside) in [("a/b", true), ("../a", false), ("/a", false), ("a/../../b", false)]
        {
            assert_eq!(is_inside(Path::new(path)), inside, "{path}");
        }
    }
}

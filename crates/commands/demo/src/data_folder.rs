//! The folder with a demonstration's data.

use std::path::{Path, PathBuf};

/// Where the data is: a folder that is kept, or one that goes when this is dropped.
pub(super) enum DataFolder {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl DataFolder {
    pub(super) fn path(&self) -> &Path {
        match self {
            DataFolder::Kept(path) => path,
            DataFolder::Temporary(folder) => folder.path(),
        }
    }
}

/// The given folder, or a temporary one.
pub(super) fn data_folder(given: Option<&Path>) -> anyhow::Result<DataFolder> {
    Ok(match given {
        Some(path) => DataFolder::Kept(path.to_owned()),
        None => DataFolder::Temporary(tempfile::Builder::new().prefix("fulmar-demo-").tempdir()?),
    })
}

/// Instructions for logging in when the passwords of an earlier start are gone.
pub(super) fn new_password(data: &Path) -> String {
    format!(
        "Passwords were printed when the folder was made. To set a new one:\n  fulmar user passwd NAME --data {}",
        data.display()
    )
}

//! The folder with a demonstration's data.

use std::path::{Path, PathBuf};

use fulmar_certs::files;
use tempfile::TempDir;

/// The given folder, which is kept, or a temporary one, which goes when the second value is dropped.
pub(super) fn data_folder(given: Option<&Path>) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
    if let Some(path) = given {
        files::make_private_dir(path)?;
        return Ok((path.to_owned(), None));
    }
    let folder = tempfile::Builder::new().prefix("fulmar-demo-").tempdir()?;
    Ok((folder.path().to_owned(), Some(folder)))
}

/// Instructions for logging in when the passwords of an earlier start are gone.
pub(super) fn new_password(data: &Path) -> String {
    format!(
        "Passwords were printed when the folder was made. To set a new one:\n  fulmar user passwd NAME --data {}",
        data.display()
    )
}

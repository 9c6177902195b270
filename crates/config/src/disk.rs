//! `[limits] disk`: one budget for what clients can make the server write to its data folder; `super::store_part` divides
//! it.

use std::path::Path;

use fulmar_text::units;
use serde::{Deserialize, Serialize};

use fulmar_text::Usage;

/// The smallest budget.
pub(crate) const LEAST: u64 = 64_000_000;

/// The smallest that `auto` chooses. A disk that has less room stops the broker before this does.
const LEAST_AUTO: u64 = 1_000_000_000;

/// `auto`, or an amount such as `1GB`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Disk(pub String);

impl Default for Disk {
    fn default() -> Self {
        Disk("auto".to_owned())
    }
}

impl Disk {
    /// Whether the operator has left it to the program.
    #[cfg(feature = "platform")]
    pub fn is_auto(&self) -> bool {
        self.0 == "auto"
    }

    /// The budget in bytes for this data folder.
    ///
    /// # Errors
    /// It is neither `auto` nor an amount of at least 64 MB.
    pub fn bytes(&self, data: &Path) -> Result<u64, Usage> {
        if self.0 == "auto" {
            return Ok((available_in(data).unwrap_or(u64::MAX) / 2).max(LEAST_AUTO));
        }
        let bytes = units::parse_memory(&self.0).ok().filter(|bytes| *bytes >= LEAST);
        bytes.ok_or_else(|| {
            let given = &self.0;
            Usage(format!(
                "[limits] disk = {given:?}: must be \"auto\" (half of what is free where the data folder is) or an \
                 amount of at least 64MB, such as \"1GB\""
            ))
        })
    }
}

/// Returns the free bytes on the file system of this folder, plus those of the folder's own files.
fn available_in(data: &Path) -> Option<u64> {
    // Before the first start, it is on the file system of the folder in which it will be.
    let folder = data.ancestors().find(|folder| folder.is_dir())?;
    let about = rustix::fs::statvfs(folder).ok()?;
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    let used = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>();
    Some(about.f_bavail.saturating_mul(about.f_frsize).saturating_add(used))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_nonsense_is_refused_with_what_is_allowed() {
        let bytes = |text: &str| {
            Disk(text.to_owned()).bytes(Path::new("/")).map_err(|error| error.to_string())
        };
        assert_eq!(bytes("1GB"), Ok(1_000_000_000));
        assert!(bytes("auto").unwrap() >= LEAST_AUTO);
        for text in ["", "512", "10MB", "half"] {
            assert!(bytes(text).unwrap_err().contains("such as \"1GB\""), "{text}");
        }
    }
}

//! Where the programs are that roles name.
//!
//! Debian keeps servers such as mosquitto in `/usr/sbin`, which an ordinary user's `PATH` lacks; they
//! are found there all the same.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::experiment::Experiment;

/// Looked at behind `PATH`.
const SERVERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The file of a program that is named without a folder; `None` if there is none.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    find_in(program, std::env::var_os("PATH").as_deref())
}

fn find_in(program: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = path.map(std::env::split_paths).into_iter().flatten();
    let mut files = folders.chain(SERVERS.map(PathBuf::from)).map(|folder| folder.join(program));
    files.find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Programs that an experiment's roles name and this machine lacks, each once. Names with a folder or
/// a placeholder are known only in a sample.
#[must_use]
pub fn missing_programs(experiment: &Experiment) -> Vec<String> {
    let named = experiment.roles.iter().filter_map(|(_, role)| role.run.get_ref().first());
    let mut missing: Vec<String> = named
        .map(|program| program.get_ref())
        .filter(|program| !program.contains(['/', '{', '}']) && find(program).is_none())
        .cloned()
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_path_and_files_that_are_none_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a-program");
        std::fs::write(&file, "").unwrap();
        let path = Some(folder.path().as_os_str());
        assert_eq!(find_in("a-program", path), None);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in("a-program", path), Some(file));
        assert_eq!(find_in("a-program", None), None);
    }
}

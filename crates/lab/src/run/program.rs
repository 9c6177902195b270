//! Finds the programs that roles name.
//!
//! Debian has servers such as mosquitto in `/usr/sbin`, which is not in an ordinary user's `PATH`; they are found
//! there all the same.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::schedule::wanted;
use crate::experiment::{Experiment, Need, Role, Template};

/// Searched after `PATH`.
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

/// Programs that this machine lacks and a role names that plays in a cell with one of the values of `only`, each once.
/// Names with a folder or a placeholder are only known in a sample.
pub fn missing_programs(
    experiment: &Experiment,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let mut cells = experiment.cells();
    cells.retain(|cell| wanted(only, cell));
    let played = |role: &Role| cells.iter().any(|cell| cell.matches(&role.only));
    let roles = experiment.roles.iter().filter(|(_, role)| played(role));
    let named = roles.filter_map(|(_, role)| role.run.get_ref().first());
    let mut missing: Vec<String> = named
        .map(|program| program.get_ref())
        .filter(|program| !program.contains(['/', '{', '}']) && find(program).is_none())
        .cloned()
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

/// The requirements of an experiment that this machine does not meet; `here` is the folder of its file.
pub fn unmet_needs<'a>(experiment: &'a Experiment, here: &Path) -> Vec<&'a Need> {
    let here = std::path::absolute(here).unwrap_or_else(|_| here.to_owned()).display().to_string();
    let fill = |text: &str| {
        let filled = Template::parse(text).and_then(|text| text.fill(|_| Some(here.clone())));
        // It was checked when the file was read.
        filled.unwrap_or_else(|_| text.to_owned())
    };
    let met = |need: &&Need| {
        let words: Vec<String> =
            need.run.get_ref().iter().map(|word| fill(word.get_ref())).collect();
        let program = words.first().and_then(|name| find(name)).unwrap_or_default();
        let mut command = Command::new(program);
        command.args(words.iter().skip(1)).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    experiment.needs.iter().filter(|need| !met(need)).collect()
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

    #[test]
    fn needs_are_met_by_programs_that_end_well() {
        let text = "title = 't'\nrepetitions = 1\ntimeout_s = 1\nhosts = ['a']\nroles = {}\nmeasures = {}\n";
        let need = |run: &str| {
            format!(
                "[[needs]]\nwhere = {{}}\notherwise = 'without {run}'\nrun = ['{run}', '{{here}}']\n"
            )
        };
        let text = format!("{text}{}{}{}", need("ls"), need("false"), need("no-such-program"));
        let experiment: Experiment = toml::from_str(&text).unwrap();
        let unmet = unmet_needs(&experiment, Path::new("/"));
        let told: Vec<&str> = unmet.iter().map(|need| need.otherwise.as_str()).collect();
        assert_eq!(told, ["without false", "without no-such-program"]);
    }

    #[test]
    fn programs_of_cells_that_are_not_run_may_be_missing() {
        let text = "title = 't'\nrepetitions = 1\ntimeout_s = 1\nhosts = ['a']\nmeasures = {}\n\
            matrix = { way = ['own', 'theirs'] }\n\
            roles.a = { host = 'a', run = ['ls'] }\n\
            roles.b = { host = 'a', run = ['no-such-program'], where = { way = 'theirs' } }\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let only = |way: &str| BTreeMap::from([("way".to_owned(), vec![way.to_owned()])]);
        assert_eq!(missing_programs(&experiment, &BTreeMap::new()), ["no-such-program"]);
        assert_eq!(missing_programs(&experiment, &only("theirs")), ["no-such-program"]);
        assert!(missing_programs(&experiment, &only("own")).is_empty());
    }
}

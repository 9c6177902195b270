//! Finds experiment files: those of a folder, and those built into the program. A file in the folder overrides the
//! built-in one of the same name.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fulmar_command::exit::Usage;
use fulmar_lab::emulated_network::EmulatedNetworkFactory;
use fulmar_lab::experiment::{Document, Mistake, find, load};
use tempfile::TempDir;

include!(concat!(env!("OUT_DIR"), "/experiments.rs"));

const DEFAULT_FOLDER: &str = "experiments";

/// The option for the folder.
#[derive(clap::Args, Debug)]
pub(super) struct FolderArg {
    /// Folder of experiment files, instead of ./experiments and those in the program
    #[arg(long, value_name = "DIR", env = "FULMAR_EXPERIMENTS")]
    experiments: Option<PathBuf>,
}

impl FolderArg {
    /// Opens the folder, and the built-in experiments unless a folder was named.
    pub(super) fn open(&self) -> anyhow::Result<ExperimentFiles> {
        if let Some(folder) = &self.experiments {
            return Ok(ExperimentFiles { folder: folder.clone(), built_in: None });
        }
        Ok(ExperimentFiles {
            folder: DEFAULT_FOLDER.into(),
            built_in: Some(unpack().context("experiments")?),
        })
    }
}

/// Writes the built-in experiments to a folder, because they name scripts and published data by path.
fn unpack() -> std::io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("fulmar-experiments-").tempdir()?;
    for (name, bytes) in FILES {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
        std::fs::write(path, bytes)?;
    }
    Ok(folder)
}

/// The experiment files that can be run.
#[derive(Debug)]
pub(super) struct ExperimentFiles {
    folder: PathBuf,
    /// A copy of the built-in experiments, removed on drop.
    built_in: Option<TempDir>,
}

impl ExperimentFiles {
    /// The experiments in the folder of `path` alone: a suite's parts are beside it.
    pub(super) fn in_folder_of(path: &Path) -> ExperimentFiles {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        ExperimentFiles { folder, built_in: None }
    }

    /// Path of an experiment by name or path.
    pub(super) fn find(&self, name: &str) -> PathBuf {
        let path = find(&self.folder, name);
        let built_in = self.built_in.as_ref().map(|folder| find(folder.path(), name));
        built_in.filter(|built_in| !path.exists() && built_in.exists()).unwrap_or(path)
    }

    /// Reads an experiment by name or path.
    pub(super) fn load(&self, name: &str) -> anyhow::Result<Document> {
        let path = self.find(name);
        if !path.exists() {
            return Err(Usage(self.no_such(name, &path)).into());
        }
        load(&path, &EmulatedNetworkFactory).map_err(wrong)
    }

    /// Names of all experiments, in order.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names = match names_in(&self.folder) {
            Ok(names) => names,
            Err(_) if self.built_in.is_some() => Vec::new(),
            Err(error) => {
                let folder = self.folder.display();
                return Err(Usage(format!(
                    "{folder}: {error}; name a folder with --experiments, or write an experiment with \
                     `fulmar lab new FILE.toml`"
                ))
                .into());
            }
        };
        if let Some(built_in) = &self.built_in {
            names.extend(names_in(built_in.path())?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn no_such(&self, name: &str, path: &Path) -> String {
        let there = match self.names() {
            Ok(names) if !names.is_empty() => format!("there are {}", names.join(", ")),
            _ => format!("none in {}, see --experiments", self.folder.display()),
        };
        let path = path.display();
        format!(
            "no experiment `{name}`: {path} does not exist; {there}; `fulmar lab new FILE.toml` \
             writes an example"
        )
    }
}

fn names_in(folder: &Path) -> std::io::Result<Vec<String>> {
    let paths = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let toml = paths.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    Ok(toml.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect())
}

/// A mistake in an experiment file is a usage error.
fn wrong(mistake: Mistake) -> anyhow::Error {
    Usage(mistake.to_string()).into()
}

//! Where experiments come from: a folder of files, and the ones that the program carries inside, which a file of
//! the same name in the folder overrides.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fulmar_command::exit::Usage;
use fulmar_lab::emulated_network::EmulatedNetworkFactory;
use fulmar_lab::experiment::{Document, Mistake, find, load};
use tempfile::TempDir;

include!(concat!(env!("OUT_DIR"), "/experiments.rs"));

/// Where experiments are looked for, unless a folder is named.
const FOLDER: &str = "experiments";

/// Where experiments are.
#[derive(clap::Args, Debug)]
pub(super) struct Folder {
    /// Folder of experiment files, instead of ./experiments and those in the program
    #[arg(long, value_name = "DIR", env = "FULMAR_EXPERIMENTS")]
    experiments: Option<PathBuf>,
}

impl Folder {
    /// Opens it, with what is in the program unless a folder was named.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub(super) fn open(&self) -> anyhow::Result<Shelf> {
        if let Some(folder) = &self.experiments {
            return Ok(Shelf { folder: folder.clone(), inside: None });
        }
        Ok(Shelf { folder: FOLDER.into(), inside: Some(unpack().context("experiments")?) })
    }
}

/// Experiments come with scripts and published figures that they name by path.
fn unpack() -> std::io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("fulmar-experiments-").tempdir()?;
    for (name, bytes) in FILES {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
        std::fs::write(path, bytes)?;
    }
    Ok(folder)
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PathBuf,
    /// A copy of what the program carries, for as long as this lives.
    inside: Option<TempDir>,
}

impl Shelf {
    /// The experiments of another folder alone: a suite's parts are beside it.
    pub(super) fn beside(path: &Path) -> Shelf {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Shelf { folder, inside: None }
    }

    /// Path of an experiment by name or path.
    pub(super) fn find(&self, name: &str) -> PathBuf {
        let path = find(&self.folder, name);
        let inside = self.inside.as_ref().map(|folder| find(folder.path(), name));
        inside.filter(|inside| !path.exists() && inside.exists()).unwrap_or(path)
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
    ///
    /// # Errors
    /// The folder that was named cannot be read.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names = match names_in(&self.folder) {
            Ok(names) => names,
            Err(_) if self.inside.is_some() => Vec::new(),
            Err(error) => {
                let folder = self.folder.display();
                return Err(Usage(format!(
                    "{folder}: {error}; name a folder with --experiments, or write an experiment with \
                     `fulmar lab new FILE.toml`"
                ))
                .into());
            }
        };
        if let Some(inside) = &self.inside {
            names.extend(names_in(inside.path())?);
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

/// A mistake in an experiment file is the person's, unless nothing of the file could be read.
fn wrong(mistake: Mistake) -> anyhow::Error {
    Usage(mistake.to_string()).into()
}

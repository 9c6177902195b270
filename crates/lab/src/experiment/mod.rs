//! Experiment files: one TOML file defines hosts, links, roles, conditions and measures.
//!
//! [`load`] finds every mistake that can be found without running anything, and names the line, the key and what is
//! allowed. [`Cell`] has one combination of conditions.

mod cell;
mod check;
mod error;
mod file;
mod template;
mod value;

use std::path::{Path, PathBuf};

pub use cell::Cell;
pub use error::Mistake;
pub use file::{
    Better, Compare, Experiment, Figure, From, Goal, Link, Mark, Measure, Need, Role, Shape, Suite,
    Take, What, Where,
};
pub use value::{Level, Levels, Ordered, Pair};

pub(crate) use template::{Template, host_and_changes};

use crate::network::NetworkFactory;
use error::Source;

/// The content of a file under `experiments/`.
#[derive(Clone, Debug)]
pub enum Document {
    /// An experiment and the text it was read from.
    Experiment(Box<Experiment>, String),
    /// Names of experiments beside it, and the text they were read from.
    Suite(Suite, String),
}

impl Document {
    /// One line on it.
    pub fn title(&self) -> &str {
        match self {
            Document::Experiment(experiment, _) => &experiment.title,
            Document::Suite(suite, _) => &suite.title,
        }
    }
}

/// Reads a file and checks all of it; `networks` checks the links' settings.
///
/// # Errors
/// The first mistake.
pub fn load(path: &Path, networks: &dyn NetworkFactory) -> Result<Document, Mistake> {
    load_with(path, Some(networks))
}

/// Reads a file of a finished run; its links' settings are not checked again.
pub(crate) fn load_noted(path: &Path) -> Result<Document, Mistake> {
    load_with(path, None)
}

fn load_with(path: &Path, networks: Option<&dyn NetworkFactory>) -> Result<Document, Mistake> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Mistake {
        file: file.clone(),
        place: None,
        shown: String::new(),
        message: error.to_string(),
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(Source { file: &file, text: &text }, &name, folder, networks)
}

/// Reads a suite of which only the results exist.
pub(crate) fn noted_suite(path: &Path, text: &str) -> Result<Suite, Mistake> {
    let file = path.display().to_string();
    toml::from_str(text).map_err(|error| Source { file: &file, text }.syntax(&error))
}

fn parse(
    source: Source<'_>,
    name: &str,
    folder: &Path,
    networks: Option<&dyn NetworkFactory>,
) -> Result<Document, Mistake> {
    let text = source.text;
    let table: toml::Table = toml::from_str(text).map_err(|error| source.syntax(&error))?;
    if table.contains_key("parts") {
        let suite: Suite = toml::from_str(text).map_err(|error| source.syntax(&error))?;
        check::suite(source, &suite, folder)?;
        return Ok(Document::Suite(suite, text.to_owned()));
    }
    let mut experiment: Experiment = toml::from_str(text).map_err(|error| source.syntax(&error))?;
    name.clone_into(&mut experiment.name);
    check::experiment(source, &experiment, folder, networks)?;
    Ok(Document::Experiment(Box::new(experiment), text.to_owned()))
}

/// Path of an experiment by name or path: `mqtt-quic` is `FOLDER/mqtt-quic.toml`.
pub fn find(folder: &Path, name: &str) -> PathBuf {
    let given = Path::new(name);
    if given.extension().is_some_and(|extension| extension == "toml") {
        given.to_owned()
    } else {
        folder.join(name).with_added_extension("toml")
    }
}

#[cfg(test)]
mod tests;

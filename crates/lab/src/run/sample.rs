//! A sample: the record of one repetition of one cell; and the file of all samples.
//!
//! `samples.jsonl` is only ever appended to, one JSON object per line. An incomplete last line, left by an
//! interruption, is dropped when the file is opened again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use crate::network::Lateness;

/// Name of the file in a folder of results.
pub const FILE: &str = "samples.jsonl";

/// Outcome of a sample.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All programs succeeded, and every measure has its number.
    Ok,
    /// A program failed, or a measure has no number.
    Failed,
    /// The time was up.
    Timeout,
}

/// One repetition of one cell.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sample {
    /// Name of the experiment.
    pub experiment: String,
    /// The conditions' values.
    pub cell: BTreeMap<String, String>,
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// Seed of the links and of the roles that ask for it.
    pub seed: u64,
    /// Outcome of the sample.
    pub outcome: Outcome,
    /// Why, unless it ended well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it began, in seconds since 1970.
    pub began_s: f64,
    /// Duration in seconds.
    pub took_s: f64,
    /// Whether it ran alone.
    pub alone: bool,
    /// One number per measure.
    pub values: BTreeMap<String, f64>,
    /// All numbers from which a measure was computed: seconds since the beginning, and number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub points: BTreeMap<String, Vec<[f64; 2]>>,
    /// The network's counters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, f64>,
    /// Lateness of the emulator's packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
    /// Where it was measured.
    pub environment: Environment,
    /// Working folder, if it was not removed.
    #[serde(skip)]
    pub kept: Option<PathBuf>,
}

impl Sample {
    /// Whether it has results.
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }
}

/// Errors of the file of samples.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no sample.
    #[error("{path}:{line}: not a sample: {source}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// The folder holds results of something else.
    #[error(
        "{path} contains samples of another version of this experiment; give another folder with \
         --out, or remove it",
        path = path.display()
    )]
    Other {
        /// The folder.
        path: PathBuf,
    },
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io { path: path.clone(), source }
    }
}

/// Reads the samples of a folder; none if there is no file.
///
/// # Errors
/// The file cannot be read or holds something else. A last line without its end is left out.
pub fn read(folder: &Path) -> Result<Vec<Sample>, StoreError> {
    let path = folder.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io(&path)(error)),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(index, line)| {
        serde_json::from_str(line).map_err(|source| StoreError::Line {
            path: path.clone(),
            line: index + 1,
            source,
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

/// The file, open at its end.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
    path: PathBuf,
}

impl Store {
    pub(super) fn open(folder: &Path) -> Result<Store, StoreError> {
        let path = folder.join(FILE);
        let open = || -> std::io::Result<File> {
            let mut options = OpenOptions::new();
            let mut file =
                options.read(true).write(true).create(true).truncate(false).open(&path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(StoreError::io(&path))?;
        Ok(Store { file, path })
    }

    pub(super) fn append(&mut self, sample: &Sample) -> Result<(), StoreError> {
        let mut line =
            serde_json::to_vec(sample).map_err(|error| StoreError::io(&self.path)(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(StoreError::io(&self.path))
    }
}

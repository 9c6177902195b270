//! A file that is received over a stream: the part that exists is its beginning, which a later connection continues.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ring::digest::{self, SHA256};

use super::{Offer, PIECE};
use crate::manifest::{Hash, check_name};
use crate::{state, symlink_safe};

pub(super) struct Incoming {
    file: File,
    part: PathBuf,
    path: PathBuf,
    expected: String,
    hash: digest::Context,
    pub(super) have: u64,
    pub(super) bytes: u64,
}

impl Incoming {
    /// Continues an existing part, or creates one.
    pub(super) fn open(folder: &Path, offer: &Offer) -> anyhow::Result<Incoming> {
        check_name(&offer.name).map_err(anyhow::Error::msg)?;
        let hex = offer.sha256.bytes().all(|digit| digit.is_ascii_hexdigit());
        if offer.sha256.len() != 64 || !hex {
            bail!("its hash is not a SHA-256");
        }
        let part = folder.join(format!(".fulmar-{}.stream", &offer.sha256[..24]));
        state::prune(folder, "stream")?;
        let file = symlink_safe::reopen(&part).or_else(|_| symlink_safe::create(&part))?;
        file.try_lock().context("it is already being received")?;
        let length = file.metadata()?.len();
        if length > offer.bytes {
            file.set_len(0)?;
        }
        let path = folder.join(&offer.name);
        let (hash, expected) = (digest::Context::new(&SHA256), offer.sha256.to_lowercase());
        let (have, bytes) = (0, offer.bytes);
        let mut incoming = Incoming { file, part, path, expected, hash, have, bytes };
        incoming.read_what_there_is()?;
        Ok(incoming)
    }

    fn read_what_there_is(&mut self) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let length = self.file.read(&mut piece)?;
            if length == 0 {
                return Ok(());
            }
            self.hash.update(&piece[..length]);
            self.have += length as u64;
        }
    }

    /// The next bytes; no more than are missing.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// The file is complete: gives it its name if its hash is right.
    pub(super) fn finish(self, folder: &Path) -> anyhow::Result<(PathBuf, Hash)> {
        let digest = self.hash.finish();
        let hash = Hash(digest.as_ref().try_into()?);
        if hash.to_string() != self.expected {
            fs::remove_file(&self.part)?;
            bail!("its SHA-256 differs from the sender's");
        }
        self.file.sync_all()?;
        fs::rename(&self.part, &self.path)?;
        File::open(folder)?.sync_all()?;
        Ok((self.path, hash))
    }
}

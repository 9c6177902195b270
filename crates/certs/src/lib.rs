//! Certificates: the development authority, files, and what is in them.
//!
//! [`authority`] makes and keeps a development CA and issues from it; [`files`] reads PEM with
//! errors that say what to do and writes so that a crash leaves the old file or the new one; [`short_lived`]
//! has the certificates that browsers trust by their hash; [`issued`] has those of a public authority; [`trust`]
//! has the CAs by which the other side is verified;
//! [`KeyLogFile`] has the secrets of connections for Wireshark; [`describe`], [`validity`], [`end_of_chain`], [`user_name`], [`is_root`] and [`is_in_order`] read certificates. Verifying them is left to TLS.
#![forbid(unsafe_code)]

pub mod authority;
pub mod files;
mod inspect;
pub mod issued;
mod key_log;
mod pkcs8;
mod random;
pub mod revocation;
pub mod short_lived;
mod throwaway;
pub mod trust;

use std::ffi::OsString;
use std::path::PathBuf;

use rustls_pki_types::pem;

pub use inspect::{
    Description, defect, describe, end_of_chain, is_in_order, is_root, user_name, validity,
};
pub use key_log::KeyLogFile;
pub use random::{random, random_number};
pub use revocation::{CertificateId, RevocationList, read_revocation_lists};
pub use throwaway::throwaway;

/// Why a certificate or key cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertError {
    /// The system refuses a file.
    #[error("{path}: {source}")]
    File {
        /// File concerned.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A secret that others can read, or a group although root does not own the file.
    #[error(
        "{0} has a secret and is readable by others; run `chmod 600 {0}` (640 if root owns it)"
    )]
    SecretExposed(PathBuf),
    /// A private key under a password.
    #[error("{0}: private key is encrypted; decrypt it with `openssl pkey -in {0} -out FILE`")]
    Encrypted(PathBuf),
    /// A file without what it should hold.
    #[error("{path}: no {wanted} in PEM form found")]
    Missing {
        /// File in which it is missing.
        path: PathBuf,
        /// Kind of item expected there.
        wanted: &'static str,
    },
    /// A file that is cut off or garbled.
    #[error("{path}: damaged PEM file: {source}")]
    Malformed {
        /// File concerned.
        path: PathBuf,
        /// Where it goes wrong.
        source: pem::Error,
    },
    /// A certificate that no CA can have.
    #[error("{path}: not a usable CA: {source}")]
    Unusable {
        /// File concerned.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// A revocation list that is cut off or garbled.
    #[error("{0}: damaged revocation list (CRL); write it to another file first, then rename that")]
    RevocationList(PathBuf),
    /// A file that is there already.
    #[error("{0} exists already; move it away or choose another name")]
    Exists(PathBuf),
    /// An authority that has lost its key.
    #[error(
        "{certificate} exists but {key} does not; put the key back, or move the certificate away \
         to create a new CA, which clients must then trust"
    )]
    NoKey {
        /// The certificate.
        certificate: PathBuf,
        /// The missing key.
        key: PathBuf,
    },
    /// An authority past its time.
    #[error(
        "{certificate} is no longer valid; move it and {key} away to create a new CA, which \
         clients must then trust"
    )]
    Ended {
        /// The certificate.
        certificate: PathBuf,
        /// File with its key.
        key: PathBuf,
    },
    /// A certificate about another key.
    #[error("{certificate} does not belong to {key}")]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// A name that cannot stand in a certificate.
    #[error("{name:?} cannot be certified: {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// An authority has issued what was not asked for.
    #[error("the issued certificate cannot be used: {0}")]
    Issued(&'static str),
    /// There is nothing to make a key from.
    #[error("the system random number generator failed")]
    Random,
    /// The certificate cannot be made.
    #[error("cannot create the certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// Folder in the data folder where the development authority lives.
pub const AUTHORITY_FOLDER: &str = "ca";

/// The data folder of system services.
const SYSTEM_DATA_DIR: &str = "/var/lib/fulmar";

/// Where programs of the same user look for a development authority's certificate, likeliest first.
/// The last place is relative to the working folder: trust it for servers on this machine only.
pub fn dev_ca_locations() -> Vec<PathBuf> {
    let folders = [default_data_dir(), PathBuf::from(SYSTEM_DATA_DIR), PathBuf::from("data")];
    let mut locations: Vec<PathBuf> = set("FULMAR_DATA").into_iter().chain(folders).collect();
    locations.dedup();
    locations.iter().map(|folder| folder.join(AUTHORITY_FOLDER).join("ca.pem")).collect()
}

/// The data folder used when none is named: `$XDG_DATA_HOME/fulmar`, or its default, or
/// `/var/lib/fulmar` where there is no home.
pub fn default_data_dir() -> PathBuf {
    let home = || set("HOME").map(|home| home.join(".local/share"));
    let base = set("XDG_DATA_HOME").filter(|base| base.is_absolute()).or_else(home);
    base.map_or_else(|| PathBuf::from(SYSTEM_DATA_DIR), |base| base.join("fulmar"))
}

/// A folder from the environment; an empty variable counts as none.
fn set(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| *value != OsString::new()).map(PathBuf::from)
}

//! `fulmar cert`: a development CA, certificates from it, and a look into any certificate.
//!
//! What is printed is for people, or with `--json` one object for scripts. The work is done in
//! `fulmar_certs`; nothing here overwrites a file.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use fulmar_certs::authority::{Authority, LEAF_DAYS, LeafKey, Purpose};
use fulmar_certs::{AUTHORITY_FOLDER, CertError, Description, describe, files};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  fulmar cert ca                                         create a development CA, or show where it is
  fulmar cert issue broker.lan --san 192.0.2.7           a certificate for a server
  fulmar cert issue meter-7 --client                     a certificate for the client with the user name meter-7
  fulmar cert show broker.lan.pem                        names, validity, fingerprints

Clients on other machines need the CA's ca.pem: mosquitto_pub --cafile ca.pem …";

/// Create a development CA and certificates
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print one JSON object instead of lines
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create the CA if there is none; print the path of its certificate
    ///
    /// It is `ca.pem` beside its key `ca.key` (mode 0600). An existing CA is never replaced.
    Ca {
        /// Folder of the CA [default: `ca` in $FULMAR_DATA or the default data folder, as
        /// `fulmar serve` uses it]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Issue a certificate from the CA
    ///
    /// Prints the paths of the certificate and of its key (mode 0600). Existing files are never overwritten.
    Issue {
        /// The server's host name, or the client's user name; also the name of the files
        name: String,
        /// Further host names and addresses of a server
        #[arg(long, value_name = "NAME")]
        san: Vec<String>,
        /// Issue it for a client instead of a server
        #[arg(long, conflicts_with = "san")]
        client: bool,
        /// Use an Ed25519 key, for microcontrollers that pin it; browsers do not accept it
        #[arg(long)]
        ed25519: bool,
        /// Use the key in this PEM file instead of a new one: a renewal that keeps the key that clients pin
        #[arg(long, value_name = "FILE", conflicts_with = "ed25519")]
        key: Option<PathBuf>,
        /// Validity in days
        #[arg(long, default_value_t = LEAF_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
        /// Folder of the CA
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Folder for NAME.pem and NAME.key, created if missing
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
    },
    /// Show a certificate
    Show {
        /// PEM file; for a chain, the first certificate is shown
        file: PathBuf,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let printed = match args.action {
        Action::Ca { dir } => authority(&Authority::open(&folder(dir))?, args.json)?,
        Action::Issue { name, san, client, ed25519, key, days, dir, out } => {
            let (purpose, names) = if client {
                (Purpose::Client, Vec::new())
            } else {
                (Purpose::Server, [vec![name.clone()], san].concat())
            };
            let request = Request { name, names, purpose, days, ed25519, key };
            let folder = folder(dir);
            let is_new = !folder.join("ca.pem").exists();
            let authority = Authority::open(&folder)?;
            if is_new {
                // A mistyped folder gives a certificate that nobody trusts.
                eprintln!("created a new development CA in {}", folder.display());
            }
            issue(&authority, &request, &out, args.json)?
        }
        Action::Show { file } => contents(&file, args.json)?,
    };
    println!("{printed}");
    Ok(())
}

struct Request {
    name: String,
    names: Vec<String>,
    purpose: Purpose,
    days: u32,
    ed25519: bool,
    key: Option<PathBuf>,
}

/// Where the CA is, or will be.
fn folder(dir: Option<PathBuf>) -> PathBuf {
    let data = || std::env::var_os("FULMAR_DATA").filter(|data| !data.is_empty());
    let data = || data().map_or_else(fulmar_certs::default_data_dir, PathBuf::from);
    dir.unwrap_or_else(|| data().join(AUTHORITY_FOLDER))
}

fn authority(authority: &Authority, json: bool) -> anyhow::Result<String> {
    let path = authority.certificate_path();
    let about = read(&path)?;
    Ok(if json {
        json!({ "ca": text(&path), "not_after": about.not_after, "sha256": about.sha256 })
            .to_string()
    } else {
        text(&path)
    })
}

fn issue(
    authority: &Authority,
    request: &Request,
    out: &Path,
    json: bool,
) -> anyhow::Result<String> {
    let Request { name, names, purpose, days, ed25519, key } = request;
    let key = match key {
        Some(path) => LeafKey::File(path),
        None if *ed25519 => LeafKey::Ed25519,
        None => LeafKey::P256,
    };
    // A wildcard's star would be a pattern to every shell.
    let file = name.replace('*', "_");
    if file.contains('/') || file.starts_with('.') {
        return Err(crate::exit::Usage(format!("{name:?} is not valid as a file name")).into());
    }
    let issued = authority.issue_for(name, names, *purpose, *days, key)?;
    let (chain, key) = (out.join(format!("{file}.pem")), out.join(format!("{file}.key")));
    if chain.exists() {
        return Err(CertError::Exists(chain).into());
    }
    files::make_private_dir(out)?;
    files::write_new(&key, issued.key_pem.as_bytes(), true)?;
    files::write_new(&chain, issued.chain_pem.as_bytes(), false)?;
    Ok(if json {
        let ca = text(&authority.certificate_path());
        let not_after = read(&chain)?.not_after;
        json!({ "certificate": text(&chain), "key": text(&key), "ca": ca, "not_after": not_after })
            .to_string()
    } else {
        format!("{}\n{}", text(&chain), text(&key))
    })
}

/// A path as people and JSON take it; what is not UTF-8 in it is lost.
fn text(path: &Path) -> String {
    path.display().to_string()
}

fn contents(file: &Path, json: bool) -> anyhow::Result<String> {
    let about = read(file)?;
    if json {
        let object = json!({
            "subject": about.subject, "issuer": about.issuer, "names": about.names,
            "is_authority": about.is_authority, "is_server": about.is_server,
            "is_client": about.is_client, "user": about.user,
            "not_before": about.not_before, "not_after": about.not_after,
            "days_left": about.days_left,
            "sha256": about.sha256, "public_key": about.public_key,
            "spki_sha256_base64": about.spki_sha256_base64,
        });
        return Ok(object.to_string());
    }
    let mut lines = vec![
        format!("subject:      {}", about.subject),
        format!("issuer:       {}", about.issuer),
        format!("for:          {}", uses(&about)),
    ];
    if !about.names.is_empty() {
        lines.push(format!("names:        {}", about.names.join(", ")));
    }
    lines.extend([
        format!("valid from:   {}", about.not_before),
        format!("valid until:  {} ({})", about.not_after, left(about.days_left)),
        format!("SHA-256:      {}", about.sha256),
        format!("SPKI SHA-256: {}", about.spki_sha256_base64),
        format!("public key:   {}", about.public_key),
    ]);
    Ok(lines.join("\n"))
}

fn uses(about: &Description) -> String {
    let mut uses = Vec::new();
    if about.is_authority {
        uses.push("a CA".to_owned());
    }
    if about.is_server {
        uses.push("servers".to_owned());
    }
    if about.is_client {
        uses.push(match &about.user {
            Some(user) => format!("clients, as user {user:?}"),
            None => "clients".to_owned(),
        });
    }
    if uses.is_empty() { "no use in TLS".to_owned() } else { uses.join("; ") }
}

fn read(file: &Path) -> anyhow::Result<Description> {
    let chain = files::read_chain(file)?;
    let about = chain.first().and_then(describe);
    about.with_context(|| format!("{}: not an X.509 certificate", file.display()))
}

fn left(days: i64) -> String {
    match days {
        ..0 => "EXPIRED".to_owned(),
        0 => "ends today".to_owned(),
        1 => "1 day left".to_owned(),
        _ => format!("{days} days left"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(name: &str, purpose: Purpose) -> Request {
        Request {
            name: name.to_owned(),
            names: vec!["localhost".to_owned()],
            purpose,
            days: 10,
            ed25519: false,
            key: None,
        }
    }

    #[test]
    fn what_is_issued_can_be_shown_and_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::open(&dir.path().join("ca")).unwrap();
        let server = request("broker", Purpose::Server);
        let printed = issue(&ca, &server, dir.path(), true).unwrap();
        let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
        let certificate = Path::new(printed["certificate"].as_str().unwrap());
        let shown: serde_json::Value =
            serde_json::from_str(&contents(certificate, true).unwrap()).unwrap();
        assert_eq!(shown["subject"], "CN=broker");
        assert_eq!(shown["names"], json!(["localhost"]));
        assert_eq!((&shown["is_server"], &shown["is_client"]), (&json!(true), &json!(false)));
        assert_eq!(shown["is_authority"], json!(false));
        assert!([9, 10].contains(&shown["days_left"].as_i64().unwrap()));
        let key = std::fs::read(printed["key"].as_str().unwrap()).unwrap();
        let error = issue(&ca, &server, dir.path(), true).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        std::fs::remove_file(certificate).unwrap();
        issue(&ca, &server, dir.path(), true).unwrap_err();
        assert_eq!(key, std::fs::read(printed["key"].as_str().unwrap()).unwrap());
        assert!(!certificate.exists(), "no certificate for a key that was not written");
    }

    #[test]
    fn a_renewal_keeps_the_key_that_clients_pin() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::open(&dir.path().join("ca")).unwrap();
        let issued = |request: &Request, out: &str| -> serde_json::Value {
            let printed = issue(&ca, request, &dir.path().join(out), true).unwrap();
            let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
            let certificate = Path::new(printed["certificate"].as_str().unwrap());
            serde_json::from_str(&contents(certificate, true).unwrap()).unwrap()
        };
        let first = Request { ed25519: true, ..request("broker", Purpose::Server) };
        let first = issued(&first, "first");
        assert_eq!(first["public_key"].as_str().unwrap().len(), 64);
        let key = Some(dir.path().join("first/broker.key"));
        let renewed = issued(&Request { key, ..request("broker", Purpose::Server) }, "renewed");
        assert_eq!(first["public_key"], renewed["public_key"]);
        assert_ne!(first["sha256"], renewed["sha256"]);
        let fresh = issued(&request("broker", Purpose::Server), "fresh");
        assert!(fresh["public_key"].as_str().unwrap().starts_with("04"), "a point on P-256");
    }

    #[test]
    fn a_name_that_leaves_the_folder_is_wrong_usage() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::open(&dir.path().join("ca")).unwrap();
        for name in ["../x", ".x", "a/b"] {
            let error = issue(&ca, &request(name, Purpose::Client), dir.path(), false).unwrap_err();
            assert!(error.is::<crate::exit::Usage>(), "{name}: {error}");
        }
    }
}

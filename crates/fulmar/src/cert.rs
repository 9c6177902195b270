//! `fulmar cert`: a development CA, certificates from it, and a look into any certificate.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use fulmar_certs::authority::{Authority, LEAF_DAYS, Purpose};
use fulmar_certs::{describe, files};

const EXAMPLES: &str = "\
Examples:
  fulmar cert ca                                         make a development CA, or show where it is
  fulmar cert issue broker.lan --san 192.0.2.7           a certificate for a server
  fulmar cert issue meter-7 --client                     one for a client; meter-7 is its user name
  fulmar cert show broker.lan.pem                        names, validity, fingerprints

Clients on other machines need the CA's ca.pem: mosquitto_pub --cafile ca.pem …";

/// Make a development CA and certificates
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the CA if there is none; print the path of its certificate
    Ca {
        /// Folder of the CA [default: ca in the data folder, which `fulmar serve` uses]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Issue a certificate from it
    Issue {
        /// The server's host name, or the client's user name; also the name of the files
        name: String,
        /// Further host names and addresses of a server
        #[arg(long, value_name = "NAME")]
        san: Vec<String>,
        /// For a client instead of a server
        #[arg(long, conflicts_with = "san")]
        client: bool,
        /// Days it is valid
        #[arg(long, default_value_t = LEAF_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
        /// Folder of the CA
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Folder for NAME.pem and NAME.key
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
    },
    /// Print what a certificate says
    Show {
        /// PEM file; of a chain the first certificate is shown
        file: PathBuf,
        /// One JSON object instead of lines
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Ca { dir } => {
            println!("{}", open(dir)?.certificate_path().display());
            Ok(())
        }
        Action::Issue { name, san, client, days, dir, out } => {
            let (purpose, names) = if client {
                (Purpose::Client, Vec::new())
            } else {
                let mut names = vec![name.clone()];
                names.extend(san);
                (Purpose::Server, names)
            };
            issue(&open(dir)?, &name, &names, purpose, days, &out)
        }
        Action::Show { file, json } => show(&file, json),
    }
}

fn open(dir: Option<PathBuf>) -> anyhow::Result<Authority> {
    let dir = dir.unwrap_or_else(|| fulmar_certs::default_data_dir().join("ca"));
    Ok(Authority::open(&dir)?)
}

fn issue(
    authority: &Authority,
    name: &str,
    names: &[String],
    purpose: Purpose,
    days: u32,
    out: &Path,
) -> anyhow::Result<()> {
    if name.contains('/') || name.starts_with('.') {
        return Err(crate::exit::Usage(format!("{name:?} cannot be the name of a file")).into());
    }
    let issued = authority.issue(name, names, purpose, days)?;
    let (chain, key) = (out.join(format!("{name}.pem")), out.join(format!("{name}.key")));
    files::write_new(&key, issued.key_pem.as_bytes(), true)?;
    files::write_new(&chain, issued.chain_pem.as_bytes(), false)?;
    println!("{}\n{}", chain.display(), key.display());
    Ok(())
}

fn show(file: &Path, json: bool) -> anyhow::Result<()> {
    let chain = files::read_chain(file)?;
    let leaf = chain.first().context("no certificate")?;
    let about =
        describe(leaf).with_context(|| format!("{}: not an X.509 certificate", file.display()))?;
    if json {
        let object = serde_json::json!({
            "subject": about.subject, "issuer": about.issuer, "names": about.names,
            "not_before": about.not_before, "not_after": about.not_after,
            "sha256": about.sha256, "spki_sha256_base64": about.spki_sha256_base64,
        });
        println!("{object}");
    } else {
        println!("subject:      {}", about.subject);
        println!("issuer:       {}", about.issuer);
        println!("names:        {}", about.names.join(", "));
        println!("valid from:   {}", about.not_before);
        println!("valid until:  {}", about.not_after);
        println!("SHA-256:      {}", about.sha256);
        println!("SPKI SHA-256: {}", about.spki_sha256_base64);
    }
    Ok(())
}

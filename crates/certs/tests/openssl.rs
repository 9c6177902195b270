//! OpenSSL's opinion of what the development authority issues, in its strict mode (RFC 5280
//! extensions), which Python 3.13 uses by default.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fulmar_certs::authority::{Authority, LEAF_DAYS, Purpose};
use fulmar_certs::files;

/// What `openssl verify -x509_strict` says; `None` where there is no OpenSSL.
fn verify(authority: &Authority, options: &[&str], chain: &Path) -> Option<bool> {
    let mut command = Command::new("openssl");
    command.args(["verify", "-x509_strict", "-check_ss_sig", "-CAfile"]);
    command.arg(authority.certificate_path()).args(options).arg(chain);
    match command.output() {
        Ok(output) => {
            println!("{}", String::from_utf8_lossy(&output.stderr));
            Some(output.status.success())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn openssl_takes_what_the_authority_issues_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(&dir.path().join("ca")).unwrap();
    let issue = |name: &str, alternatives: &[&str], purpose, days| {
        let names: Vec<String> = alternatives.iter().map(|name| (*name).to_owned()).collect();
        let issued = authority.issue(name, &names, purpose, days).unwrap();
        let path = dir.path().join(format!("{name}.pem"));
        files::write_new(&path, issued.chain_pem.as_bytes(), false).unwrap();
        path
    };
    let server = issue("broker", &["broker.example", "::1"], Purpose::Server, LEAF_DAYS);
    let client = issue("meter-7", &[], Purpose::Client, LEAF_DAYS);
    if verify(&authority, &["-purpose", "sslserver"], &server).is_none() {
        eprintln!("not checked: openssl is not installed");
        return;
    }
    let good = |options: &[&str], chain: &Path| verify(&authority, options, chain).unwrap();
    assert!(good(&["-purpose", "sslserver", "-verify_hostname", "broker.example"], &server));
    assert!(good(&["-purpose", "sslserver", "-verify_ip", "::1"], &server));
    assert!(good(&["-purpose", "sslclient"], &client));
    assert!(!good(&["-verify_hostname", "other.example"], &server));
    assert!(!good(&["-purpose", "sslclient"], &server));
    assert!(!good(&["-purpose", "sslserver"], &client));
    let ended = issue("ended", &["localhost"], Purpose::Server, 0);
    assert!(!good(&[], &ended));
    let other = Authority::open(&dir.path().join("other")).unwrap();
    assert_eq!(verify(&other, &[], &server), Some(false));
}

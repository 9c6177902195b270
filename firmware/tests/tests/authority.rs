//! Servers known by a certificate of a pinned authority, and those that should not be believed.

#![allow(clippy::unwrap_used)]

use fulmar_tiny::{CloseReason, Options, Session, Trust};
use fulmar_tiny_tests::{Link, Net, SERVER_NAME, quic, tls};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// 2026-01-01.
const NOW_S: u64 = 1_767_225_600;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    public: [u8; 65],
}

fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

fn years(params: &mut CertificateParams, from: i32, to: i32) {
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
}

fn authority(name: &str, signed_by: Option<&Authority>, is_ca: bool) -> Authority {
    let key = key();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    } else {
        params.is_ca = IsCa::ExplicitNoCa;
    }
    years(&mut params, 2025, 2035);
    let certificate = match signed_by {
        Some(authority) => params.signed_by(&key, &authority.issuer),
        None => params.self_signed(&key),
    };
    let certificate = certificate.unwrap().der().clone();
    let public = key.der_bytes().try_into().unwrap();
    Authority { issuer: Issuer::new(params, key), certificate, public }
}

/// What becomes of a connection to a server with a certificate for `name` by `issuer`.
fn verdict(
    root: &Authority,
    issuer: &Authority,
    name: &str,
    from: i32,
    to: i32,
) -> Option<CloseReason> {
    let server = key();
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    years(&mut params, from, to);
    let leaf = params.signed_by(&server, &issuer.issuer).unwrap().der().clone();
    let secret = PrivateKeyDer::try_from(server.serialize_der()).unwrap();
    let chain = vec![leaf, issuer.certificate.clone()];
    let mut net = Net::new(quic(tls(chain, secret)), Link::GOOD, 1);
    net.connect(&Options {
        server_name: SERVER_NAME,
        trust: Trust::Authority { key: &root.public, unix_s: NOW_S },
        resume: None,
        session: Session { client_id: "sensor-1", ..Session::default() },
    });
    net.speak();
    net.run_until(5000, |net| net.is_answered() || net.told.closed.is_some());
    assert_ne!(net.is_answered(), net.told.closed.is_some());
    assert_eq!(net.broker.published.is_empty(), net.told.closed.is_some());
    net.told.closed
}

#[test]
fn certificates_of_the_authority_and_of_its_intermediate() {
    let root = authority("root", None, true);
    let middle = authority("middle", Some(&root), true);
    for issuer in [&root, &middle] {
        assert_eq!(verdict(&root, issuer, SERVER_NAME, 2025, 2027), None);
        assert_eq!(verdict(&root, issuer, "*.example", 2025, 2027), None);
    }
}

#[test]
fn certificates_that_prove_nothing() {
    let root = authority("root", None, true);
    let stranger = authority("root", None, true);
    let no_authority = authority("not an authority", Some(&root), false);
    let alert = |number| Some(CloseReason::Tls(number));
    assert_eq!(verdict(&root, &stranger, SERVER_NAME, 2025, 2027), alert(48), "unknown_ca");
    assert_eq!(verdict(&root, &root, "other.example", 2025, 2027), alert(46), "unknown");
    assert_eq!(verdict(&root, &root, SERVER_NAME, 2023, 2025), alert(45), "expired");
    assert_eq!(verdict(&root, &root, SERVER_NAME, 2027, 2029), alert(45), "not valid yet");
    assert_eq!(verdict(&root, &no_authority, SERVER_NAME, 2025, 2027), alert(42), "no CA");
}

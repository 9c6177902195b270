//! The contents of a certificate, to show them to people and to identify users. Nothing is verified here.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_text::hex;
use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::BasicExtension;
use x509_parser::extensions::ExtendedKeyUsage;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate, X509Version};
use x509_parser::public_key::PublicKey;

use crate::authority::{begin_of, end_of};

/// The shortest RSA keys that are used.
const MIN_RSA_BITS: usize = 2048;

/// Contents of a certificate, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Distinguished name of whom it is for.
    pub subject: String,
    /// Distinguished name of the CA that signed it.
    pub issuer: String,
    /// Host names and addresses.
    pub names: Vec<String>,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// Whether a TLS server may show it.
    pub is_server: bool,
    /// Whether a TLS client may show it.
    pub is_client: bool,
    /// The user a broker takes such a client for; see [`user_name`].
    pub user: Option<Box<str>>,
    /// When its validity begins.
    pub not_before: String,
    /// When its validity ends.
    pub not_after: String,
    /// Whole days until then; negative after it.
    pub days_left: i64,
    /// SHA-256 of the whole certificate, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of its public key in base64, as Chromium's
    /// `--ignore-certificate-errors-spki-list` takes it.
    pub spki_sha256_base64: String,
    /// The public key itself in hexadecimal, as clients that pin it take it: 32 bytes of an Ed25519
    /// key, 65 of one on P-256.
    pub public_key: String,
}

/// Reads a certificate for people; `None` when it is not one.
pub fn describe(certificate: &CertificateDer<'_>) -> Option<Description> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let whole = digest(&SHA256, certificate);
    let spki = digest(&SHA256, parsed.public_key().raw);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let left_s = parsed.validity().not_after.timestamp() - now.as_secs().cast_signed();
    Some(Description {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        names: alternative_names(&parsed),
        is_authority: parsed.is_ca(),
        is_server: may(&parsed, |usage| usage.server_auth),
        is_client: may(&parsed, |usage| usage.client_auth),
        user: user_name(certificate),
        not_before: parsed.validity().not_before.to_string(),
        not_after: parsed.validity().not_after.to_string(),
        days_left: left_s.div_euclid(24 * 3600),
        sha256: hex::encode(whole.as_ref()),
        spki_sha256_base64: STANDARD.encode(spki),
        public_key: hex::encode(&parsed.public_key().subject_public_key.data),
    })
}

/// The name of the user a client certificate is about: the subject's common name, or without one
/// the first e-mail address, host name or URI among the alternative names.
pub fn user_name(certificate: &CertificateDer<'_>) -> Option<Box<str>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    if let Some(name) = parsed.subject().iter_common_name().next() {
        return name.as_str().ok().filter(|name| !name.is_empty()).map(Into::into);
    }
    let mut names = general_names(&parsed).filter_map(|name| match name {
        GeneralName::RFC822Name(name) | GeneralName::DNSName(name) | GeneralName::URI(name) => {
            Some(*name)
        }
        _ => None,
    });
    names.find(|name| !name.is_empty()).map(Into::into)
}

/// Whether it names itself as its issuer, as the root of a chain does. A client that trusts a
/// root has it already.
pub fn is_root(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.subject().as_raw() == parsed.issuer().as_raw())
}

/// The reason why no TLS library accepts a server's certificate, and how to issue another; `None` if there is none that is
/// known here.
pub fn defect(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    if parsed.version != X509Version::V3 {
        return Some(
            "it is of X.509 version 1, which has no host names: issue it again with extensions, as in \
             `openssl x509 -req … -extfile FILE` with `subjectAltName = DNS:broker.example.org` in FILE, or with \
             `fulmar cert issue`"
                .to_owned(),
        );
    }
    match parsed.public_key().parsed().ok()? {
        PublicKey::RSA(key) if key.key_size() < MIN_RSA_BITS => Some(format!(
            "its RSA key has {} bits, which is too short to be safe: make one of {MIN_RSA_BITS} or more, or an ECDSA key",
            key.key_size()
        )),
        _ => None,
    }
}

/// From when until when a certificate is valid; `None` if it is not one.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<RangeInclusive<SystemTime>> {
    Some(begin_of(certificate)?..=end_of(certificate)?)
}

/// When the first of the certificates that a client has shown (its own first) expires. A root is not counted, because a
/// verifier trusts its key whatever its certificate says, nor is one that had expired when the client's was issued. All others
/// are: which of them were verified is not known here, and a client that adds some must not last longer by that.
pub fn end_of_chain(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let (leaf, others) = chain.split_first()?;
    let issued = begin_of(leaf);
    let others = others.iter().filter(|certificate| !is_root(certificate)).map(end_of);
    let counted = others.filter(|end| *end >= issued).flatten();
    Some(counted.fold(end_of(leaf)?, SystemTime::min))
}

/// Whether each certificate of a chain is signed in the name of the next, as servers must send them (RFC 8446 section
/// 4.4.2). Signatures are not verified.
pub fn is_in_order(chain: &[CertificateDer<'_>]) -> bool {
    chain.windows(2).all(|pair| {
        let [one, next] = pair else { return false };
        let (Ok((_, one)), Ok((_, next))) =
            (X509Certificate::from_der(one), X509Certificate::from_der(next))
        else {
            return false;
        };
        one.issuer().as_raw() == next.subject().as_raw()
    })
}

/// Whether its holder may do something in TLS; one that does not say may do all (RFC 5280 section
/// 4.2.1.12). Authorities sign, and nothing else.
fn may(
    certificate: &X509Certificate<'_>,
    what: impl FnOnce(&ExtendedKeyUsage<'_>) -> bool,
) -> bool {
    let usages = certificate.extended_key_usage().ok();
    let allowed = |extension: BasicExtension<&ExtendedKeyUsage<'_>>| {
        extension.value.any || what(extension.value)
    };
    !certificate.is_ca() && usages.is_some_and(|usages| usages.is_none_or(allowed))
}

/// Host names and addresses a certificate is for.
pub(crate) fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    general_names(certificate).filter_map(host).collect()
}

fn general_names<'a>(
    certificate: &'a X509Certificate<'_>,
) -> impl Iterator<Item = &'a GeneralName<'a>> {
    let names = certificate.extensions().iter().filter_map(|extension| {
        match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        }
    });
    names.flatten()
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    fn certificate(common_name: Option<&str>, names: Vec<SanType>) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = names;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_user_is_named_by_common_name_before_alternative_names() {
        let mail = || vec![SanType::Rfc822Name("ann@example.org".try_into().unwrap())];
        let of = |certificate| user_name(&certificate).map(String::from);
        assert_eq!(of(certificate(Some("ann"), mail())).as_deref(), Some("ann"));
        assert_eq!(of(certificate(None, mail())).as_deref(), Some("ann@example.org"));
        assert_eq!(of(certificate(Some(""), mail())), None, "an empty common name");
        assert_eq!(of(certificate(None, Vec::new())), None);
        assert_eq!(of(CertificateDer::from(vec![0x30, 0x82])), None);
    }

    #[test]
    fn a_chain_ends_with_the_first_of_its_issuers() {
        let key = || KeyPair::generate().unwrap();
        let until = |name: &str, year| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params
        };
        let (root_key, middle_key) = (key(), key());
        let root = rcgen::Issuer::new(until("root", 2030), &root_key);
        let root_itself = until("root", 2030).self_signed(&root_key).unwrap();
        let middle = |year| until("middle", year).signed_by(&middle_key, &root).unwrap();
        let leaf = |year| {
            let issuer = rcgen::Issuer::new(until("middle", 2050), &middle_key);
            let mut params = until("leaf", year);
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.signed_by(&key(), &issuer).unwrap()
        };
        let end = |chain: &[&rcgen::Certificate]| {
            let chain: Vec<_> = chain.iter().map(|one| one.der().clone()).collect();
            let end = end_of_chain(&chain)?.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            Some(1970 + end.as_secs() / 31_556_952)
        };
        let other = until("other", 2020).self_signed(&key()).unwrap();
        assert_eq!(end(&[&leaf(2040)]), Some(2040));
        assert_eq!(end(&[&leaf(2040), &middle(2035)]), Some(2035));
        assert_eq!(end(&[&leaf(2034), &middle(2035)]), Some(2034));
        // Trusted as a key, and not a part of the chain.
        assert_eq!(end(&[&leaf(2040), &other, &middle(2035), &root_itself]), Some(2035));
        // A renewed one beside the one before, in any order.
        assert_eq!(end(&[&leaf(2040), &middle(2021), &middle(2035)]), Some(2035));
        assert_eq!(end(&[&leaf(2040), &middle(2035), &middle(2021)]), Some(2035));
        // One with the name and the key of the issuer, and made up.
        let made_up = rcgen::Issuer::new(until("root", 2050), key());
        let forged = until("middle", 2050).signed_by(&middle_key, &made_up).unwrap();
        assert_eq!(end(&[&leaf(2040), &forged, &middle(2035)]), Some(2035));
        assert_eq!(end(&[]), None);
        assert_eq!(end_of_chain(&[CertificateDer::from(vec![0x30, 0x82])]), None);
    }

    #[test]
    fn a_certificate_describes_itself() {
        let names = vec![
            SanType::DnsName("broker.example".try_into().unwrap()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
        ];
        let about = describe(&certificate(Some("broker"), names)).unwrap();
        assert_eq!(about.subject, "CN=broker");
        assert_eq!(about.names, ["broker.example", "2001:db8::1"]);
        assert_eq!((about.sha256.len(), about.spki_sha256_base64.len()), (64, 44));
        assert!(!about.is_authority && about.is_server && about.is_client);
        assert_eq!(about.user.as_deref(), Some("broker"));
        assert!(describe(&CertificateDer::from(vec![1, 2, 3])).is_none());
    }

    /// A certificate as `openssl x509 -req` makes it without `-extfile`.
    const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBIjCByQIUE0v3C4xXMHRhI+Zas4PtZppigx4wCgYIKoZIzj0EAwIwFDESMBAG\n\
A1UEAwwJbG9jYWxob3N0MB4XDTI2MTEzMDEwMTczOFoXDTM2MTEyNzEwMTczOFow\n\
FDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
HCBlVtsSfyiyyLA2yWNY4eYzcT3H83itf3yaBHyZlI3tOv/ytdZ0HLJOF4savqHn\n\
pDm8QvFXfz8Q3QfVgVaUGjAKBggqhkjOPQQDAgNIADBFAiBc10ZEiwRS7g9sTIh5\n\
Soz7hSdQGHDo0Y3F42ddByoQ9gIhAKnvFKzeoA9S5IBg3cZTaNlOx2TDHYAO5UUd\n\
cOB/NTY2\n\
-----END CERTIFICATE-----\n\
";

    const RSA_1024: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIICAjCCAWugAwIBAgIUTnyUNYxrBUYrD2g9JnUV0es/ZvAwDQYJKoZIhvcNAQEL\n\
BQAwDDEKMAgGA1UEAwwBYTAeFw0yNjExMzAxMDE3MzhaFw0zNjExMjcxMDE3Mzha\n\
MAwxCjAIBgNVBAMMAWEwgZ8wDQYJKoZIhvcNAQEBBQADgY0AMIGJAoGBALN/icTn\n\
gc9RQxePWqUmjFG4B5K/4b2zQZ3QWkq4I1PIrY976r6EytVYfkXgcwd1PGw30ViT\n\
8b2g6ZXAnfTFf+AQ5Acd7nhR65VMEmmZxAb1F/YgmbfuUWpdsPXNndRQbjzof3FF\n\
E0aN0WePQ9jltWQVRZkHPoBJkTEk6+qQ+Jc/AgMBAAGjYTBfMB0GA1UdDgQWBBT2\n\
i+W6k2DaqZXKIDET/DRZwEdoDzAfBgNVHSMEGDAWgBT2i+W6k2DaqZXKIDET/DRZ\n\
wEdoDzAPBgNVHRMBAf8EBTADAQH/MAwGA1UdEQQFMAOCAWEwDQYJKoZIhvcNAQEL\n\
BQADgYEAE+VA6e7LJ8C9R3wuJJgC4GcgDtGkrlTwqjBPtLnt+r9HBTsDbt73zy9T\n\
yCFxkSF+GcE51y5KBBaExW0tiwPFenkcM9dS8bR1qUSvTD7ayOdbxDEB3H22Il9I\n\
G0bD2jObesOaZrCwZG+oO1jENAwbGXMKBczFTYaRGZzG0KBbITk=\n\
-----END CERTIFICATE-----\n\
";

    #[test]
    fn certificates_that_clients_refuse_are_named_with_what_to_do() {
        use rustls_pki_types::pem::PemObject as _;
        let defect = |pem: &str| defect(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
        let old = defect(VERSION_1).unwrap();
        assert!(old.contains("version 1") && old.contains("subjectAltName"), "{old}");
        let short = defect(RSA_1024).unwrap();
        assert!(short.contains("1024 bits") && short.contains("2048"), "{short}");
        let fine = certificate(Some("a"), Vec::new());
        assert_eq!(super::defect(&fine), None);
    }
}

//! Listeners. Fulmar has one certificate and one set of users for all of them: a listener that would accept other
//! clients than mosquitto's is left out and reported.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::conf::{Conf, Line, Listener, Options, first_word};
use super::files::Files;
use super::report::{Error, Report};

/// When clients need certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAuth {
    Off,
    Optional,
    Required,
}

/// The certificate, and those of clients.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tls {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) client_auth: ClientAuth,
}

/// Clients that need no credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anonymous {
    Always,
    Loopback,
    Never,
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Listeners {
    /// Keys of `[listeners]` with their addresses.
    pub(super) addresses: Vec<(&'static str, SocketAddr)>,
    pub(super) tls: Option<Tls>,
    pub(super) anonymous: Anonymous,
    pub(super) max_connections: Option<u64>,
    /// Topic aliases, if a listener sets them.
    pub(super) max_topic_alias: Option<u64>,
    /// The options for access of those that are not left out.
    pub(super) security: Options,
}

/// Options that must not be ignored, because more clients could connect or reach more topics.
const EXCLUDING: [(&str, &str); 6] = [
    (
        "mount_point",
        "topics of its clients would get no prefix; give the clients topics with the prefix, or run a second Fulmar",
    ),
    (
        "bind_interface",
        "Fulmar listens at addresses, not interfaces; add the interface's address to [listeners]",
    ),
    (
        "crlfile",
        "revoked certificates would be accepted; issue certificates from a new CA, then add the listener",
    ),
    ("psk_hint", "Fulmar has no pre-shared keys for MQTT over TLS; use a certificate"),
    ("tls_engine", "Fulmar reads keys from files"),
    ("tls_engine_kpass_sha1", "Fulmar reads keys from files"),
];

/// Options for access that listeners must have in common.
const COMMON: [&str; 5] =
    ["password_file", "acl_file", "plugin", "auth_plugin", "plugin_opt_config_file"];

pub(super) fn translate(
    files: &dyn Files,
    conf: &Conf,
    report: &mut Report,
) -> Result<Listeners, Error> {
    let mut all = Listeners {
        addresses: Vec::new(),
        tls: None,
        anonymous: Anonymous::Never,
        max_connections: None,
        max_topic_alias: None,
        security: conf.security.clone(),
    };
    if conf.listeners.is_empty() {
        // mosquitto's local mode.
        all.addresses.push(("mqtt", (Ipv4Addr::LOCALHOST, 1883).into()));
        let allowed = conf.security.get("allow_anonymous").is_none_or(Line::is_true);
        all.anonymous = if allowed { Anonymous::Loopback } else { Anonymous::Never };
        return Ok(all);
    }
    let mut kept: Vec<&Listener> = Vec::new();
    let mut open = Vec::new();
    for listener in &conf.listeners {
        let Some(key) = key_of(listener, report)? else { continue };
        if conf.per_listener {
            match kept.first() {
                None => all.security = listener.security.clone(),
                Some(first) => {
                    if let Some(name) = differing(&first.security, &listener.security) {
                        let text = format!(
                            "left out, because its {name} is not that of the listener at {}: Fulmar has one set \
                             of users and rules; run a second Fulmar, or remove the difference",
                            first.place
                        );
                        report.not_translated(&listener.place, "listener", text);
                        continue;
                    }
                }
            }
        }
        if matches!(key, "mqtts" | "wss") && !all.add_tls(files, listener, report)? {
            continue;
        }
        let addresses = addresses(files, listener, report)?;
        let security = if conf.per_listener { &listener.security } else { &conf.security };
        open.push((listener, security.is_true("allow_anonymous"), addresses.clone()));
        all.addresses.extend(addresses.into_iter().map(|address| (key, address)));
        if key == "ws" || key == "wss" {
            let text =
                "Fulmar's WebSocket listeners have the path /mqtt only, which most clients use";
            let line = listener.options.get("protocol");
            report.differs(line.map_or(&listener.place, |line| &line.place), "protocol", text);
        }
        if let Some(line) = listener.options.get("max_topic_alias") {
            all.max_topic_alias = first_word(&line.value).parse().ok();
        }
        kept.push(listener);
    }
    all.anonymous = anonymous(&open, report);
    all.max_connections = max_connections(&kept, report)?;
    Ok(all)
}

/// Key of the listener in `[listeners]`; `None` if it is left out.
fn key_of(listener: &Listener, report: &mut Report) -> Result<Option<&'static str>, Error> {
    let options = &listener.options;
    let excluding = EXCLUDING.iter().find_map(|(name, why)| Some((options.get(name)?, why)));
    if let Some((line, why)) = excluding {
        let text = format!("the listener at {} is left out: {why}", listener.place);
        report.not_translated(&line.place, &line.name, text);
        return Ok(None);
    }
    if listener.port == 0 && options.get("port").is_none() {
        let text = "left out: Fulmar has no Unix sockets for MQTT; use 127.0.0.1";
        report.not_translated(&listener.place, "listener", text);
        return Ok(None);
    }
    let secure = options.get("certfile").is_some() || options.get("keyfile").is_some();
    let protocol = options.get("protocol").map_or("mqtt", |line| first_word(&line.value));
    match (protocol, secure) {
        ("mqtt", false) => Ok(Some("mqtt")),
        ("mqtt", true) => Ok(Some("mqtts")),
        ("websockets", false) => Ok(Some("ws")),
        ("websockets", true) => Ok(Some("wss")),
        (other, _) => {
            let place = options.get("protocol").map_or(&listener.place, |line| &line.place);
            Err(Error::malformed(place, format!("protocol {other:?}: expected mqtt or websockets")))
        }
    }
}

/// The first option for access in which two listeners differ.
fn differing(one: &Options, other: &Options) -> Option<&'static str> {
    let values = |options: &Options, name: &'static str| {
        options.lines_named(name).map(|line| line.value.clone()).collect::<Vec<_>>()
    };
    COMMON.into_iter().find(|name| values(one, name) != values(other, name))
}

impl Listeners {
    /// Adds a listener's certificate; false if it does not fit to those before, and the listener is left out.
    fn add_tls(
        &mut self,
        files: &dyn Files,
        listener: &Listener,
        report: &mut Report,
    ) -> Result<bool, Error> {
        let options = &listener.options;
        let both = options.path("certfile").zip(options.path("keyfile"));
        let Some(((_, cert), (key_line, key))) = both else {
            return Err(Error::malformed(&listener.place, "certfile and keyfile go together"));
        };
        let client_ca = options.path("cafile").map(|(_, path)| absolute(path));
        let required = options.is_true("require_certificate");
        if required && client_ca.is_none() {
            let line =
                options.get("require_certificate").map_or(&listener.place, |line| &line.place);
            let text = "the listener is left out: Fulmar needs the CAs of clients in one file; \
                        write them into one and name it in [tls] client_ca";
            report.not_translated(line, "require_certificate", text);
            return Ok(false);
        }
        if let Some(line) =
            options.get("use_identity_as_username").or(options.get("require_certificate"))
            && required
            && !options.is_true("use_identity_as_username")
        {
            let text = "the user is the certificate's common name, and no password is asked for: \
                        check that access rules name these users";
            report.differs(&line.place, "use_identity_as_username", text);
        }
        let cert_line = options.get("certfile").map_or(&listener.place, |line| &line.place);
        for text in faults(files, cert, options.path("cafile").map(|(_, path)| path)) {
            report.differs(cert_line, "certfile", text);
        }
        if files.is_exposed(key) {
            let text = format!(
                "Fulmar accepts a key only if nobody but its owner can read it, or a group if root owns it: copy {} \
                 for Fulmar's user, mode 0600, and change [tls] key",
                key.display()
            );
            report.differs(&key_line.place, "keyfile", text);
        }
        let client_auth = if required { ClientAuth::Required } else { ClientAuth::Off };
        let client_ca = client_ca.filter(|_| required);
        let new = Tls { cert: absolute(cert), key: absolute(key), client_ca, client_auth };
        let Some(tls) = &mut self.tls else {
            self.tls = Some(new);
            return Ok(true);
        };
        let same = tls.cert == new.cert && tls.key == new.key;
        let two_cas =
            tls.client_ca.is_some() && new.client_ca.is_some() && tls.client_ca != new.client_ca;
        if !same || two_cas {
            let text = "left out: Fulmar has one certificate and one client CA for all listeners; run a second \
                        Fulmar, or use a certificate with all names";
            report.not_translated(&listener.place, "listener", text);
            return Ok(false);
        }
        if tls.client_auth != new.client_auth {
            let text = "at all TLS listeners, clients may log in with a certificate or a password, because \
                        Fulmar requires certificates at all listeners or at none";
            report.differs(&listener.place, "require_certificate", text);
            tls.client_auth = ClientAuth::Optional;
            tls.client_ca = tls.client_ca.take().or(new.client_ca);
        }
        Ok(true)
    }
}

/// Faults of a certificate's file for Fulmar, as far as the files can be read here.
fn faults(files: &dyn Files, cert: &Path, ca: Option<&Path>) -> Vec<String> {
    let read = |path: &Path| -> Vec<CertificateDer<'static>> {
        let text = files.read(path).unwrap_or_default();
        CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect()
    };
    let chain = read(cert);
    let defect = chain.first().and_then(fulmar_certs::defect);
    let mut faults: Vec<String> = defect.into_iter().collect();
    let Some(last) = chain.last().and_then(fulmar_certs::describe) else { return faults };
    let others = ca.map(read).unwrap_or_default();
    let between = others.iter().filter(|other| !fulmar_certs::is_root(other));
    let next = between
        .filter_map(fulmar_certs::describe)
        .find(|other| other.subject == last.issuer && last.issuer != last.subject);
    if let (Some(next), Some(ca)) = (next, ca) {
        faults.push(format!(
            "mosquitto sends the intermediate certificate {:?} from cafile {} with it, Fulmar only what is in the file: \
             append that certificate to {}",
            next.subject,
            ca.display(),
            cert.display()
        ));
    }
    faults
}

/// Returns the path as the server will find it, wherever it runs.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn addresses(
    files: &dyn Files,
    listener: &Listener,
    report: &mut Report,
) -> Result<Vec<SocketAddr>, Error> {
    let options = &listener.options;
    let port = match options.get("port") {
        Some(line) => first_word(&line.value).parse().unwrap_or(listener.port),
        None => listener.port,
    };
    let domain = options.get("socket_domain").map(|line| first_word(&line.value));
    let fits = |address: &SocketAddr| match domain {
        Some("ipv4") => address.is_ipv4(),
        Some("ipv6") => address.is_ipv6(),
        _ => address.is_ipv4() || files.has_ipv6(),
    };
    let host = listener.host.as_deref();
    let host = host.or_else(|| options.get("bind_address").map(|line| line.value.as_str()));
    let all = match host {
        None => vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()],
        Some("localhost") => {
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        }
        Some(host) => match host.parse() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => {
                let found = files.resolve(host, port).map_err(|error| {
                    Error::malformed(&listener.place, format!("host {host:?}: {error}"))
                })?;
                let text =
                    format!("{host} was looked up now; [listeners] has its addresses of today");
                report.differs(&listener.place, "listener", text);
                found
            }
        },
    };
    let mut all: Vec<SocketAddr> = all.into_iter().filter(fits).collect();
    all.sort();
    all.dedup();
    Ok(all)
}

fn anonymous(open: &[(&Listener, bool, Vec<SocketAddr>)], report: &mut Report) -> Anonymous {
    let is_local = |addresses: &[SocketAddr]| addresses.iter().all(|to| to.ip().is_loopback());
    if open.iter().all(|(_, allowed, _)| !allowed) {
        return Anonymous::Never;
    }
    if open.iter().all(|(_, allowed, _)| *allowed) {
        return Anonymous::Always;
    }
    if open.iter().all(|(_, allowed, to)| *allowed == is_local(to)) {
        return Anonymous::Loopback;
    }
    for (listener, _, _) in open.iter().filter(|(_, allowed, _)| *allowed) {
        let place =
            listener.security.get("allow_anonymous").map_or(&listener.place, |line| &line.place);
        let text = "Fulmar accepts anonymous clients at all listeners, at those on loopback, or at none: here \
                    at none; give these clients a user";
        report.not_translated(place, "allow_anonymous", text);
    }
    Anonymous::Never
}

/// The sum, if all have a limit.
fn max_connections(kept: &[&Listener], report: &mut Report) -> Result<Option<u64>, Error> {
    let mut sum = Some(0_u64);
    for listener in kept {
        let Some(line) = listener.options.get("max_connections") else {
            sum = None;
            continue;
        };
        let number: i64 = first_word(&line.value).parse().map_err(|_| {
            Error::malformed(
                &line.place,
                format!("max_connections {:?}: expected a number", line.value),
            )
        })?;
        sum = sum.zip(u64::try_from(number).ok()).map(|(sum, number)| {
            // TOML's integers have a sign.
            sum.saturating_add(number).min(i64::MAX.unsigned_abs())
        });
        if kept.len() > 1 && number >= 0 {
            let text = "Fulmar's limit is over all listeners: [limits] max_connections is their sum, if all have one";
            report.differs(&line.place, "max_connections", text);
        }
    }
    Ok(sum.filter(|sum| *sum > 0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::files::tests::Memory;
    use super::*;

    fn run(text: &str) -> Result<(Listeners, String), String> {
        let mut report = Report::default();
        let files = Memory::new(&[("m.conf", text)]);
        let conf = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
        let listeners = translate(&files, &conf, &mut report).map_err(|error| error.to_string())?;
        Ok((listeners, report.to_string()))
    }

    /// A server's certificate, the one that signed it, and the root.
    fn chain() -> [String; 3] {
        use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
        let params = |name: &str, is_ca: bool| {
            let mut params = CertificateParams::new(vec!["broker".to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.is_ca = if is_ca { ca } else { IsCa::NoCa };
            params
        };
        let [leaf, between, root] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let pem = |params: CertificateParams, key: &KeyPair, by: &Issuer<'_, &KeyPair>| {
            params.signed_by(key, by).unwrap().pem()
        };
        let authority = params("root", true);
        let shown = authority.clone().self_signed(&root).unwrap().pem();
        let by_root = Issuer::new(authority, &root);
        let by_between = Issuer::new(params("between", true), &between);
        let signed = pem(params("leaf", false), &leaf, &by_between);
        [signed, pem(params("between", true), &between, &by_root), shown]
    }

    fn shown(listeners: &Listeners) -> Vec<String> {
        listeners.addresses.iter().map(|(key, to)| format!("{key} {to}")).collect()
    }

    const TLS: &str = "certfile /c.pem\nkeyfile /k.pem\n";

    #[test]
    fn certificates_that_only_openssl_completes_are_reported() {
        let conf = format!("listener 8883\n{TLS}cafile /ca.pem\n");
        let [leaf, intermediate, authority] = chain();
        let report = |cert: &str, ca: &str| {
            let mut report = Report::default();
            let files = Memory::new(&[("m.conf", &conf), ("/c.pem", cert), ("/ca.pem", ca)]);
            let read = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
            translate(&files, &read, &mut report).unwrap();
            report.to_string()
        };
        let both = format!("{intermediate}{authority}");
        let said = report(&leaf, &both);
        assert!(said.contains("between") && said.contains("append"), "{said}");
        assert!(!report(&format!("{leaf}{intermediate}"), &both).contains("append"));
        assert!(!report(&intermediate, &authority).contains("append"), "roots are not sent");
    }

    #[test]
    fn ports_addresses_and_protocols() {
        let text = format!(
            "listener 1883\nlistener 8883 192.0.2.1\n{TLS}listener 9001 localhost\nprotocol websockets\n\
             socket_domain ipv4\nlistener 9443 ::1\nprotocol websockets\n{TLS}listener 0 /run/m.sock\n"
        );
        let (listeners, report) = run(&text).unwrap();
        assert_eq!(
            shown(&listeners),
            [
                "mqtt 0.0.0.0:1883",
                "mqtt [::]:1883",
                "mqtts 192.0.2.1:8883",
                "ws 127.0.0.1:9001",
                "wss [::1]:9443"
            ]
        );
        assert_eq!(listeners.anonymous, Anonymous::Never);
        assert!(
            report.contains("m.conf:12: listener: not translated: left out: Fulmar has no Unix"),
            "{report}"
        );
        let (listeners, _) = run("").unwrap();
        assert_eq!(
            (shown(&listeners), listeners.anonymous),
            (vec!["mqtt 127.0.0.1:1883".into()], Anonymous::Loopback)
        );
        assert!(run("listener 1 nowhere").unwrap_err().starts_with("m.conf:1: host \"nowhere\""));
        assert!(run("listener 1\nprotocol x").unwrap_err().starts_with("m.conf:2: protocol"));
        assert!(run("listener 1\ncertfile c").unwrap_err().contains("go together"));
    }

    #[test]
    fn listeners_that_would_accept_others_are_left_out() {
        for option in ["mount_point a/", "bind_interface eth0", "crlfile c", "psk_hint h"] {
            let (listeners, report) = run(&format!("listener 1\nlistener 2\n{option}\n")).unwrap();
            assert_eq!(shown(&listeners), ["mqtt 0.0.0.0:1", "mqtt [::]:1"], "{option}");
            assert!(report.contains("m.conf:3:") && report.contains("left out"), "{report}");
        }
        let text =
            "per_listener_settings true\nlistener 1 ::1\nacl_file a\nlistener 2 ::1\nacl_file b\n";
        let (listeners, report) = run(text).unwrap();
        assert_eq!(shown(&listeners), ["mqtt [::1]:1"]);
        assert!(
            report.contains("m.conf:4: listener: not translated: left out, because its acl_file"),
            "{report}"
        );
        let other =
            format!("listener 1 ::1\n{TLS}listener 2 ::1\ncertfile /d.pem\nkeyfile /k.pem\n");
        assert_eq!(shown(&run(&other).unwrap().0), ["mqtts [::1]:1"]);
    }

    #[test]
    fn certificates_of_clients() {
        let required = format!(
            "{TLS}cafile /ca.pem\nrequire_certificate true\nuse_identity_as_username true\n"
        );
        let (listeners, report) = run(&format!("listener 1 ::1\n{required}")).unwrap();
        let tls = listeners.tls.unwrap();
        assert_eq!(
            (tls.client_auth, tls.client_ca),
            (ClientAuth::Required, Some("/ca.pem".into()))
        );
        assert_eq!(report, "");
        let (listeners, report) =
            run(&format!("listener 1 ::1\n{TLS}listener 2 ::1\n{required}")).unwrap();
        assert_eq!(listeners.tls.unwrap().client_auth, ClientAuth::Optional);
        assert!(report.contains("m.conf:4: require_certificate: differs"), "{report}");
        let by_name = required.replace("use_identity_as_username true\n", "");
        assert!(
            run(&format!("listener 1 ::1\n{by_name}"))
                .unwrap()
                .1
                .contains("no password is asked for")
        );
        let folder = required.replace("cafile", "capath");
        assert!(run(&format!("listener 1 ::1\n{folder}")).unwrap().0.addresses.is_empty());
        let (_, report) = run("listener 1 ::1\ncertfile /c\nkeyfile /exposed\n").unwrap();
        assert!(report.contains("mode 0600"), "{report}");
    }

    #[test]
    fn anonymous_clients_are_accepted_where_all_listeners_agree() {
        let at = |text: &str| run(&format!("per_listener_settings true\n{text}")).unwrap();
        let (yes, no) = ("allow_anonymous true\n", "allow_anonymous false\n");
        assert_eq!(
            at(&format!("listener 1\n{yes}listener 2\n{yes}")).0.anonymous,
            Anonymous::Always
        );
        assert_eq!(
            at(&format!("listener 1 ::1\n{yes}listener 2\n{no}")).0.anonymous,
            Anonymous::Loopback
        );
        let (listeners, report) = at(&format!("listener 1\n{yes}listener 2 ::1\n{no}"));
        assert_eq!(listeners.anonymous, Anonymous::Never);
        assert!(report.contains("m.conf:3: allow_anonymous: not translated"), "{report}");
    }

    #[test]
    fn limits_of_connections_are_added() {
        let (listeners, _) =
            run("listener 1\nmax_connections 5\nlistener 2\nmax_connections 7\n").unwrap();
        assert_eq!(listeners.max_connections, Some(12));
        let (listeners, _) =
            run("listener 1\nmax_connections 5\nlistener 2\nmax_connections -1\n").unwrap();
        assert_eq!(listeners.max_connections, None);
    }
}

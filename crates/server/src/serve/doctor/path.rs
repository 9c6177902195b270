//! Whether UDP, and so QUIC, reaches a broker, and if not, whether TCP does.
//!
//! A server answers a packet of a QUIC version that it does not know with the versions that it knows, without any state
//! (RFC 9000, section 6). Such a packet therefore shows the path without a login, and for hosts that are only to be
//! asked whether they are reachable.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fulmar_client::{BrokerUrl, Client, Error, Event, Options, Transport};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use crate::serve::check::finding::Finding;
use fulmar_config::Config;

/// Packets that are sent before a path counts as silent; some may be lost.
const ATTEMPTS: u32 = 5;
const WAIT: Duration = Duration::from_millis(600);
/// For TCP, and for the handshakes of QUIC and TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The smallest datagram to which a server answers in this way (RFC 9000, section 14.1).
const DATAGRAM: usize = 1200;
/// Version of the pattern 0x?a?a?a?a, which none will have (RFC 9000, section 15).
const NO_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
const ID: usize = 8;

/// Answer over UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Udp {
    /// A QUIC server, after this time.
    Answered(Duration),
    /// The host: nothing listens there.
    Refused,
    Silent,
    /// Nothing could be sent.
    Failed(String),
}

/// Findings about a path.
#[derive(Clone, Debug)]
struct Path {
    url: BrokerUrl,
    fallback_port: u16,
    udp: Udp,
    /// Asked only if UDP did not answer.
    tcp: Option<Result<(), String>>,
    /// Whether a QUIC connection was made to which this machine's trust applies; asked only if UDP answered.
    trusted: Option<Result<(), String>>,
}

/// A broker that a client would connect to with these options.
pub(super) async fn examine(options: Options, fallback_port: u16) -> anyhow::Result<Vec<Finding>> {
    let url = options.url.clone();
    let mut path = reach(url, fallback_port).await;
    if let Udp::Answered(_) = path.udp {
        path.trusted = Some(connect(options).await?.map_err(|error| error.to_string()));
    }
    Ok(vec![path.finding("path")])
}

/// The upstream brokers, and the QUIC listeners of the server that runs here.
pub(super) async fn examine_own(config: &Config, running: bool) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for upstream in config.upstreams().filter(|upstream| upstream.is_on()) {
        for url in upstream.addresses()? {
            if url.transport != Transport::Quic {
                continue;
            }
            let path = reach(url, upstream.fallback_port).await;
            let label = upstream.label.iter().map(|label| format!(" {label}"));
            findings.push(path.finding(&format!("path to upstream{}", label.collect::<String>())));
        }
    }
    let listeners = config.listeners.quic.iter().filter(|address| running && address.port() != 0);
    for &address in listeners {
        let near = nearby(address);
        let check = "listener quic";
        findings.push(match probe_versions(near).await {
            Udp::Answered(_) => Finding::ok(check, format!("{near} answers")),
            _ => Finding::problem(
                check,
                format!("the server that runs does not answer QUIC at {near}"),
                "look at its log, and for a packet filter: nft list ruleset",
            ),
        });
    }
    Ok(findings)
}

/// An address at which this machine reaches a listener.
fn nearby(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn reach(url: BrokerUrl, fallback_port: u16) -> Path {
    let udp = match tokio::net::lookup_host((url.host.as_str(), url.port)).await {
        Err(error) => Udp::Failed(error.to_string()),
        Ok(addresses) => {
            let mut found = Udp::Failed("the name has no address".to_owned());
            // A name may have an IPv6 address that does not work; a client tries all, too.
            for address in addresses.take(4) {
                let answer = probe_versions(address).await;
                let better = matches!(answer, Udp::Answered(_)) || matches!(found, Udp::Failed(_));
                if better {
                    found = answer;
                }
                if let Udp::Answered(_) = found {
                    break;
                }
            }
            found
        }
    };
    let tcp = match udp {
        Udp::Answered(_) => None,
        _ if fallback_port == 0 => None,
        _ => Some(dial(&url.host, fallback_port).await),
    };
    Path { url, fallback_port, udp, tcp, trusted: None }
}

async fn dial(host: &str, port: u16) -> Result<(), String> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Asks a server for its versions of QUIC.
async fn probe_versions(address: SocketAddr) -> Udp {
    match try_to_ask(address).await {
        Ok(Some(after)) => Udp::Answered(after),
        Ok(None) => Udp::Silent,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Udp::Refused,
        Err(error) => Udp::Failed(error.to_string()),
    }
}

async fn try_to_ask(address: SocketAddr) -> std::io::Result<Option<Duration>> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connected, so that the system reports that nothing listens there.
    socket.connect(address).await?;
    let ids: [u8; 2 * ID] = std::array::from_fn(|_| fastrand::u8(..));
    for _ in 0..ATTEMPTS {
        let sent = Instant::now();
        socket.send(&question(&ids)).await?;
        let mut buffer = [0; 2048];
        while let Ok(received) =
            timeout(WAIT.saturating_sub(sent.elapsed()), socket.recv(&mut buffer)).await
        {
            let length = received?;
            if is_answer(&buffer[..length], &ids) {
                return Ok(Some(sent.elapsed()));
            }
        }
    }
    Ok(None)
}

/// A packet with a long header of no version (RFC 8999, section 5.1): destination and source ID, and padding.
fn question(ids: &[u8; 2 * ID]) -> Vec<u8> {
    let (destination, source) = ids.split_at(ID);
    let length = [u8::try_from(ID).unwrap_or_default()];
    let parts = [&[0xc0], &NO_VERSION[..], &length, destination, &length, source];
    let mut packet = parts.concat();
    packet.resize(DATAGRAM, 0);
    packet
}

/// Whether this is the answer to the question with these IDs: version 0, and the IDs the other way round (RFC 8999,
/// section 6).
fn is_answer(packet: &[u8], ids: &[u8; 2 * ID]) -> bool {
    let (destination, source) = ids.split_at(ID);
    let length = [u8::try_from(ID).unwrap_or_default()];
    let expected = [&[0; 4], &length[..], source, &length, destination].concat();
    packet.first().is_some_and(|first| first & 0x80 != 0)
        && packet.get(1..).is_some_and(|rest| rest.starts_with(&expected))
}

/// Connects as a client without credentials: an MQTT server that refuses it was reached, and is trusted.
pub(super) async fn connect(mut options: Options) -> anyhow::Result<Result<(), Error>> {
    options.reconnect = None;
    options.connect_timeout = CONNECT_TIMEOUT;
    let (client, mut events) = Client::connect(options)?;
    let outcome = loop {
        match events.next().await {
            Some(Event::Connected { .. }) => break Ok(()),
            Some(Event::Disconnected { reason: Error::Refused { .. }, .. }) => break Ok(()),
            Some(Event::Disconnected { reason, .. }) => break Err(reason),
            Some(_) => {}
            None => break Err(Error::Closed),
        }
    };
    client.disconnect().await;
    Ok(outcome)
}

impl Path {
    fn finding(&self, check: &str) -> Finding {
        let (host, port, tcp_port) = (&self.url.host, self.url.port, self.fallback_port);
        let here = format!("quic://{host}:{port}");
        match (&self.udp, &self.tcp, &self.trusted) {
            (Udp::Answered(_), _, Some(Err(reason))) => Finding::problem(
                check,
                format!("UDP reaches {here}, but a client does not connect: {reason}"),
                "give the CA of its certificate: --cafile FILE",
            ),
            (Udp::Answered(after), ..) => {
                let ms = after.as_secs_f64() * 1e3;
                Finding::ok(check, format!("{here} answers QUIC after {ms:.1} ms"))
            }
            (Udp::Refused, ..) => Finding::problem(
                check,
                format!("UDP reaches {host}, but nothing listens on its UDP port {port}"),
                "on that machine: `fulmar serve --check`, and [listeners] quic",
            ),
            (Udp::Failed(reason), tcp, _) if !matches!(tcp, Some(Ok(()))) => Finding::problem(
                check,
                format!("{here} cannot be reached: {reason}"),
                format!("check the name and the network: getent hosts {host}; ip route"),
            ),
            (_, Some(Ok(())), _) => Finding::problem(
                check,
                format!(
                    "UDP is blocked between here and {host}: TCP port {tcp_port} answers, UDP port {port} does not"
                ),
                format!(
                    "use mqtts://{host}:{tcp_port}, or allow UDP port {port} in the firewalls on the path; if no QUIC \
                     listener is on that machine, set [listeners] quic there"
                ),
            ),
            (_, tcp, _) => {
                let reason = match tcp {
                    Some(Err(reason)) => format!(", nor does TCP port {tcp_port}: {reason}"),
                    _ => String::new(),
                };
                Finding::problem(
                    check,
                    format!("{host} does not answer on UDP port {port}{reason}"),
                    format!(
                        "check that the broker runs and that {host} is its address: ping {host}"
                    ),
                )
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::serve::check::finding::Level;

    fn found(
        udp: Udp,
        tcp: Option<Result<(), String>>,
        trusted: Option<Result<(), String>>,
    ) -> (Level, String, Option<String>) {
        let url = "quic://broker.example".parse().unwrap();
        let path = Path { url, fallback_port: 8883, udp, tcp, trusted };
        let finding = path.finding("path");
        (finding.level, finding.text, finding.next)
    }

    #[test]
    fn blocked_udp_is_told_from_a_host_that_is_down() {
        let (level, text, next) = found(Udp::Silent, Some(Ok(())), None);
        assert_eq!(level, Level::Problem);
        assert!(text.starts_with("UDP is blocked between here and broker.example: TCP port 8883"));
        assert!(
            next.unwrap().starts_with("use mqtts://broker.example:8883, or allow UDP port 14567")
        );
        // A firewall of this machine lets nothing be sent.
        let (_, text, _) = found(Udp::Failed("not permitted".to_owned()), Some(Ok(())), None);
        assert!(text.starts_with("UDP is blocked"), "{text}");
        let down = found(Udp::Silent, Some(Err("no answer".to_owned())), None);
        assert!(down.1.contains("does not answer on UDP port 14567, nor does TCP port 8883"));
        let name = found(Udp::Failed("no such host".to_owned()), Some(Err(String::new())), None);
        assert!(name.1.contains("cannot be reached: no such host"));
        assert!(found(Udp::Refused, Some(Ok(())), None).1.contains("nothing listens"));
    }

    #[test]
    fn an_answer_is_good_if_its_certificate_is_trusted() {
        let after = Udp::Answered(Duration::from_millis(12));
        let (level, text, _) = found(after.clone(), None, Some(Ok(())));
        assert!(level == Level::Ok && text.ends_with("answers QUIC after 12.0 ms"), "{text}");
        assert_eq!(found(after.clone(), None, None).0, Level::Ok);
        let (level, text, next) = found(after, None, Some(Err("UnknownIssuer".to_owned())));
        assert!(level == Level::Problem && text.contains("UnknownIssuer"), "{text}");
        assert!(next.unwrap().contains("--cafile"));
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let ids: [u8; 16] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let question = question(&ids);
        assert_eq!((question.len(), question[0] & 0x80), (1200, 0x80));
        assert!(!is_answer(&question, &ids), "its own echo");
        let mut answer = vec![0x80, 0, 0, 0, 0, 8];
        answer.extend(8..16);
        answer.push(8);
        answer.extend(0..8);
        answer.extend([0, 0, 0, 1]);
        assert!(is_answer(&answer, &ids));
        answer[7] ^= 1;
        assert!(!is_answer(&answer, &ids), "another ID");
        assert!(!is_answer(&[], &ids) && !is_answer(&[0x80; 3], &ids));
    }
}

//! Whether a broker answers over TCP, TLS or WebSocket, and which step of a connection fails if it does not.

use std::time::Duration;

use fulmar_client::{BrokerUrl, Error, Options};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::path::{CONNECT_TIMEOUT, connect};
use crate::serve::check::finding::Finding;

const CHECK: &str = "path";

/// Step that a connection reached.
#[derive(Debug)]
enum Step {
    /// The name has no address.
    Name(String),
    /// The host answered: nothing listens there.
    Refused,
    /// No connection.
    Tcp(String),
    /// A connection, but not the handshake of TLS or WebSocket.
    Handshake(String),
    /// Something else answers there than MQTT, or nothing.
    Mqtt(String),
    /// All of it, in this time.
    Answered(Duration),
}

/// A broker that a client would connect to with these options.
pub(super) async fn examine(options: Options) -> anyhow::Result<Vec<Finding>> {
    let url = options.url.clone();
    let step = match reach(&url).await {
        Err(step) => step,
        Ok(()) => {
            let began = Instant::now();
            match connect(options).await? {
                Ok(()) => Step::Answered(began.elapsed()),
                Err(Error::Dial { reason, .. }) => Step::Handshake(reason),
                Err(error) => Step::Mqtt(error.to_string()),
            }
        }
    };
    Ok(vec![finding(&url, step)])
}

async fn reach(url: &BrokerUrl) -> Result<(), Step> {
    let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
    let addresses: Vec<_> = found.map_err(|error| Step::Name(error.to_string()))?.collect();
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(&addresses[..])).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Err(Step::Refused)
        }
        Ok(Err(error)) => Err(Step::Tcp(error.to_string())),
        Err(_) => Err(Step::Tcp("no answer".to_owned())),
    }
}

fn finding(url: &BrokerUrl, step: Step) -> Finding {
    let (host, port, scheme) = (&url.host, url.port, url.transport.scheme());
    match step {
        Step::Name(reason) => Finding::problem(
            CHECK,
            format!("{host} has no address: {reason}"),
            format!("check the name and the network: getent hosts {host}; ip route"),
        ),
        Step::Refused => Finding::problem(
            CHECK,
            format!("{host} answers, but nothing listens on its TCP port {port}"),
            "on that machine: `fulmar serve --check`, and [listeners]",
        ),
        Step::Tcp(reason) => Finding::problem(
            CHECK,
            format!("TCP port {port} of {host} cannot be reached: {reason}"),
            format!(
                "check that {host} is up (ping {host}), and allow TCP port {port} in the firewalls on the path"
            ),
        ),
        Step::Handshake(reason) | Step::Mqtt(reason)
            if reason.contains("requires a client certificate") =>
        {
            Finding::warning(
                CHECK,
                format!("{url} requires a client certificate, and doctor has none"),
                format!(
                    "try it with one: fulmar sub {url} --cert FILE --key FILE -t '$SYS/#' -C 1"
                ),
            )
        }
        Step::Handshake(reason) => Finding::problem(
            CHECK,
            format!("TCP reaches {url}, but a client does not connect: {reason}"),
            match url.transport.is_secure() {
                true => {
                    "give the CA of its certificate (--cafile FILE), use a name that is in it, and a port for this scheme"
                }
                false => "use a port of the broker for this scheme",
            },
        ),
        Step::Mqtt(reason) => Finding::problem(
            CHECK,
            format!("something listens at {url}, but no MQTT broker answers: {reason}"),
            format!(
                "use a port of the broker for {scheme}; if it requires TLS, a scheme with TLS (mqtts, wss, quic)"
            ),
        ),
        Step::Answered(after) => {
            let ms = after.as_secs_f64() * 1e3;
            let how = if url.transport.is_secure() {
                "its certificate is trusted"
            } else {
                "not encrypted"
            };
            Finding::ok(CHECK, format!("{url} answers MQTT after {ms:.1} ms; {how}"))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::serve::check::finding::Level;

    #[test]
    fn each_step_is_named_with_what_to_do() {
        let url: BrokerUrl = "mqtts://broker.example".parse().unwrap();
        let text = |step| {
            let finding = finding(&url, step);
            assert_eq!(finding.level, Level::Problem);
            (finding.text, finding.next.unwrap())
        };
        let reason = || "no route".to_owned();
        assert!(text(Step::Name(reason())).1.contains("getent hosts broker.example"));
        assert!(text(Step::Refused).0.contains("nothing listens on its TCP port 8883"));
        let (found, next) = text(Step::Tcp(reason()));
        assert!(
            found.ends_with("cannot be reached: no route") && next.contains("allow TCP port 8883")
        );
        assert!(text(Step::Handshake(reason())).1.contains("--cafile"));
        assert!(text(Step::Mqtt(reason())).0.contains("no MQTT broker answers: no route"));
        let good = finding(&url, Step::Answered(Duration::from_millis(3)));
        assert_eq!(good.level, Level::Ok);
        assert!(good.text.ends_with("answers MQTT after 3.0 ms; its certificate is trusted"));
    }
}

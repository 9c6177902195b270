//! `fulmar serve` as a process of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_certs::files;
use signal_hook::iterator::Signals;

use super::process::{Running, serve};
use super::van::GATEWAY;

/// Interval of checks whether the server still runs.
const LOOK: Duration = Duration::from_millis(100);

/// `fulmar serve` as a process of its own.
pub(super) struct Server {
    process: Running,
    pub(super) ready: String,
    pub(super) port: u16,
    /// Where MQTT over QUIC is.
    pub(super) quic: String,
}

impl Server {
    pub(super) fn start(data: &Path, port: u16) -> anyhow::Result<Server> {
        let config = data.join("demo.toml");
        let free = r#"["127.0.0.1:0"]"#;
        let pages = addresses(port)?;
        let text = format!(
            "[listeners]\nmqtt = []\nmqtts = []\nws = []\nquic = {free}\nhttps = {pages}\n\
             webtransport = {free}\nhttp = {free}\ncoap = []\ncoaps = []\n\n[tls]\nnames = [\"{GATEWAY}\"]\n\n[log]\nlevel = \"warn\"\n"
        );
        files::write(&config, text.as_bytes(), false)?;
        let (process, ready) = serve(&config, data, "the server")?;
        let (Some(https), Some(quic)) = (ready.address("https"), ready.address("quic")) else {
            bail!("the server does not listen");
        };
        let port = https.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(port);
        let quic = quic.to_owned();
        Ok(Server { process, ready: ready.0, port, quic })
    }
}

/// Waits for a signal, or until the server ends by itself; `look` is called now and then.
pub(super) fn wait(
    mut signals: Signals,
    server: &mut Server,
    mut look: impl FnMut(),
) -> anyhow::Result<()> {
    while signals.pending().next().is_none() {
        if let Some(status) = server.process.0.try_wait()? {
            bail!("the server ended: {status}");
        }
        look();
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Both of this machine's loopback addresses where it has IPv6, which browsers try first for `localhost`.
fn addresses(port: u16) -> anyhow::Result<String> {
    let at =
        |ip: IpAddr, port| TcpListener::bind((ip, port)).and_then(|socket| socket.local_addr());
    let port = match port {
        // One that is free now; should another program take it before the server does, that says so.
        0 => at(Ipv4Addr::LOCALHOST.into(), 0).context("no port is free")?.port(),
        port => port,
    };
    let both = at(Ipv6Addr::LOCALHOST.into(), port).is_ok();
    let six = if both { format!(", \"[::1]:{port}\"") } else { String::new() };
    Ok(format!("[\"127.0.0.1:{port}\"{six}]"))
}

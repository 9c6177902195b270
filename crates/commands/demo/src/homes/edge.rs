//! What is at the homes' end of the link: the gateway and the simulated sensors, as processes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use fulmar_certs::files;
use fulmar_sensors::homes::Plan;

use super::super::process::{Running, serve};
use super::village::{GATEWAY_USER, TWIN};

/// The file below the data folder with the readings that the gateway acknowledged to the sensors: one JSON object per
/// line.
pub(super) const RECORD: &str = "sensors.jsonl";

/// `fulmar serve` with an `[upstream]`.
pub(super) struct Gateway {
    _process: Running,
    /// Where sensors publish.
    pub(super) mqtt: String,
}

impl Gateway {
    pub(super) fn start(data: &Path, uplink: SocketAddr, token: &str) -> anyhow::Result<Gateway> {
        let folder = data.join("gateway");
        files::make_private_dir(&folder)?;
        let (config, secret) = (folder.join("gateway.toml"), folder.join("token"));
        files::write(&secret, token.as_bytes(), true)?;
        let authority = data.join("ca").join("ca.pem");
        let text = format!(
            "[listeners]\nmqtt = [\"127.0.0.1:0\"]\nmqtts = []\nws = []\nquic = []\nhttps = []\n\
             webtransport = []\ncoap = []\ncoaps = []\nhttp = [\"127.0.0.1:0\"]\n\n\
             [quic]\ncongestion = \"adaptive\"\n\n\
             [upstream]\nurl = \"quic://{uplink}\"\nfallback_port = 0\nname = \"{GATEWAY_USER}\"\n\
             user = \"{GATEWAY_USER}\"\ntoken_file = {secret:?}\nca_file = {authority:?}\nkeep_alive_s = 15\n\n\
             [[upstream.up]]\nfilter = \"sensor/#\"\nto_prefix = \"fulmar/{TWIN}/\"\nqos = 1\n\n\
             [log]\nlevel = \"warn\"\n"
        );
        files::write(&config, text.as_bytes(), false)?;
        let (process, ready) = serve(&config, &folder, "the gateway")?;
        let mqtt = ready.address("mqtt").context("the gateway does not listen")?.to_owned();
        Ok(Gateway { _process: process, mqtt })
    }
}

/// `fulmar sensor simulate`.
pub(super) struct Simulation(#[expect(dead_code, reason = "ends when it is dropped")] Running);

impl Simulation {
    pub(super) fn start(data: &Path, plan: &Plan, gateway: &str) -> anyhow::Result<Simulation> {
        let process = Command::new(std::env::current_exe()?)
            .args(["sensor", "simulate", &format!("mqtt://{gateway}")])
            .args(["--homes", &plan.homes.to_string(), "--seed", &plan.seed.to_string()])
            .args(["--every", &plan.every_s.to_string(), "--record"])
            .arg(data.join(RECORD))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the simulated homes")?;
        Ok(Simulation(Running(process)))
    }
}

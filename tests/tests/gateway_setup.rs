//! The integrator's walk: the set-up of `docs/gateway.md`, typed line by line, with the gateway killed in between.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_tests::{Host, Program, blocks, http_get};

const PAGE: &str = include_str!("../../docs/gateway.md");
const PASSWORD: &str = "correct horse";
/// Readings that are published while the server is away.
const READINGS: usize = 20;

/// Waits longer than the gateway does before it tries again what was refused.
fn within_two_minutes(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < end, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Lines of a section that are typed, and files that are written.
struct Section {
    files: Vec<String>,
    lines: Vec<String>,
}

fn section(heading: &str) -> Section {
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    for (language, text) in blocks(PAGE, heading) {
        match language.as_str() {
            "toml" => files.push(text),
            _ => lines.extend(text.lines().map(str::to_owned)),
        }
    }
    Section { files, lines }
}

/// Both machines.
struct Site {
    server: Host,
    gateway: Host,
    _folder: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let server = Host::new(&folder.path().join("server"));
        let gateway = Host::new(&folder.path().join("gateway"));
        std::fs::write(server.folder().join("ann.password"), PASSWORD).unwrap();
        Site { server, gateway, _folder: folder }
    }

    fn start_server(&mut self, line: &str) -> Program {
        let server = self.server.starts(line);
        let quic = server.address("quic");
        for (name, address) in [("QUIC", quic), ("MQTTS", server.address("mqtts"))] {
            self.server.set(&format!("FULMAR_LISTENERS__{name}"), &format!("[\"{address}\"]"));
        }
        let named = format!("quic://localhost:{}", quic.port());
        self.server.says("quic://broker.example.org", &named);
        self.gateway.says("quic://broker.example.org", &named);
        let fallback = server.address("mqtts").port().to_string();
        self.gateway.set("FULMAR_UPSTREAM__FALLBACK_PORT", &fallback);
        let etc = self.gateway.here("/etc/fulmar");
        self.server.says("scp ", "cp ");
        self.server.says("gateway:/etc/fulmar", &etc);
        // The server's own folder of that name has been put there before.
        self.server.says(&format!("gateway:{}", self.server.here("/etc/fulmar")), &etc);
        server
    }

    fn start_gateway(&mut self, line: &str) -> Program {
        let gateway = self.gateway.starts(line);
        self.gateway.says("mqtt://localhost", &format!("mqtt://{}", gateway.address("mqtt")));
        self.gateway.says("localhost:14568", &gateway.address("http").to_string());
        gateway
    }
}

fn figure(gateway: &Program, name: &str) -> f64 {
    let page = http_get(gateway.address("http"), "/metrics").1;
    let mut lines = page.lines().filter_map(|line| line.strip_prefix("fulmar_gateway_"));
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

/// How many readings of a quantity the platform has.
fn stored(site: &Site, server: &Program) -> usize {
    let api = format!("https://{}/api/v1", server.address("https"));
    let curl = "curl -sS --cacert /var/lib/fulmar/ca/ca.pem -H content-type:application/json";
    let login =
        format!("{curl} {api}/session -d '{{\"user\":\"ann\",\"password\":\"{PASSWORD}\"}}'");
    let login: serde_json::Value = serde_json::from_str(&site.server.good(&login)).unwrap();
    let token = login["token"].as_str().unwrap_or_else(|| panic!("{login}"));
    let query =
        "device=attic&quantity=radon&step=raw&from=2026-01-01T00:00:00Z&to=2100-01-01T00:00:00Z";
    let series = format!("{curl} -H 'authorization: Bearer {token}' '{api}/rural/series?{query}'");
    let series: serde_json::Value = serde_json::from_str(&site.server.good(&series)).unwrap();
    series["points"].as_array().unwrap_or_else(|| panic!("{series}")).len()
}

#[test]
fn the_pages_set_up_works_as_it_is_typed() {
    let mut site = Site::new();
    let at_server = section("### On the server");
    let [serve_files, types] = [&at_server.files, &at_server.lines];
    serve_files.iter().for_each(|text| site.server.write(text));
    let (mut server, mut serve) = (None, "");
    for line in types {
        if line.starts_with("fulmar serve") {
            server = Some(site.start_server(line));
            serve = line;
        } else {
            site.server.good(line);
        }
    }
    let mut server = server.unwrap();

    let at_gateway = section("### On the gateway");
    at_gateway.files.iter().for_each(|text| site.gateway.write(text));
    let [start, publish, health] = &at_gateway.lines[..] else { panic!("three lines") };
    let mut gateway = site.start_gateway(start);
    site.gateway.good(publish);
    within_two_minutes("the gateway to be connected", || figure(&gateway, "sent_total") == 1.0);
    assert_eq!(site.gateway.good(health), "ok");

    // The server goes away, devices go on, the gateway's power is cut.
    server.kill();
    within_two_minutes("the outage to be reported, which is no failure", || {
        let (status, text) = http_get(gateway.address("http"), "/health/upstream");
        status == 200 && text.starts_with("not connected")
    });
    let readings: String = (0..READINGS).map(|value| format!("{value}\n")).collect();
    std::fs::write(site.gateway.folder().join("readings"), readings).unwrap();
    site.gateway.good("fulmar pub mqtt://localhost -t sensor/attic/radon -l -q 1 < readings");
    gateway.kill();
    drop(server);
    let server = site.start_server(serve);
    let gateway = site.start_gateway(start);
    within_two_minutes("what was acknowledged to be there", || {
        figure(&gateway, "queued") == 0.0 && stored(&site, &server) > READINGS
    });
    assert_eq!(stored(&site, &server), READINGS + 1, "each once");
    assert_eq!(site.gateway.good(health), "ok");

    let [look, command, device] = &section("### Readings and commands").lines[..] else {
        panic!("three lines")
    };
    assert!(site.server.good(look).starts_with("fulmar/rural/value/attic/radon "));
    site.server.good(command);
    assert_eq!(site.gateway.good(device), "command/valve open");

    let rotation = section("### New credentials").lines;
    let list = rotation.last().unwrap();
    let before = site.server.good(list);
    let connections = figure(&gateway, "connections_total");
    rotation.iter().for_each(|line| drop(site.server.good(line)));
    let after = site.server.good(list);
    assert_eq!(
        (before.lines().count(), after.lines().count()),
        (1, 2),
        "both are good for a while"
    );
    within_two_minutes("the gateway to take the new one", || {
        figure(&gateway, "connections_total") > connections
    });
    // Revoked: the old one changes nothing; the new one keeps readings waiting and says why.
    let revoke = |id: &str| {
        site.server.good(&format!("fulmar user token gw-1 --revoke {id} --data /var/lib/fulmar"));
    };
    revoke(before.split('\t').next().unwrap());
    site.gateway.good(publish);
    within_two_minutes("it to go up", || figure(&gateway, "queued") == 0.0);
    revoke("all");
    within_two_minutes("the refusal to be reported", || {
        let (status, text) = http_get(gateway.address("http"), "/health/upstream");
        status == 503 && text.contains("gw-1") && text.contains("Bad User Name or Password")
    });
    site.gateway.good(publish);
    within_two_minutes("it to be kept", || figure(&gateway, "queued") == 1.0);
    rotation.iter().for_each(|line| drop(site.server.good(line)));
    within_two_minutes("it to go up with new credentials", || figure(&gateway, "queued") == 0.0);
    within_two_minutes("the refusal to be over", || site.gateway.types(health).stdout == b"ok");
}

/// The walk listens on loopback. The page listens on every address, where there has to be a way to log in: the
/// platform's users are one, once there are any.
#[test]
fn the_pages_server_starts_on_every_address_once_somebody_may_log_in() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new(folder.path());
    std::fs::write(host.folder().join("ann.password"), PASSWORD).unwrap();
    let Section { files, lines } = section("### On the server");
    let elsewhere = "mqtt = []\nws = []\ncoap = []\ncoaps = []\nhttp = []\nwebtransport = []\n";
    let mut config = files[0].replace("[listeners]\n", &format!("[listeners]\n{elsewhere}"));
    for port in ["14567", "8883", "8443"] {
        let all = format!("\"0.0.0.0:{port}\"]");
        assert!(config.contains(&all), "a server that most gateways reach: {config}");
        config = config.replace(&all, "\"0.0.0.0:0\"]");
    }
    host.write(&config);
    let at = lines.iter().position(|line| line.starts_with("fulmar serve")).unwrap();
    let (users, serve) = (&lines[..at], &lines[at]);
    users.iter().for_each(|line| drop(host.good(line)));
    let server = host.leaves(serve);
    let ready = server.log.find(fulmar_tests::PATIENCE, |line| line.starts_with("ready "));
    assert!(ready.is_some(), "{}", server.log.text());
    // They can log in, so no administrator was created.
    let created = host.here("/var/lib/fulmar/first-administrator");
    assert!(!std::path::Path::new(&created).exists(), "{created}");
}

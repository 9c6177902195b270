//! Bridges, as upstream brokers of a gateway.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use fulmar_gateway::mapping::{self, Direction, Mapping, Priority, Rule};
use fulmar_mqtt::QoS;

use super::conf::{Bridge, Conf, Line, Options, first_word};
use super::files::Files;
use super::listeners::absolute;
use super::report::{Error, Report, SourceLine};

/// Upstream brokers of a gateway.
const MAX_UPSTREAMS: usize = 16;

/// A section `[upstream]`.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    /// `upstream` or `upstreams.NAME`.
    pub(super) section: String,
    pub(super) place: SourceLine,
    /// The name of the bridge.
    pub(super) bridge: String,
    /// Keys with their values, as in TOML.
    pub(super) keys: Vec<(&'static str, String)>,
    pub(super) up: Vec<Rule>,
    pub(super) down: Vec<Rule>,
    /// Why the section is written as a comment.
    pub(super) off: Option<&'static str>,
    /// A file with the password, beside the configuration.
    pub(super) password: Option<(String, String)>,
    version: &'static str,
}

impl Upstream {
    pub(super) fn version(&self) -> &'static str {
        self.version
    }

    fn mappings(&self) -> (Mapping, Mapping) {
        // Each rule was checked when it was added.
        let mapping = |way, rules: &Vec<Rule>| Mapping::new(way, rules.clone()).unwrap_or_default();
        (mapping(Direction::Up, &self.up), mapping(Direction::Down, &self.down))
    }
}

pub(super) fn translate(
    files: &dyn Files,
    conf: &Conf,
    folder: &Path,
    report: &mut Report,
) -> Result<Vec<Upstream>, Error> {
    let mut all: Vec<Upstream> = Vec::new();
    let mut names = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for bridge in &conf.bridges {
        let mut label = slug(&bridge.name);
        while !labels.insert(label.clone()) {
            label.push('x');
        }
        let on = all.iter().filter(|upstream| upstream.off.is_none()).count();
        let section = if on == 0 { "upstream".to_owned() } else { format!("upstreams.{label}") };
        let mut upstream = translate_bridge(files, bridge, section, report)?;
        let name = unique(client_id(files, bridge, report), &mut names, bridge, report);
        upstream.keys.insert(1, ("name", quoted(&name)));
        if let Some(line) = bridge.options.first(&["remote_password", "password"]) {
            let file = format!("{label}.password");
            let path = folder.join(&file).to_string_lossy().into_owned();
            upstream.keys.push(("password_file", quoted(&path)));
            upstream.password = Some((file, format!("{}\n", line.value)));
        }
        if on >= MAX_UPSTREAMS {
            upstream.off = Some("a gateway has at most 16 upstream brokers");
        }
        if let Some(why) = upstream.off {
            report.not_translated(
                &bridge.place,
                "connection",
                format!("written as a comment: {why}"),
            );
        }
        all.push(upstream);
    }
    versions(&mut all, report);
    all.retain(|upstream| !upstream.keys.is_empty());
    Ok(all)
}

/// A string in TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A name for a section and a file.
fn slug(name: &str) -> String {
    let known = |c: char| {
        if c.is_ascii_alphanumeric() || "-_".contains(c) { c.to_ascii_lowercase() } else { '-' }
    };
    name.chars().take(24).map(known).collect()
}

/// The client identifier, which is the gateway's name. mosquitto's default is this machine's name and the bridge's; with
/// the same one, the other broker continues the session and its access rules still apply.
fn client_id(files: &dyn Files, bridge: &Bridge, report: &mut Report) -> String {
    let line = bridge.options.first(&["remote_clientid", "clientid"]);
    let host = files.host_name();
    let default = match host.trim() {
        "" => bridge.name.clone(),
        host => format!("{host}.{}", bridge.name),
    };
    let wanted = line.map_or(default.as_str(), |line| line.value.as_str());
    let known = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    let name: String = wanted.chars().take(60).map(known).collect();
    if let Some(line) = line.filter(|_| name != wanted) {
        let text = format!(
            "the client identifier becomes {name:?}: at most 60 letters, digits, dots, - and _"
        );
        report.differs(&line.place, &line.name, text);
    }
    name
}

fn unique(
    name: String,
    names: &mut BTreeSet<String>,
    bridge: &Bridge,
    report: &mut Report,
) -> String {
    let mut own = name.clone();
    let mut number = 2;
    while !names.insert(own.clone()) {
        own = format!("{name}-{number}");
        number += 1;
    }
    if own != name {
        let text =
            format!("the client identifier becomes {own:?}: each upstream broker has its own");
        report.differs(&bridge.place, "connection", text);
    }
    own
}

fn translate_bridge(
    files: &dyn Files,
    bridge: &Bridge,
    section: String,
    report: &mut Report,
) -> Result<Upstream, Error> {
    let options = &bridge.options;
    let (host, port) = address(bridge, report)?;
    let tls = ["bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_keyfile"];
    let tls = tls.iter().any(|name| options.get(name).is_some());
    let scheme = if tls { "mqtts" } else { "mqtt" };
    let mut keys = vec![("url", quoted(&format!("{scheme}://{host}:{port}")))];
    if let Some(line) = options.first(&["remote_username", "username"]) {
        keys.push(("user", quoted(&line.value)));
    }
    for (name, key) in
        [("bridge_cafile", "ca_file"), ("bridge_certfile", "cert"), ("bridge_keyfile", "key")]
    {
        if let Some((line, path)) = options.path(name) {
            keys.push((key, quoted(&absolute(path).to_string_lossy())));
            if key == "key" && files.is_exposed(path) {
                let text = "Fulmar accepts a key only if nobody but its owner can read it: copy it, mode 0600";
                report.differs(&line.place, name, text);
            }
        }
    }
    if options.get("bridge_certfile").is_some() != options.get("bridge_keyfile").is_some() {
        return Err(Error::malformed(
            &bridge.place,
            "bridge_certfile and bridge_keyfile go together",
        ));
    }
    if let Some(line) = options.get("bridge_capath") {
        let text = "Fulmar trusts the system's CAs if there is no ca_file; write other CAs into one file, and name it";
        report.differs(&line.place, &line.name, text);
    }
    if let Some(line) = options.get("keepalive_interval") {
        keys.push(("keep_alive_s", first_word(&line.value).to_owned()));
    }
    let off = why_off(options, &host, tls);
    differences(options, report);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for line in options.lines_named("topic") {
        topic(line, &mut up, &mut down, report)?;
    }
    if options.get("topic").is_none() {
        return Err(Error::malformed(&bridge.place, "the bridge has no topic"));
    }
    let off =
        off.or((up.is_empty() && down.is_empty()).then_some("none of its topics can be forwarded"));
    let version = match options.get("bridge_protocol_version").map(|line| first_word(&line.value)) {
        Some("mqttv50") => "5",
        _ => "3.1.1",
    };
    let (place, bridge) = (bridge.place.clone(), bridge.name.clone());
    Ok(Upstream { section, place, bridge, keys, up, down, off, password: None, version })
}

/// Why the server would not start with this section.
fn why_off(options: &Options, host: &str, tls: bool) -> Option<&'static str> {
    let local = host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let password = options.first(&["remote_password", "password"]).is_some();
    if options.get("bridge_psk").is_some() || options.get("bridge_identity").is_some() {
        return Some("Fulmar has no pre-shared keys for MQTT over TLS; use a certificate");
    }
    (password && !tls && !local).then_some(
        "the password would cross the network in clear text, which Fulmar refuses; give the other broker a TLS \
         listener, and change the url to mqtts://",
    )
}

fn differences(options: &Options, report: &mut Report) {
    if let Some(line) = options.get("cleansession").filter(|line| line.is_true()) {
        let text =
            "messages for this gateway wait at the upstream broker while the connection is down";
        report.differs(&line.place, "cleansession", text);
    }
    if let Some(line) = options.get("local_username") {
        let text = "access rules do not apply to the gateway, only its topics";
        report.differs(&line.place, "local_username", text);
    }
}

fn address(bridge: &Bridge, report: &mut Report) -> Result<(String, u16), Error> {
    let Some(line) = bridge.options.first(&["address", "addresses"]) else {
        return Err(Error::malformed(&bridge.place, "the bridge has no address"));
    };
    let mut words = line.value.split_whitespace();
    let word = words.next().unwrap_or_default();
    if words.next().is_some() {
        let text = format!(
            "Fulmar has one address per upstream broker: {word}; use a host name with all of them"
        );
        report.not_translated(&line.place, &line.name, text);
    }
    let (host, port) = match word.rsplit_once(':') {
        _ if word.parse::<Ipv6Addr>().is_ok() => (word, "1883"),
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (word, "1883"),
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    let port = port.parse().ok().filter(|port| *port > 0);
    match port {
        Some(port) if !host.is_empty() && host.chars().all(good) => {
            // An IPv6 address without a port.
            let bare = host.contains(':') && !host.starts_with('[');
            Ok((if bare { format!("[{host}]") } else { host.to_owned() }, port))
        }
        _ => Err(Error::malformed(
            &line.place,
            format!("address {word:?}: expected HOST or HOST:PORT"),
        )),
    }
}

/// `topic PATTERN [DIRECTION [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]`.
fn topic(
    line: &Line,
    up: &mut Vec<Rule>,
    down: &mut Vec<Rule>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut words = line.value.split_whitespace();
    let mut next = || words.next().map(|word| if word == "\"\"" { "" } else { word });
    let pattern = next().unwrap_or_default();
    let (direction, qos) = (next().unwrap_or("out"), next().unwrap_or("0"));
    let (local, remote) = (next().unwrap_or_default(), next().unwrap_or_default());
    if words.next().is_some() {
        return Err(Error::malformed(&line.place, "topic: too many words"));
    }
    let (outgoing, incoming) = match direction {
        "out" => (true, false),
        "in" => (false, true),
        "both" => (true, true),
        other => {
            let text = format!("topic {pattern}: direction {other:?}: expected in, out or both");
            return Err(Error::malformed(&line.place, text));
        }
    };
    let qos = match qos {
        "0" => QoS::AtMostOnce,
        "1" => QoS::AtLeastOnce,
        "2" => {
            let text = "Fulmar forwards QoS 2 messages with QoS 1; with MQTT 5, each has an id, by which a receiver \
                        recognises repetitions";
            report.differs(&line.place, "topic", text);
            QoS::AtLeastOnce
        }
        other => {
            let text = format!("topic {pattern}: QoS {other:?}: expected 0, 1 or 2");
            return Err(Error::malformed(&line.place, text));
        }
    };
    for (wanted, way, (from, to), rules) in [
        (outgoing, Direction::Up, (local, remote), &mut *up),
        (incoming, Direction::Down, (remote, local), &mut *down),
    ] {
        let filter = format!("{from}{pattern}");
        let (from_prefix, to_prefix) = (from.to_owned(), to.to_owned());
        let rule = Rule { filter, from_prefix, to_prefix, qos, priority: Priority::Normal };
        match rule.check(way) {
            _ if !wanted => {}
            Ok(()) => rules.push(rule),
            Err(error) => report.not_translated(&line.place, "topic", error.to_string()),
        }
    }
    Ok(())
}

/// MQTT 5 where 3.1.1 could not detect loops, and where the broker must not see the bridge bit.
fn versions(all: &mut [Upstream], report: &mut Report) {
    let mappings: Vec<_> = all.iter().map(Upstream::mappings).collect();
    for at in 0..all.len() {
        let loops = |other: usize| {
            let ((up, down), (other_up, other_down)) = (&mappings[at], &mappings[other]);
            let there = mapping::circle(up, other_down).is_some();
            if at == other {
                return there;
            }
            let back = mapping::circle(other_down, up).is_some();
            (there && back)
                || (mapping::circle(other_up, down).is_some()
                    && mapping::circle(down, other_up).is_some())
        };
        if all[at].version == "5" || !(0..all.len()).any(loops) {
            continue;
        }
        all[at].version = "5";
        let text = "the gateway uses MQTT 5, because what it forwards could return, and 3.1.1 cannot detect that; the \
                    other broker has to support MQTT 5";
        report.differs(&all[at].place, "connection", text);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::files::tests::Memory;
    use super::*;

    fn run(text: &str) -> Result<(Vec<Upstream>, String), String> {
        let mut report = Report::default();
        let files = Memory::new(&[("m.conf", text)]);
        let conf = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
        let all = translate(&files, &conf, Path::new("/out"), &mut report);
        all.map(|all| (all, report.to_string())).map_err(|error| error.to_string())
    }

    fn key<'a>(upstream: &'a Upstream, name: &str) -> Option<&'a str> {
        upstream.keys.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn shown(rules: &[Rule]) -> Vec<String> {
        let line = |rule: &Rule| {
            format!("{} -{} +{} {}", rule.filter, rule.from_prefix, rule.to_prefix, rule.qos as u8)
        };
        rules.iter().map(line).collect()
    }

    #[test]
    fn bridges_become_upstreams() {
        let text = "connection Cloud 1\naddress broker.example:8883\nbridge_cafile /ca.pem\nremote_username me\n\
                    remote_password secret\nremote_clientid gw-1\nkeepalive_interval 30\n\
                    topic sensor/# out 1\ntopic cmd/+ in 2 local/ remote/\ntopic \"\" out 0 one two\n\
                    connection b\naddress ::1\ntopic x\n";
        let (all, report) = run(text).unwrap();
        assert_eq!([&all[0].section, &all[1].section], ["upstream", "upstreams.b"]);
        assert!(all.iter().all(|upstream| upstream.off.is_none()));
        assert_eq!(key(&all[0], "url"), Some("\"mqtts://broker.example:8883\""));
        assert_eq!(key(&all[0], "name"), Some("\"gw-1\""));
        assert_eq!(key(&all[1], "name"), Some("\"edge.b\""));
        assert_eq!(key(&all[0], "password_file"), Some("\"/out/cloud-1.password\""));
        assert_eq!(key(&all[0], "keep_alive_s"), Some("30"));
        assert_eq!(all[0].password, Some(("cloud-1.password".into(), "secret\n".into())));
        assert_eq!(shown(&all[0].up), ["sensor/# - + 1", "one -one +two 0"]);
        assert_eq!(shown(&all[0].down), ["remote/cmd/+ -remote/ +local/ 1"]);
        assert_eq!(
            (key(&all[1], "url"), all[1].version()),
            (Some("\"mqtt://[::1]:1883\""), "3.1.1")
        );
        assert_eq!(shown(&all[1].up), ["x - + 0"]);
        assert!(report.contains("m.conf:9: topic: differs: Fulmar forwards QoS 2"), "{report}");
    }

    #[test]
    fn loops_need_mqtt_5() {
        let bridge =
            |name: &str, topics: &str| format!("connection {name}\naddress localhost\n{topics}\n");
        let versions =
            |text: &str| run(text).unwrap().0.iter().map(Upstream::version).collect::<Vec<_>>();
        assert_eq!(versions(&bridge("a", "topic # both")), ["5"]);
        assert_eq!(versions(&bridge("a", "topic # both 0 l/ r/")), ["5"]);
        assert_eq!(versions(&bridge("a", "topic a/# out\ntopic b/# in")), ["3.1.1"]);
        let two = bridge("a", "topic a/# out\ntopic b/# in")
            + &bridge("b", "topic b/# out\ntopic a/# in");
        assert_eq!(versions(&two), ["5", "5"]);
        assert_eq!(
            versions(&(bridge("a", "topic a/# out") + "bridge_protocol_version mqttv50\n")),
            ["5"]
        );
    }

    #[test]
    fn what_the_server_would_refuse_is_a_comment() {
        let text = "connection a\naddress far.example\nremote_password p\ntopic #\n";
        let (all, report) = run(text).unwrap();
        assert!(all[0].off.unwrap().contains("clear text"));
        assert!(
            report.contains("m.conf:1: connection: not translated: written as a comment"),
            "{report}"
        );
        let (all, _) = run(&text.replace("far.example", "127.0.0.1:1")).unwrap();
        assert_eq!(all[0].off, None);
        let (all, report) = run("connection a\naddress h\ntopic x out 0 $SYS/ r/\n").unwrap();
        assert!(
            all[0].off.is_some() && report.contains("m.conf:3: topic: not translated"),
            "{report}"
        );
        // What another broker has there may come.
        let (all, report) = run("connection a\naddress h\ntopic x in 0 l/ $SYS/\n").unwrap();
        assert!(all[0].down.len() == 1 && !report.contains("topic"), "{report}");
    }

    #[test]
    fn malformed_bridges_are_named() {
        for (text, error) in [
            ("connection a\ntopic #", "m.conf:1: the bridge has no address"),
            ("connection a\naddress h", "m.conf:1: the bridge has no topic"),
            ("connection a\naddress h:x\ntopic #", "m.conf:2: address \"h:x\""),
            ("connection a\naddress h\ntopic # up", "m.conf:3: topic #: direction \"up\""),
            ("connection a\naddress h\ntopic # out 3", "m.conf:3: topic #: QoS \"3\""),
            ("connection a\naddress h\ntopic # out 1 a b c", "m.conf:3: topic: too many words"),
        ] {
            assert_eq!(run(text).unwrap_err().split(": expected").next().unwrap(), error);
        }
    }
}

//! The identity store through `$CONTROL/dynamic-security/v1`: effects on clients that are connected, kill -9 during
//! changes, and `fulmar user` beside a running broker. mosquitto's own tool: `tests/interop/test_dynsec.py`.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet};
use serde_json::{Value, json};

const CONTROL: &str = "$CONTROL/dynamic-security/v1";
const RESPONSE: &str = "$CONTROL/dynamic-security/v1/response";

/// A number from the environment, for longer runs.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A broker without the platform that other machines reach, and its first administrator's password.
fn broker() -> (TestBroker, String) {
    broker_at(&["0.0.0.0:0"])
}

fn broker_at(addresses: &[&str]) -> (TestBroker, String) {
    let config = "[platform]\nenabled = false\n[limits]\nmax_connections = 30000\n";
    let broker = TestBroker::builder().config(config).listen("mqtt", addresses).start();
    let text = std::fs::read_to_string(broker.data().join("first-administrator")).unwrap();
    let password = text.lines().find_map(|line| line.strip_prefix("password: ")).unwrap();
    (broker, password.to_owned())
}

/// CONNACK's reason code, and the connection.
fn dial(broker: &TestBroker, client_id: &str, user: &str, password: &str) -> (Wire, u8) {
    let mut address = broker.address("mqtt");
    address.set_ip([127, 0, 0, 1].into());
    let mut wire = Wire::dial(address);
    let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0]].concat();
    let body = [head, field(client_id), field(user), field(password)].concat();
    wire.send(&packet(0x10, &body));
    let (first, body) = wire.read().expect("CONNACK");
    assert_eq!(first, 0x20);
    (wire, body[1])
}

fn connected(broker: &TestBroker, client_id: &str, user: &str, password: &str) -> Wire {
    let (wire, reason) = dial(broker, client_id, user, password);
    assert_eq!(reason, 0, "{user}");
    wire
}

/// Subscribes, and returns SUBACK's reason code.
fn subscribe(wire: &mut Wire, filter: &str) -> u8 {
    wire.send(&packet(0x82, &[vec![0, 1, 0], field(filter), vec![0]].concat()));
    let (first, body) = wire.read().unwrap();
    assert_eq!(first, 0x90);
    body[3]
}

/// Publishes with QoS 1, and returns PUBACK's reason code. Messages that come before it are dropped.
fn publish(wire: &mut Wire, topic: &str, payload: &str) -> u8 {
    wire.send(&packet(0x32, &[field(topic), vec![0, 7, 0], payload.into()].concat()));
    loop {
        let (first, body) = wire.read().unwrap();
        if first == 0x40 {
            return body.get(2).copied().unwrap_or(0);
        }
    }
}

/// The next message: topic and payload.
fn message(wire: &mut Wire) -> (String, String) {
    let (first, body) = wire.read().expect("closed");
    assert_eq!(first & 0xf0, 0x30, "{body:?}");
    let len = usize::from(u16::from_be_bytes([body[0], body[1]]));
    let (topic, rest) = body[2..].split_at(len);
    let properties = 1 + usize::from(rest[0]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(topic), text(&rest[properties..]))
}

/// Whether the broker ends the connection with this reason code.
fn is_disconnected(wire: &mut Wire) -> Option<u8> {
    let (first, body) = wire.read()?;
    assert_eq!(first, 0xe0, "{body:?}");
    Some(body[0])
}

/// An administrator's connection.
struct Admin(Wire);

impl Admin {
    fn new(broker: &TestBroker, client_id: &str, password: &str) -> Admin {
        let mut wire = connected(broker, client_id, "admin", password);
        assert_eq!(subscribe(&mut wire, RESPONSE), 0);
        Admin(wire)
    }

    fn send(&mut self, command: &Value) {
        let payload = json!({ "commands": [command] }).to_string();
        self.0.send(&packet(0x30, &[field(CONTROL), vec![0], payload.into()].concat()));
    }

    /// The answer to the oldest command; `None` when the broker has died.
    fn answer(&mut self) -> Option<Value> {
        let (first, body) = self.0.read()?;
        assert_eq!(first & 0xf0, 0x30);
        let start = 2 + RESPONSE.len() + 1;
        let answer: Value = serde_json::from_slice(&body[start..]).unwrap();
        Some(answer["responses"][0].clone())
    }

    fn run(&mut self, command: Value) -> Value {
        self.send(&command);
        let answer = self.answer().unwrap();
        assert_eq!(answer.get("error"), None, "{command} {answer}");
        answer["data"].clone()
    }

    fn refused(&mut self, command: Value) -> String {
        self.send(&command);
        self.answer().unwrap()["error"].as_str().unwrap().to_owned()
    }

    fn acl(&mut self, command: &str, kind: &str, topic: &str, allow: bool) {
        let (acltype, priority) = (kind, 9);
        self.run(json!({ "command": command, "rolename": "r", "acltype": acltype, "topic": topic,
            "allow": allow, "priority": priority }));
    }

    /// A role for `a/#`, and clients with it.
    fn prepare(&mut self, clients: &[&str]) {
        let acl = |kind: &str| json!({ "acltype": kind, "topic": "a/#", "allow": true });
        let acls = ["publishClientSend", "subscribePattern"].map(acl);
        self.run(json!({ "command": "createRole", "rolename": "r", "acls": acls }));
        for name in clients {
            self.run(json!({ "command": "createClient", "username": name, "password": "secret",
                "roles": [{ "rolename": "r" }] }));
        }
    }
}

/// Runs `fulmar user` with a line on standard input.
fn fulmar_user(broker: &TestBroker, args: &[&str], input: &str) -> String {
    let mut command = fulmar();
    command.arg("user").args(args).arg("--data").arg(broker.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rules_are_effective_at_once_for_connected_clients() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    admin.prepare(&["ann"]);
    let mut ann = connected(&broker, "phone", "ann", "secret");
    assert_eq!([subscribe(&mut ann, "a/#"), subscribe(&mut ann, "b")], [0, 0x87]);
    let mut other = connected(&broker, "other", "admin", &password);
    for (topic, payload) in [("a/1", "one"), ("a/2", "two")] {
        assert_eq!(publish(&mut other, topic, payload), 0);
        assert_eq!(message(&mut ann), (topic.into(), payload.into()));
    }
    admin.acl("addRoleACL", "publishClientReceive", "a/1", false);
    assert_eq!(publish(&mut other, "a/1", "denied"), 0x10, "no subscriber");
    assert_eq!(publish(&mut other, "a/2", "allowed"), 0);
    assert_eq!(message(&mut ann).1, "allowed");

    assert_eq!(publish(&mut ann, "a/x", "m"), 0);
    admin.acl("addRoleACL", "publishClientSend", "a/x", false);
    eventually("the worker's event", || publish(&mut ann, "a/x", "m") == 0x87);
    admin.acl("removeRoleACL", "publishClientSend", "a/x", false);
    eventually("the worker's event", || publish(&mut ann, "a/x", "m") == 0);
    assert_eq!(publish(&mut ann, CONTROL, "{}"), 0x87, "only for those whom a rule allows it");
    assert_eq!(publish(&mut ann, "a/y", "m"), 0, "it has stayed connected");
    drop(ann);
    let mut ann = connected(&broker, "tablet", "ann", "secret");
    assert_eq!(subscribe(&mut ann, "a/#"), 0);
    admin.run(json!({ "command": "removeClientRole", "username": "ann", "rolename": "r" }));
    assert_eq!(is_disconnected(&mut ann), Some(0x87), "its subscription is no longer allowed");
}

#[test]
fn no_name_in_a_placeholder_reaches_what_is_reserved() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    let kinds = ["publishClientSend", "publishClientReceive", "subscribePattern"];
    let acl =
        |topic: &str| kinds.map(|kind| json!({ "acltype": kind, "topic": topic, "allow": true }));
    let acls = ["%c/#", "%u/#", "%u%c/#", "#"].map(acl).concat();
    admin.run(json!({ "command": "createRole", "rolename": "own", "acls": acls }));
    for name in ["ann", "$CONTROL", "fulm"] {
        let role = json!([{ "rolename": "own" }]);
        admin.run(json!({ "command": "createClient", "username": name, "password": "secret", "roles": role }));
    }
    let evil = json!({ "commands": [{ "command": "addClientRole", "username": "ann", "rolename": "admin" }] });
    for (client_id, user) in [
        ("$CONTROL", "ann"),
        ("$SYS", "ann"),
        ("fulmar", "ann"),
        ("phone", "$CONTROL"),
        ("ar", "fulm"),
        ("x", "ann"),
    ] {
        let mut liar = connected(&broker, client_id, user, "secret");
        let filters =
            [RESPONSE, "$CONTROL/#", "$SYS/#", "$share/g/$SYS/#", "fulmar/#", "$SYS/broker/uptime"];
        for filter in filters {
            assert_eq!(subscribe(&mut liar, filter), 0x87, "{client_id} {user} {filter}");
        }
        for topic in [CONTROL, "fulmar/t/position/x"] {
            assert_eq!(
                publish(&mut liar, topic, &evil.to_string()),
                0x87,
                "{client_id} {user} {topic}"
            );
        }
        // What it has its name for, it has.
        assert_eq!(publish(&mut liar, "some/topic", "m"), 0x10, "{client_id} {user}");
    }
    let ann = admin.run(json!({ "command": "getClient", "username": "ann" }));
    assert_eq!(ann["client"]["roles"].as_array().unwrap().len(), 1, "{ann}");
}

#[test]
fn a_denial_that_no_name_can_fill_denies() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    let acl = |kind, topic: &str, allow: bool| json!({ "acltype": kind, "topic": topic, "allow": allow, "priority": i32::from(!allow) });
    let acls = ["publishClientSend", "subscribePattern"]
        .map(|kind| [acl(kind, "locked/%c/#", false), acl(kind, "#", true)])
        .concat();
    admin.run(json!({ "command": "createRole", "rolename": "own", "acls": acls }));
    admin.run(json!({ "command": "createClient", "username": "ann", "password": "secret", "roles": [{ "rolename": "own" }] }));
    for client_id in ["a/b", "+", "#", "$a"] {
        let mut ann = connected(&broker, client_id, "ann", "secret");
        assert_eq!(publish(&mut ann, "locked/a/b", "m"), 0x87, "{client_id}");
        assert_eq!(subscribe(&mut ann, "locked/a/#"), 0x87, "{client_id}");
    }
    let mut ann = connected(&broker, "a", "ann", "secret");
    let seen = ["locked/a/x", "locked/b/x"].map(|topic| publish(&mut ann, topic, "m"));
    assert_eq!(seen, [0x87, 0x10]);
}

#[test]
fn clients_whose_credentials_change_are_disconnected() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    admin.prepare(&["ann"]);
    let connect = |password: &str| dial(&broker, "phone", "ann", password);
    let mut ann = connected(&broker, "phone", "ann", "secret");
    admin.run(json!({ "command": "setClientPassword", "username": "ann", "password": "other-pw" }));
    assert_eq!(is_disconnected(&mut ann), Some(0x87));
    assert_eq!(connect("secret").1, 0x86);
    let (mut ann, reason) = connect("other-pw");
    assert_eq!(reason, 0);
    admin.run(json!({ "command": "disableClient", "username": "ann" }));
    assert_eq!(is_disconnected(&mut ann), Some(0x87));
    assert_eq!(connect("other-pw").1, 0x87);
    admin.run(json!({ "command": "enableClient", "username": "ann" }));
    admin.run(json!({ "command": "setClientId", "username": "ann", "clientid": "tablet" }));
    assert_eq!(connect("other-pw").1, 0x87);
    admin.run(json!({ "command": "setClientId", "username": "ann", "clientid": "phone" }));
    let (mut ann, reason) = connect("other-pw");
    assert_eq!(reason, 0);
    fulmar_user(&broker, &["passwd", "ann"], "by-hand\n");
    assert_eq!(is_disconnected(&mut ann), Some(0x87));
    let (mut ann, reason) = connect("by-hand");
    assert_eq!(reason, 0);
    assert_eq!(
        fulmar_user(&broker, &["list"], ""),
        "admin\tadmin\tadministrator role=admin\nann\tann\trole=r\n"
    );
    fulmar_user(&broker, &["remove", "ann"], "");
    assert_eq!(is_disconnected(&mut ann), Some(0x87));
    assert_eq!(connect("by-hand").1, 0x86);
    for secret in ["secret", "other-pw", "by-hand"] {
        assert!(!broker.log().contains(secret), "{}", broker.log());
    }
}

#[test]
fn answers_are_the_askers_and_the_last_administrator_stays() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    let mut other = Admin::new(&broker, "other", &password);
    let refused = admin.refused(json!({ "command": "deleteClient", "username": "admin" }));
    assert!(refused.contains("first make another client administrator"), "{refused}");
    let refused = admin.refused(json!({ "command": "deleteRole", "rolename": "admin" }));
    assert!(refused.contains("first give another client a role"), "{refused}");
    assert_eq!(admin.refused(json!({ "command": "fly" })), "Unknown command");
    assert_eq!(admin.run(json!({ "command": "listClients" }))["clients"], json!(["admin"]));
    // The other administrator's first message is the answer to its own request.
    let answer = other.run(json!({ "command": "getAnonymousGroup" }));
    assert_eq!(answer, json!({ "group": { "groupname": "" } }));
    other.0.ping();
}

/// Alternately all clients are in the group and none is: a state between these is none that a command leads to.
#[test]
fn kill_9_during_a_change_leaves_the_old_state_or_the_new_one() {
    let kills = number("FULMAR_KILLS", 8);
    let (mut broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    let names: Vec<String> = (0..10).map(|at| format!("c{at}")).collect();
    for name in &names {
        admin.run(json!({ "command": "createClient", "username": name }));
    }
    admin.run(json!({ "command": "createGroup", "groupname": "g" }));
    let full: Vec<Value> = names.iter().map(|name| json!({ "username": name })).collect();
    let modify = |is_full: bool| {
        let clients = if is_full { full.clone() } else { Vec::new() };
        json!({ "command": "modifyGroup", "groupname": "g", "clients": clients })
    };
    let (mut is_full, mut rng) = (false, fastrand::Rng::with_seed(7));
    let (mut old, mut new, mut changes) = (0, 0, 0);
    for kill in 0..kills {
        // Some changes, and then the kill while the next one is being made.
        for _ in 0..rng.usize(1..20) {
            is_full = !is_full;
            admin.run(modify(is_full));
            changes += 1;
        }
        admin.send(&modify(!is_full));
        let end = Instant::now() + Duration::from_micros(rng.u64(0..4_000));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        broker.kill();
        let acknowledged = admin.0.read().is_some();
        broker.restart();
        admin = Admin::new(&broker, "admin", &password);
        let group = admin.run(json!({ "command": "getGroup", "groupname": "g" }));
        let members = group["group"]["clients"].as_array().unwrap().len();
        assert!(members == 0 || members == full.len(), "{members} members after kill {kill}");
        let is_new = (members == full.len()) != is_full;
        assert!(is_new || !acknowledged, "an acknowledged change is lost by kill {kill}");
        (old, new) = (old + usize::from(!is_new), new + usize::from(is_new));
        is_full = members == full.len();
    }
    println!("{kills} kills, {changes} changes: {old} left the old state, {new} the new one");
}

/// With `FULMAR_CLIENTS=10000`, which needs 20,000 open files, it shows how long a change takes.
#[test]
fn a_changed_rule_holds_for_all_connected_clients() {
    let count = number("FULMAR_CLIENTS", 300);
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "admin", &password);
    admin.prepare(&["fleet"]);
    let mut clients: Vec<Wire> = (0..count)
        .map(|at| {
            let mut wire = connected(&broker, &format!("device-{at}"), "fleet", "secret");
            assert_eq!(subscribe(&mut wire, "a/news"), 0);
            wire
        })
        .collect();
    for wire in &mut clients {
        assert_eq!(publish(wire, "a/own", "before"), 0x10);
    }
    let mut other = connected(&broker, "other", "admin", &password);
    let begun = Instant::now();
    admin.acl("addRoleACL", "publishClientSend", "a/own", false);
    let answered = begun.elapsed();
    // All at once, so that the last client does not wait for the others' answers.
    let payload = packet(0x32, &[field("a/own"), vec![0, 7, 0]].concat());
    clients.iter_mut().for_each(|wire| wire.send(&payload));
    let sent = begun.elapsed();
    let accepted = clients
        .iter_mut()
        .filter_map(|wire| wire.read().filter(|(_, body)| body.get(2) != Some(&0x87)));
    let accepted = accepted.count();
    for wire in &mut clients {
        eventually("the worker's event", || publish(wire, "a/own", "after") == 0x87);
    }
    println!(
        "{count} clients: answered after {answered:?}, all have published again after {sent:?}, {accepted} of them \
         were still accepted; all denied after {:?}",
        begun.elapsed()
    );
    // What the rules say of receiving holds for the next publication.
    admin.acl("addRoleACL", "publishClientReceive", "a/news", false);
    assert_eq!(publish(&mut other, "a/news", "denied"), 0x10);
}

/// `fulmar ctl` and `$CONTROL` change one object of the running broker, not two that follow each other by polling.
#[test]
fn what_one_interface_changes_is_in_the_other_at_once() {
    let (broker, password) = broker();
    let mut admin = Admin::new(&broker, "console", &password);
    for round in 0..3 {
        let (name, mut command) = (format!("ann{round}"), fulmar());
        command.args(["ctl", "--data"]).arg(broker.data());
        command.args(["users", "add", &name, "--role", "viewer"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"a password").unwrap();
        assert!(child.wait().unwrap().success());
        connected(&broker, "phone", &name, "a password");
        admin.run(json!({ "command": "deleteClient", "username": name }));
        assert_ne!(dial(&broker, "phone", &name, "a password").1, 0);
        let mut list = fulmar();
        let output =
            list.args(["ctl", "--data"]).arg(broker.data()).args(["users", "list"]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(output.contains("admin") && !output.contains(&name), "{output}");
    }
}

#[test]
fn the_log_of_changes_has_requests_and_commands_with_the_broker_running_or_not() {
    let (mut broker, password) = broker();
    let mut admin = Admin::new(&broker, "console", &password);
    let create = json!({ "command": "createClient", "username": "ann", "password": "s3cret-1" });
    admin.run(create.clone());
    admin.refused(create);
    admin.run(json!({ "command": "listClients" }));
    fulmar_user(&broker, &["passwd", "ann"], "s3cret-2\n");
    assert!(broker.terminate().success());
    fulmar_user(&broker, &["remove", "ann"], "");
    let dynsec = broker.data().join("dynamic-security.json");
    std::fs::write(&dynsec, r#"{"clients": [], "groups": [], "roles": [{"rolename": "x"}]}"#)
        .unwrap();
    let import = ["import", "dynamic-security"];
    let imported = fulmar().args(import).arg(&dynsec).arg("--data").arg(broker.data()).output();
    assert!(imported.unwrap().status.success());
    let audit = fulmar().args(["audit", "--json", "--data"]).arg(broker.data()).output().unwrap();
    let text = String::from_utf8(audit.stdout).unwrap();
    let entries: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let own = format!("local:{}", std::fs::metadata("/proc/self").unwrap().uid());
    let expected = [
        ["server", "local", "user.add", "admin", "ok"],
        ["admin", "127.0.0.1", "user.add", "ann", "ok"],
        ["admin", "127.0.0.1", "user.add", "ann", "Client already exists"],
        [&own, "local", "user.change", "ann", "ok"],
        [&own, "local", "user.remove", "ann", "ok"],
        [&own, "local", "import", "dynamic-security", "ok"],
    ];
    let of = |entry: &Value| {
        ["who", "from", "action", "object", "result"]
            .map(|field| entry[field].as_str().unwrap().to_owned())
    };
    assert_eq!(entries.iter().map(of).collect::<Vec<_>>(), expected, "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}

/// The commands that the program knows, from its source: a new one is asked about, too.
fn control_commands() -> Vec<&'static str> {
    let source = include_str!("../../crates/identity/src/control/mod.rs");
    let arms = source.split("fn carry_out").nth(1).unwrap().split("\nfn ").next().unwrap();
    let names = arms.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" => "));
    names.map(|(name, _)| name).collect()
}

/// A command about this user and role, and about the group `g`, with everything that any command needs.
fn about(command: &str, name: &str, password: &str, topic: &str) -> Value {
    json!({
        "command": command, "username": name, "password": password, "clientid": name, "rolename": name,
        "groupname": "g", "acltype": "publishClientSend", "topic": topic, "allow": false, "priority": 99,
        "acls": [{ "acltype": "publishClientReceive", "allow": true }], "roles": [], "groups": [],
    })
}

impl Admin {
    /// A user, a role, and a group that `command` may be about: all there is, or, for a command that makes something, all
    /// but that.
    fn prepare_victim(&mut self, command: &str) {
        let of =
            |command: &str, field: &str, name: &str| json!({ "command": command, field: name });
        for undone in [
            of("setAnonymousGroup", "groupname", "strangers"),
            of("deleteClient", "username", "victim"),
            of("deleteRole", "rolename", "victim"),
            of("deleteGroup", "groupname", "g"),
        ] {
            self.send(&undone);
            let answer = self.answer().unwrap();
            let error = answer["error"].as_str().unwrap_or_default();
            assert!(error.is_empty() || error.ends_with("not found"), "{undone} {answer}");
        }
        let rule = json!([{ "acltype": "publishClientSend", "topic": CONTROL, "allow": false }]);
        let roles = json!([{ "rolename": "victim" }]);
        let groups = json!([{ "groupname": "g" }]);
        self.run(json!({ "command": "createRole", "rolename": "victim", "acls": rule }));
        self.run(json!({ "command": "createGroup", "groupname": "g", "roles": roles }));
        self.run(json!({ "command": "createClient", "username": "victim", "roles": roles, "groups": groups }));
        let own = json!({ "command": "addGroupClient", "groupname": "g", "username": "admin" });
        self.run(own.clone());
        let victim = |command: &str| about(command, "victim", "secret", CONTROL);
        match command {
            "createclient" => drop(self.run(victim("deleteClient"))),
            "createrole" => drop(self.run(victim("deleteRole"))),
            "creategroup" => drop(self.run(victim("deleteGroup"))),
            "addclientrole" => drop(self.run(victim("removeClientRole"))),
            "addgrouprole" => drop(self.run(victim("removeGroupRole"))),
            "addroleacl" => drop(self.run(victim("removeRoleACL"))),
            "addgroupclient" => {
                self.run(victim("removeGroupClient"));
                let mut own = own;
                own["command"] = "removeGroupClient".into();
                self.run(own);
            }
            _ => {}
        }
    }

    /// Sends a command, and returns what comes of it: `ended` if that changes what this connection has been made with, so
    /// that the broker ends it instead of answering.
    fn outcome(&mut self, command: &Value) -> &'static str {
        self.send(command);
        let (first, body) = self.0.read().expect("closed");
        if first == 0xe0 {
            assert_eq!((body[0], self.0.read()), (0x87, None), "{command}");
            return "ended";
        }
        let start = 2 + RESPONSE.len() + 1;
        let answer: Value = serde_json::from_slice(&body[start..]).unwrap();
        let answer = &answer["responses"][0];
        match answer.get("error").map(|error| error.as_str().unwrap()) {
            None => "done",
            Some(error) if error.contains("first give another client a role") => "refused",
            Some(error) if error.contains("first make another client administrator") => "refused",
            Some(error) if error.ends_with("already exists") => "exists",
            Some(error) => panic!("{command} {error}"),
        }
    }

    /// All that there is to see.
    fn everything(&mut self) -> [Value; 5] {
        ["listClients", "listGroups", "listRoles", "getDefaultACLAccess", "getAnonymousGroup"]
            .map(|command| self.run(json!({ "command": command, "verbose": true })))
    }
}

/// Every command with its answer to each sender, as `control_rights.txt` has it. `FULMAR_WRITE_RIGHTS=1` writes the file
/// anew, to be read before it is committed.
#[test]
fn every_command_is_only_for_users_with_the_right_to_send_it_and_none_locks_all_of_them_out() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_rights.txt");
    const HEAD: &str = "\
# Commands of $CONTROL/dynamic-security/v1, and what comes of them; tests/dynamic_security.rs sends each.
# right: of a user who may publish there, about others. itself: of the only one who may, about itself, its role and its
# group: refused where nobody could undo it; exists: there is one already; ended: done, and its connection is ended, because
# it has other credentials now. Afterwards it still can. Not authorized (135), and nothing has changed: wide: a user with a
# rule for `#`; other: one with a rule for other topics; taken: one whose rule was removed while it is connected; anonymous:
# one without a user name, whose group has a rule for `#`. disabled: one with the rule who may not connect (135).
# command right itself wide other taken anonymous disabled
";
    // Clients without a user name may connect to what only this machine reaches.
    let (broker, mut password) = broker_at(&["0.0.0.0:0", "127.0.0.1:0"]);
    let local = broker.bound().iter().find(|(_, address)| address.ip().is_loopback());
    let local = local.unwrap().1;
    let mut admin = Admin::new(&broker, "admin", &password);
    admin.prepare(&["other"]);
    for (name, topic) in [("wide", "#"), ("taken", CONTROL), ("disabled", CONTROL)] {
        let acls = json!([{ "acltype": "publishClientSend", "topic": topic, "allow": true }]);
        admin.run(json!({ "command": "createRole", "rolename": name, "acls": acls }));
        let roles = json!([{ "rolename": name }]);
        admin.run(json!({ "command": "createClient", "username": name, "password": "secret", "roles": roles }));
    }
    let roles = json!([{ "rolename": "wide" }]);
    admin.run(json!({ "command": "createGroup", "groupname": "strangers", "roles": roles }));
    let mut taken = connected(&broker, "taken", "taken", "secret");
    assert_eq!(publish(&mut taken, CONTROL, "{}"), 0);
    admin.run(json!({ "command": "removeClientRole", "username": "taken", "rolename": "taken" }));
    admin.run(json!({ "command": "disableClient", "username": "disabled" }));
    let mut wide = connected(&broker, "wide", "wide", "secret");
    let mut other = connected(&broker, "other", "other", "secret");
    eventually("the rule to be gone", || publish(&mut taken, CONTROL, "{}") == 0x87);
    let commands = control_commands();
    assert!(commands.len() > 20, "{commands:?}");
    let mut lines = Vec::new();
    for command in commands {
        admin.prepare_victim(command);
        let mut line = vec![command.to_owned()];
        let harmless = about(command, "victim", "secret", CONTROL);
        line.push(admin.outcome(&harmless).into());
        if !command.starts_with("get") && !command.starts_with("list") {
            admin.prepare_victim(command);
        }
        // What the administrator's role has.
        let topic = if command == "removeroleacl" { "$CONTROL/#" } else { CONTROL };
        let new = format!("new-{command}");
        let outcome = admin.outcome(&about(command, "admin", &new, topic));
        line.push(outcome.into());
        if outcome == "ended" && command != "setclientid" {
            assert_eq!(dial(&broker, "admin", "admin", &password).1, 0x86, "{command}");
            password = new;
        }
        if ["ended", "refused"].contains(&outcome) {
            admin = Admin::new(&broker, "admin", &password);
        }
        let before = admin.everything();
        let payload = json!({ "commands": [harmless] }).to_string();
        let mut anonymous = Wire::dial(local);
        let connect = [field("MQTT"), vec![5, 2, 0, 0, 0], field("anybody")].concat();
        anonymous.send(&packet(0x10, &connect));
        assert_eq!(anonymous.read().unwrap().1[1], 0);
        for wire in [&mut wide, &mut other, &mut taken, &mut anonymous] {
            line.push(publish(wire, CONTROL, &payload).to_string());
        }
        line.push(dial(&broker, "disabled", "disabled", "secret").1.to_string());
        assert_eq!(admin.everything(), before, "{command}");
        lines.push(line.join(" "));
    }
    let client = admin.run(json!({ "command": "getClient", "username": "admin" }));
    assert_eq!(client["client"]["clientid"], "admin", "setclientid");
    let text = format!("{HEAD}{}\n", lines.join("\n"));
    if std::env::var_os("FULMAR_WRITE_RIGHTS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(FILE).unwrap_or_default(), "not as in {FILE}");
}

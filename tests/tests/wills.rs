//! Wills of those who may not publish any more: whatever ends the right, the will is not published afterwards.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet, run, write_secret};
use ring::hmac;

const SECRET: &str = "a secret of the issuer's, of 32 bytes";
const PASSWORD: &str = "correct horse";
/// Tokens count for a minute longer than they say.
const GRACE_S: u64 = 60;

/// A broker with users of every kind, and a client that gets every will.
struct Scene {
    broker: TestBroker,
    folder: tempfile::TempDir,
    witness: Wire,
    honest: usize,
}

/// A client with a will.
#[derive(Clone, Copy)]
struct Mortal<'a> {
    id: &'a str,
    user: Option<(&'a str, &'a str)>,
    delay_s: u32,
    expiry_s: u32,
    from: [u8; 4],
}

/// The address of most of them, which is banned once.
const FROM: [u8; 4] = [127, 0, 0, 2];

fn mortal<'a>(id: &'a str, user: &'a str) -> Mortal<'a> {
    Mortal { id, user: Some((user, PASSWORD)), delay_s: 0, expiry_s: 0, from: FROM }
}

impl Mortal<'_> {
    fn connect(self) -> Vec<u8> {
        let flags = 0x0e | if self.user.is_some() { 0xc0 } else { 0 };
        let property = |id: u8, value: u32| [vec![5, id], value.to_be_bytes().to_vec()].concat();
        let user = self.user.map(|(user, password)| [field(user), field(password)].concat());
        let body = [
            field("MQTT"),
            vec![5, flags, 0, 0],
            property(0x11, self.expiry_s),
            field(self.id),
            property(0x18, self.delay_s),
            field(format!("last/{}", self.id)),
            field(self.id),
            user.unwrap_or_default(),
        ];
        packet(0x10, &body.concat())
    }

    fn live(self, broker: &TestBroker) -> Wire {
        self.try_live(broker).unwrap_or_else(|code| panic!("{}: {code:#x}", self.id))
    }

    /// Or CONNACK's reason code.
    fn try_live(self, broker: &TestBroker) -> Result<Wire, u8> {
        let mut wire = Wire::dial_from(self.from.into(), broker.address("mqtt"));
        wire.send(&self.connect());
        let (first, body) = wire.read().expect("CONNACK");
        assert_eq!(first, 0x20);
        if body[1] == 0 { Ok(wire) } else { Err(body[1]) }
    }
}

fn watch(address: SocketAddr) -> Wire {
    let mut witness = Wire::connect(address, "witness");
    witness.send(&packet(0x82, &[vec![0, 1, 0], field("last/#"), vec![0]].concat()));
    assert_eq!(witness.read().unwrap().1[3], 0, "SUBACK");
    witness
}

/// A token for this many seconds.
fn token(user: &str, seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"sub":"{user}","exp":{}}}"#, now + seconds - GRACE_S);
    let signed = [r#"{"typ":"JWT","alg":"HS256"}"#, &claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

impl Scene {
    fn new(more: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let (key, passwords) = (folder.path().join("key"), folder.path().join("passwords"));
        write_secret(&key, SECRET);
        let config = format!(
            "[platform]\nenabled = false\n[auth]\nallow_anonymous = \"always\"\njwt_algorithm = \"HS256\"\n\
             jwt_key_file = {key:?}\npassword_file = {passwords:?}\n{more}"
        );
        let mut passwd = fulmar();
        passwd.args(["passwd", "filed"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut passwd = passwd.spawn().unwrap();
        std::io::Write::write_all(&mut passwd.stdin.take().unwrap(), PASSWORD.as_bytes()).unwrap();
        write_secret(&passwords, passwd.wait_with_output().unwrap().stdout);
        let broker = TestBroker::builder().config(&config).start();
        let witness = watch(broker.address("mqtt"));
        Scene { broker, folder, witness, honest: 0 }
    }

    fn ctl(&self, words: &[&str]) {
        let file = self.folder.path().join("password");
        std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
        let mut command = fulmar();
        command.arg("ctl").args(words).arg("--data").arg(self.broker.data());
        let output = run(command.stdin(std::fs::File::open(file).unwrap()));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Users of the store that may publish their wills.
    fn add(&self, users: &[&str]) {
        self.ctl(&["roles", "add", "mortal"]);
        self.ctl(&["roles", "allow", "mortal", "publish", "last/#"]);
        for user in users {
            self.ctl(&["users", "add", user, "--topic-roles", "mortal"]);
        }
    }

    fn reload(&self, from: &str, to: &str) {
        let file = self.broker.config_file();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from));
        std::fs::write(&file, text.replace(from, to)).unwrap();
        self.hang_up();
    }

    fn hang_up(&self) {
        let times = || self.broker.log().matches("access rules reloaded").count();
        let before = times();
        self.broker.hang_up();
        eventually("the reload", || times() > before);
    }

    /// The next will that the witness gets.
    fn next(&mut self) -> String {
        let (first, body) = self.witness.read().unwrap();
        assert_eq!(first & 0xf0, 0x30);
        let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
        String::from_utf8(body[2..2 + length].to_vec()).unwrap()
    }

    /// The will of `client`, which has lost its right and is gone, was not published: the next one is that of another
    /// client that went later.
    fn is_silent(&mut self, client: &str, delay_s: u32) {
        let gone = format!("client={client:?}");
        eventually("the client to be gone", || {
            self.broker
                .log()
                .lines()
                .any(|line| line.contains("disconnected") && line.contains(&gone))
        });
        let id = format!("honest-{}", self.honest);
        self.honest += 1;
        let from = [127, 0, 0, 1];
        let honest = Mortal { id: &id, user: None, delay_s, expiry_s: delay_s * 100, from };
        drop(honest.live(&self.broker));
        assert_eq!(self.next(), format!("last/{id}"), "of {client}: {}", self.broker.log());
        let refused = self.broker.log();
        let refused = refused.lines().find(|line| {
            line.contains("will not published") && line.contains(&gone) && line.contains("last/")
        });
        assert!(refused.is_some(), "{client}: {}", self.broker.log());
    }
}

#[test]
fn a_user_that_is_gone_disabled_or_banned_leaves_no_will() {
    let mut scene = Scene::new("");
    scene.add(&["removed", "disabled", "banned", "other", "renamed", "demoted"]);
    // A control: who has lost nothing leaves a will.
    drop(mortal("c0", "other").live(&scene.broker));
    assert_eq!(scene.next(), "last/c0");
    let ends: [(&str, &str, &[&str]); 7] = [
        ("c1", "removed", &["users", "remove", "removed"]),
        ("c2", "disabled", &["users", "change", "disabled", "--disable"]),
        ("c3", "banned", &["clients", "ban", "--user", "banned", "--for", "1h"]),
        ("c4", "other", &["clients", "ban", "--client", "c4", "--for", "1h"]),
        ("c5", "other", &["users", "passwd", "other"]),
        ("c6", "renamed", &["users", "change", "renamed", "--client-id", "another"]),
        ("c7", "demoted", &["clients", "ban", "--network", "127.0.0.2/32", "--for", "1h"]),
    ];
    for (client, user, end) in ends {
        // Its end closes the connection: first what ends it, then the will would be published.
        let mut wire = mortal(client, user).live(&scene.broker);
        scene.ctl(end);
        while wire.read().is_some() {}
        scene.is_silent(client, 0);
    }
    assert_eq!(scene.broker.metric("wills_refused_total"), 7.0);
}

#[test]
fn a_rule_that_is_taken_takes_the_will() {
    let rules = "[[acl.rules]]\nallow = true\nuser = \"filed\"\ntopic = \"last/#\"\n";
    let mut scene = Scene::new(rules);
    scene.add(&["ann"]);
    let wire = mortal("c1", "ann").live(&scene.broker);
    scene.ctl(&["roles", "unset", "mortal", "publish", "last/#"]);
    drop(wire);
    scene.is_silent("c1", 0);
    let wire = mortal("c2", "filed").live(&scene.broker);
    scene.reload("allow = true\nuser", "allow = false\nuser");
    drop(wire);
    scene.is_silent("c2", 0);
    // Its client can come back meanwhile: what counts is the moment at which the will is due.
    scene.reload("allow = false\nuser", "allow = true\nuser");
    drop(mortal("c3", "filed").live(&scene.broker));
    assert_eq!(scene.next(), "last/c3");
    let wire = mortal("c4", "filed").live(&scene.broker);
    std::fs::write(scene.folder.path().join("passwords"), "").unwrap();
    scene.hang_up();
    drop(wire);
    scene.is_silent("c4", 0);
}

#[test]
fn a_will_ends_with_the_token_of_its_client() {
    let mut scene = Scene::new("");
    // On a busy machine, a token may end before its client has shown it.
    let live = |seconds| {
        let token = token("ann", seconds);
        let ann = Mortal { user: Some(("ann", &token)), ..mortal("c1", "") };
        ann.try_live(&scene.broker).ok()
    };
    let mut wire = [2, 8, 32].into_iter().find_map(live).expect("a token in time");
    while wire.read().is_some() {}
    scene.is_silent("c1", 0);
}

#[test]
fn a_right_that_ends_during_the_delay_takes_the_will() {
    let mut scene = Scene::new("");
    scene.add(&["ann", "bob"]);
    let delayed = |user, delay_s| Mortal { delay_s, expiry_s: 100, ..mortal(user, user) };
    drop(delayed("bob", 1).live(&scene.broker));
    assert_eq!(scene.next(), "last/bob");
    let ann = delayed("ann", 8).live(&scene.broker);
    drop(ann);
    scene.ctl(&["users", "remove", "ann"]);
    scene.is_silent("ann", 8);
}

#[test]
fn what_a_will_needs_is_known_after_a_crash() {
    let mut scene = Scene::new("");
    scene.add(&["ann", "bob", "cleo"]);
    let token = token("dan", 6);
    let stored = |id, user| Mortal { expiry_s: 100, delay_s: 3, ..mortal(id, user) };
    let by_token = Mortal { user: Some(("dan", &token)), ..stored("by-token", "") };
    let good = Mortal { from: [127, 0, 0, 1], ..stored("good", "cleo") };
    let all = [by_token, stored("removed", "ann"), stored("banned", "bob"), good];
    let wires = all.map(|client| client.live(&scene.broker));
    let expires = Instant::now() + Duration::from_secs(6);
    scene.broker.kill();
    drop(wires);
    let mut remove = fulmar();
    remove.args(["user", "remove", "ann", "--config"]).arg(scene.broker.config_file());
    let removed = run(remove.arg("--data").arg(scene.broker.data()));
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    eventually("the end of the token", || Instant::now() > expires);
    scene.broker.restart();
    scene.witness = watch(scene.broker.address("mqtt"));
    scene.ctl(&["clients", "ban", "--network", "127.0.0.2/32", "--for", "1h"]);
    assert_eq!(scene.next(), "last/good", "{}", scene.broker.log());
    eventually("three refusals", || scene.broker.metric("wills_refused_total") == 3.0);
    assert_eq!(scene.broker.metric("wills_published_total"), 1.0);
}

#[test]
fn a_ban_takes_a_will_that_is_due_when_the_broker_starts() {
    let mut scene = Scene::new("");
    scene.add(&["ann"]);
    drop(Mortal { expiry_s: 100, delay_s: 2, ..mortal("c1", "ann") }.live(&scene.broker));
    eventually("the client to be gone", || scene.broker.log().contains("disconnected"));
    let due = Instant::now() + Duration::from_secs(3);
    scene.ctl(&["clients", "ban", "--user", "ann", "--for", "1h"]);
    scene.broker.kill();
    eventually("the will to be due", || Instant::now() > due);
    scene.broker.restart();
    let wills = |what: &str| scene.broker.metric(&format!("wills_{what}_total"));
    eventually("the will", || wills("refused") + wills("published") > 0.0);
    assert_eq!((wills("refused"), wills("published")), (1.0, 0.0), "{}", scene.broker.log());
}

#[test]
fn whoever_takes_a_session_over_publishes_no_will_of_another() {
    let mut scene = Scene::new("session_owner = \"none\"\n");
    scene.add(&["ann", "bob"]);
    scene.ctl(&["roles", "add", "nothing"]);
    let _ann = mortal("shared", "ann").live(&scene.broker);
    scene.ctl(&["users", "change", "ann", "--topic-roles", "nothing"]);
    let second = Mortal { user: Some(("bob", PASSWORD)), ..mortal("shared", "bob") };
    let _bob = second.live(&scene.broker);
    scene.is_silent("shared", 0);
}

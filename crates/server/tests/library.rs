//! The server as a library: several servers in one process, errors before anything is bound, reloading and stopping.
//!
//! `tests/tests` has what the program does with it.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use fulmar_broker::auth::hash_password;
use fulmar_client::{Client, Error, Event, Events, Message, Options, ReasonCode, SubscribeOptions};
use fulmar_server::{Config, Server, Usage};
use tokio::runtime::Runtime;

#[path = "../examples/embed.rs"]
mod embed;

/// MQTT over TCP on a port that the system chooses, and nothing else.
const MQTT_ONLY: &str = "[listeners]\nmqtt = [\"127.0.0.1:0\"]\nmqtts = []\nws = []\nquic = []\n\
                         https = []\nhttp = []\ncoap = []\ncoaps = []\n";

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(more: &str, data: &Path) -> Config {
    Config::from_toml(&format!("{MQTT_ONLY}{more}")).unwrap().with_data_dir(data)
}

fn url(server: &Server) -> String {
    format!("mqtt://{}", server.address("mqtt").unwrap())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The next event, which has to come.
async fn next(events: &mut Events) -> Event {
    tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap()
}

/// Publishes a retained message to `kept`, and returns when it is acknowledged.
fn keep(server: &Server, payload: &str) {
    runtime().block_on(async {
        let (client, _events) = Client::connect(Options::new(&url(server)).unwrap()).unwrap();
        let mut message = Message::new("kept", payload.to_owned()).qos1();
        message.retain = true;
        client.publish(message).await.unwrap().await.unwrap();
        client.disconnect().await;
    });
}

/// The retained message at `kept`.
fn kept(server: &Server) -> String {
    runtime().block_on(async {
        let (client, mut events) = Client::connect(Options::new(&url(server)).unwrap()).unwrap();
        client.subscribe(&[("kept", SubscribeOptions::default())]).await.unwrap();
        loop {
            if let Event::Message(message) = next(&mut events).await {
                client.disconnect().await;
                return String::from_utf8(message.payload.to_vec()).unwrap();
            }
        }
    })
}

#[test]
fn the_example_runs() {
    embed::main().unwrap();
}

#[test]
fn a_kept_message_is_there_when_the_same_process_starts_again() {
    let data = tempfile::tempdir().unwrap();
    let first = Server::start(config("", data.path())).unwrap();
    keep(&first, "still here");
    first.stop().unwrap();
    let second = Server::start(config("", data.path())).unwrap();
    assert_eq!(kept(&second), "still here");
    // What is acknowledged outlives a server that is dropped, too.
    keep(&second, "changed");
    drop(second);
    let third = Server::start(config("", data.path())).unwrap();
    assert_eq!(kept(&third), "changed");
    third.stop().unwrap();
}

#[test]
fn two_servers_in_one_process_share_nothing() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, second] = [&a, &b].map(|data| Server::start(config("", data.path())).unwrap());
    keep(&first, "first");
    keep(&second, "second");
    assert_eq!((kept(&first), kept(&second)), ("first".into(), "second".into()));
    let error = Server::start(config("", a.path())).unwrap_err();
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
    second.stop().unwrap();
    assert_eq!(kept(&first), "first", "the other's end concerns it");
    first.stop().unwrap();
}

#[test]
fn every_listener_has_its_name_and_its_port() {
    let data = tempfile::tempdir().unwrap();
    let names = [
        "mqtt",
        "mqtts",
        "ws",
        "wss",
        "quic",
        "https",
        "webtransport",
        "http",
        "coap",
        "coaps",
        "mqtt_sn",
    ];
    let listeners: String =
        names.iter().map(|name| format!("{name} = [\"127.0.0.1:0\"]\n")).collect();
    let config = Config::from_toml(&format!("[listeners]\n{listeners}")).unwrap();
    let server = Server::start(config.with_data_dir(data.path())).unwrap();
    for name in names {
        assert_ne!(server.address(name).map_or(0, |address| address.port()), 0, "{name}");
    }
    assert_eq!(server.bound().len(), names.len());
    assert_eq!(server.address("none"), None);
    server.stop().unwrap();
}

#[test]
fn a_wrong_configuration_is_named_and_nothing_is_made_for_it() {
    let wrong = |text: &str| Config::from_toml(text).unwrap_err();
    for (text, parts) in [
        ("[limits]\nmax_session = 5\n", ["2:1: ", "max_sessions"]),
        ("[quic]\nidle_timeout_s = 0\n", ["[quic] idle_timeout_s = 0", "from 1 to"]),
        (
            "[listeners]\nhttps = []\n[auth]\nallow_anonymous = \"never\"\n",
            ["[listeners] mqtt", "Next:"],
        ),
    ] {
        let error = wrong(text);
        let said = error.downcast_ref::<Usage>().unwrap().to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fulmar.toml");
    std::fs::write(&file, "[limits]\nmax_session = 5\n").unwrap();
    let said = Config::from_file(&file).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}:2:1: ", file.display())), "{said}");
    // What only the start can see.
    let data = folder.path().join("data");
    let error = Server::start(config("[auth]\npassword_file = \"/none\"\n", &data)).unwrap_err();
    assert!(error.downcast_ref::<Usage>().is_some(), "{error:?}");
    assert!(error.to_string().starts_with("[auth] password_file /none: "), "{error}");
    assert!(!data.exists());
}

/// Whether a client with this password gets in.
fn gets_in(server: &Server, password: &str) -> bool {
    runtime().block_on(async {
        let mut options = Options::new(&url(server)).unwrap();
        options.username = Some("ann".into());
        options.password = Some(password.into());
        options.reconnect = None;
        let (_client, mut events) = Client::connect(options).unwrap();
        match next(&mut events).await {
            Event::Connected { .. } => true,
            Event::Disconnected { reason: Error::Refused { reason, .. }, .. } => {
                assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
                false
            }
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn reloading_reads_passwords_again_or_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    let write = |password: &str| {
        let hash = hash_password(password.as_bytes()).unwrap();
        let line = format!("ann:{hash}\n");
        fulmar_certs::files::write(&passwords, line.as_bytes(), true).unwrap();
    };
    write("old");
    let data = folder.path().join("data");
    let auth =
        |file: &Path| format!("[auth]\nallow_anonymous = \"never\"\npassword_file = {file:?}\n");
    let started = config(&auth(&passwords), &data);
    let server = Server::start(started.clone()).unwrap();
    assert!(gets_in(&server, "old") && !gets_in(&server, "new"));
    write("new");
    assert!(gets_in(&server, "old"), "read before it was asked to");
    assert!(server.reload(&started).unwrap().is_empty());
    assert!(gets_in(&server, "new") && !gets_in(&server, "old"));
    // Beside what is wrong, what is right has no effect either.
    write("newer");
    let error = server.reload(&config(&auth(Path::new("/none")), &data)).unwrap_err();
    assert!(error.to_string().contains("/none"), "{error}");
    assert!(gets_in(&server, "new") && !gets_in(&server, "newer"));
    let more = format!("{}[limits]\nmax_sessions = 5\n", auth(&passwords));
    assert_eq!(server.reload(&config(&more, &data)).unwrap(), ["limits.max_sessions"]);
    assert!(gets_in(&server, "newer"));
    server.stop().unwrap();
}

/// A subscriber that reads nothing until its runtime runs again.
fn subscriber(address: SocketAddr) -> (Runtime, Client, Events) {
    let runtime = runtime();
    let (client, events) = runtime.block_on(async {
        let mut options = Options::new(&format!("mqtt://{address}")).unwrap();
        options.reconnect = None;
        let (client, events) = Client::connect(options).unwrap();
        client.subscribe(&[("#", SubscribeOptions::default())]).await.unwrap();
        (client, events)
    });
    (runtime, client, events)
}

#[test]
fn stopping_gives_clients_what_is_queued_for_them() {
    const MESSAGES: usize = 60;
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(config("", data.path())).unwrap();
    let (reader, _client, mut events) = subscriber(server.address("mqtt").unwrap());
    runtime().block_on(async {
        let (client, _events) = Client::connect(Options::new(&url(&server)).unwrap()).unwrap();
        for _ in 0..MESSAGES {
            let message = Message::new("t", vec![b'x'; 16_000]).qos1();
            client.publish(message).await.unwrap().await.unwrap();
        }
        client.disconnect().await;
    });
    let stopping = std::thread::spawn(move || server.stop());
    let mut received = 0;
    let reason = reader.block_on(async {
        loop {
            match next(&mut events).await {
                Event::Message(_) => received += 1,
                Event::Disconnected { reason, .. } => return reason,
                _ => {}
            }
        }
    });
    assert!(matches!(reason, Error::Disconnected(ReasonCode::ServerShuttingDown)), "{reason}");
    assert_eq!(received, MESSAGES);
    stopping.join().unwrap().unwrap();
}

/// What an operator does with an outbox that is damaged. What the broker has acknowledged and the outbox has not taken
/// waits in the session of the old one.
#[test]
fn a_new_outbox_gets_what_was_acknowledged_for_the_one_before() {
    let [data, upstream_data] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let upstream = Server::start(config("", upstream_data.path())).unwrap();
    let gateway = |url: &str| {
        let more = format!(
            "[limits]\nmax_packet_bytes = 60000\n[upstream]\nurl = \"{url}\"\n[upstream.outbox]\nmax_bytes = 65536\npolicy = \"refuse\"\n\
             [[upstream.up]]\nfilter = \"#\"\n"
        );
        Server::start(config(&more, data.path())).unwrap()
    };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = gateway(&format!("mqtt://{}", silent.local_addr().unwrap()));
    runtime().block_on(async {
        let (client, _events) = Client::connect(Options::new(&url(&first)).unwrap()).unwrap();
        for number in ["1", "2", "3"] {
            let message = Message::new("reading", number.repeat(40_000)).qos1();
            client.publish(message).await.unwrap().await.unwrap();
        }
        client.disconnect().await;
    });
    first.stop().unwrap();
    for file in std::fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("outbox.db") {
            std::fs::remove_file(file).unwrap();
        }
    }
    let runtime = runtime();
    let (client, mut events) = runtime.block_on(async {
        let (client, events) = Client::connect(Options::new(&url(&upstream)).unwrap()).unwrap();
        client.subscribe(&[("reading", SubscribeOptions::default())]).await.unwrap();
        (client, events)
    });
    let _second = gateway(&url(&upstream));
    runtime.block_on(async {
        let mut got = Vec::new();
        while !got.contains(&b'3') {
            if let Event::Message(message) = next(&mut events).await {
                got.push(message.payload[0]);
            }
        }
        client.disconnect().await;
    });
}

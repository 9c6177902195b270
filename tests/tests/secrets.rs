//! One rule of modes for all files with secrets: the owner's alone, or root's and a group's.
#![allow(clippy::unwrap_used)]

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use fulmar_tests::{TestBroker, default_listeners, eventually, fulmar, run, write_secret};

/// `fulmar serve`, on free ports.
fn serve() -> Command {
    on_free_ports(&["serve"])
}

/// A command that reads the server's configuration.
fn on_free_ports(words: &[&str]) -> Command {
    let mut command = fulmar();
    command.args(words);
    for (name, _) in default_listeners() {
        let key = format!("FULMAR_LISTENERS__{}", name.to_uppercase());
        command.env(key, r#"["127.0.0.1:0"]"#);
    }
    command
}

/// What `fulmar serve --check` prints with this configuration, and its exit code.
fn check(folder: &Path, config: &str) -> (String, Option<i32>) {
    let file = folder.join("fulmar.toml");
    std::fs::write(&file, format!("[server]\ndata_dir = {:?}\n{config}", folder.join("data")))
        .unwrap();
    let output = run(serve().args(["--check", "--config"]).arg(&file));
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

/// Calls `judge` with a mode of the file, and whether a secret may have it.
fn each_mode(file: &Path, judge: impl Fn(u32, bool)) {
    let is_roots = file.metadata().unwrap().uid() == 0;
    let groups = [0o440, 0o640].map(|mode| (mode, is_roots));
    for (mode, allowed) in
        [(0o600, true), (0o400, true), (0o444, false), (0o644, false)].into_iter().chain(groups)
    {
        set_permissions(file, Permissions::from_mode(mode)).unwrap();
        judge(mode, allowed);
    }
}

#[test]
fn every_setting_with_a_secret_has_the_same_rule() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let issue = ["cert", "issue", "localhost", "--dir"];
    assert!(
        run(fulmar().args(issue).arg(path("ca")).arg("--out").arg(folder.path())).status.success()
    );
    let (cert, key) = (path("localhost.pem"), path("localhost.key"));
    write_secret(path("psk"), "meter-7:0123456789abcdef\n");
    write_secret(path("passwords"), "");
    write_secret(path("line"), "0123456789abcdef0123456789abcdef");
    write_secret(path("headers"), "Authorization: Bearer x\n");
    let tls = format!("cert = {cert:?}\nkey = {key:?}\n");
    let url = "[[upstream.up]]\nfilter = \"a/#\"\n[upstream]\nurl = \"mqtts://broker.example:1\"\n";
    let nats = "[cluster]\nservers = [\"tls://192.0.2.1:1\"]\nnode = \"a\"\n";
    let upstream = |key: &str, file: &str| format!("{url}user = \"a\"\n{key} = {:?}\n", path(file));
    let cases = [
        (path("passwords"), format!("[auth]\npassword_file = {:?}\n", path("passwords"))),
        (
            path("line"),
            format!("[auth]\njwt_algorithm = \"HS256\"\njwt_key_file = {:?}\n", path("line")),
        ),
        (
            path("line"),
            format!(
                "[auth.http]\nurl = \"https://users.example\"\ntoken_file = {:?}\n",
                path("line")
            ),
        ),
        (path("line"), format!("{nats}credentials_file = {:?}\n", path("line"))),
        (key.clone(), format!("{nats}{tls}")),
        (
            path("line"),
            format!(
                "[platform]\ndatabase = \"postgres://u@192.0.2.1/f\"\ndatabase_password_file = {:?}\n",
                path("line")
            ),
        ),
        (path("psk"), format!("[coap]\npsk_file = {:?}\n", path("psk"))),
        (
            path("headers"),
            format!(
                "[otlp]\nendpoint = \"http://127.0.0.1:4318\"\nheaders_file = {:?}\n",
                path("headers")
            ),
        ),
        (path("line"), upstream("password_file", "line")),
        (path("line"), upstream("token_file", "line")),
        (key.clone(), format!("{url}{tls}")),
        (key.clone(), format!("[tls]\n{tls}")),
    ];
    for (file, config) in cases {
        each_mode(&file, |mode, allowed| {
            let (said, code) = check(folder.path(), &config);
            let refused = said.contains("readable by others") && said.contains("run `chmod 600");
            assert_eq!(refused, !allowed, "{mode:o} {config}{said}");
            assert_eq!(code != Some(0), !allowed, "{mode:o} {config}{said}");
        });
        set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn so_have_commands() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_secret(path("secret"), "no key, no token");
    let secret = path("secret");
    each_mode(&secret, |mode, allowed| {
        let ctl = ["ctl", "--url", "https://localhost:1", "--token-file"];
        let send = ["send", "fulmar.toml", "--to", "127.0.0.1:9", "--key"];
        let decode = ["meter", "decode", "--keys"];
        let mut commands = [fulmar(), fulmar(), fulmar()];
        commands[0].args(ctl).arg(&secret).args(["clients", "list"]);
        commands[1].args(send).arg(&secret);
        commands[2].args(decode).args([&secret, Path::new("-")]);
        for command in &mut commands {
            let said = String::from_utf8(run(command).stderr).unwrap();
            assert_eq!(said.contains("run `chmod 600"), !allowed, "{mode:o} {command:?} {said}");
        }
    });
}

#[test]
fn so_have_files_in_the_data_folder() {
    for name in ["quic.key", "platform.key", "scram.key", "replaced-hashes"] {
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join(name), [7; 32]).unwrap();
        set_permissions(data.path().join(name), Permissions::from_mode(0o644)).unwrap();
        let passwords = data.path().join("users");
        write_secret(&passwords, "");
        for words in [&["serve"][..], &["serve", "--check"], &["doctor"]] {
            let mut command = on_free_ports(words);
            command.env("FULMAR_DATA", data.path());
            command.env("FULMAR_AUTH__PASSWORD_FILE", &passwords).env("FULMAR_AUTH__SCRAM", "true");
            let output = run(&mut command);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(said.contains(name) && said.contains("run `chmod 600"), "{words:?}: {said}");
            assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        }
    }
}

/// As Kubernetes' `fsGroup` does at each mount of a volume.
#[test]
fn what_a_volume_gives_to_a_group_is_taken_back() {
    let mut broker = TestBroker::start();
    broker.terminate();
    let secrets = ["quic.key", "platform.key", "ca/ca.key", "ca/server.key"];
    let modes = |data: &Path| {
        secrets.map(|name| data.join(name).metadata().unwrap().permissions().mode() & 0o777)
    };
    let data = broker.data();
    // Not root's: those a group may read.
    for name in secrets {
        drop(std::os::unix::fs::chown(data.join(name), Some(990), Some(990)));
        set_permissions(data.join(name), Permissions::from_mode(0o660)).unwrap();
    }
    let authority = std::fs::read(broker.ca_file()).unwrap();
    broker.restart();
    assert_eq!(modes(&broker.data()), [0o600; 4]);
    assert_eq!(std::fs::read(broker.ca_file()).unwrap(), authority);
}

/// Starts a server, which logs this; or `--check` or `fulmar doctor`, which print it.
fn assert_said(mut command: Command, wanted: &[&str]) {
    let log = tempfile::NamedTempFile::new().unwrap();
    command.stdout(log.reopen().unwrap()).stderr(log.reopen().unwrap());
    let mut child = command.spawn().unwrap();
    let said = || std::fs::read_to_string(log.path()).unwrap();
    eventually(&wanted.join(", "), || wanted.iter().all(|wanted| said().contains(wanted)));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_weak_is_refused_or_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let [data, key, file] = ["data", "key", "fulmar.toml"].map(|name| folder.path().join(name));
    let config = |text: &str| {
        std::fs::write(&file, format!("[server]\ndata_dir = {data:?}\n{text}")).unwrap();
    };
    write_secret(&key, "k");
    config(&format!("[auth]\njwt_algorithm = \"HS256\"\njwt_key_file = {key:?}\n"));
    for more in [&["--check"][..], &[]] {
        let output = run(serve().arg("--config").arg(&file).args(more));
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("at least 32 bytes"), "{said}");
        assert_ne!(output.status.code(), Some(0));
    }
    std::fs::create_dir(&data).unwrap();
    set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    config("[auth.http]\nurl = \"http://192.0.2.1/\"\n");
    let wanted = ["chmod 700", "[auth.http] url is another machine's over http://"];
    for more in [&["--check"][..], &[]] {
        let mut command = serve();
        command.arg("--config").arg(&file).args(more);
        assert_said(command, &wanted);
    }
    let mut doctor = fulmar();
    doctor.args(["doctor", "--config"]).arg(&file);
    assert_said(doctor, &wanted);
}

//! `fulmar rollout` and `fulmar receive --announced`: a firmware to the devices of a group, in stages, over a
//! broker that hands out the keys. Devices hear a multicast group on loopback.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};

use fulmar_tests::{TestBroker, fulmar, run};
use serde_json::{Value, json};

/// A group's devices and what is theirs, and a firmware.
struct Field {
    broker: TestBroker,
    home: tempfile::TempDir,
    devices: Vec<Child>,
    port: u16,
}

impl Field {
    /// Each device has a program that installs.
    fn new(port: u16, devices: &[&str]) -> Field {
        let (broker, home) = (TestBroker::start(), tempfile::tempdir().unwrap());
        fs::write(home.path().join("fw.bin"), firmware()).unwrap();
        let mut field = Field { broker, home, devices: Vec::new(), port };
        for (number, install) in devices.iter().enumerate() {
            let name = format!("device{number}");
            let mut command = fulmar();
            command.args(["receive", "--group", "pumps", "--interface", "127.0.0.1", "--quiet"]);
            command.env("XDG_DATA_HOME", field.home.path());
            command.args(["--count", "1", "--device", &name, "--install", install]);
            command.arg("--announced").arg(field.url()).arg("--dir").arg(field.folder(number));
            field.devices.push(command.spawn().unwrap());
        }
        field
    }

    fn url(&self) -> String {
        format!("mqtt://{}", self.broker.address("mqtt"))
    }

    fn folder(&self, device: usize) -> PathBuf {
        self.home.path().join(device.to_string())
    }

    fn has_it(&self, device: usize) -> bool {
        fs::read(self.folder(device).join("fw.bin")).is_ok_and(|bytes| bytes == firmware())
    }

    fn roll_out(&self, more: &[&str]) -> Output {
        let mut command = fulmar();
        command.arg("rollout").arg(self.home.path().join("fw.bin")).args(["--json", "--group"]);
        command.env("XDG_DATA_HOME", self.home.path());
        command.args(["pumps", "--broker"]).arg(self.url()).arg("--to");
        if more.contains(&"quic") {
            command.arg(format!("127.0.0.1:{}", self.port));
        } else {
            command.arg(format!("239.7.7.7:{}", self.port));
            command.args(["--rate", "20M", "--interface", "127.0.0.1"]);
        }
        command.arg("--expect").arg(self.devices.len().max(1).to_string());
        run(command.args(more))
    }

    /// What is retained under a topic.
    fn retained(&self, topic: &str) -> Value {
        let mut command = fulmar();
        command.arg("sub").arg(self.url()).args(["-C", "1", "-W", "10", "-t", topic]);
        serde_json::from_slice(&run(&mut command).stdout).unwrap()
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        for device in &mut self.devices {
            let _ = device.kill();
            let _ = device.wait();
        }
    }
}

fn firmware() -> Vec<u8> {
    (0..50_000u32).flat_map(|number| number.wrapping_mul(0x9E37_79B9).to_be_bytes()).collect()
}

fn events(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn program(name: &str) -> &'static str {
    let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
    let found = found.iter().find(|path| path.exists()).unwrap();
    Box::leak(found.to_str().unwrap().to_owned().into_boxed_str())
}

#[test]
fn all_devices_get_it_stage_by_stage_and_failures_are_counted() {
    let [good, bad] = ["true", "false"].map(program);
    let mut field = Field::new(16_003, &[good, good, bad, good]);
    let output = field.roll_out(&["--stages", "1,50%,all", "--max-failures", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = events(&output);
    let stages: Vec<&Value> = told
        .iter()
        .filter(|event| event["event"] == "stage")
        .map(|event| &event["devices"])
        .collect();
    assert_eq!(
        stages,
        [
            &serde_json::json!(["device0"]),
            &serde_json::json!(["device1"]),
            &serde_json::json!(["device2", "device3"])
        ]
    );
    let end = told.last().unwrap();
    assert_eq!(
        (&end["done"], &end["failed"], &end["state"]),
        (&3.into(), &1.into(), &"done".into())
    );
    let failed = told.iter().find(|event| event["state"] == "failed").unwrap();
    assert_eq!(failed["device"], "device2");
    assert!(failed["reason"].as_str().unwrap().contains("exit status: 1"), "{failed}");
    for (number, device) in field.devices.iter_mut().enumerate() {
        assert_eq!(device.wait().unwrap().success(), number != 2);
    }
    assert!((0..4).all(|device| field.has_it(device)), "the one received it, too");
    assert_eq!(field.retained("rollout/pumps/announce")["state"], "done");
}

#[test]
fn too_many_failures_stop_it() {
    let [good, bad] = ["true", "false"].map(program);
    let field = Field::new(16_004, &[bad, good, good]);
    let output = field.roll_out(&["--stages", "1,all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 of 1 devices failed"));
    let told = events(&output);
    let end = told.last().unwrap();
    assert_eq!(end["state"], "stopped");
    assert_eq!((&end["done"], &end["failed"], &end["waiting"]), (&0.into(), &1.into(), &2.into()));
    assert!(!field.has_it(1) && !field.has_it(2), "the others keep what they have");
    assert_eq!(field.retained("rollout/pumps/announce")["state"], "stopped");
}

#[test]
fn a_device_that_cannot_store_it_has_failed() {
    let good = program("true");
    let field = Field::new(16_014, &[good]);
    // A folder has the file's name.
    fs::create_dir_all(field.folder(0).join("fw.bin")).unwrap();
    let output = field.roll_out(&[]);
    assert_eq!(output.status.code(), Some(1));
    let told = events(&output);
    let failed = told.iter().find(|event| event["state"] == "failed").unwrap();
    assert_eq!(failed["device"], "device0");
    assert!(failed["reason"].as_str().unwrap().contains("directory"), "{failed}");
    assert_eq!(told.last().unwrap()["state"], "stopped");
}

#[test]
fn an_installation_may_take_longer_than_a_silent_device_is_waited_for() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("install.sh");
    fs::write(&slow, "#!/bin/sh\nsleep 6\n").unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o700)).unwrap();
    let field = Field::new(16_015, &[slow.to_str().unwrap()]);
    let output = field.roll_out(&["--patience", "3"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_device_that_the_file_does_not_reach_is_given_up() {
    let field = Field::new(16_016, &[]);
    let told = std::thread::scope(|scope| {
        let roll_out = scope.spawn(|| field.roll_out(&["--patience", "10"]));
        // It reports again and again that it has received nothing yet.
        while !roll_out.is_finished() {
            let announced = field.retained("rollout/pumps/announce");
            let status = json!({ "transfer": announced["transfer"], "state": "receiving" });
            let mut command = fulmar();
            command.arg("pub").arg(field.url()).args(["-t", "rollout/pumps/device/deaf/status"]);
            run(command.arg("-m").arg(status.to_string()));
        }
        events(&roll_out.join().unwrap())
    });
    let failed = told.iter().find(|event| event["state"] == "failed").unwrap();
    assert!(failed["reason"].as_str().unwrap().starts_with("no progress: 0 bytes"), "{failed}");
    assert_eq!(told.last().unwrap()["state"], "stopped");
}

#[test]
fn without_devices_it_says_so() {
    let field = Field::new(16_005, &[]);
    let output = field.roll_out(&["--expect", "2", "--patience", "1"]);
    assert_eq!(output.status.code(), Some(2), "--expect twice is wrong usage");
    let mut command = fulmar();
    command.arg("rollout").arg(field.home.path().join("fw.bin")).args(["--group", "pumps"]);
    command.args(["--to", "127.0.0.1", "--patience", "1", "--broker"]).arg(field.url());
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 of 1 devices appeared"));
}

/// Where NORM does not pass, devices fetch it over QUIC, each in its stage.
#[test]
fn over_quic_devices_fetch_it() {
    let [good, bad] = ["true", "false"].map(program);
    let field = Field::new(16_013, &[good, good, bad]);
    let output = field.roll_out(&["--via", "quic", "--stages", "1,all", "--max-failures", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let end = events(&output).pop().unwrap();
    let counts = (&end["done"], &end["failed"], &end["state"]);
    assert_eq!(counts, (&2.into(), &1.into(), &"done".into()));
    assert!((0..3).all(|device| field.has_it(device)));
    assert_eq!(field.retained("rollout/pumps/announce")["via"], "quic");
}

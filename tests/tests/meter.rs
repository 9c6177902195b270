//! `fulmar meter` as a user types it: telegrams in, lines out, and what it says when something is wrong.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use fulmar_tests::{fulmar, run};
use serde_json::Value;

const CLEAR: &str = "1844AE4C4455223368077A55000000041389E20100023B0000";
/// Mode 5, of meter 22917370 under a key of zeros.
const MODE_5: &str = concat!(
    "5144B4097073912218078C00247A0308400571E9615249EDE52EAAE09F61908F027C3877F3330AE907",
    "9528B23173CE124BCC255393E60B173C0A9F274C42DD92E4B23C14E8A41F042903358DF01DD9268AD4"
);

fn keys(folder: &Path, text: &str, mode: u32) {
    let path = folder.join("keys.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn decode(folder: &Path, args: &[&str], input: &str) -> Output {
    fs::write(folder.join("telegrams"), input).unwrap();
    let mut command = fulmar();
    command.args(["meter", "decode"]).args(args).arg("telegrams").current_dir(folder);
    run(&mut command)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn telegrams_become_lines() {
    let folder = tempfile::tempdir().unwrap();
    keys(folder.path(), &format!("[keys]\n22917370 = \"{}\"\n", "0".repeat(32)), 0o600);
    let input = format!("{CLEAR}\nnonsense\n{MODE_5}\n{MODE_5}\n{}\n", &CLEAR[..30]);
    let output = decode(folder.path(), &["--keys", "keys.toml"], &input);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines[0], "SEN 33225544 water: volume 123.529 m³; volume flow 0 m³/h");
    assert!(lines[1].starts_with("? error (input): not hexadecimal"), "{}", lines[1]);
    assert!(lines[2].contains("2023-05-11 10:38:24; volume 0.025 m³;"), "{}", lines[2]);
    assert!(lines[2].ends_with("status: permanent error"), "{}", lines[2]);
    assert!(lines[3].starts_with("BMT 22917370 water: error (replayed)"), "{}", lines[3]);
    assert!(lines[4].starts_with("? error (truncated)"), "{}", lines[4]);
    assert_eq!(lines.len(), 5);
    assert_eq!(text(&output.stderr).trim(), "fulmar: 2 telegrams decoded, 3 not");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn programs_get_json() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("T1;1;1;2020-01-01 10:00:00.000;97;148;33225544;0x{CLEAR}\n");
    let output = decode(folder.path(), &["--json"], &line);
    let telegram: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(telegram["meter"], "33225544");
    assert_eq!(telegram["manufacturer"], "SEN");
    assert_eq!(telegram["time"], "2020-01-01 10:00:00.000");
    assert_eq!((&telegram["rssi_raw"], &telegram["security"]), (&97.into(), &"none".into()));
    let volume = &telegram["readings"][0];
    assert_eq!((&volume["value"], &volume["unit"]), (&123.529.into(), &"m³".into()));
    let output = decode(folder.path(), &["--json"], MODE_5);
    let failure: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&failure["meter"], &failure["error"]), (&"22917370".into(), &"no-key".into()));
    assert_eq!(output.status.code(), Some(1), "nothing could be decoded");
}

#[test]
fn keys_are_guarded() {
    let folder = tempfile::tempdir().unwrap();
    let key = "DEADBEEF".repeat(4);
    let refused = |text_of_file: &str, mode, wanted: &str, code| {
        keys(folder.path(), text_of_file, mode);
        let output = decode(folder.path(), &["--keys", "keys.toml"], CLEAR);
        let said = text(&output.stderr);
        assert!(said.contains(wanted), "{said}");
        assert!(!said.contains("DEADBEEF"), "{said}");
        assert_eq!(output.status.code(), Some(code));
    };
    refused(
        &format!("[keys]\n22917370 = \"{key}\"\n"),
        0o644,
        "readable by others; run `chmod 600",
        1,
    );
    refused(&format!("[keys]\n22917370 = {key}\n"), 0o600, "line 2", 2);
    refused(&format!("[keys]\n2291737 = \"{key}\"\n"), 0o600, "eight digits", 2);
    keys(folder.path(), &format!("[keys]\n22917370 = \"{key}\"\n"), 0o600);
    let output = decode(folder.path(), &["--keys", "keys.toml", "--log-level", "trace"], MODE_5);
    let all = [output.stdout, output.stderr].concat();
    assert!(text(&all).contains("error (wrong-key)"), "{}", text(&all));
    assert!(!text(&all).to_uppercase().contains("DEADBEEF"), "{}", text(&all));
}

#[test]
fn a_simulated_drive_is_decoded_to_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let simulate = |args: &[&str]| {
        let mut command = fulmar();
        command.args(["meter", "simulate", "--meters", "40"]).args(args);
        run(command.current_dir(folder.path()))
    };
    assert_eq!(simulate(&["--write-keys", "keys.toml"]).status.code(), Some(0));
    let drive = simulate(&["--truth", "truth"]);
    let args = ["--keys", "keys.toml", "--json"];
    let decoded = decode(folder.path(), &args, text(&drive.stdout));
    let json = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let truth = json(&fs::read_to_string(folder.path().join("truth")).unwrap());
    let decoded = json(text(&decoded.stdout));
    assert!(truth.len() > 100 && truth.len() == decoded.len(), "{}", truth.len());
    for (truth, decoded) in truth.iter().zip(&decoded) {
        if truth["damaged"] == true {
            assert_eq!(decoded["error"], "checksum");
        } else {
            assert_eq!(decoded["meter"], truth["meter"]);
            assert_eq!(decoded["readings"][0]["value"], truth["volume_m3"]);
        }
    }
}

#[test]
fn standard_input_is_read_as_it_comes() {
    let mut command = fulmar();
    command.args(["meter", "decode"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for access in ["7A55", "7A56"] {
        writeln!(input, "{}", CLEAR.replace("7A55", access)).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "SEN 33225544 water: volume 123.529 m³; volume flow 0 m³/h\n");
    }
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Whether a reading has this number or time in this unit.
fn shows(reading: &Value, unit: &str, wanted: &Value) -> bool {
    let value = &reading["value"];
    let is_number = |wanted: f64| {
        let close = |value: f64| (value - wanted).abs() <= 1e-6 * wanted.abs().max(1.0);
        reading["unit"] == unit && value.as_f64().is_some_and(close)
    };
    match wanted {
        Value::String(time) => value.as_str().is_some_and(|value| value.starts_with(&**time)),
        number => number.as_f64().is_some_and(is_number),
    }
}

/// Whether a reading shows what must not be shown of its quantity: certain values, or any.
fn is_forbidden(reading: &Value, never: &Value) -> bool {
    let value = &reading["value"];
    match &never[reading["quantity"].as_str().unwrap()] {
        Value::Array(values) => values.iter().any(|never| value.as_f64() == never.as_f64()),
        Value::String(_) => !value.is_null(),
        _ => false,
    }
}

/// Telegrams that people have reported, with what they say (`values`, by unit), and what must not be shown (`never`).
#[test]
fn reported_telegrams_say_what_they_do_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let lines = include_str!("reported_telegrams.jsonl").lines();
    for line in lines.map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let mut args = vec!["--json"];
        if let (Some(meter), Some(key)) = (line["meter"].as_str(), line["key"].as_str()) {
            keys(folder.path(), &format!("[keys]\n{meter} = \"{key}\"\n"), 0o600);
            args.extend(["--keys", "keys.toml"]);
        }
        let output = decode(folder.path(), &args, line["line"].as_str().unwrap());
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let readings = shown["readings"].as_array().cloned().unwrap_or_default();
        let none = serde_json::Map::new();
        let values = line["values"].as_object().unwrap_or(&none).iter();
        let values = values
            .flat_map(|(unit, all)| all.as_array().unwrap().iter().map(move |one| (unit, one)));
        let missing: Vec<_> = values
            .filter(|(unit, wanted)| !readings.iter().any(|one| shows(one, unit, wanted)))
            .collect();
        let forbidden: Vec<_> =
            readings.iter().filter(|one| is_forbidden(one, &line["never"])).collect();
        let is_meter = line["meter"].is_null() || shown["meter"] == line["meter"];
        if !is_meter
            || shown["error"] != line["error"]
            || !missing.is_empty()
            || !forbidden.is_empty()
        {
            wrong.push(format!(
                "{} ({})\n  without {missing:?}, with {forbidden:?}\n  {shown}",
                line["note"], line["source"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

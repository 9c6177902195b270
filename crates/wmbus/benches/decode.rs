//! How many telegrams a second one core decodes: `cargo bench -p fulmar-wmbus`.
//!
//! Real ones of all kinds, and the encrypted ones of a simulated drive, each with its own key, from the
//! receiver's line to readings. Prints a line each; the goal is 10,000 a second.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fulmar_wmbus::input::{Input, Kind};
use fulmar_wmbus::simulate::Drive;
use fulmar_wmbus::{Decoder, InMemoryKeys};

const FOR: Duration = Duration::from_secs(2);

fn measure(what: &str, keys: InMemoryKeys, lines: &str) {
    let mut decoder = Decoder::new(keys).with_repeats(true);
    let (mut frames, mut decoded) = (0_u64, 0_u64);
    let start = Instant::now();
    while start.elapsed() < FOR {
        let mut input = Input::new(Kind::Auto);
        for chunk in lines.as_bytes().chunks(4096) {
            input.feed(chunk);
            while let Some(received) = input.next() {
                frames += 1;
                decoded += u64::from(
                    black_box(received.map(|r| decoder.decode(&r))).is_ok_and(|t| t.is_ok()),
                );
            }
        }
    }
    let rate = frames as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} frames/s on one core, {decoded} of {frames} decoded");
}

fn main() {
    let mut keys = InMemoryKeys::new();
    let mut lines = String::new();
    for line in include_str!("../tests/data/telegrams.jsonl").lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("the file is JSON lines");
        let text = |key: &str| line[key].as_str();
        if let (Some(meter), Some(key)) = (text("meter_id"), text("key")) {
            keys.insert(meter, key.parse().expect("a key")).expect("a meter");
        }
        lines.extend([text("frame").expect("a frame"), "\n"]);
    }
    measure("real telegrams", keys, &lines);
    let drive = Drive::new(1000, 1);
    let mut keys = InMemoryKeys::new();
    drive.keys().for_each(|(meter, key)| {
        keys.insert(&meter.id.to_string(), key.parse().expect("a key")).expect("a meter");
    });
    let lines: String = drive.take(20_000).map(|heard| heard.rtl_wmbus_line() + "\n").collect();
    measure("simulated drive", keys, &lines);
}

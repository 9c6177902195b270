//! Forged telegrams: 10,000 random manipulations of 40 genuine protected ones, without their keys. None becomes a last
//! reading or a completed work item; each that is kept says how it was protected, and genuine telegrams count after it.
//!
//! `FULMAR_FORGED_SEED` chooses others. The public telegrams are those of `crates/wmbus/tests/data`, which names the source
//! of each.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;

use common::{World, now};
use fulmar_wmbus::frame::{Format, dress};
use fulmar_wmbus::{Address, Decoder, InMemoryKeys, Key, Received, Seal, Sighting, crc, encode};
use serde_json::{Value, json};

const MANIPULATIONS: usize = 10_000;
const BATCH: usize = 500;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Mode5,
    Mode7,
    EllCtr,
    Manufacturer,
}

/// A meter with a key.
struct Meter {
    id: String,
    address: String,
    key: String,
    mode: Mode,
    /// Telegrams, oldest first, without checksums.
    frames: Vec<Vec<u8>>,
    /// Those that it sends after the manipulations, if our own encoder makes them, and what they say.
    later: Vec<(Vec<u8>, f64)>,
    /// Whether the platform has received them before the manipulations.
    is_heard: bool,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn address(frame: &[u8], with_model: bool) -> String {
    let received = Received { bytes: frame.to_vec(), ..Received::default() };
    let Address { manufacturer, id, version, medium } =
        Sighting::from_received(&received, None).unwrap().meter;
    let short = format!("{manufacturer}-{id}");
    if with_model { format!("{short}-{version:02x}-{:02x}", medium.0) } else { short }
}

/// Public telegrams with their keys that say what the register of a meter shows.
fn public() -> Vec<Meter> {
    let lines = include_str!("../../wmbus/tests/data/telegrams.jsonl").lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let counts = |line: &Value| {
        let mut keys = InMemoryKeys::new();
        let key = line["key"].as_str().unwrap().parse().unwrap();
        keys.insert(line["meter_id"].as_str().unwrap(), key).unwrap();
        let bytes = bytes(line["frame"].as_str().unwrap());
        let received = Received { bytes, ..Received::default() };
        let telegram = Decoder::new(keys).decode(&received).unwrap();
        telegram.main("volume").or(telegram.main("energy")).is_some()
    };
    let lines = lines.filter(|line| line["key"].is_string() && counts(line));
    lines
        .enumerate()
        .map(|(number, line)| {
            let security = line["security"].as_str().unwrap();
            let mode = [
                ("mode5", Mode::Mode5),
                ("mode7", Mode::Mode7),
                ("CTR", Mode::EllCtr),
                ("manufacturer", Mode::Manufacturer),
            ];
            let frame = bytes(line["frame"].as_str().unwrap());
            let is_heard = number % 2 == 0;
            Meter {
                id: format!("public-{number}"),
                address: address(&frame, !is_heard || number % 4 == 0),
                key: line["key"].as_str().unwrap().to_owned(),
                mode: mode.iter().find(|(word, _)| security.contains(word)).unwrap().1,
                frames: vec![frame],
                later: Vec::new(),
                is_heard,
            }
        })
        .collect()
}

/// Records of a water meter: what it shows, at different places.
fn records(layout: usize, litres: u32) -> Vec<u8> {
    let volume = [&[0x04, 0x13][..], &litres.to_le_bytes()].concat();
    let date: &[u8] = &[0x04, 0x6D, 0x12, 0x2C, 0x3D, 0x2B];
    let due = [&[0x44, 0x13][..], &(litres / 2).to_le_bytes(), &[0x42, 0x6C, 0x3F, 0x2C]].concat();
    let text: &[u8] = &[
        0x0D, 0x78, 17, b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8', b'9', b'0', b'1', b'2',
        b'3', b'4', b'5', b'6', b'7',
    ];
    let state: &[u8] = &[0x02, 0xFD, 0x17, 0, 0];
    match layout {
        0 => [&volume, date, state].concat(),
        1 => [date, &volume, &due, state].concat(),
        2 => [text, &volume, &due].concat(),
        3 => [&volume, &due, text, date].concat(),
        _ => [state, &due, date, &volume].concat(),
    }
}

/// What a meter that our own encoder makes shows.
fn litres(which: u32) -> u32 {
    123_456 + 1000 * which
}

/// Meters whose telegrams our own encoder makes, an old one and one of now.
fn made(number: usize, rng: &mut Rng) -> Meter {
    let id = [0x10 + number as u8, 0x20, 0x30, 0x40];
    let meter = Address::from_link([0x2D, 0x2C, id[0], id[1], id[2], id[3], 0x1B, 0x07]);
    let key: [u8; 16] = std::array::from_fn(|_| rng.byte());
    let mode = [Mode::Mode5, Mode::Mode7, Mode::EllCtr][number % 3];
    let frame = |which: u32| {
        let key = Key::new(key);
        let seal = match mode {
            Mode::Mode5 => Seal::Mode5(&key),
            Mode::Mode7 => Seal::Mode7(&key, 1000 + which),
            _ => Seal::EllCtr(&key, 1000 + which),
        };
        encode(meter, 7 + which as u8, 0, seal, &records(number % 5, litres(which)))
    };
    let frames: Vec<_> = (0..2).map(frame).collect();
    let later = (2..4).map(|which| (frame(which), f64::from(litres(which)) / 1000.0)).collect();
    let is_heard = number.is_multiple_of(2);
    let address = address(&frames[0], !is_heard || number.is_multiple_of(4));
    Meter { id: format!("made-{number}"), address, key: hex(&key), mode, frames, later, is_heard }
}

/// Makes the length field fit.
fn fit(frame: &mut Vec<u8>) {
    frame.truncate(250);
    frame[0] = (frame.len() - 1) as u8;
}

/// Where the transport layer's header begins, behind link layer, extended link layer and authentication layer.
fn transport(frame: &[u8]) -> usize {
    let mut at = 10;
    if frame[at] == 0x8C {
        at += 3;
    }
    if frame[at] == 0x90 {
        at += 2 + usize::from(frame[at + 1]);
    }
    at
}

/// A record that says a volume, or an energy.
fn forged_record(rng: &mut Rng) -> Vec<u8> {
    let value = (rng.next() as u32 % 90_000_000).to_le_bytes();
    [&[0x04, [0x13, 0x06, 0x03][rng.below(3)]][..], &value].concat()
}

/// Flips bits of a telegram in counter mode and corrects the checksum, which takes no key.
fn flip_counter_mode(frame: &mut [u8], rng: &mut Rng) {
    let body = frame[10 + 7 + 2..].len();
    let mut change = vec![0; body];
    for _ in 0..=rng.below(3) {
        let at = rng.below(body);
        change[at] ^= 1 << rng.below(8);
    }
    let sum = crc(&change) ^ crc(&vec![0; body]);
    for (byte, change) in frame[17..].iter_mut().zip(sum.to_le_bytes().iter().chain(&change)) {
        *byte ^= change;
    }
}

/// A plain frame in the meter's name, in one of the forms there are.
fn plain(genuine: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut frame = genuine[..10].to_vec();
    let record = forged_record(rng);
    let data = [record[2..].to_vec(), vec![0; 12]].concat();
    match rng.below(6) {
        0 => frame.extend([&[0x78][..], &record].concat()),
        1 => frame.extend([&[0x7A, rng.byte(), 0, 0, 0][..], &record].concat()),
        // A format with another meaning under a signature of the well-known ones, and compact frames.
        2 => frame.extend([&[0x79, 0xED, 0xA8, rng.byte(), rng.byte()][..], &data].concat()),
        3 => {
            let headers = [0x02, 0xFF, 0x20, 0x04, 0x13, 0x44, 0x13, rng.byte() & 0x7F];
            let sum = crc(&headers).to_le_bytes();
            frame.extend([&[0x69, 8][..], &sum, &headers].concat());
        }
        4 => frame.extend([&[0xA0 + rng.byte() % 24][..], &record, &data].concat()),
        _ => {
            let header = [&[0x72][..], &genuine[4..8], &genuine[2..4], &genuine[8..10]].concat();
            frame.extend([&header[..], &[rng.byte(), 0, 0, 0], &record].concat());
        }
    }
    frame
}

/// Something that a stranger with a transmitter can send.
fn manipulate(meters: &[Meter], rng: &mut Rng) -> Vec<u8> {
    let meter = &meters[rng.below(meters.len())];
    let mut frame = meter.frames[rng.below(meter.frames.len())].clone();
    match rng.below(13) {
        0 => {
            for _ in 0..=rng.below(4) {
                let at = 1 + rng.below(frame.len() - 1);
                frame[at] ^= 1 << rng.below(8);
            }
        }
        1 => frame.truncate(11 + rng.below(frame.len() - 11)),
        2 => {
            for _ in 0..=rng.below(3) {
                frame.extend(forged_record(rng));
            }
        }
        3 => {
            let at = transport(&frame);
            let config = at + if frame[at] == 0x72 { 11 } else { 3 };
            let change = [[0, 0], [0x10, 5], [0x20, 5], [0x30, 5], [rng.byte(), rng.byte()]];
            if config + 2 < frame.len() {
                frame[config..config + 2].copy_from_slice(&change[rng.below(5)]);
            }
            if rng.below(2) == 0 {
                frame.extend(forged_record(rng));
            }
        }
        4 => {
            let at = [1, 8, 9, transport(&frame) + 1, transport(&frame) + 2][rng.below(5)];
            frame[at] = rng.byte();
        }
        5 => {
            let other = &meters[rng.below(meters.len())].frames[0];
            frame[2..10].copy_from_slice(&other[2..10]);
        }
        6 => {
            // Halves of two telegrams, of one meter or of two.
            let other = if rng.below(2) == 0 { meter } else { &meters[rng.below(meters.len())] };
            let other = &other.frames[other.frames.len() - 1];
            let cut = 10 + rng.below(frame.len().min(other.len()) - 10);
            frame.truncate(cut);
            frame.extend(&other[cut..]);
        }
        7 => {
            // As it was, or with other bytes where nothing protects them.
            if rng.below(2) == 0 {
                frame[1] ^= rng.byte();
            }
        }
        8 => {
            frame[10] = [0x72, 0x78, 0x79, 0x7A, 0x7B, 0x8C, 0x8D, 0x90, 0xA0, 0xA1][rng.below(10)]
        }
        9 | 10 => frame = plain(&frame, rng),
        11 if meter.mode == Mode::EllCtr => flip_counter_mode(&mut frame, rng),
        11 => {
            // A block in the place of another one.
            let blocks = (frame.len() - 20) / 16;
            if blocks > 1 {
                let (from, to) = (20 + 16 * rng.below(blocks), 20 + 16 * rng.below(blocks));
                frame.copy_within(from..from + 16, to);
            }
        }
        _ => {
            let from = 11 + rng.below(frame.len() - 11);
            frame[from..].iter_mut().for_each(|byte| *byte = rng.byte());
        }
    }
    fit(&mut frame);
    match (rng.below(3), dress(&frame, Format::A)) {
        (0, Ok(dressed)) => dressed,
        _ => frame,
    }
}

struct Attacked {
    world: World,
    admin: String,
    meters: Vec<Meter>,
    /// What each meter's telegrams say, and when the platform had the last one.
    genuine: HashMap<String, Vec<f64>>,
    list: String,
}

async fn send(world: &World, token: &str, frames: Vec<Value>) -> Vec<Value> {
    let body = json!({"receiver": "van-1", "frames": frames});
    let answer = world.good(token, "POST", "/api/v1/north/frame", body).await;
    answer["results"].as_array().unwrap().clone()
}

/// Registers a meter, and gives it its key.
async fn register(world: &World, admin: &str, twin: &str, meter: &Meter) {
    let new = json!({"id": meter.id, "address": meter.address});
    world.good(admin, "POST", &format!("/api/v1/{twin}/meter"), new).await;
    let path = format!("/api/v1/{twin}/meter/{}/key", meter.id);
    world.good(admin, "PUT", &path, json!({"key": meter.key})).await;
}

/// What the meters' telegrams say, by another twin's platform that nobody attacks.
async fn said(world: &World, meters: &[Meter]) -> HashMap<String, Vec<f64>> {
    let root = world.log_in("root").await;
    let mut genuine = HashMap::new();
    for meter in meters {
        register(world, &root, "south", meter).await;
        for (day, frame) in (1..).zip(&meter.frames) {
            let at = format!("2026-11-{day:02}T10:00:00Z");
            let body = json!({"receiver": "van-2", "frames": [{"hex": hex(frame), "at": at}]});
            let answer = world.good(&root, "POST", "/api/v1/south/frame", body).await;
            assert_eq!(answer["results"][0]["status"], "stored", "{}: {answer}", meter.id);
        }
        let path = format!("/api/v1/south/reading?meter={}", meter.id);
        let readings = world.get(&root, &path).await.json["items"].clone();
        let values = readings.as_array().unwrap().iter();
        genuine
            .insert(meter.id.clone(), values.map(|one| one["value"].as_f64().unwrap()).collect());
    }
    genuine
}

async fn attacked(seed: u64) -> Attacked {
    let mut rng = Rng(seed);
    let mut meters = public();
    for number in 0..40 - meters.len() {
        meters.push(made(number, &mut rng));
    }
    let world = World::new();
    let genuine = said(&world, &meters).await;
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    for meter in &meters {
        register(&world, &admin, "north", meter).await;
        for (days, frame) in [(-3, 0), (-2, 1)] {
            if let Some(frame) = meter.frames.get(frame).filter(|_| meter.is_heard) {
                let frame = json!({"hex": hex(frame), "at": now(days * 86_400)});
                let results = send(&world, &van, vec![frame]).await;
                assert_eq!(results[0]["status"], "stored", "{}: {results:?}", meter.id);
            }
        }
    }
    let ids: Vec<&str> = meters.iter().map(|meter| &*meter.id).collect();
    let list = json!({"name": "All", "meters": ids});
    let list = world.good(&admin, "POST", "/api/v1/north/work_list", list).await;
    let list = list["id"].as_str().unwrap().to_owned();
    for batch in 0..MANIPULATIONS / BATCH {
        let frame =
            |_| json!({"hex": hex(&manipulate(&meters, &mut rng)), "at": now(2 + batch as i64)});
        send(&world, &van, (0..BATCH).map(frame).collect()).await;
    }
    Attacked { world, admin, meters, genuine, list }
}

/// Whether a reading that counts may come from what a meter sent, and says so. A value in counter mode can be altered
/// without a trace, and a manufacturer's own encryption checks a byte: where the genuine message was not received, it says
/// that nothing proves it.
fn may_count(meter: &Meter, genuine: &[f64], reading: &Value) -> bool {
    let value = reading["value"].as_f64().unwrap();
    let is_genuine = genuine.contains(&value);
    match (meter.mode, reading["protection"].as_str()) {
        (Mode::Mode7, protection) => is_genuine && protection == Some("authenticated"),
        (Mode::EllCtr | Mode::Manufacturer, protection) => protection == Some("encrypted"),
        (_, protection) => is_genuine && protection == Some("encrypted"),
    }
}

#[tokio::test]
async fn ten_thousand_forged_telegrams_change_nothing_that_counts() {
    let seed = std::env::var("FULMAR_FORGED_SEED").map_or(36, |seed| seed.parse().unwrap());
    println!("FULMAR_FORGED_SEED={seed}");
    let Attacked { world, admin, meters, genuine, list } = attacked(seed).await;
    let mut wrong = Vec::new();
    let tasks = world.get(&admin, &format!("/api/v1/north/work_list/{list}")).await.json;
    for (meter, task) in meters.iter().zip(tasks["tasks"].as_array().unwrap()) {
        let (values, shown) = (&genuine[&meter.id], &task["meter"]);
        assert_eq!(shown["id"], json!(meter.id));
        let (last, done) = (&shown["last"], task["state"] == "read");
        let is_right = if meter.is_heard {
            // Nothing new came: the last one is the one that the meter sent, when it sent it. In mode 5, a block of nothing
            // but data that is not the value can be changed: then it says the same again, and that nothing proves it.
            let is_old = *last["at"].as_str().unwrap() < *now(-86_400) && !done;
            let is_marked = meter.mode == Mode::Mode5 && last["protection"] == "encrypted";
            last["value"].as_f64() == values.last().copied() && (is_old || is_marked)
        } else {
            let done_by = |reading: &Value| may_count(meter, values, reading);
            (last.is_null() || may_count(meter, values, last))
                && (!done || done_by(&task["reading"]))
        };
        if !is_right {
            wrong.push(format!("{} {:?} {values:?}: {task}", meter.id, meter.mode));
        }
    }
    assert!(wrong.is_empty(), "{} meters: {}", wrong.len(), wrong.join("\n"));
    every_exported_value_has_its_mark(&world, &admin, &meters, &genuine).await;
    genuine_telegrams_count(&world, &admin, &meters).await;
}

/// Of a meter that was received before the manipulations, the next telegram counts, otherwise the one after it. What
/// counts first in counter mode may have been altered, and be above them.
async fn genuine_telegrams_count(world: &World, admin: &str, meters: &[Meter]) {
    let van = world.log_in("north-device").await;
    let mut wrong = Vec::new();
    for meter in meters.iter().filter(|meter| meter.is_heard || meter.mode != Mode::EllCtr) {
        for (number, (frame, value)) in meter.later.iter().enumerate() {
            let at = now(3000 + number as i64);
            let result = send(world, &van, vec![json!({"hex": hex(frame), "at": at})]).await;
            let path = format!("/api/v1/north/meter/{}", meter.id);
            let last = world.get(admin, &path).await.json["last"]["value"].as_f64();
            if last != Some(*value) && (meter.is_heard || number > 0) {
                wrong.push(format!("{} {:?} {value} {last:?}: {result:?}", meter.id, meter.mode));
            }
        }
    }
    assert!(wrong.is_empty(), "{} telegrams: {}", wrong.len(), wrong.join("\n"));
}

async fn every_exported_value_has_its_mark(
    world: &World,
    admin: &str,
    meters: &[Meter],
    genuine: &HashMap<String, Vec<f64>>,
) {
    let csv = world.get(admin, "/api/v1/north/export/readings.csv").await.bytes;
    let csv = String::from_utf8(csv).unwrap();
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |name: &str| {
        let is_named = |head: &&str| head.trim_matches(['"', '\u{feff}']) == name;
        head.iter().position(is_named).unwrap_or_else(|| panic!("no column {name}"))
    };
    let [meter, value, flags, protection] = ["meter", "value", "flags", "protection"].map(column);
    let (mut kept, mut counted) = (0, 0);
    for line in lines {
        let cell = |at: usize| line[at].trim_matches('"');
        let of = meters.iter().find(|of| of.id == cell(meter)).unwrap();
        assert!(!cell(protection).is_empty(), "{line:?}");
        if cell(flags).contains("unproven") {
            kept += 1;
            continue;
        }
        counted += 1;
        let number: f64 = cell(value).parse().unwrap();
        let reading = json!({"value": number, "protection": cell(protection)});
        assert!(may_count(of, &genuine[&of.id], &reading), "{line:?}");
    }
    println!("{kept} kept as unproven, {counted} count");
    assert!(kept > 100 && counted >= meters.len() / 2, "{kept} {counted}");
}

//! Which telegrams count: genuine ones, whatever strangers with a transmitter send before and beside them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, now};
use fulmar_platform::Database;
use fulmar_wmbus::{Address, Key, Seal, crc, encode};
use serde_json::{Value, json};

const KEY: [u8; 16] = [7; 16];
const VERSION: u8 = 0x68;
const DAY: i64 = 86_400;
/// A record that is not one.
const NONSENSE: [u8; 3] = [0x3F, 1, 2];

/// A twin with one meter, `m1`, and a list with it.
struct Rig {
    world: World,
    admin: String,
    van: String,
    list: String,
}

fn address(version: u8) -> Address {
    Address::from_link([0xAE, 0x4C, 0x44, 0x55, 0x22, 0x33, version, 7])
}

fn volume(litres: u32) -> Vec<u8> {
    [&[0x04, 0x13][..], &litres.to_le_bytes()].concat()
}

/// A water meter's records with its clock.
fn dated(litres: u32, ahead_s: i64) -> Vec<u8> {
    let now = time::OffsetDateTime::now_utc() + time::Duration::seconds(ahead_s);
    let (year, month, day) = ((now.year() - 2000) as u8, u8::from(now.month()), now.day());
    let clock = [now.minute(), now.hour(), day | year << 5, month | year >> 3 << 4];
    [&[0x04, 0x6D][..], &clock, &volume(litres)].concat()
}

fn mode5(access: u8, records: &[u8]) -> Vec<u8> {
    encode(address(VERSION), access, 0, Seal::Mode5(&Key::new(KEY)), records)
}

/// The same, of a meter with other software.
fn updated(access: u8, litres: u32) -> Vec<u8> {
    encode(address(VERSION + 1), access, 0, Seal::Mode5(&Key::new(KEY)), &volume(litres))
}

/// As another version's: in mode 5 that changes what the first block says.
fn with_other_version(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[8] ^= 1;
    frame
}

impl Rig {
    async fn new(address: &str) -> Rig {
        let world = World::new();
        let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
        let meter = json!({"id": "m1", "address": address});
        world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
        let list = json!({"name": "All", "meters": ["m1"]});
        let list = world.good(&admin, "POST", "/api/v1/north/work_list", list).await;
        let list = format!("/api/v1/north/work_list/{}", list["id"].as_str().unwrap());
        let rig = Rig { world, admin, van, list };
        rig.set_key(KEY).await;
        rig
    }

    async fn set_key(&self, key: [u8; 16]) {
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = "/api/v1/north/meter/m1/key";
        self.world.good(&self.admin, "PUT", path, json!({"key": digits})).await;
    }

    /// The result of a frame that was received this long from now.
    async fn send(&self, frame: &[u8], ahead_s: i64) -> Value {
        let hex: String = frame.iter().map(|byte| format!("{byte:02X}")).collect();
        let frames = json!({"receiver": "van-1", "frames": [{"hex": hex, "at": now(ahead_s)}]});
        let path = "/api/v1/north/frame";
        self.world.good(&self.van, "POST", path, frames).await["results"][0].clone()
    }

    async fn reading(&self, result: &Value) -> Value {
        let id = result["reading"].as_str().unwrap_or_else(|| panic!("{result}"));
        self.world.get(&self.admin, &format!("/api/v1/north/reading/{id}")).await.json
    }

    /// Sends a frame that must be stored; whether it counts.
    async fn counts(&self, frame: &[u8], ahead_s: i64) -> bool {
        let result = self.send(frame, ahead_s).await;
        assert_eq!(result["status"], "stored", "{result}");
        let reading = self.reading(&result).await;
        let counts = !reading["flags"].to_string().contains("unproven");
        assert_eq!(reading["doubt"].is_null(), counts, "{reading}");
        counts
    }

    async fn last(&self) -> Value {
        let meter = self.world.get(&self.admin, "/api/v1/north/meter/m1").await.json;
        meter["last"]["value"].clone()
    }

    async fn done(&self) -> Value {
        self.world.get(&self.admin, &self.list).await.json["done"].clone()
    }
}

#[tokio::test]
async fn an_altered_copy_that_comes_first_does_not_stop_the_genuine_telegram() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    let genuine = mode5(1, &volume(1000));
    assert!(!rig.counts(&with_other_version(&genuine), 2).await);
    assert_eq!(rig.done().await, 0);
    let result = rig.send(&genuine, 4).await;
    assert_eq!(result["status"], "stored", "{result}");
    let reading = rig.reading(&result).await;
    assert_eq!((&reading["value"], &reading["flags"]), (&json!(1.0), &json!([])), "{reading}");
    assert_eq!((rig.last().await, rig.done().await), (json!(1.0), json!(1)));
    for (frame, status) in
        [(genuine.clone(), "duplicate"), (with_other_version(&genuine), "duplicate")]
    {
        assert_eq!(rig.send(&frame, 6).await["status"], status);
    }
    assert_eq!(rig.reading(&result).await["flags"], json!([]));
}

#[tokio::test]
async fn a_telegram_in_a_new_format_does_not_prove_itself_by_coming_twice() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    assert!(rig.counts(&mode5(1, &volume(1000)), 2).await);
    let other = |litres| [&[0x02, 0x5A, 1, 2][..], &volume(litres)].concat();
    let first = mode5(2, &other(1001));
    assert!(!rig.counts(&first, 3).await);
    assert_eq!(rig.send(&first, 4).await["status"], "duplicate");
    assert_eq!(rig.last().await, 1.0);
    assert!(rig.counts(&mode5(3, &other(1002)), 5).await, "the next one of this format");
    // Then the first one is proven, too, when another receiver sends it.
    assert_eq!(rig.send(&first, 6).await["status"], "stored");
}

#[tokio::test]
async fn an_exchanged_meter_counts_from_its_beginning() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    assert!(rig.counts(&mode5(1, &volume(100_000)), -DAY).await);
    assert!(!rig.counts(&mode5(2, &volume(5)), -DAY + 60).await, "an old one of this meter");
    let key = [8; 16];
    rig.set_key(key).await;
    let exchanged = |access, litres| {
        let seal = Key::new(key);
        encode(address(VERSION), access, 0, Seal::Mode5(&seal), &volume(litres))
    };
    assert!(rig.counts(&exchanged(1, 5), 2).await);
    assert!(!rig.counts(&exchanged(2, 4), 3).await, "an old one of the new meter");
    assert_eq!(rig.last().await, 0.005);
    // One with another address.
    let meter = json!({"items": [{"id": "m1", "address": "SEN-33225599-68-07"}]});
    rig.world.good(&rig.admin, "POST", "/api/v1/north/meter", meter).await;
    let other = Address::from_link([0xAE, 0x4C, 0x99, 0x55, 0x22, 0x33, VERSION, 7]);
    let first = encode(other, 1, 0, Seal::Mode5(&Key::new(key)), &volume(1));
    assert!(rig.counts(&first, 4).await);
}

#[tokio::test]
async fn a_register_that_was_exchanged_under_its_radio_counts_from_its_beginning() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    assert!(rig.counts(&mode5(1, &volume(100_000)), -DAY).await);
    assert!(!rig.counts(&mode5(2, &volume(5)), -DAY + 60).await, "nobody has entered it");
    let exchange = json!({"id": uuid::Uuid::nil(), "at": now(-DAY + 90), "final": 100, "first": 0});
    let path = "/api/v1/north/meter/m1/exchange";
    rig.world.good(&rig.admin, "POST", path, exchange).await;
    assert!(rig.counts(&mode5(3, &volume(5)), -DAY + 120).await);
    assert!(!rig.counts(&mode5(4, &volume(4)), -DAY + 180).await, "an old one of the new register");
    assert_eq!(rig.last().await, 0.005);
}

#[tokio::test]
async fn what_cannot_be_read_to_its_end_counts_once_the_meter_has_sent_such() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    let odd = |litres| [&volume(litres)[..], &NONSENSE].concat();
    assert!(!rig.counts(&mode5(1, &odd(1000)), 2).await);
    assert!(rig.counts(&mode5(2, &odd(1001)), 3).await);
    assert!(rig.counts(&mode5(3, &odd(1002)), 4).await);
    // What is behind the encrypted part does not matter.
    let rig = Rig::new("SEN-33225544-68-07").await;
    let mut frame = [&mode5(1, &volume(1000))[..], &NONSENSE].concat();
    frame[0] += NONSENSE.len() as u8;
    assert!(rig.counts(&frame, 2).await);
}

#[tokio::test]
async fn a_meter_with_other_software_counts_again() {
    // An authentication code does not depend on the version.
    let rig = Rig::new("SEN-33225544-69-07").await;
    let seal = Key::new(KEY);
    let authenticated = encode(address(VERSION), 1, 0, Seal::Mode7(&seal, 9), &volume(1000));
    assert!(rig.counts(&authenticated, 2).await);

    let rig = Rig::new("SEN-33225544").await;
    assert!(rig.counts(&mode5(1, &volume(1000)), -4 * DAY).await);
    assert!(rig.counts(&mode5(2, &volume(1100)), -2 * DAY).await);
    let result = rig.send(&updated(3, 90_000), 2).await;
    assert!(result["detail"].as_str().unwrap().contains("register"), "{result}");
    assert!(rig.counts(&updated(4, 1200), 3).await, "as much as is expected");
    assert!(rig.counts(&updated(5, 1201), 4).await);
    assert!(!rig.counts(&mode5(6, &volume(9_000)), 5).await, "the earlier version is another's");
}

#[tokio::test]
async fn a_meter_whose_clock_was_set_back_is_not_refused() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    assert!(rig.counts(&mode5(1, &dated(1000, 0)), 2).await);
    let result = rig.send(&mode5(2, &dated(1000, -DAY)), 1200).await;
    assert_eq!(result["status"], "stored", "it may be an old one: {result}");
    assert!(result["detail"].as_str().unwrap().contains("later time"), "{result}");

    // An old one shows less, or what the meter shows now; this shows what is expected.
    let rig = Rig::new("SEN-33225544-68-07").await;
    assert!(rig.counts(&mode5(1, &dated(1000, -4 * DAY)), -4 * DAY).await);
    assert!(rig.counts(&mode5(2, &dated(1100, -2 * DAY)), -2 * DAY).await);
    assert!(rig.counts(&mode5(3, &dated(1200, -3 * DAY)), 2).await);
    // With a counter, the clock does not matter.
    let rig = Rig::new("SEN-33225544-68-07").await;
    let key = Key::new(KEY);
    let mode7 = |counter, records: &[u8]| {
        encode(address(VERSION), 1, 0, Seal::Mode7(&key, counter), records)
    };
    assert!(rig.counts(&mode7(1, &dated(1000, 0)), 2).await);
    assert!(rig.counts(&mode7(2, &dated(1000, -DAY)), 1200).await);
    assert_eq!(rig.send(&mode7(1, &dated(2000, 0)), 1300).await["status"], "replayed");
}

#[tokio::test]
async fn readings_of_an_earlier_version_show_what_is_old() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    if rig.world.database != Database::File {
        return;
    }
    assert!(rig.counts(&mode5(1, &volume(1000)), 2).await);
    let db = rusqlite::Connection::open(rig.world.folder.path().join("platform.db")).unwrap();
    assert_eq!(db.execute("UPDATE reading SET protection = NULL", ()).unwrap(), 1);
    assert!(!rig.counts(&mode5(2, &volume(500)), 3).await);
}

#[tokio::test]
async fn a_reading_that_the_office_restores_does_the_work_of_lists() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    let plain = encode(address(VERSION), 1, 0, Seal::None, &volume(1000));
    let result = rig.send(&plain, 2).await;
    assert_eq!(rig.done().await, 0);
    let path = format!("/api/v1/north/reading/{}", result["reading"].as_str().unwrap());
    let restored = json!({"withdrawn": false, "reason": "seen on the register"});
    let restored = rig.world.good(&rig.admin, "PATCH", &path, restored).await;
    assert_eq!((&restored["flags"], &restored["doubt"]), (&json!([]), &Value::Null));
    assert_eq!((rig.done().await, rig.last().await), (json!(1), json!(1.0)));
}

/// Records in two formats with the same checksum of their headers, which is linear: bits can be flipped so that it stays.
fn colliding(litres: u32) -> [Vec<u8>; 2] {
    let headers = |[a, b, c]: [u8; 3]| [0x02, 0xFF, a, 0x04, 0x13, 0x42, b, 0x01, c];
    let own = [0x20, 0x6C, 0x5A];
    let plain = || (0..0x80_u8).filter(|vif| *vif != 0x7C);
    let mut all = plain().flat_map(|a| plain().flat_map(move |b| plain().map(move |c| [a, b, c])));
    let is_same = |other: &[u8; 3]| *other != own && crc(&headers(*other)) == crc(&headers(own));
    let other = all.find(is_same).unwrap();
    [own, other].map(|[a, b, c]| {
        [&[0x02, 0xFF, a, 0, 0][..], &volume(litres), &[0x42, b, 0x21, 0x22], &[0x01, c, 1]]
            .concat()
    })
}

#[tokio::test]
async fn a_format_with_the_checksum_of_the_meters_is_another_one() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    let key = Key::new(KEY);
    let sealed = |session, records: &[u8]| {
        encode(address(VERSION), session as u8, 0, Seal::EllCtr(&key, session), records)
    };
    assert!(rig.counts(&sealed(1, &colliding(1000)[0]), 2).await);
    assert!(rig.counts(&sealed(2, &colliding(1001)[0]), 3).await);
    assert!(!rig.counts(&sealed(3, &colliding(1002)[1]), 4).await);
}

#[tokio::test]
async fn readings_that_do_not_count_are_bounded_per_meter() {
    let rig = Rig::new("SEN-33225544-68-07").await;
    let plain = |litres| encode(address(VERSION), 1, 0, Seal::None, &volume(litres));
    for litres in 0..100 {
        assert!(!rig.counts(&plain(litres), 2).await);
    }
    let result = rig.send(&plain(100), 2).await;
    assert_eq!((&result["status"], &result["reading"]), (&json!("unproven"), &Value::Null));
    assert!(rig.counts(&mode5(1, &volume(1000)), 3).await);
}

//! How many measurements per second the platform stores: `cargo run --release -p fulmar-platform --example
//! measurements`, followed by the address of an empty PostgreSQL database to measure that. One sender, batches like
//! those of the MQTT intake, everything durable, and every rule evaluated.
#![allow(clippy::unwrap_used, reason = "a measurement may end with what went wrong")]

use std::time::{Duration, Instant, SystemTime};

use fulmar_platform::{Admin, Database, Platform, SensorMessage, Settings};

const HOMES: usize = 20;
const QUANTITIES: [&str; 5] = ["radon", "co2", "co", "temperature", "humidity"];
const TOTAL: usize = 100_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = std::env::args().nth(1).unwrap_or_default();
    let database = Database::parse(&address, None, None).unwrap();
    for batch in [1, 10, 100, 1000] {
        let total = (batch * 200).min(TOTAL);
        let twin = format!("rural-{batch}");
        let folder = tempfile::tempdir().unwrap();
        Admin::open(folder.path(), &database).unwrap().add_twin(&twin, None, true).unwrap();
        let settings = Settings { database: database.clone(), ..Settings::default() };
        let (platform, _announced) = Platform::open(folder.path(), settings).unwrap();
        let begin = SystemTime::now() - Duration::from_secs(3600 * 24);
        let messages: Vec<SensorMessage> = (0..total)
            .map(|n| {
                let quantity = QUANTITIES[n % QUANTITIES.len()];
                let device = n / QUANTITIES.len() % HOMES;
                let at = begin + Duration::from_millis(n as u64 * 500);
                SensorMessage {
                    topic: format!("fulmar/{twin}/sensor/home-{device}/{quantity}"),
                    payload: format!("{}.5", n % 200).into_bytes(),
                    at: Some(time::OffsetDateTime::from(at).format(&FORMAT).unwrap()),
                    id: Some(format!("gw-{n}")),
                }
            })
            .collect();
        let started = Instant::now();
        for part in messages.chunks(batch) {
            runtime.block_on(platform.take_measurements(part, SystemTime::now())).unwrap();
        }
        let seconds = started.elapsed().as_secs_f64();
        assert_eq!(platform.counts().measurements_stored, total as u64);
        println!("{batch:>5} at once: {:>8.0} measurements/s", total as f64 / seconds);
        platform.close();
    }
}

const FORMAT: time::format_description::well_known::Rfc3339 =
    time::format_description::well_known::Rfc3339;

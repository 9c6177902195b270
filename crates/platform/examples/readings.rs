//! How long questions about readings take when there are a million: `cargo run --release -p fulmar-platform
//! --example readings`, with the address of an empty PostgreSQL database behind it if that is to be measured.
//! Everything that the API does is in it but the network.
#![allow(clippy::unwrap_used, reason = "a measurement may end with what went wrong")]

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, header};
use fulmar_platform::{Admin, Database, Platform, Role, Settings, UserToAdd};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower_service::Service as _;

const TWIN: &str = "town";
const ROUNDS: usize = 20;

/// A year of daily readings of 2740 meters; 20,000 of a list, half of them by photo; one in ten thousand contested.
const FILL: &str = "
    INSERT INTO meter (twin, id, medium, unit, register_digits, changed_at, revision)
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2739)
        SELECT 'town', 'm' || i, 'water', 'm3', 5, 0, 1 FROM n;
    INSERT INTO work_list (twin, id, name, state, created_at, revision)
        VALUES ('town', '00000000-0000-0000-0000-00000000000a', 'A list', 'open', 0, 1);
    INSERT INTO reading (twin, id, meter, at, value, unit, method, implausible_confirmed, work_list, reader,
                         received_at, flags, contested)
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999)
        SELECT 'town', '00000000-0000-4000-8000-' || substr('000000000000' || i, length('' || i) + 1, 12),
               'm' || (i % 2740), 1763856000000 + CAST(i AS BIGINT) * 31536, i / 100, 'm3',
               CASE WHEN i % 100 = 3 OR i % 1000 = 7 THEN 'photo' ELSE 'radio' END, 0,
               CASE WHEN i % 50 = 3 THEN '00000000-0000-0000-0000-00000000000a' END, 'ann', 0,
               CASE WHEN i % 10000 = 5 THEN 'conflict' ELSE '' END, CASE WHEN i % 10000 = 5 THEN 1 ELSE 0 END
        FROM n;";

const QUESTIONS: [&str; 14] = [
    "reading?limit=1000",
    "reading?order=desc&limit=1000",
    "reading?order=desc&conflict=true&limit=1000",
    "reading?order=desc&conflict=false&limit=100",
    "reading?order=desc&method=photo&limit=1000",
    "reading?order=desc&method=manual&limit=1000",
    "reading?order=desc&work_list=00000000-0000-0000-0000-00000000000a&limit=1000",
    "reading?order=desc&meter=m7&limit=1000",
    "reading?order=desc&since=2026-05-01T00:00:00Z&until=2026-05-02T00:00:00Z&limit=1000",
    "reading?order=asc&conflict=true&method=photo&limit=1000",
    "reading?order=desc&work_list=00000000-0000-0000-0000-00000000000a&method=photo&limit=1000",
    "reading?order=desc&work_list=00000000-0000-0000-0000-00000000000a&method=manual&limit=1000",
    "reading?order=asc&work_list=00000000-0000-0000-0000-00000000000a&method=radio&conflict=false&limit=1000",
    "reading?order=desc&meter=m7&method=radio&limit=1000",
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = std::env::args().nth(1).unwrap_or_default();
    let database = Database::parse(&address, None, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let admin = Admin::open(folder.path(), &database).unwrap();
    admin.add_twin(TWIN, None, false).unwrap();
    let role = Some((TWIN, Role::Office));
    let user = UserToAdd { name: "ann", display_name: None, server_admin: false, role };
    admin.add_user(&user, "correct horse").unwrap();
    drop(admin);
    fill(&runtime, folder.path(), &address);
    let settings = Settings { database, ..Settings::default() };
    let (platform, _announced) = Platform::open(folder.path(), settings).unwrap();
    runtime.block_on(measure(&platform));
    platform.close();
}

fn fill(runtime: &tokio::runtime::Runtime, folder: &std::path::Path, address: &str) {
    let started = Instant::now();
    if address.is_empty() {
        let database = rusqlite::Connection::open(folder.join("platform.db")).unwrap();
        database.execute_batch(FILL).unwrap();
    } else {
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let sql = format!("SET search_path = fulmar; {FILL}; ANALYZE");
            client.batch_execute(&sql).await.unwrap();
        });
    }
    println!("1,000,000 readings in {:.1} s", started.elapsed().as_secs_f64());
}

async fn ask(platform: &Platform, token: &str, path: &str) -> (Value, Duration) {
    let request = Request::get(format!("/api/v1/{TWIN}/{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"));
    let started = Instant::now();
    let answer = platform.router().call(request.body(Body::empty()).unwrap()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let passed = started.elapsed();
    (serde_json::from_slice(&bytes).unwrap(), passed)
}

async fn measure(platform: &Platform) {
    let body = json!({"user": "ann", "password": "correct horse"}).to_string();
    let request = Request::post("/api/v1/session").header(header::CONTENT_TYPE, "application/json");
    let answer = platform.router().call(request.body(Body::from(body)).unwrap()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let session: Value = serde_json::from_slice(&bytes).unwrap();
    let token = session["token"].as_str().unwrap();
    for question in QUESTIONS {
        let mut times = Vec::new();
        let mut count = 0;
        for _ in 0..ROUNDS {
            let (answer, passed) = ask(platform, token, question).await;
            count = answer["items"].as_array().unwrap_or_else(|| panic!("{answer}")).len();
            times.push(passed);
        }
        times.sort();
        let [median, worst] =
            [times[ROUNDS / 2], times[ROUNDS - 1]].map(|time| time.as_secs_f64() * 1000.0);
        println!("{median:>7.1} ms (worst {worst:>7.1})  {count:>4} of  {question}");
    }
}

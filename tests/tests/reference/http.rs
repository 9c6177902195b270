//! HTTP: the platform's own document, and what the server has beside it.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use fulmar_tests::{PATIENCE, TestBroker};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::{check, sources, table};

/// What is not in the document: listener, method, path, meaning.
const BESIDE: [[&str; 4]; 14] = [
    ["http", "GET", "/", "The pages of this listener"],
    ["http", "GET", "/metrics", "[Metrics](metrics.md) for Prometheus"],
    ["http", "GET", "/health/live", "200 while every worker answers within 4 s"],
    ["http", "GET", "/health/ready", "200 while storage works; else 503 with the reason"],
    [
        "http",
        "GET",
        "/health/upstream",
        "200 with `ok`, or `not connected` while the link is down; 503 with what the upstream broker refuses; 404 without `[upstream]`",
    ],
    [
        "http",
        "GET",
        "/health/sinks",
        "200 with a line per sink; 503 while one needs the operator; 404 without `[sinks]`",
    ],
    ["http", "GET", "/connections", "Connected clients, 1,000 per page"],
    ["http", "GET", "/connections/{client}", "One client; 404 if it is not connected"],
    [
        "http",
        "POST",
        "/publish/{*topic}",
        "Publishes the body, with MQTT's authentication ([gateway](../gateway.md))",
    ],
    ["https", "GET", "/api/v1/status", "Version, uptime, and the HTTP version of the request"],
    [
        "https",
        "GET",
        "/api/v1/config",
        "Where pages connect by MQTT ([certificates](../certificates.md))",
    ],
    [
        "https",
        "GET, CONNECT",
        "/mqtt",
        "MQTT over WebSocket and WebTransport; on the `ws` and `wss` listeners too",
    ],
    [
        "https",
        "GET",
        "/lab/objects/{bytes}",
        "That number of bytes, with `[lab] objects = true`; `?delay_ms=` later",
    ],
    [
        "https",
        "POST",
        "/lab/objects",
        "Accepts a body, with `[lab] objects = true`; answers `?delay_ms=` later",
    ],
];

fn document(broker: &TestBroker, path: &str) -> Value {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(broker.ca_file()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let address = broker.address("https");
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let host = format!("Host: localhost:{}\r\nConnection: close\r\n", address.port());
    write!(stream, "GET {path} HTTP/1.1\r\n{host}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// A summary, parameters of the query and the answers of success.
fn operation(method: &str, path: &str, operation: &Value) -> [String; 4] {
    let text = operation["summary"].as_str().or(operation["description"].as_str()).unwrap_or("");
    let empty = Vec::new();
    let parameters = operation["parameters"].as_array().unwrap_or(&empty).iter();
    let query: Vec<_> = parameters
        .filter(|parameter| parameter["in"] == "query")
        .map(|parameter| format!("`{}`", parameter["name"].as_str().unwrap()))
        .collect();
    let statuses = operation["responses"].as_object().unwrap().keys();
    let fine: Vec<_> = statuses.filter(|status| status.starts_with('2')).cloned().collect();
    let meaning = text.lines().next().unwrap_or("").trim_end_matches('.').to_owned();
    let what = [meaning, query.join(", ")].map(|part| part.trim().to_owned());
    let [meaning, query] = what;
    [format!("`{} {path}`", method.to_uppercase()), meaning, query, fine.join(", ")]
}

/// The paths that routers of these crates are given.
fn routes() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in ["crates/server/src", "crates/http/src"].iter().flat_map(|folder| sources(folder)) {
        for part in text.split(".route(\"").skip(1) {
            found.insert(part.split('"').next().unwrap().to_owned());
        }
    }
    found
}

#[test]
fn the_page_of_http_is_the_servers_routes_and_the_platforms_document() {
    // `/mqtt` is none of a router's: it is looked for before.
    let beside: BTreeSet<_> = BESIDE.iter().map(|[_, _, path, _]| (*path).to_owned()).collect();
    assert_eq!(&routes() | &BTreeSet::from(["/mqtt".to_owned()]), beside);
    let broker = TestBroker::builder().config("[platform]\nenabled = true\n").start();
    let platform = document(&broker, "/api/v1/openapi.json");
    let rows = BESIDE.map(|[listener, method, path, meaning]| {
        let path = path.replace("{*topic}", "TOPIC");
        [format!("`{listener}`"), format!("`{method} {path}`"), meaning.to_owned()]
    });
    let mut text = "## The server\n\nThe `http` listener has no authentication except for `/publish`: keep it on loopback.\n\n"
        .to_owned();
    text.push_str(&table(["listener", "request", "meaning"], rows));
    text.push_str(
        "\n## The platform\n\nOn the `https` listener. `GET /api/v1/openapi.json` returns these as an OpenAPI \
         document with all schemas; [platform](../platform.md) has examples.\n\n",
    );
    let mut rows = Vec::new();
    for (path, item) in platform["paths"].as_object().unwrap() {
        for (method, said) in item.as_object().unwrap() {
            let tag = said["tags"][0].as_str().unwrap_or("").to_owned();
            rows.push((tag, operation(method, path, said)));
        }
    }
    assert!(rows.len() > 50, "{} operations", rows.len());
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    for group in rows.chunk_by(|(a, _), (b, _)| a == b) {
        text.push_str(&format!("### {}\n\n", group[0].0));
        let rows = group.iter().map(|(_, row)| row.clone());
        text.push_str(&table(["request", "meaning", "query", "answer"], rows));
        text.push('\n');
    }
    text.push_str(
        "## Administration\n\nOn the `https` listener and the socket in the data folder. `GET \
         /api/admin/v1/openapi.json` returns these as an OpenAPI document; [administration](../administration.md) has \
         examples.\n\n",
    );
    let administration = document(&broker, "/api/admin/v1/openapi.json");
    let rows: Vec<_> = administration["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let operations = item.as_object().unwrap().iter();
            operations.map(move |(method, said)| operation(method, path, said))
        })
        .collect();
    assert!(rows.len() > 10, "{} operations", rows.len());
    text.push_str(&table(["request", "meaning", "query", "answer"], rows));
    check("http.md", "HTTP paths", &text);
}

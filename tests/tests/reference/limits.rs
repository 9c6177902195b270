//! Limits that are no settings: constants of the sources, with their values there.

use crate::{check, source, sources, table};

/// File, or folder where only one file has it, constant, what it limits, and what happens beyond it.
const FIXED: [[&str; 4]; 40] = [
    [
        "crates/broker/src/limits.rs",
        "MAX_CONNECT_BYTES",
        "Bytes of a CONNECT packet",
        "CONNACK with 0x95",
    ],
    ["crates/mqtt/src/topic.rs", "MAX_LEVELS", "Levels of a topic name or filter", "0x90, 0x8F"],
    [
        "crates/broker/src/connection/subscriptions.rs",
        "MAX_FILTERS",
        "Filters in one SUBSCRIBE or UNSUBSCRIBE",
        "0x97",
    ],
    [
        "crates/broker/src/aliases.rs",
        "MAX_ALIASES",
        "Topic aliases that the broker sets on one stream",
        "further topics are named in full",
    ],
    ["crates/auth/src/jwt.rs", "MAX_TOKEN_BYTES", "Bytes of a JSON Web Token", "0x86"],
    [
        "crates/auth/src/jwt.rs",
        "MAX_KEYS",
        "Keys in a JSON Web Key Set",
        "the configuration is refused",
    ],
    ["crates/auth/src/jwt.rs", "MAX_TRIED", "Keys tried for a token without `kid`", "0x86"],
    [
        "crates/auth/src/queue.rs",
        "MAX_WAITING",
        "Logins waiting for their password check, or for the service of `[auth.http]`",
        "0x89",
    ],
    [
        "crates/config/src/sinks.rs",
        "MAX_SINKS",
        "Sinks of one server",
        "the configuration is refused",
    ],
    [
        "crates/config/src/sinks.rs",
        "MAX_FIELDS",
        "Columns, fields or tags of a sink",
        "the configuration is refused",
    ],
    [
        "crates/auth-http/src/lib.rs",
        "MAX_QUESTION_BYTES",
        "Bytes of a question to the service of `[auth.http]`",
        "0x86",
    ],
    [
        "crates/scram/src/lib.rs",
        "MAX_MESSAGE_BYTES",
        "Bytes of a client's message of SCRAM",
        "0x82",
    ],
    [
        "crates/server/src/serve/identities.rs",
        "MAX_REQUESTS_PER_USER",
        "Requests of one user to `$CONTROL/dynamic-security/v1` that wait",
        "the answer has an error",
    ],
    [
        "crates/server/src/serve/identities.rs",
        "MAX_REQUEST_BYTES",
        "Bytes of all requests to `$CONTROL/dynamic-security/v1` that wait",
        "the answer has an error",
    ],
    [
        "crates/identity/src/control/mod.rs",
        "MAX_ANSWER_BYTES",
        "Bytes of an answer to `$CONTROL/dynamic-security/v1`",
        "the rest of the request's commands is refused",
    ],
    [
        "crates/admin/src/store.rs",
        "MAX_BYTES",
        "Bytes of the log of changes",
        "the oldest entries are removed",
    ],
    ["crates/admin/src/app.rs", "MAX_TAPS", "Taps at once", "429"],
    [
        "crates/broker/src/client_list.rs",
        "MAX_PUBLISHED",
        "Clients per interval below `$SYS/broker/connections/`",
        "they take turns",
    ],
    [
        "crates/server/src/serve/http.rs",
        "CONNECTIONS",
        "Connections to the `http` listener",
        "incomplete requests make room",
    ],
    ["crates/gateway/src", "MAX_HOPS", "Gateways that a message may pass", "dropped as a loop"],
    ["crates/gateway/src/batch.rs", "MAX_BYTES", "Bytes of a batch when it is unpacked", "refused"],
    ["crates/gateway/src/batch.rs", "MAX_MESSAGES", "Messages in a batch", "refused"],
    ["crates/platform/src/meters/handlers.rs", "MAX_METERS", "Meters in one request", "413"],
    ["crates/platform/src/meters/handlers.rs", "MAX_EXCHANGES", "Exchanges of a meter", "409"],
    ["crates/platform/src/readings/types.rs", "MAX_READINGS", "Readings in one request", "413"],
    ["crates/platform/src/frames/handlers.rs", "MAX_FRAMES", "Frames in one request", "413"],
    [
        "crates/platform/src/measurements/handlers.rs",
        "MAX_MEASUREMENTS",
        "Measurements in one request",
        "413",
    ],
    ["crates/platform/src/photos.rs", "MAX_PHOTO_BYTES", "Bytes of a photo", "413"],
    [
        "crates/platform/src/sensors/mod.rs",
        "MAX_SENSORS",
        "Sensors of a twin",
        "409; measurements of further ones are rejected",
    ],
    [
        "crates/platform/src/devices/types.rs",
        "MAX_OWN_DEVICES",
        "Registered devices of a user in a twin",
        "409",
    ],
    ["crates/platform/src/devices/types.rs", "MAX_DEVICES", "Registered devices of a twin", "409"],
    [
        "crates/platform/src/measurements/mod.rs",
        "MAX_QUANTITIES",
        "Quantities of a sensor",
        "measurements of further ones are rejected",
    ],
    [
        "crates/platform/src/measurements/mod.rs",
        "MAX_SERIES",
        "Quantities of all sensors of a twin",
        "measurements of further ones are rejected",
    ],
    ["crates/platform/src/alerts/rules.rs", "MAX_RULES", "Alert rules of a twin", "409"],
    ["crates/platform/src/alerts/webhooks.rs", "MAX_WEBHOOKS", "Webhooks of a twin", "409"],
    [
        "crates/platform/src/alerts/attempts.rs",
        "MAX_ATTEMPTS",
        "Attempts to deliver to a webhook",
        "given up",
    ],
    [
        "crates/bulk/src/sender/peers.rs",
        "MAX_PEERS",
        "Receivers that a sender keeps apart",
        "further ones get the data, and the sender does not wait for them",
    ],
    [
        "crates/bulk/src/receiver/mod.rs",
        "MAX_SENDERS",
        "Senders that a receiver keeps apart",
        "further ones are ignored until one has been silent for 30 s",
    ],
    [
        "crates/bulk/src",
        "MAX_RECEIVERS",
        "Receivers of an encrypted transfer",
        "further ones are ignored",
    ],
    [
        "crates/sensors/src/reading.rs",
        "MAX_DEVICE_LETTERS",
        "Letters of a device's name",
        "the reading is refused",
    ],
];

/// The value of a constant whose product is written out, such as `100 * 1024`.
fn value(file: &str, name: &str) -> u64 {
    let is_file = file.ends_with(".rs");
    let text = if is_file { source(file) } else { sources(file).join("\n") };
    let found: Vec<&str> = text.split(&format!("const {name}: ")).skip(1).collect();
    let [rest] = found[..] else { panic!("{file} has {} constants {name}", found.len()) };
    let formula = rest.split_once("= ").unwrap().1.split(';').next().unwrap().replace('_', "");
    if let Some((one, by)) = formula.split_once(" << ") {
        return one.parse::<u64>().unwrap() << by.parse::<u64>().unwrap();
    }
    formula.split(" * ").map(|factor| factor.parse::<u64>().unwrap()).product()
}

/// With commas between thousands.
fn written(value: u64) -> String {
    let digits = value.to_string();
    let groups =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap());
    groups.collect::<Vec<_>>().join(",")
}

#[test]
fn the_page_of_limits_has_the_values_of_the_sources() {
    let mut text = "Every buffer, queue and table has a limit. Most are [settings](settings.md#limits), each with what \
                    happens beyond it; these are fixed.\n\n"
        .to_owned();
    let rows = FIXED.map(|[file, name, what, beyond]| {
        [what.to_owned(), written(value(file, name)), beyond.to_owned()]
    });
    text.push_str(&table(["what", "limit", "beyond it"], rows));
    check("limits.md", "Fixed limits", &text);
}

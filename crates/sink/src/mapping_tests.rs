use fulmar_config::Config;

use super::*;

pub(crate) fn sink(more: &str) -> Sink {
    let text = format!("[sinks.a]\nkind = \"http\"\nurl = \"http://h/\"\nfilters = \"#\"\n{more}");
    Config::from_toml(&text).unwrap().sinks.remove("a").unwrap()
}

pub(crate) fn letter(topic: &str, payload: &str) -> Letter {
    let at = "2026-05-01T10:00:00.250Z".to_owned();
    Letter { id: "gw-1".into(), at, topic: topic.into(), payload: payload.into() }
}

fn mapped(columns: &str, payload: &str) -> Result<Record, String> {
    let sink = sink(&format!("time = \"/ts\"\n[sinks.a.columns]\n{columns}"));
    Mapping::new(&sink).record(&letter("plant/mill/climate", payload))
}

#[test]
fn values_come_from_topic_and_payload_in_their_types() {
    let columns = r#"
a = { from = "/t/0", type = "number" }
b = { from = "/n", type = "integer" }
c = { from = "{2}", type = "text" }
d = { from = "=north", type = "text" }
e = { from = "/no", type = "number" }
f = { from = "/on", type = "boolean" }
g = { from = "/t", type = "json" }
h = { from = "payload", type = "bytes" }
i = { from = "{4}", type = "text" }"#;
    let payload = r#"{"t":["21.5"],"n":7.0,"on":true,"no":null,"ts":1700000000}"#;
    let record = mapped(columns, payload).unwrap();
    assert_eq!(record.at, OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap());
    let expected = [
        Some(Value::Number(21.5)),
        Some(Value::Integer(7)),
        Some(Value::Text("mill".into())),
        Some(Value::Text("north".into())),
        None,
        Some(Value::Boolean(true)),
        Some(Value::Json(serde_json::json!(["21.5"]))),
        Some(Value::Bytes(payload.into())),
        None,
    ];
    assert_eq!(record.values, expected);
}

#[test]
fn what_does_not_fit_has_a_reason() {
    let number = "a = { from = \"/t\", type = \"number\" }";
    let required = "a = { from = \"{2}\", type = \"text\" }\nb = { from = \"/x\", type = \"text\", required = true }";
    let nested = format!("{}{}", "[".repeat(1 << 19), "]".repeat(1 << 19));
    for (columns, payload, reason) in [
        (number, "{\"t\":\"warm\"}", "a: \"\\\"warm\\\"\" is not of type number"),
        (number, "{\"t\":1e999}", "not JSON"),
        (number, "{\"t\":\"inf\"}", "is not of type number"),
        (number, "{\"t\":{}}", "is not of type number"),
        (number, "{\"x\":1}", "the payload has none of the mapped values"),
        (number, "21.5 C", "the payload is not JSON"),
        (number, "", "the payload is not JSON"),
        (number, "{\"t\":1,\"ts\":\"yesterday\"}", "time: "),
        (number, "{\"t\":1,\"ts\":1e300}", "time: "),
        (required, "{}", "b is required, and not in the message"),
        (number, &nested, "the payload is not JSON: recursion limit"),
    ] {
        let error = mapped(columns, payload).unwrap_err();
        assert!(error.contains(reason) && error.len() < 300, "{reason:?} not in: {error}");
    }
}

#[test]
fn a_number_is_a_time_by_its_size() {
    let at = |number: f64| since_1970(number, number.abs()).unwrap().unix_timestamp_nanos();
    for number in [1_700_000_000.0, 1.7e12, 1.7e15, 1.7e18] {
        assert_eq!(at(number), 1_700_000_000_000_000_000, "{number}");
    }
    assert_eq!(at(1_700_000_000.25), 1_700_000_000_250_000_000);
    assert_eq!(at(-5.0), -5_000_000_000);
}

#[test]
fn an_identity_that_is_none_is_replaced() {
    let message = |properties: &[(&str, &str)]| Message {
        topic: "t".into(),
        payload: Vec::new(),
        properties: properties.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
    };
    let known = Letter::new(message(&[("id", "a-1"), ("at", "2026-05-01T10:00:00Z")]), 5);
    assert_eq!((&*known.id, &*known.at), ("a-1", "2026-05-01T10:00:00Z"));
    let long = "x".repeat(129);
    for id in ["", &long] {
        let replaced = Letter::new(message(&[("id", id), ("at", "now")]), 5);
        assert!(replaced.id.starts_with("fulmar-"), "{}", replaced.id);
        let stamped = Letter::new(message(&[("id", id), ("id", "stamp-1")]), 5);
        assert_eq!(stamped.id, "stamp-1");
        assert_eq!(replaced.at, "1970-01-01T00:00:00.005Z");
    }
}

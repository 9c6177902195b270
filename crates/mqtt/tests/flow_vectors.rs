//! The published test vectors of stream headers, `docs/quic-headers.json`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use fulmar_mqtt::flow::{DataFlow, FlowFlags, FlowHeader, decode, encode};
use serde_json::Value;

fn vectors(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../../docs/quic-headers.json")).unwrap();
    all[kind].as_array().unwrap().clone()
}

fn bytes(vector: &Value) -> Vec<u8> {
    let hex = vector["bytes"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn header(vector: &Value) -> FlowHeader {
    let number = |name: &str| vector[name].as_u64().unwrap();
    let flags = || u8::try_from(number("flags")).unwrap();
    let flow =
        || DataFlow { id: number("id"), expiry_s: number("expiry_s"), flags: FlowFlags(flags()) };
    match vector["type"].as_str().unwrap() {
        "control" => FlowHeader::Control { flags: flags() },
        "client" => FlowHeader::ClientData(flow()),
        "server" => FlowHeader::ServerData(flow()),
        _ => FlowHeader::UserDefined { id: number("id") },
    }
}

#[test]
fn accepted_headers_decode_and_encode() {
    for vector in vectors("accepted") {
        let (bytes, header) = (bytes(&vector), header(&vector));
        assert_eq!(decode(&bytes), Ok(Some((header, bytes.len()))), "{vector}");
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Ok(None), "{vector} to {cut}");
        }
        let mut again = Vec::new();
        encode(&header, &mut again);
        assert_eq!(again == bytes, vector["canonical"] != false, "{vector}: {again:x?}");
    }
}

#[test]
fn refused_headers_have_the_published_codes() {
    for vector in vectors("refused") {
        let decoded = decode(&bytes(&vector));
        // What is wrong with the others depends on the connection.
        if vector["valid_header"] == true {
            assert!(matches!(decoded, Ok(Some(_))), "{vector}");
            continue;
        }
        let code = u64::from_str_radix(vector["code"].as_str().unwrap(), 16).unwrap();
        assert_eq!(decoded.map_err(|error| error.stream_error() as u64), Err(code), "{vector}");
    }
}

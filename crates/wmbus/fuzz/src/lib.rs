//! Fuzz targets of `fulmar-wmbus`: whatever is received gives readings or one frame's error, never more
//! memory than a few frames take, and what our own encoder made is read back.

use fulmar_mqtt_fuzz::heap;
use fulmar_wmbus::chips::{self, Mode};
use fulmar_wmbus::frame::{self, Format};
use fulmar_wmbus::input::{Input, Kind, MAX_LINE_BYTES};
use fulmar_wmbus::{
    Address, Decoder, Key, KeyStore, Protection, Reading, Received, Records, Seal, Security,
    Sighting, encode,
};

/// Every meter's key.
struct OneKey(Key);

impl KeyStore for OneKey {
    fn key(&self, _: &Address) -> Option<&Key> {
        Some(&self.0)
    }
}

fn decoder() -> Decoder<OneKey> {
    Decoder::new(OneKey(Key::new([7; 16])))
}

const FORMATS: [Option<Format>; 4] =
    [None, Some(Format::A), Some(Format::B), Some(Format::Stripped)];

/// A byte that says what follows: a frame in one of the formats, or records that are encrypted first,
/// so that what lies behind the ciphers is reached too.
pub fn decode(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 8 {
        frame @ 0..4 => received(rest, FORMATS[usize::from(frame)]),
        protection => sealed(rest, protection),
    }
}

fn received(bytes: &[u8], format: Option<Format>) {
    let received = Received { bytes: bytes.to_vec(), format, ..Received::default() };
    let sighting = Sighting::from_received(&received, None);
    let mut decoder = decoder();
    let first = decoder.decode(&received);
    if let Ok(telegram) = &first {
        let sighting = sighting.expect("what can be decoded can be seen");
        assert!(sighting.encrypted || telegram.security != Security::Mode5);
        let again = decoder.decode(&received).expect_err("the second time it is a replay");
        assert_eq!(again.code(), "replayed");
    }
}

fn sealed(records: &[u8], protection: u8) {
    // Twice as much as a frame has room for would only be cut.
    let records = &records[..records.len().min(180)];
    let meter = Address::from_link([0x93, 0x15, 1, 2, 3, 4, 5, 7]);
    let key = Key::new([7; 16]);
    let (seal, protection) = match protection {
        4 => (Seal::None, Protection::Unauthenticated),
        5 => (Seal::Mode5(&key), Protection::Encrypted),
        6 => (Seal::Mode7(&key, 9), Protection::Authenticated),
        _ => (Seal::EllCtr(&key, 9), Protection::Encrypted),
    };
    let bytes = encode(meter, 1, 0, seal, records);
    for format in [Format::A, Format::B, Format::Stripped] {
        let bytes = frame::dress(&bytes, format).expect("it fits");
        let received = Received { bytes, format: Some(format), ..Received::default() };
        let telegram = decoder().decode(&received).expect("our own frames are read");
        let plain = Records::parse(records);
        let sent = plain.readings.iter().cloned();
        let sent: Vec<Reading> = sent.map(|reading| Reading { protection, ..reading }).collect();
        // Fillers behind the records can complete a last one that was cut.
        let read = &telegram.records.readings[..sent.len()];
        assert_eq!(serde_json::to_string(read).ok(), serde_json::to_string(&sent).ok());
        assert_eq!(telegram.protection, protection);
    }
}

/// Records of a message.
pub fn records(data: &[u8]) {
    // No frame has more, and all fragments of a message together have not much more.
    let data = &data[..data.len().min(1024)];
    let (records, used) = heap::measure(|| Records::parse(data));
    // A reading takes two bytes at least, and some 200 in memory, kept in a vector that doubles.
    assert!(used.peak_bytes <= 4096 + 700 * data.len(), "{used:?} for {} bytes", data.len());
    assert!(records.readings.len() * 2 <= data.len());
    for reading in &records.readings {
        assert!(!reading.vif.is_empty() && !reading.quantity.is_empty());
        let json = serde_json::to_value(reading).expect("a reading is JSON");
        assert_eq!(json["quantity"], reading.quantity);
        let shown = reading.value.to_string();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
}

/// A byte for the kind of stream, one for the size of pieces, and the stream.
pub fn input(data: &[u8]) {
    let [kind, pieces, stream @ ..] = data else { return };
    let kinds = [
        Kind::Auto,
        Kind::RtlWmbus,
        Kind::Im871a,
        Kind::Amb8465,
        Kind::Cul,
        Kind::Hex,
        Kind::Chips,
    ];
    let kind = kinds[usize::from(*kind) % kinds.len()];
    let whole = frames(kind, stream, stream.len().max(1));
    assert_eq!(whole, frames(kind, stream, usize::from(*pieces).max(1)), "pieces change nothing");
}

fn frames(kind: Kind, stream: &[u8], pieces: usize) -> Vec<Received> {
    let mut input = Input::new(kind);
    let mut all = Vec::new();
    for piece in stream.chunks(pieces) {
        input.feed(piece);
        while let Some(outcome) = input.next() {
            all.extend(outcome);
        }
    }
    input.end();
    while let Some(outcome) = input.next() {
        all.extend(outcome);
    }
    assert!(all.iter().all(|received| received.bytes.len() <= MAX_LINE_BYTES));
    all
}

/// A byte for the mode, and chips.
pub fn chips(data: &[u8]) {
    let Some((mode, packed)) = data.split_first() else { return };
    let mode = [Mode::S, Mode::T, Mode::C, Mode::N][usize::from(mode % 4)];
    let Ok((bytes, format)) = chips::decode(mode, packed) else { return };
    let mut bare = Vec::new();
    if frame::strip(&bytes, format, &mut bare).is_ok() {
        let again = chips::encode(mode, &bytes, format).expect("the mode has this format");
        assert_eq!(chips::decode(mode, &again), Ok((bytes, format)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmar_mqtt_fuzz::replay;

    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        replay(SEEDS.to_owned() + "wmbus-decode", decode);
        replay(SEEDS.to_owned() + "wmbus-records", records);
        replay(SEEDS.to_owned() + "wmbus-input", input);
        replay(SEEDS.to_owned() + "wmbus-chips", chips);
    }
}

//! Fuzz targets of `fulmar-store`: what a node reads from a log that other nodes write.

use std::borrow::Cow;

use fulmar_store::journal::{Claimant, LogPosition, RecordKind, decode, encode};

/// Bytes as a record, and as the body of one. What can be read is written as the same again, and a record that was
/// changed in any byte is refused.
pub fn journal(data: &[u8]) {
    let start = LogPosition::default();
    if let Ok(view) = start.read(data) {
        assert_eq!(view.position.number, 1);
    }
    if let Ok(ops) = decode(data) {
        let mut bytes = Vec::new();
        encode(ops.iter().map(Cow::Borrowed), &mut bytes);
        let again = decode(&bytes).unwrap_or_else(|error| panic!("what was written: {error}"));
        assert_eq!(format!("{ops:?}"), format!("{again:?}"));
    }
    let (at, claim) = start.claim(Claimant { node: "node", incarnation: 7 });
    assert_eq!(start.read(&claim).map(|view| view.position), Ok(at));
    let mut record = Vec::new();
    let next = at.next(RecordKind::Group(data), &mut record);
    let view = at.read(&record).unwrap_or_else(|error| panic!("what was written: {error}"));
    assert_eq!((view.position, view.kind), (next, Some(RecordKind::Group(data))));
    assert!(start.read(&record).is_err(), "a record is missing");
    assert!(next.read(&record).is_err(), "the same twice");
    if let [bit, place @ .., _] = data {
        let place = place.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte));
        let place = place as usize % record.len();
        record[place] ^= 1 << (bit % 8);
        assert!(at.read(&record).is_err(), "a record was changed at {place}");
    }
}

#[cfg(test)]
mod tests {
    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        fulmar_mqtt_fuzz::replay(SEEDS.to_owned() + "store-journal", super::journal);
    }
}

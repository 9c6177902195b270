//! A JSON body of a request to the platform.

use fulmar_mqtt_fuzz::heap;
use serde::de::DeserializeOwned;

use crate::extract::{Each, Import, import as import_of, parse};
use crate::frames::types::NewFrame;
use crate::measurements::NewMeasurement;
use crate::meters::NewMeter;
use crate::problem::Problem;
use crate::readings::types::NewReading;

/// Statuses of what cannot be read: not JSON, invalid values, too much.
const REFUSED: [u16; 3] = [400, 422, 413];
const MAX_ID_BYTES: usize = 64;
/// What reading a body may take, per byte of it and besides: each of several items has a problem of its own.
const MAX_HEAP_PER_BYTE: usize = 512;
const MAX_HEAP_BYTES: usize = 16 * 1024;

/// Of what, and the body. Items that are accepted are within their bounds; a refusal says why, in a bounded text.
pub fn body(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    match kind % 5 {
        0 => import(text),
        1 => items::<NewMeasurement>(text, |one| is_bounded(&one.device) && one.value.is_finite()),
        2 => items::<NewReading>(text, |one| is_bounded(&one.meter) && one.value.abs() <= 1e12),
        3 => items::<NewFrame>(text, |one| (2..=1200).contains(&one.hex.chars().count())),
        _ => drop(read(text, parse::<NewMeter>)),
    }
}

fn import(text: &[u8]) {
    match read(text, import_of::<NewMeter>) {
        Some(Import::One(meter)) => assert!(is_good(&meter), "{meter:?}"),
        Some(Import::Many(items)) => check(text, &items, is_good),
        None => {}
    }
}

fn items<T: DeserializeOwned>(text: &[u8], is_good: fn(&T) -> bool) {
    if let Some(items) = read(text, parse::<Vec<Each<T>>>) {
        check(text, &items, is_good);
    }
}

fn check<T>(text: &[u8], items: &[Each<T>], is_good: fn(&T) -> bool) {
    assert!(2 * items.len() <= text.len());
    for Each { id, item } in items {
        assert!(id.as_ref().is_none_or(|id| id.len() <= MAX_ID_BYTES), "{id:?}");
        match item {
            Ok(item) => assert!(is_good(item)),
            Err(problem) => is_explained(problem, text),
        }
    }
}

fn is_good(meter: &NewMeter) -> bool {
    let short = |text: &Option<crate::text::Line>| {
        text.as_ref().is_none_or(|text| text.chars().count() <= 200)
    };
    let place = meter.place.is_none_or(|at| at.lat.abs() <= 90.0 && at.lon.abs() <= 180.0);
    let lines = [&meter.serial, &meter.manufacturer, &meter.street];
    meter.id.as_ref().is_none_or(|id| is_bounded(id)) && place && lines.into_iter().all(short)
}

fn is_bounded(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.is_ascii()
}

fn read<T>(text: &[u8], parse: fn(&[u8]) -> Result<T, Problem>) -> Option<T> {
    let (read, used) = heap::measure(|| parse(text));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES + MAX_HEAP_PER_BYTE * text.len(), "{used:?}");
    read.inspect_err(|problem| is_explained(problem, text)).ok()
}

fn is_explained(problem: &Problem, text: &[u8]) {
    assert!(REFUSED.contains(&problem.status()), "{problem:?}");
    let detail = problem.detail();
    // It may name a field, and quote it with escapes.
    assert!(!detail.is_empty() && detail.len() <= 1024 + 8 * text.len(), "{detail}");
}

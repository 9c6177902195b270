use super::*;
use crate::frame::{Format, dress};
use proptest::prelude::*;

const HEX: &str = "1844AE4C4455223368077A55000000041389E20100023B0000";

fn frame() -> Vec<u8> {
    (0..HEX.len()).step_by(2).map(|at| u8::from_str_radix(&HEX[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that a stream gives, when it comes in pieces of this many bytes.
fn read(kind: Kind, stream: &[u8], pieces: usize) -> Vec<Result<Received, InputError>> {
    let mut input = Input::new(kind);
    let mut all = Vec::new();
    for piece in stream.chunks(pieces) {
        input.feed(piece);
        all.extend(std::iter::from_fn(|| input.next()));
        let bound = MAX_LINE_BYTES.max(600) + pieces;
        assert!(input.buffer.len() <= bound, "{} bytes are held", input.buffer.len());
    }
    input.end();
    all.extend(std::iter::from_fn(|| input.next()));
    all
}

fn im871a(level: u8) -> Vec<u8> {
    let frame = frame();
    let mut message = vec![0xE2, 0x03, frame[0]];
    message.extend(&frame[1..]);
    message.extend([1, 2, 3, 4, level]);
    let crc = message.iter().fold(0xFFFF_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x8408))
    });
    message.extend((!crc).to_le_bytes());
    message.insert(0, 0xA5);
    message
}

fn amb8465(level: Option<u8>) -> Vec<u8> {
    let mut message = vec![0xFF, 0x03];
    message.extend(frame());
    message.extend(level);
    message.push(message.iter().fold(0, |sum, byte| sum ^ byte));
    message
}

fn streams() -> Vec<(Kind, Vec<u8>, Option<f32>)> {
    let with_sums = hex(&dress(&frame(), Format::A).unwrap());
    let format_b = hex(&dress(&frame(), Format::B).unwrap());
    let rtl = format!("T1;1;1;2020-01-01 10:00:00.000;97;148;33225544;0x{HEX}\n");
    vec![
        (Kind::RtlWmbus, rtl.into_bytes(), None),
        (Kind::Im871a, im871a(45), Some(-100.0)),
        (Kind::Amb8465, amb8465(Some(0xB0)), Some(-114.0)),
        (Kind::Amb8465, amb8465(None), None),
        (Kind::Cul, format!("b{with_sums}C080\r\n").into_bytes(), Some(-138.0)),
        (Kind::Cul, format!("bY{format_b}C000\r\n").into_bytes(), Some(-74.0)),
        (Kind::Cul, format!("b{with_sums}\r\n").into_bytes(), None),
        (Kind::Hex, format!("{HEX}\n").into_bytes(), None),
        (Kind::Hex, format!("{with_sums}\n").into_bytes(), None),
        (Kind::Hex, format!("# one\n\n{}|{}", &HEX[..20], &HEX[20..]).into_bytes(), None),
    ]
}

fn readings(received: &Received) -> String {
    let telegram = crate::Decoder::new(crate::InMemoryKeys::new()).decode(received).unwrap();
    telegram.main("volume").unwrap().value.to_string()
}

#[test]
fn every_kind_is_read_in_pieces_of_any_size_and_guessed() {
    for (kind, stream, rssi) in streams() {
        let twice =
            [&stream[..], b"\n"[..usize::from(stream.ends_with(b"0"))].as_ref(), &stream].concat();
        for pieces in [1, 2, 7, 1000] {
            for kind in [kind, Kind::Auto] {
                let all = read(kind, &twice, pieces);
                assert_eq!(all.len(), 2, "{kind:?} {}", String::from_utf8_lossy(&twice));
                for received in all {
                    let received = received.unwrap();
                    assert_eq!(
                        (readings(&received).as_str(), received.rssi_dbm),
                        ("123.529", rssi)
                    );
                }
            }
        }
    }
}

#[test]
fn rtl_wmbus_tells_mode_time_and_level() {
    let received = read(Kind::Auto, &streams()[0].1, 100).remove(0).unwrap();
    assert_eq!(received.mode.as_deref(), Some("T1"));
    assert_eq!(received.time.as_deref(), Some("2020-01-01 10:00:00.000"));
    assert_eq!(received.rssi_raw, Some(97));
    let damaged = format!("T1;0;1;2020-01-01 10:00:00.000;97;148;33225544;0x{HEX}\n");
    assert_eq!(read(Kind::Auto, damaged.as_bytes(), 100), [Err(InputError::ReceiverChecksum)]);
}

#[test]
fn chips_come_as_lines() {
    use crate::chips::{Mode, encode};
    let wire = dress(&frame(), Format::B).unwrap();
    let line = format!("N {}\n", hex(&encode(Mode::N, &wire, Format::B).unwrap()));
    for kind in [Kind::Chips, Kind::Auto] {
        let received = read(kind, line.as_bytes(), 100).remove(0).unwrap();
        assert_eq!(
            (readings(&received).as_str(), received.mode.as_deref()),
            ("123.529", Some("N"))
        );
    }
    assert!(read(Kind::Chips, b"X 00\nT 0000\n", 9).iter().all(Result::is_err));
}

#[test]
fn after_damage_the_next_frame_is_found() {
    for (kind, stream, _) in streams() {
        let noise: &[u8] = if matches!(kind, Kind::Im871a | Kind::Amb8465) {
            &[1, 2, 3]
        } else {
            b"what is this\n"
        };
        for pieces in [1, 5, 1000] {
            let all = read(kind, &[noise, &stream].concat(), pieces);
            assert!(all[..all.len() - 1].iter().all(Result::is_err), "{kind:?}");
            assert_eq!(readings(all.last().unwrap().as_ref().unwrap()), "123.529", "{kind:?}");
        }
    }
}

#[test]
fn a_line_without_end_is_told_once() {
    let stream = [&[b'A'; 3 * MAX_LINE_BYTES][..], b"\n", HEX.as_bytes()].concat();
    for pieces in [1, 100, 10_000] {
        let all = read(Kind::Hex, &stream, pieces);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0], Err(InputError::LineTooLong));
        assert_eq!(readings(all[1].as_ref().unwrap()), "123.529");
    }
}

proptest! {
    #[test]
    fn noise_gives_errors_and_is_not_kept(noise in prop::collection::vec(any::<u8>(), 0..3000), pieces in 1..500_usize) {
        for kind in [Kind::Auto, Kind::RtlWmbus, Kind::Im871a, Kind::Amb8465, Kind::Cul, Kind::Hex, Kind::Chips] {
            read(kind, &noise, pieces);
        }
    }
}

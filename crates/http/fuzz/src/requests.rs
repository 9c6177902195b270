//! Requests of HTTP/1.1 that pass the scanner, as hyper would read them: none has a line that another server may see to end
//! elsewhere, nor a body whose end another server may see elsewhere. Well-formed ones pass unchanged.

use crate::request_reader::read;
use crate::request_scanner::{Position, Scanner};

/// Lines of this length need not pass, even if they are well-formed.
const LONG_LINE_BYTES: usize = 128;

/// How much the scanner gets at a time, then what a client sends.
pub fn requests(data: &[u8]) {
    let Some((cut, wire)) = data.split_first() else { return };
    let passed = scanned(wire, wire.len().max(1));
    assert_eq!(scanned(wire, usize::from(*cut) + 1), passed);
    if wire.starts_with(b"PRI * HTTP/2.0\r\n") {
        assert_eq!(passed, wire);
        return;
    }
    assert!(!read(&passed).is_ambiguous, "{}", passed.escape_ascii());
    // A length that is written in a very long line is refused.
    if wire.split(|byte| *byte == b'\n').all(|line| line.len() < LONG_LINE_BYTES) {
        let end = read(wire).end;
        assert!(passed[..end] == wire[..end], "{}", wire.escape_ascii());
    }
}

fn scanned(wire: &[u8], cut: usize) -> Vec<u8> {
    let (mut bytes, mut scanner) = (wire.to_vec(), Scanner::at(Position::Head));
    bytes.chunks_mut(cut).for_each(|piece| scanner.scan(piece));
    bytes
}

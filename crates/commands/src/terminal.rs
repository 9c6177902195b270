//! Text that others have chosen, for a terminal: what would move its cursor, change its title or reverse the direction of
//! writing is escaped.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// Controls of terminals (C0, DEL, C1) and of Unicode's bidirectional algorithm (UAX 9).
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Appends the text, with escapes as JSON has them in place of controls but those of `kept`.
fn push(text: &str, kept: &[char], to: &mut String) {
    for c in text.chars() {
        match c {
            c if !is_control(c) || kept.contains(&c) => to.push(c),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            // Writing to a string cannot fail. All are below U+10000.
            c => drop(write!(to, "\\u{:04x}", u32::from(c))),
        }
    }
}

/// Text without any controls, on one line.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    push(text, &[], &mut to);
    to
}

/// Text without controls but line feeds and tabs.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    push(text, &['\n', '\t'], &mut to);
    to
}

/// The same of bytes; those that are not UTF-8 become `\xNN`.
#[must_use]
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut to = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        push(chunk.valid(), &['\n', '\t'], &mut to);
        for byte in chunk.invalid() {
            let _ = write!(to, "\\x{byte:02x}");
        }
    }
    to
}

/// JSON for standard output: what it has of DEL, C1 and directions is escaped on a terminal, and the same value.
#[must_use]
pub fn json(text: String) -> String {
    if std::io::stdout().is_terminal() { printable_lines(&text) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_controls_the_terminal() {
        let hostile = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\tb\u{202e}\u{2066}ä";
        assert_eq!(printable(hostile), r"a\u001b[2J\u009b31m\u007f\r\n\tb\u202e\u2066ä");
        assert_eq!(printable_lines(hostile), "a\\u001b[2J\\u009b31m\\u007f\\r\n\tb\\u202e\\u2066ä");
        assert_eq!(printable_bytes(b"21.5 \xff\x1b\n"), "21.5 \\xff\\u001b\n");
    }

    #[test]
    fn every_control_is_escaped() {
        for c in (0..0x3000).filter_map(char::from_u32).filter(|c| is_control(*c)) {
            let shown = printable(&c.to_string());
            assert!(shown.is_ascii() && shown.starts_with('\\'), "{shown:?}");
        }
    }
}

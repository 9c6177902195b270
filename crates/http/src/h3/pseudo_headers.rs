//! Pseudo-header fields as a request has them: before all other fields, each at most once, and none of a response
//! (RFC 9114 sections 4.3 and 4.3.1).
//!
//! h3 0.0.8 keeps neither their order nor their number, and its decoder is private. So the field section (RFC 9204 section
//! 4.5) is read a second time here, only as far as these rules require: values are skipped. The server offers no dynamic
//! table, and h3 refuses what refers to one.

/// The pseudo-header fields of requests: as they are, and in Huffman's code.
const NAMES: [(&[u8], &[u8]); 5] = [
    (b":authority", &[0xB8, 0x3B, 0x53, 0x39, 0xEC, 0x32, 0x7D, 0x7F]),
    (b":path", &[0xB9, 0x58, 0xD3, 0x3F]),
    (b":method", &[0xB9, 0x49, 0x53, 0x39, 0xE4]),
    (b":scheme", &[0xB8, 0x82, 0x4E, 0x5A, 0x4B]),
    (b":protocol", &[0xB9, 0x5D, 0x87, 0x49, 0xC8, 0x7A, 0x3F]),
];

/// The bit of a field that is in none of [`NAMES`]; that of the others is their place in the list.
const REGULAR: u8 = 0;

/// Reads the encoded field section of a request; `None` if it does not keep to the rules.
pub(super) fn check(mut section: &[u8]) -> Option<()> {
    let section = &mut section;
    // Required Insert Count, and Base.
    integer(section, 8)?;
    integer(section, 7)?;
    let (mut seen, mut regular) = (0, false);
    while let Some(&first) = section.first() {
        let field = match first {
            0xC0.. => table_name(integer(section, 6)?)?,
            0x50..0x60 | 0x70..0x80 => {
                let name = table_name(integer(section, 4)?)?;
                string(section, 7)?;
                name
            }
            0x20..0x40 => {
                let name = literal_name(string(section, 3)?, first & 8 != 0)?;
                string(section, 7)?;
                name
            }
            _ => return None,
        };
        if field == REGULAR {
            regular = true;
        } else if regular || seen & field != 0 {
            return None;
        }
        seen |= field;
    }
    Some(())
}

/// The bit for an entry of the static table (RFC 9204 appendix A).
fn table_name(index: usize) -> Option<u8> {
    match index {
        0..=1 => Some(1 << index),
        15..=21 => Some(1 << 2),
        22..=23 => Some(1 << 3),
        // `:status`.
        24..=28 | 63..=71 => None,
        _ => Some(REGULAR),
    }
}

fn literal_name(name: &[u8], is_huffman: bool) -> Option<u8> {
    // A colon has seven bits in Huffman's code (RFC 7541 appendix B).
    let is_pseudo = name.first().is_some_and(|&first| match is_huffman {
        true => first >> 1 == 0x5C,
        false => first == b':',
    });
    if !is_pseudo {
        return Some(REGULAR);
    }
    let same =
        |(plain, huffman): &(&[u8], &[u8])| name == if is_huffman { *huffman } else { *plain };
    NAMES.iter().position(same).map(|number| 1 << number)
}

/// Reads an integer with this many bits in its first byte (RFC 7541 section 5.1).
fn integer(section: &mut &[u8], bits: u32) -> Option<usize> {
    let most = (1 << bits) - 1;
    let (&first, rest) = section.split_first()?;
    *section = rest;
    let mut value = usize::from(first) & most;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = section.split_first()?;
        *section = rest;
        value += usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Reads a string whose length has this many bits in its first byte, not decoded.
fn string<'a>(section: &mut &'a [u8], bits: u32) -> Option<&'a [u8]> {
    let length = integer(section, bits)?;
    let (string, rest) = section.split_at_checked(length)?;
    *section = rest;
    Some(string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request's fields by their indices in the static table: GET, https, "/", then a literal `:authority` and
    /// `user-agent: x`.
    const GOOD: &[&[u8]] = &[&[0xD1], &[0xD7], &[0xC1], &[0x50, 1, b'a'], &[0x5F, 0x50, 1, b'x']];

    fn sound(fields: &[&[u8]]) -> bool {
        check(&[&[0, 0], &fields.concat()[..]].concat()).is_some()
    }

    /// A literal field whose name is not in the table, with an empty value.
    fn literal(name: &[u8], huffman: u8) -> Vec<u8> {
        let (first, length) = (0x20 | huffman << 3, name.len() as u8);
        let field = if length < 7 { vec![first | length] } else { vec![first | 7, length - 7] };
        [&field, name, &[0]].concat()
    }

    #[test]
    fn pseudo_headers_come_first_and_once() {
        assert!(sound(GOOD) && sound(&GOOD[..3]));
        for (number, field) in GOOD.iter().enumerate() {
            let twice = sound(&[GOOD, &[field]].concat());
            assert_eq!(twice, number == 4, "field {number} again, after others");
            assert!(!sound(&[&[*field], GOOD].concat()), "field {number} again, before");
        }
        assert!(!sound(&[GOOD, &[&[0xD9]]].concat()), ":status 200");
        assert!(!sound(&[&[0xFF, 0x00], GOOD[0]]), ":status 100");
    }

    #[test]
    fn names_that_are_spelt_count_too() {
        for (number, (plain, huffman)) in NAMES.iter().enumerate() {
            for name in [literal(plain, 0), literal(huffman, 1)] {
                assert!(sound(&[&name]), "{number}");
                assert!(!sound(&[&name, &name]), "{number} twice");
                assert!(!sound(&[GOOD[4], &name]), "{number} late");
                let with_table =
                    GOOD.get(..4).is_some_and(|table| sound(&[&name, &table.concat()]));
                assert_eq!(with_table, number == 4, "{number} in both forms");
            }
        }
        let status = [0xB8, 0x84, 0x8D, 0x36, 0xA3];
        assert!(!sound(&[&literal(b":status", 0)]) && !sound(&[&literal(&status, 1)]));
        assert!(sound(&[&literal(b"status", 0)]));
    }

    #[test]
    fn what_cannot_be_read_is_not_sound() {
        for bad in [
            &[][..],
            &[0],
            &[0, 0, 0x51],
            &[0, 0, 0x27, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
            &[0, 0, 0x80],
        ] {
            assert!(check(bad).is_none(), "{bad:?}");
        }
        assert!(check(&[0, 0]).is_some());
    }
}

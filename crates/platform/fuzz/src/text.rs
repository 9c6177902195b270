//! Texts in paths, queries and bodies of requests to the platform: names, times, addresses of meters, cursors and tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::accounts::token::{HEADER, Signer};
use crate::measurements::Quantity;
use crate::meters::RadioAddress;
use crate::respond::{open_cursor, open_number, open_numbers};
use crate::text::{Name, Text};
use crate::time::Time;

const SECRET: &[u8] = b"the secret of an installation";
const NOW: Time = Time(1_800_000_000_000);

/// One text, which is tried as each of them.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    names(text);
    time(text);
    radio_address(text);
    cursors(text);
    tokens(text);
}

fn names(text: &str) {
    let letters = |others: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    };
    let is_name = letters(b"._@-")
        && (1..=64).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphanumeric());
    assert_eq!(text.parse::<Name>().is_ok_and(|name| *name == *text), is_name, "{text:?}");
    let is_quantity = letters(b"_")
        && (1..=32).contains(&text.len())
        && !text.contains(|letter: char| letter.is_ascii_uppercase());
    assert_eq!(text.parse::<Quantity>().is_ok_and(|it| *it == *text), is_quantity, "{text:?}");
    let cut = Text::<1, 16>::cut(text);
    // No database can hold U+0000.
    let can_be_stored = !text.chars().take(16).any(|character| character == '\0');
    assert_eq!(cut.is_some(), !text.is_empty() && can_be_stored, "{text:?}");
    assert!(cut.is_none_or(|cut| text.starts_with(&*cut) && cut.chars().count() <= 16));
}

/// What was read is written in a form that is read as the same.
fn time(text: &str) {
    let Ok(time) = text.parse::<Time>() else { return };
    let written = time.to_string();
    assert_eq!((written.len(), written.parse()), (24, Ok(time)), "{text} {written}");
}

fn radio_address(text: &str) {
    let parts: Vec<&str> = text.split('-').collect();
    let are_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_right = match parts[..] {
        [maker, number] | [maker, number, _, _] => {
            let model = &parts[2..];
            maker.len() == 3
                && maker.bytes().all(|letter| letter.is_ascii_alphabetic())
                && number.len() == 8
                && are_digits(number)
                && model.iter().all(|digits| digits.len() == 2 && are_digits(digits))
        }
        _ => false,
    };
    let read = text.parse::<RadioAddress>();
    assert_eq!(read.is_ok(), is_right, "{text:?}");
    let Ok(address) = read else { return };
    let written = address.to_string();
    assert!(written.eq_ignore_ascii_case(text) && written.starts_with(&address.short()), "{text}");
    assert_eq!(written.parse(), Ok(address));
}

fn cursors(text: &str) {
    let whole = URL_SAFE_NO_PAD.encode(text);
    assert_eq!(open_cursor(Some(&whole)).ok().flatten().as_deref(), Some(text));
    if let Ok(Some(meant)) = open_cursor(Some(text)) {
        assert!(meant.len() <= text.len(), "{text:?}");
    }
    if let Ok(Some(number)) = open_number(Some(&whole)) {
        assert_eq!(text.parse(), Ok(number));
    }
    if let Ok(Some((first, second))) = open_numbers(Some(&whole)) {
        let again = URL_SAFE_NO_PAD.encode(format!("{first} {second}"));
        assert_eq!(open_numbers(Some(&again)).ok(), Some(Some((first, second))));
    }
}

fn tokens(text: &str) {
    let signer = Signer::new(SECRET);
    assert_eq!(signer.check(text, NOW), None, "nobody signed it");
    assert_eq!(signer.vouched(text, "topic", b"payload"), None, "nobody vouches for it");
    let voucher = signer.vouch(text, "topic", b"payload");
    assert_eq!(signer.vouched(&voucher, "topic", b"payload"), Some(text));
    assert_eq!(signer.vouched(&voucher, "topic", b"another"), None);
    // As claims that are signed.
    let signed = [HEADER, text].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
    if let Some((_, until)) = signer.check(&token, NOW) {
        assert!(until > NOW, "{text}");
    }
}

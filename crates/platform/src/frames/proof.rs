//! Whether a message by radio counts, or may be another sender's than the meter's.
//!
//! Anybody can send unprotected messages. Of a meter with a key, or whose messages were protected before, they do not
//! count, and neither do those that are protected worse than earlier ones. Encryption without an authentication code does
//! not show that nothing was altered, so such a message has to look like the meter's others, too.

use fulmar_text::hex;
use fulmar_wmbus::{Protection, Security, Telegram};
use ring::digest::{SHA256, digest};

/// Formats remembered of a meter's messages. Meters have a few.
const FORMATS: usize = 8;
/// Why a message in a new format does not count.
const NEW_FORMAT: &str =
    "the meter has not sent such records before: it may have been altered; the next one counts";

/// State of a meter's messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    /// Version and medium of the registered address.
    registered: Option<(u8, u8)>,
    /// The best protection they had.
    security: Security,
    /// Version and medium that the last one had.
    model: Option<(u8, u8)>,
    /// Oldest first.
    formats: Vec<Format>,
}

/// A format of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    /// A digest of its headers. Their checksum would not do: an attacker can keep it when changing them.
    signature: u64,
    /// Whether it came once, and did not count.
    is_new: bool,
}

/// Properties of a message besides its content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether its meter has a key.
    pub(crate) has_key: bool,
    /// Version and medium of its sender.
    pub(crate) model: Option<(u8, u8)>,
    /// Whether it was received before, and did not count: then that says nothing for it.
    pub(crate) is_copy: bool,
    /// Whether a message of the meter with a higher counter was received before.
    pub(crate) is_behind: bool,
    /// Whether a message of the meter with a later clock was received before.
    pub(crate) is_clock_behind: bool,
    /// Whether protected messages of the meter have shown more.
    pub(crate) is_lower: bool,
    /// Whether its value is above the last one and in the expected range.
    pub(crate) is_expected: bool,
}

const SECURITIES: [(Security, &str); 4] = [
    (Security::Manufacturer, "manufacturer"),
    (Security::EllCtr, "ell-ctr"),
    (Security::Mode5, "mode5"),
    (Security::Mode7, "mode7"),
];

impl History {
    /// From the registered model, and what [`History::columns`] gave.
    pub(crate) fn from_columns(
        registered: Option<(u8, u8)>,
        [security, model, formats]: [Option<String>; 3],
    ) -> History {
        let known = |word: &str| SECURITIES.iter().find(|(_, name)| *name == word);
        let model_of = |digits: String| u16::from_str_radix(&digits, 16).ok();
        let format = |word: &str| {
            let digits = word.trim_start_matches('?');
            let signature = u64::from_str_radix(digits, 16).ok();
            // Earlier versions stored checksums, of four digits.
            let signature = signature.filter(|_| digits.len() == 16)?;
            Some(Format { signature, is_new: digits != word })
        };
        let formats = formats.unwrap_or_default();
        History {
            registered,
            security: security.as_deref().and_then(known).map_or(Security::None, |known| known.0),
            model: model.and_then(model_of).map(|model| (model.to_be_bytes()).into()),
            formats: formats.split_whitespace().filter_map(format).collect(),
        }
    }

    /// Security, model and formats as text.
    pub(crate) fn columns(&self) -> [Option<String>; 3] {
        let security = SECURITIES.iter().find(|(known, _)| *known == self.security);
        let model = self.model.map(|(version, medium)| hex::encode(&[version, medium]));
        let formats = self.formats.iter().map(|format| {
            let mark = if format.is_new { "?" } else { "" };
            format!("{mark}{:016x}", format.signature)
        });
        let formats = Some(formats.collect::<Vec<_>>().join(" "));
        [
            security.map(|(_, word)| (*word).to_owned()),
            model,
            formats.filter(|formats| !formats.is_empty()),
        ]
    }

    /// Why a value, which has this protection, may be another sender's; `None` if nothing speaks against the meter's.
    pub(crate) fn doubt(
        &self,
        telegram: &Telegram,
        value: Protection,
        seen: &Circumstances,
    ) -> Option<&'static str> {
        let worth = worth(telegram, value);
        let is_protected = seen.has_key || self.security > Security::None;
        let is_encrypted = value == Protection::Encrypted;
        // An old message, or one that was altered blindly, hardly shows a value in the expected range.
        let is_unexpected = is_encrypted && !seen.is_expected;
        let known = self.registered.or(self.model);
        let is_other_model = known.is_some() && known != seen.model;
        let reasons = [
            (
                worth == Security::None && is_protected,
                "it is not protected, as the meter's messages are",
            ),
            (worth < self.security, "earlier messages of the meter were protected better"),
            (seen.is_behind, "a message of the meter with a higher counter was received before"),
            (
                is_encrypted && seen.is_lower,
                "the meter has sent more: it may be an old message; set the key of a meter that was exchanged",
            ),
            (
                is_unexpected && is_other_model,
                "its version and medium are not the meter's: register the address with them if they are right",
            ),
            (
                is_unexpected && seen.is_clock_behind,
                "a message of the meter with a later time was received before",
            ),
            (is_unexpected && self.is_new_format(telegram, seen.is_copy), NEW_FORMAT),
        ];
        reasons.into_iter().find(|(speaks_against, _)| *speaks_against).map(|(_, why)| why)
    }

    /// Whether a message is in another format than the meter's earlier ones, or is the first and makes no sense. Vendors'
    /// own formats are not known.
    fn is_new_format(&self, telegram: &Telegram, is_copy: bool) -> bool {
        let Some(signature) = signature(telegram) else { return !telegram.is_whole };
        let is_same =
            |format: &Format| format.signature == signature && !(is_copy && format.is_new);
        let is_first = self.formats.is_empty() && telegram.is_whole;
        let is_known = is_first || self.formats.iter().any(is_same);
        !is_known
    }

    /// State after a message, about which there is this doubt.
    pub(crate) fn with(
        &self,
        telegram: &Telegram,
        model: Option<(u8, u8)>,
        doubt: Option<&str>,
    ) -> History {
        let mut after = self.clone();
        if telegram.protection == Protection::Unauthenticated
            || doubt.is_some_and(|why| why != NEW_FORMAT)
        {
            return after;
        }
        if doubt.is_none() {
            after.security = self.security.max(worth(telegram, telegram.protection));
            after.model = model;
        }
        let Some(signature) = signature(telegram) else { return after };
        let known = after.formats.iter().position(|format| format.signature == signature);
        // In the order of their use where one has to go.
        if known.is_none_or(|at| after.formats[at].is_new || after.formats.len() == FORMATS) {
            known.map(|at| after.formats.remove(at));
            after.formats.push(Format { signature, is_new: doubt.is_some() });
        }
        if after.formats.len() > FORMATS {
            let least = after.formats[..FORMATS].iter().position(|format| format.is_new);
            after.formats.remove(least.unwrap_or(0));
        }
        after
    }
}

/// The digest of a message's headers.
fn signature(telegram: &Telegram) -> Option<u64> {
    let digest = digest(&SHA256, telegram.format.as_ref()?);
    digest.as_ref().first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The security mode that a value of this protection is worth: an authentication code makes up for any other.
fn worth(telegram: &Telegram, value: Protection) -> Security {
    match value {
        Protection::Unauthenticated => Security::None,
        Protection::Encrypted => telegram.security,
        Protection::Authenticated => Security::Mode7,
    }
}

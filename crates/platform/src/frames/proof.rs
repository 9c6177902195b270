//! Whether a message by radio counts, or may be another sender's than the meter's.
//!
//! Anybody can send unprotected messages. Of a meter with a key, or whose messages were protected before, they do not
//! count, and neither do those that are protected worse than earlier ones. Encryption without an authentication code does
//! not show that nothing was altered, so such a message has to look like the meter's others, too.

use fulmar_text::hex;
use fulmar_wmbus::{Protection, Security, Telegram};

/// Formats remembered of a meter's messages. Meters have a few.
const FORMATS: usize = 8;

/// What is known of a meter's messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    /// Version and medium of the registered address.
    registered: Option<(u8, u8)>,
    /// The best protection they had.
    security: Security,
    /// Version and medium that they had.
    model: Option<(u8, u8)>,
    /// Oldest first.
    formats: Vec<Format>,
}

/// A format of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    signature: u16,
    /// Whether it came once, and did not count.
    is_new: bool,
}

const SECURITIES: [(Security, &str); 4] = [
    (Security::Manufacturer, "manufacturer"),
    (Security::EllCtr, "ell-ctr"),
    (Security::Mode5, "mode5"),
    (Security::Mode7, "mode7"),
];

fn number(digits: &str) -> Option<u16> {
    u16::from_str_radix(digits, 16).ok()
}

impl History {
    /// From the registered model, and what [`History::columns`] gave.
    pub(crate) fn from_columns(
        registered: Option<(u8, u8)>,
        [security, model, formats]: [Option<String>; 3],
    ) -> History {
        let known = |word: &str| SECURITIES.iter().find(|(_, name)| *name == word);
        let format = |word: &str| {
            let digits = word.trim_start_matches('?');
            Some(Format { signature: number(digits)?, is_new: digits != word })
        };
        let formats = formats.unwrap_or_default();
        History {
            registered,
            security: security.as_deref().and_then(known).map_or(Security::None, |known| known.0),
            model: model.as_deref().and_then(number).map(|model| (model.to_be_bytes()).into()),
            formats: formats.split_whitespace().filter_map(format).collect(),
        }
    }

    /// Security, model and formats as text.
    pub(crate) fn columns(&self) -> [Option<String>; 3] {
        let security = SECURITIES.iter().find(|(known, _)| *known == self.security);
        let model = self.model.map(|(version, medium)| hex::encode(&[version, medium]));
        let formats = self.formats.iter().map(|format| {
            let mark = if format.is_new { "?" } else { "" };
            format!("{mark}{:04x}", format.signature)
        });
        let formats = Some(formats.collect::<Vec<_>>().join(" "));
        [
            security.map(|(_, word)| (*word).to_owned()),
            model,
            formats.filter(|formats| !formats.is_empty()),
        ]
    }

    /// Why a value may be another sender's; `None` if nothing speaks against the meter's.
    pub(crate) fn doubt(
        &self,
        has_key: bool,
        telegram: &Telegram,
        (value, model): (Protection, Option<(u8, u8)>),
    ) -> Option<&'static str> {
        let worth = worth(telegram, value);
        let known = self.registered.or(self.model);
        if worth == Security::None {
            let is_protected = has_key || self.security > Security::None;
            return is_protected.then_some("it is not protected, as the meter's messages are");
        }
        if worth < self.security {
            return Some("earlier messages of the meter were protected better");
        }
        if known.is_some() && known != model {
            return Some("its version and medium are not the meter's");
        }
        let is_altered = value == Protection::Encrypted && !telegram.is_consistent();
        is_altered.then_some("a part of it makes no sense: it may have been altered")
    }

    /// Whether an encrypted message is in another format than the meter's earlier ones.
    pub(crate) fn is_new_format(&self, telegram: &Telegram) -> bool {
        let known = |format: &Format| Some(format.signature) == telegram.format;
        telegram.protection == Protection::Encrypted
            && telegram.format.is_some()
            && !self.formats.is_empty()
            && !self.formats.iter().any(known)
    }

    /// What is known after a message that counts, or whose format alone speaks against it.
    pub(crate) fn with(
        &self,
        telegram: &Telegram,
        model: Option<(u8, u8)>,
        counts: bool,
    ) -> History {
        let mut after = self.clone();
        if telegram.protection == Protection::Unauthenticated {
            return after;
        }
        if counts {
            after.security = self.security.max(worth(telegram, telegram.protection));
            after.model = self.model.or(model);
        }
        if let Some(signature) = telegram.format
            && !after.formats.iter().any(|format| format.signature == signature && !format.is_new)
        {
            after.formats.retain(|format| format.signature != signature);
            after.formats.push(Format { signature, is_new: !counts });
            if after.formats.len() > FORMATS {
                let least = after.formats[..FORMATS].iter().position(|format| format.is_new);
                after.formats.remove(least.unwrap_or(0));
            }
        }
        after
    }
}

/// The security mode that a value of this protection is worth: an authentication code makes up for any other.
fn worth(telegram: &Telegram, value: Protection) -> Security {
    match value {
        Protection::Unauthenticated => Security::None,
        Protection::Encrypted => telegram.security,
        Protection::Authenticated => Security::Mode7,
    }
}

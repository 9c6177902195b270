//! AES keys of meters and their lookup by meter address. Keys never appear in logs or errors.
//!
//! [`crate::Decoder`] looks up each telegram's key in a [`KeyStore`]; [`InMemoryKeys`] is one. The caller decides where
//! keys are stored outside the process.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::address::{Address, AddressError, Manufacturer, MeterId};

/// An AES-128 key. Its `Debug` does not show it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// A key of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// Why a key entry cannot be used. Contains nothing of the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not 32 characters.
    #[error("a key must have 32 hexadecimal digits; this one has {0} characters")]
    Length(usize),
    /// Characters that are not hexadecimal digits.
    #[error("a key must have 32 hexadecimal digits; this one contains other characters")]
    Digits,
    /// The meter's address is invalid.
    #[error(transparent)]
    Meter(#[from] AddressError),
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let length = text.chars().count();
        if length != 32 {
            return Err(KeyError::Length(length));
        }
        if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(KeyError::Digits);
        }
        let key = u128::from_str_radix(text, 16).map_err(|_| KeyError::Digits)?;
        Ok(Self(key.to_be_bytes()))
    }
}

/// Looks up meters' keys.
pub trait KeyStore {
    /// The key of a meter, if it is known.
    fn key(&self, meter: &Address) -> Option<&Key>;
}

/// Keys in memory, by the number on the meter and, where meters of two manufacturers have the same number, the
/// manufacturer.
#[derive(Clone, Debug, Default)]
pub struct InMemoryKeys {
    by_manufacturer_and_id: HashMap<(Manufacturer, MeterId), Key>,
    by_id: HashMap<MeterId, Key>,
}

impl InMemoryKeys {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a meter's key. `meter` is a number such as `78152801`, or `KAM-78152801` with its
    /// manufacturer.
    ///
    /// # Errors
    /// `meter` has neither form.
    pub fn insert(&mut self, meter: &str, key: Key) -> Result<(), KeyError> {
        match meter.split_once('-') {
            Some((manufacturer, id)) => {
                self.by_manufacturer_and_id.insert((manufacturer.parse()?, id.parse()?), key)
            }
            None => self.by_id.insert(meter.parse()?, key),
        };
        Ok(())
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_manufacturer_and_id.len() + self.by_id.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl KeyStore for InMemoryKeys {
    fn key(&self, meter: &Address) -> Option<&Key> {
        self.by_manufacturer_and_id
            .get(&(meter.manufacturer, meter.id))
            .or_else(|| self.by_id.get(&meter.id))
    }
}

impl<K: KeyStore + ?Sized> KeyStore for &K {
    fn key(&self, meter: &Address) -> Option<&Key> {
        (**self).key(meter)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEX: &str = "00112233445566778899AABBCCDDEEFF";

    #[test]
    fn a_key_is_never_shown() {
        let mut keys = InMemoryKeys::new();
        keys.insert("12345678", HEX.parse().unwrap()).unwrap();
        let shown = format!("{keys:?}");
        assert!(!shown.contains("22") && shown.contains("hidden"), "{shown}");
        let error = "0011223344556677889".parse::<Key>().unwrap_err().to_string();
        assert!(!error.contains("3344"), "{error}");
    }

    #[test]
    fn an_error_states_what_is_wrong_with_a_key() {
        let error = |text: &str| text.parse::<Key>().unwrap_err();
        assert_eq!(error(&HEX[1..]), KeyError::Length(31));
        assert_eq!(error(&format!("{HEX}0")), KeyError::Length(33));
        for other in ["G", "+", "é"] {
            assert_eq!(error(&format!("{other}{}", &HEX[1..])), KeyError::Digits, "{other}");
        }
    }

    #[test]
    fn the_manufacturer_decides_where_numbers_collide() {
        let mut keys = InMemoryKeys::new();
        keys.insert("12345678", Key::new([1; 16])).unwrap();
        keys.insert("KAM-12345678", Key::new([2; 16])).unwrap();
        let meter = |manufacturer: &str| Address {
            manufacturer: manufacturer.parse().unwrap(),
            id: "12345678".parse().unwrap(),
            version: 1,
            medium: crate::address::Medium(7),
        };
        assert_eq!(keys.key(&meter("KAM")), Some(&Key::new([2; 16])));
        assert_eq!(keys.key(&meter("ITW")), Some(&Key::new([1; 16])));
        assert!(keys.insert("1234567", Key::new([1; 16])).is_err());
        assert!(keys.insert("K-12345678", Key::new([1; 16])).is_err());
        assert_eq!(keys.len(), 2);
    }
}

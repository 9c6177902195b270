//! Building blocks of an experiment file: tables that keep the file's order, and condition values.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use toml::Spanned;

/// A table in the order in which it was written, with the places of its keys.
#[derive(Clone, Debug)]
pub struct Ordered<V>(pub(crate) Vec<(Spanned<String>, V)>);

impl<V> Default for Ordered<V> {
    fn default() -> Self {
        Ordered(Vec::new())
    }
}

impl<V> Ordered<V> {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Keys and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (name.get_ref().as_str(), value))
    }

    /// Keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.get_ref().as_str())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Ordered<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Ordered<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A value of a condition: text, number or truth, kept as it is shown and put into commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(String);

impl Level {
    /// Text of the level.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneLevel)
    }
}

struct OneLevel;

impl<'de> Visitor<'de> for OneLevel {
    type Value = Level;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number or true or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Level, E> {
        Ok(Level(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Level, E> {
        Ok(Level(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Level, E> {
        Ok(Level(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Level, E> {
        Ok(Level(value.to_owned()))
    }

    /// `up.loss = 1` is a table `up` to TOML.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Level, A::Error> {
        let key = map.next_key::<String>()?.unwrap_or_default();
        Err(A::Error::custom(format!(
            "expected a string, a number or true or false, not a table; a key with a dot is written in \
             quotes: \"….{key}\" = …"
        )))
    }
}

/// Two hosts, with their places.
#[derive(Clone, Debug)]
pub struct Pair(pub(crate) [Spanned<String>; 2]);

impl Pair {
    /// Their names.
    pub fn names(&self) -> [String; 2] {
        self.0.clone().map(Spanned::into_inner)
    }
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hosts = Vec::<Spanned<String>>::deserialize(deserializer)?;
        let count = hosts.len();
        let pair = hosts.try_into();
        pair.map(Pair).map_err(|_| D::Error::custom(format!("expected two hosts, not {count}")))
    }
}

/// One value or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct Levels(pub(crate) Vec<Level>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a value or a list of values")]
enum OneOrMany {
    One(Level),
    Many(Vec<Level>),
}

impl From<OneOrMany> for Levels {
    fn from(levels: OneOrMany) -> Levels {
        match levels {
            OneOrMany::One(level) => Levels(vec![level]),
            OneOrMany::Many(levels) => Levels(levels),
        }
    }
}

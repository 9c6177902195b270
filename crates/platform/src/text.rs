//! Text from outside that is known to be what it should be: names that go into addresses and topics,
//! and free text of bounded length.

use std::ops::Deref;
use std::str::FromStr;

use crate::store::sql::stored_as;
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

/// Maximum length of a name, such as a user's, in characters, which are ASCII.
pub const MAX_NAME: usize = 64;
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$";

/// A name that can be part of an address and of a topic: of a twin, user, meter, device or command.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub(crate) struct Name(String);

impl Name {
    /// For what was given none.
    pub(crate) fn random() -> Name {
        Name(Uuid::new_v4().to_string())
    }
}

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Name, Self::Err> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= MAX_NAME && text.bytes().all(good) {
            Ok(Name(text.to_owned()))
        } else {
            Err("a name must have 1 to 64 letters of A-Z, a-z, 0-9 and ._@-, the first a letter \
                 or digit")
        }
    }
}

/// Implements that JSON has types as text: as they are displayed, and as their `FromStr` reads it.
macro_rules! text_form {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        $crate::text::text_form!(@ $type);
    };
    (@ $type:ident) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use text_form;

/// Implements what a text that its `FromStr` has checked is to JSON, the OpenAPI document and the database.
macro_rules! checked_text {
    ($type:ident, $pattern:expr) => {
        impl std::ops::Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::text::text_form!(@ $type);

        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::ObjectBuilder::new();
                text.schema_type(utoipa::openapi::Type::String).pattern(Some($pattern)).into()
            }
        }

        impl utoipa::ToSchema for $type {}

        crate::store::sql::stored_as!(String: impl<> $type);
    };
}
pub(crate) use checked_text;

checked_text!(Name, NAME_PATTERN);

/// An enum of words that is stored as its word.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
            utoipa::ToSchema,
        )]
        // The OpenAPI document takes no name of a variant that comes through a macro.
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($(#[$doc])* $variant),+
        }

        impl $name {
            pub(crate) fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Value that the word stands for.
            pub(crate) fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        impl $crate::store::sql::ToSql for $name {
            fn to_sql(&self) -> $crate::store::sql::Value<'_> {
                $crate::store::sql::Value::Text(self.word())
            }
        }

        impl $crate::store::sql::FromSql for $name {
            fn from_sql(value: $crate::store::sql::Value<'_>) -> Result<Self, $crate::store::sql::Mismatch> {
                $name::from_word(value.as_str()?).ok_or($crate::store::sql::Mismatch)
            }
        }
    };
}
pub(crate) use words;

/// The words as strings.
macro_rules! strings {
    ($($word:ident)+) => { [$(stringify!($word)),+] };
}
pub(crate) use strings;

/// Free text of at most `MAX` characters and, if `MIN` is 1, at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Text<const MIN: usize, const MAX: usize>(String);

/// A line: a name for people, an address, a serial number.
pub(crate) type Line = Text<0, 200>;
/// A line that must say something.
pub(crate) type Title = Text<1, 200>;
/// A note.
pub(crate) type Note = Text<0, 2000>;

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    /// The text's first characters, if they are enough and can be stored.
    pub(crate) fn cut(text: &str) -> Option<Self> {
        let cut: String = text.chars().take(MAX).collect();
        (cut.chars().count() >= MIN && !cut.contains('\0')).then_some(Text(cut))
    }
}

impl<const MIN: usize, const MAX: usize> Deref for Text<MIN, MAX> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // JSON can have it as an escape, and no database can hold it.
        if text.contains('\0') {
            return Err(de::Error::custom("text with the character U+0000 cannot be stored"));
        }
        let characters = text.chars().count();
        if (MIN..=MAX).contains(&characters) {
            return Ok(Text(text));
        }
        let wanted = format!("expected {MIN} to {MAX} characters, not {characters}");
        Err(de::Error::custom(wanted))
    }
}

impl<const MIN: usize, const MAX: usize> PartialSchema for Text<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String);
        text.min_length(Some(MIN)).max_length(Some(MAX)).into()
    }
}

impl<const MIN: usize, const MAX: usize> ToSchema for Text<MIN, MAX> {}

stored_as!(String: impl<const MIN: usize, const MAX: usize> Text<MIN, MAX>);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_addresses_and_topics() {
        for good in ["a", "KAM-12345678", "ann@example.org", "9.b_c"] {
            assert_eq!(&*good.parse::<Name>().unwrap(), good);
        }
        for wrong in ["", ".", "..", "a/b", "#", "+", "a b", "ä", "a\n", "-a", &"a".repeat(65)] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn text_is_bounded_in_characters() {
        assert!(serde_json::from_str::<Title>("\"\"").is_err());
        assert!(serde_json::from_str::<Line>("\"\"").is_ok());
        assert!(serde_json::from_value::<Title>("ä".repeat(200).into()).is_ok());
        assert!(serde_json::from_value::<Title>("a".repeat(201).into()).is_err());
    }
}

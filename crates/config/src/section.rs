//! How sections are written: each key with its default, which applies where the file lacks it.

/// Defines sections of the configuration file, as [`fulmar_text::with_defaults`] does structs.
macro_rules! sections {
    ($($(#[$about:meta])* $visibility:vis struct $name:ident $(($($sources:tt)+))? { $($fields:tt)+ })+) => {
        fulmar_text::with_defaults! {
            $(
                $(#[$about])*
                #[derive(Clone, Debug, serde::Deserialize, PartialEq, serde::Serialize)]
                #[serde(deny_unknown_fields, default)]
                $visibility struct $name $(($($sources)+))? { $($fields)+ }
            )+
        }
    };
}
pub(super) use sections;

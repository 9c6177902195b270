//! How sections are written: each key with its default, which applies where the file lacks it, and its range.

/// Defines sections of the configuration file, as [`fulmar_text::with_defaults`] does structs, with the range of a number
/// behind its default: `retries: u32 = 4 => 1..=16,`.
macro_rules! sections {
    ($(
        $(#[$about:meta])*
        $visibility:vis struct $name:ident $(($($sources:tt)+))? {
            $(
                $(#[$meta:meta])*
                $field_visibility:vis $field:ident: $type:ty = $default:expr $(=> $range:expr)?,
            )+
        }
    )+) => {
        fulmar_text::with_defaults! {
            $(
                $(#[$about])*
                #[derive(Clone, Debug, serde::Deserialize, PartialEq, serde::Serialize)]
                #[serde(deny_unknown_fields, default)]
                $visibility struct $name $(($($sources)+))? {
                    $($(#[$meta])* $field_visibility $field: $type = $default,)+
                }
            )+
        }
        $(
            impl super::range::Ranges for $name {
                fn check_ranges(&self, section: &str) -> Result<(), fulmar_text::Usage> {
                    let _ = section;
                    $($(super::range::within(section, stringify!($field), self.$field, $range)?;)?)+
                    Ok(())
                }
            }
        )+
    };
}
pub(super) use sections;

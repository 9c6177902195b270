//! How sections are written: each key with its default, which applies where the file lacks it.

/// Defines sections of the configuration file: `struct Log { level: String = "info".to_owned() }`. Defaults may use what
/// stands in parentheses behind the name: `struct Http (limits = Limits::default()) { bytes: u32 = limits.bytes }`.
macro_rules! sections {
    ($(
        $(#[$about:meta])*
        $visibility:vis struct $name:ident $(($($source:ident = $made:expr),+))? {
            $($(#[$meta:meta])* $field_visibility:vis $field:ident: $type:ty = $default:expr,)+
        }
    )+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, serde::Deserialize, PartialEq, serde::Serialize)]
            #[serde(deny_unknown_fields, default)]
            $visibility struct $name {
                $($(#[$meta])* $field_visibility $field: $type,)+
            }

            impl Default for $name {
                fn default() -> Self {
                    $($(let $source = $made;)+)?
                    $name { $($field: $default,)+ }
                }
            }
        )+
    };
}
pub(super) use sections;

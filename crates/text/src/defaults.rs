//! Structs whose fields stand beside what they are made of: defaults, or values of other types.

/// Defines structs with a default for each field: `with_defaults! { pub struct Limits { pub bytes: usize = 8192, } }`.
/// Defaults may use what stands in parentheses behind the name:
/// `struct Http (limits = Limits::default()) { bytes: usize = limits.bytes, }`.
#[macro_export]
macro_rules! with_defaults {
    ($(
        $(#[$about:meta])*
        $visibility:vis struct $name:ident $(($($source:ident = $made:expr),+))? {
            $($(#[$meta:meta])* $field_visibility:vis $field:ident: $type:ty = $default:expr,)+
        }
    )+) => {
        $(
            $(#[$about])*
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

/// Defines structs that show values of other types, each field beside what it is made of:
/// `mirrors! { struct SessionRow (from: Session) { client: String = from.client.into(), } }`.
#[macro_export]
macro_rules! mirrors {
    ($(
        $(#[$about:meta])*
        $visibility:vis struct $name:ident ($source:ident: $from:ty) {
            $($(#[$meta:meta])* $field_visibility:vis $field:ident: $type:ty = $value:expr,)+
        }
    )+) => {
        $(
            $(#[$about])*
            $visibility struct $name {
                $($(#[$meta])* $field_visibility $field: $type,)+
            }

            impl From<$from> for $name {
                fn from($source: $from) -> Self {
                    $name { $($field: $value,)+ }
                }
            }
        )+
    };
}

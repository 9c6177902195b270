//! Enums whose variants have names, and types that are shown by theirs alone.

/// Gives an enum `ALL`, its variants in this order, and `name`, what each is called in files, commands, logs and metrics:
/// `names!(Direction: Up = "up", Down = "down");`.
#[macro_export]
macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All of them, in their order.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Name in files, commands, logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }
    };
}

/// Shows values of a type by its name and, in braces, the fields named here alone, because the others are secret or
/// cannot be shown: `opaque_debug!(Login { user });`.
#[macro_export]
macro_rules! opaque_debug {
    ($($type:ident),+) => {
        $(impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(stringify!($type))
            }
        })+
    };
    ($type:ident $(<$lifetime:lifetime>)? { $($field:ident),* }) => {
        impl ::std::fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($type));
                $(shown.field(stringify!($field), &self.$field);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}

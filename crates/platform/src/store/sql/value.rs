//! Values written to the database and read from it, of the four kinds that both engines have.

use uuid::Uuid;

/// A value as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    /// Also of what is true or false: 1 or 0.
    Integer(i64),
    Real(f64),
    Text(&'a str),
    /// A UUID as text, in lower case with hyphens.
    Id(Uuid),
    Blob(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The text it is.
    pub(crate) fn as_str(self) -> Result<&'a str, Mismatch> {
        if let Value::Text(text) = self { Ok(text) } else { Err(Mismatch) }
    }
}

/// The column holds something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch;

/// A type that can be stored.
pub(crate) trait ToSql {
    /// The value as it is stored.
    fn to_sql(&self) -> Value<'_>;
}

/// A type that can be read from a column.
pub(crate) trait FromSql: Sized {
    /// From what is stored.
    fn from_sql(value: Value<'_>) -> Result<Self, Mismatch>;
}

/// Values of a statement's parameters, in order.
pub(crate) trait Params {
    /// The values as they are stored.
    fn bind(&self) -> Vec<Value<'_>>;
}

/// Values of different types, for [`Params`].
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::store::sql::ToSql),*] as &[&dyn $crate::store::sql::ToSql]
    };
}
pub(crate) use params;

impl Params for () {
    fn bind(&self) -> Vec<Value<'_>> {
        Vec::new()
    }
}

impl Params for &[&dyn ToSql] {
    fn bind(&self) -> Vec<Value<'_>> {
        self.iter().map(|value| value.to_sql()).collect()
    }
}

impl<T: ToSql, const N: usize> Params for [T; N] {
    fn bind(&self) -> Vec<Value<'_>> {
        self.iter().map(ToSql::to_sql).collect()
    }
}

impl Params for Vec<Value<'_>> {
    fn bind(&self) -> Vec<Value<'_>> {
        self.clone()
    }
}

impl<T: ToSql + ?Sized> ToSql for &T {
    fn to_sql(&self) -> Value<'_> {
        T::to_sql(self)
    }
}

impl<T: ToSql> ToSql for Option<T> {
    fn to_sql(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, ToSql::to_sql)
    }
}

impl<T: FromSql> FromSql for Option<T> {
    fn from_sql(value: Value<'_>) -> Result<Self, Mismatch> {
        if value == Value::Null { Ok(None) } else { T::from_sql(value).map(Some) }
    }
}

/// Whole numbers: those too great for the database are stored as its greatest, which no count reaches.
macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl ToSql for $integer {
            fn to_sql(&self) -> Value<'_> {
                Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }

        impl FromSql for $integer {
            fn from_sql(value: Value<'_>) -> Result<Self, Mismatch> {
                match value {
                    Value::Integer(integer) => integer.try_into().map_err(|_| Mismatch),
                    _ => Err(Mismatch),
                }
            }
        }
    )*};
}
integers!(i64, u64, u32, u16, u8, usize);

/// Stores types as the value that they are made of. What is in the database was checked when it came.
macro_rules! stored_as {
    ($inner:ty: impl<$(const $bound:ident: $number:ty),*> $type:ty) => {
        impl<$(const $bound: $number),*> $crate::store::sql::ToSql for $type {
            fn to_sql(&self) -> $crate::store::sql::Value<'_> {
                self.0.to_sql()
            }
        }

        impl<$(const $bound: $number),*> $crate::store::sql::FromSql for $type {
            fn from_sql(
                value: $crate::store::sql::Value<'_>,
            ) -> Result<Self, $crate::store::sql::Mismatch> {
                <$inner as $crate::store::sql::FromSql>::from_sql(value).map(Self)
            }
        }
    };
}
pub(crate) use stored_as;

/// Types that are one kind of value each: how they are stored, and what is read back.
macro_rules! scalars {
    ($($stored:ty, $read:ty: $this:ident => $value:expr, $from:pat => $made:expr;)+) => {$(
        impl ToSql for $stored {
            fn to_sql(&self) -> Value<'_> {
                let $this = self;
                $value
            }
        }

        impl FromSql for $read {
            fn from_sql(value: Value<'_>) -> Result<Self, Mismatch> {
                if let $from = value { $made } else { Err(Mismatch) }
            }
        }
    )+};
}
scalars! {
    bool, bool: this => Value::Integer((*this).into()), Value::Integer(integer) => Ok(integer != 0);
    f64, f64: this => Value::Real(*this), Value::Real(real) => Ok(real);
    str, String: this => Value::Text(this), Value::Text(text) => Ok(text.to_owned());
    Uuid, Uuid: this => Value::Id(*this), Value::Text(text) => text.parse().map_err(|_| Mismatch);
    [u8], Vec<u8>: this => Value::Blob(this), Value::Blob(bytes) => Ok(bytes.to_vec());
}

impl ToSql for String {
    fn to_sql(&self) -> Value<'_> {
        Value::Text(self)
    }
}

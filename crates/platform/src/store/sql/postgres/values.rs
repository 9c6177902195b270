//! Values as PostgreSQL's binary format has them, and parameters as its SQL has them.

use std::error::Error;

use bytes::{BufMut as _, BytesMut};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::super::row::Columns;
use super::super::{DatabaseError, Result, Value};

type Outcome<T> = std::result::Result<T, Box<dyn Error + Sync + Send>>;

impl Columns for Row {
    fn value(&self, at: usize) -> Result<Value<'_>> {
        self.try_get(at).map_err(|_| DatabaseError::Column(at))
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Outcome<IsNull> {
        match *self {
            Value::Null => return Ok(IsNull::Yes),
            Value::Integer(integer) if *kind == Type::INT8 => out.put_i64(integer),
            Value::Integer(integer) if *kind == Type::INT4 => out.put_i32(integer.try_into()?),
            Value::Integer(integer) if *kind == Type::BOOL => out.put_u8((integer != 0).into()),
            Value::Integer(integer) if *kind == Type::FLOAT8 => out.put_f64(integer as f64),
            Value::Real(real) if *kind == Type::FLOAT8 => out.put_f64(real),
            Value::Text(text) if *kind == Type::TEXT => out.put_slice(text.as_bytes()),
            Value::Id(id) if *kind == Type::TEXT => out.put_slice(id.to_string().as_bytes()),
            Value::Blob(bytes) if *kind == Type::BYTEA => out.put_slice(bytes),
            // The value may be personal data; its kind is enough.
            _ => {
                return Err(format!("a parameter is {kind} and was given something else").into());
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value<'a> {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Outcome<Value<'a>> {
        Ok(match *kind {
            Type::INT8 => Value::Integer(i64::from_be_bytes(raw.try_into()?)),
            Type::INT4 => Value::Integer(i32::from_be_bytes(raw.try_into()?).into()),
            Type::BOOL => Value::Integer(bool::from_sql(kind, raw)?.into()),
            Type::FLOAT8 => Value::Real(f64::from_be_bytes(raw.try_into()?)),
            Type::TEXT => Value::Text(std::str::from_utf8(raw)?),
            Type::BYTEA => Value::Blob(raw),
            _ => return Err(format!("a column is {kind}").into()),
        })
    }

    fn from_sql_null(_: &Type) -> Outcome<Value<'a>> {
        Ok(Value::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// SQL with `$1` for `?1`; a `?` alone is the parameter after the greatest so far, as SQLite counts.
pub(super) fn numbered(sql: &str) -> String {
    let mut numbered = String::with_capacity(sql.len() + 16);
    let (mut quoted, mut greatest) = (false, 0_usize);
    let mut rest = sql.chars().peekable();
    while let Some(letter) = rest.next() {
        quoted ^= letter == '\'';
        if letter != '?' || quoted {
            numbered.push(letter);
            continue;
        }
        let mut number = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            number.push(digit);
        }
        let number = number.parse().unwrap_or(greatest + 1);
        greatest = greatest.max(number);
        numbered.push_str(&format!("${number}"));
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn parameters_are_numbered_as_sqlite_numbers_them() {
        assert_eq!(numbered("a = ?2 AND b = ?1 AND c = ?"), "a = $2 AND b = $1 AND c = $3");
        assert_eq!(
            numbered("a < ? AND b = '?' AND c LIKE ? LIMIT ?10"),
            "a < $1 AND b = '?' AND c LIKE $2 LIMIT $10"
        );
    }
}

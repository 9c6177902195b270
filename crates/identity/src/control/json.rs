//! Fields of commands, what comes of a command, and lists in answers.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::acl::Ranked;
use crate::command::Command;
use crate::entities::Texts;
use crate::passwords::StoredPassword;
use crate::service::{ApplyError, Desk};

/// Size of an answer's list, in bytes, beyond which it has to be asked for in parts.
const MAX_LIST_BYTES: usize = 8 << 20;

/// Contents of an answer besides the command's name, or the error.
pub(super) type Outcome = Result<Option<Value>, String>;

/// The fields of an object.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn text(self, name: &str) -> Option<&'a str> {
        self.0.get(name)?.as_str()
    }

    /// A text that must be there; `what` is what mosquitto calls it.
    pub(super) fn required(self, name: &str, what: &str) -> Result<&'a str, String> {
        self.text(name).ok_or_else(|| format!("Invalid/missing {what}"))
    }

    /// A text that may be missing, but may be nothing else.
    pub(super) fn optional(self, name: &str, what: &str) -> Result<Option<&'a str>, String> {
        match self.0.get(name) {
            None => Ok(None),
            Some(value) => {
                value.as_str().map(Some).ok_or_else(|| format!("Invalid/missing {what}"))
            }
        }
    }

    pub(super) fn bool(self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    pub(super) fn array(self, name: &str) -> Option<&'a Vec<Value>> {
        self.0.get(name)?.as_array()
    }

    /// A number as mosquitto reads it: fractions are cut off.
    fn number(self, name: &str) -> Option<i64> {
        let value = self.0.get(name)?;
        value.as_i64().or_else(|| value.as_f64().map(|number| number as i64))
    }

    pub(super) fn priority(self, default: i32) -> i32 {
        let number = self.number("priority").unwrap_or(default.into());
        number.clamp(i32::MIN.into(), i32::MAX.into()).try_into().unwrap_or(default)
    }

    /// Returns the subject of the command, for the log.
    pub(super) fn subject(self) -> Option<&'a str> {
        ["username", "groupname", "rolename"].into_iter().find_map(|name| self.text(name))
    }

    pub(super) fn texts(self) -> Result<Texts, String> {
        let own = |name| self.optional(name, name).map(|text| text.map(Into::into));
        Ok(Texts { name: own("textname")?, description: own("textdescription")? })
    }

    pub(super) fn owned(self, name: &str) -> Option<Box<str>> {
        self.text(name).map(Into::into)
    }

    /// The objects of a list, with the name that each has in the field `name`; `None` if there is no list.
    fn ranked(self, list: &str, name: &str, wrong: &str) -> Result<Option<Vec<Ranked>>, String> {
        let Some(list) = self.0.get(list) else { return Ok(None) };
        let list = list.as_array().ok_or(wrong)?;
        let ranked = list.iter().map(|item| {
            let item = Fields(item.as_object().ok_or(wrong)?);
            let name = item.text(name).ok_or(wrong)?;
            Ok(Ranked::new(name, item.priority(-1)))
        });
        ranked.collect::<Result<Vec<_>, String>>().map(Some)
    }

    pub(super) fn roles(self) -> Result<Option<Vec<Ranked>>, String> {
        self.ranked("roles", "rolename", "'roles' not an array or missing/invalid rolename")
    }

    pub(super) fn groups(self) -> Result<Option<Vec<Ranked>>, String> {
        let wrong = "'groups' contains an object with an invalid 'groupname'";
        self.ranked("groups", "groupname", wrong)
    }

    pub(super) fn clients(self) -> Result<Option<Vec<Ranked>>, String> {
        let wrong = "'clients' contains an object with an invalid 'username'";
        self.ranked("clients", "username", wrong)
    }

    /// A part of a list, as `count` and `offset` choose it.
    pub(super) fn part<T>(
        self,
        name: &str,
        all: impl ExactSizeIterator<Item = T>,
        show: impl Fn(T, bool) -> Value,
    ) -> Outcome {
        let total = all.len();
        let offset = usize::try_from(self.number("offset").unwrap_or(0)).unwrap_or(0);
        // As mosquitto: a count of 0 is one, a negative one is all.
        let count =
            usize::try_from(self.number("count").unwrap_or(-1)).unwrap_or(usize::MAX).max(1);
        let verbose = self.bool("verbose").unwrap_or(false);
        let (mut bytes, mut shown) = (0, Vec::new());
        for item in all.skip(offset).take(count) {
            let item = show(item, verbose);
            bytes += item.to_string().len();
            if bytes > MAX_LIST_BYTES {
                return Err(format!(
                    "the list has more than {MAX_LIST_BYTES} bytes: ask for parts with count and offset"
                ));
            }
            shown.push(item);
        }
        Ok(Some(json!({ "totalCount": total, name: shown })))
    }
}

pub(super) fn hashed(desk: &Desk, password: &str) -> Result<StoredPassword, String> {
    desk.hasher().hash(password.as_bytes()).map_err(|_| "Internal error".to_owned())
}

/// A list of roles or groups; -1 is not shown.
pub(super) fn ranked(list: &[Ranked], name: &str) -> Value {
    let item = |own: &Ranked| match own.priority {
        -1 => json!({ name: own.name }),
        priority => json!({ name: own.name, "priority": priority }),
    };
    list.iter().map(item).collect()
}

pub(super) fn add_texts(object: &mut Map<String, Value>, texts: &Texts) {
    if let Some(name) = &texts.name {
        object.insert("textname".into(), (**name).into());
    }
    if let Some(description) = &texts.description {
        object.insert("textdescription".into(), (**description).into());
    }
}

/// Shows an entity by its name, or as a whole.
pub(super) fn shown<T>(
    entity: &Arc<T>,
    name: &str,
    verbose: bool,
    whole: impl Fn(&T) -> Value,
) -> Value {
    if verbose { whole(entity) } else { name.into() }
}

pub(super) fn apply(desk: &mut Desk, command: Command) -> Outcome {
    match desk.apply(vec![command]) {
        Ok(()) => Ok(None),
        Err(ApplyError::Store(error)) => {
            tracing::error!("cannot store a change of identities: {error}");
            Err(format!("Internal error: the change could not be stored ({error})"))
        }
        Err(error) => Err(error.to_string()),
    }
}

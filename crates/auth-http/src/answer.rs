//! An answer of the service: JSON, of which nothing is taken unless all of it is right.

use std::fmt;
use std::marker::PhantomData;

use anyhow::{Context as _, ensure};
use fulmar_broker::User;
use fulmar_broker::access::{AccessRules, Rule, Who};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use fulmar_config::AclRule;

/// Most rules of one client.
const MAX_RULES: usize = 256;

/// A client that may connect.
#[derive(Debug)]
pub(super) struct Allowed {
    /// Login's user, if not the name that the client has sent.
    pub(super) user: Option<User>,
    pub(super) rules: Option<AccessRules>,
    /// Validity of the answer in seconds; `None` for as long as the client is connected.
    pub(super) ttl_s: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    allow: bool,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    superuser: bool,
    #[serde(default)]
    rules: Vec<Object<AclRule>>,
    #[serde(default)]
    ttl_s: Option<u32>,
}

/// Value written as an object. serde takes a list of a type's fields, too, so that `[true]` would be an answer.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object<T>, D::Error> {
        struct OfMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        from.deserialize_map(OfMap(PhantomData))
    }
}

/// The rights of a client; `None` if it is refused.
///
/// # Errors
/// The answer is not as documented.
pub(super) fn parse(body: &[u8]) -> anyhow::Result<Option<Allowed>> {
    let answer = serde_json::from_slice(body).context("its answer is not as documented");
    let Object::<Answer>(answer) = answer?;
    if !answer.allow {
        return Ok(None);
    }
    let user = answer.user.as_deref().map(User::named).transpose();
    let user = user.context("its answer has a \"user\" that cannot be a name")?;
    ensure!(answer.ttl_s != Some(0), "its answer has \"ttl_s\": 0");
    ensure!(answer.rules.len() <= MAX_RULES, "its answer has more than {MAX_RULES} rules");
    let mut rules: Vec<Rule> = answer.rules.iter().map(|Object(rule)| rule.rule()).collect();
    ensure!(
        rules.iter().all(|rule| rule.who == Who::Anyone),
        "its answer has rules about users or clients; all of them are about the client that logs in"
    );
    if answer.superuser {
        let allowing = |filter: &str| Rule {
            allow: true,
            who: Who::Anyone,
            action: None,
            filter: filter.into(),
            exact: false,
        };
        rules = ["#", "$SYS/#", "fulmar/#"].map(allowing).into();
    }
    let rules = (!rules.is_empty()).then(|| AccessRules::new(rules, false)).transpose();
    let rules = rules.map_err(|(filter, error)| {
        anyhow::anyhow!("its answer has a rule with the topic {filter:?}: {error}")
    })?;
    Ok(Some(Allowed { user, rules, ttl_s: answer.ttl_s.map(u64::from) }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_answer_counts() {
        assert!(parse(br#"{"allow": false}"#).unwrap().is_none());
        let allowed = parse(br#"{"allow": true}"#).unwrap().unwrap();
        assert!(allowed.user.is_none() && allowed.rules.is_none() && allowed.ttl_s.is_none());
        let text = br#"{"allow": true, "user": "ann", "ttl_s": 60, "rules": [
            {"allow": true, "topic": "plant/%u/#", "action": "publish"}]}"#;
        let allowed = parse(text).unwrap().unwrap();
        assert_eq!((allowed.user, allowed.ttl_s), (User::named("ann").ok(), Some(60)));
        assert!(allowed.rules.is_some());
        let wrong: [&[u8]; 14] = [
            b"",
            b"true",
            b"{}",
            b"<html>",
            b"[true]",
            br#"{"allow": true, "rules": [[true, "a"]]}"#,
            br#"{"allow": "yes"}"#,
            br#"{"allow": true, "role": "admin"}"#,
            br#"{"allow": true, "user": ""}"#,
            br#"{"allow": true, "user": "platform:admin"}"#,
            br#"{"allow": true, "ttl_s": 0}"#,
            br#"{"allow": true, "rules": [{"allow": true, "topic": "a/#/b"}]}"#,
            br#"{"allow": true, "rules": [{"allow": true, "topic": "a", "user": "bob"}]}"#,
            br#"{"allow": true} trailing"#,
        ];
        for text in wrong {
            assert!(parse(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
        let rule = r#"{"allow": true, "topic": "a"}"#;
        let many = format!(r#"{{"allow": true, "rules": [{}]}}"#, [rule; 257].join(","));
        assert!(parse(many.as_bytes()).unwrap_err().to_string().contains("256"));
    }
}

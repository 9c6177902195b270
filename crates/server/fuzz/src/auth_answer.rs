//! An answer of the service of `[auth.http]`: nothing is taken of one that breaks a rule of docs/access.md.

use fulmar_broker::User;
use fulmar_broker::access::Action;
use fulmar_mqtt_fuzz::heap;
use serde_json::Value;

use crate::answer::{Allowed, parse};

const MAX_RULES: usize = 256;
/// What reading an answer may take, per byte of it and besides: a rule is larger than the shortest text of one.
const MAX_HEAP_PER_BYTE: usize = 64;
const MAX_HEAP_BYTES: usize = 4096;

/// How often to repeat the rules, and an answer: read as it is, and with its rules that often.
pub fn auth_answer(data: &[u8]) {
    let Some((times, text)) = data.split_first() else { return };
    check(text);
    let Ok(mut answer) = serde_json::from_slice::<Value>(text) else { return };
    let Some(rules) = answer.get_mut("rules").and_then(Value::as_array_mut) else { return };
    *rules = vec![rules.clone(); usize::from(*times)].concat();
    check(answer.to_string().as_bytes());
}

fn check(text: &[u8]) {
    let (answer, used) = heap::measure(|| parse(text));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES + MAX_HEAP_PER_BYTE * text.len(), "{used:?}");
    let Ok(answer) = answer else { return };
    let sent: Value = serde_json::from_slice(text).expect("JSON");
    assert_eq!(answer.is_some(), sent["allow"] == true);
    let Some(Allowed { user, rules, ttl_s }) = answer else { return };
    assert_eq!(user.as_ref().map(User::operators), sent["user"].as_str().map(Some));
    assert!(ttl_s.is_none_or(|ttl_s| (1..=u64::from(u32::MAX)).contains(&ttl_s)));
    assert_eq!(ttl_s, sent["ttl_s"].as_u64());
    let sent_rules = sent["rules"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(sent_rules.len() <= MAX_RULES, "{}", sent_rules.len());
    for rule in sent_rules {
        let names_none = ["user", "client"].iter().all(|who| rule[who].is_null());
        assert!(names_none && rule["anonymous"] != true, "{rule}");
    }
    let ann = User::from_text("ann");
    let decided = |topic| {
        let actions = [Action::Publish, Action::Subscribe, Action::Receive];
        rules.as_ref().map(|rules| actions.map(|action| rules.decide(&ann, "id", action, topic)))
    };
    if sent["superuser"] == true {
        assert_eq!(decided("any/topic"), Some([Some(true); 3]));
        return;
    }
    assert_eq!(rules.is_some(), !sent_rules.is_empty());
    if let Some((allow, topic)) = sent_rules.first().and_then(plain) {
        assert_eq!(decided(topic), Some([Some(allow); 3]), "{topic:?}");
    }
}

/// What a rule says of its own topic, if that is the same as a filter, and the rule is about all actions.
fn plain(rule: &Value) -> Option<(bool, &str)> {
    let topic = rule["topic"].as_str().filter(|topic| !topic.contains(['+', '#', '%', '$']))?;
    let is_about_all = rule.get("action").is_none_or(|action| action == "both");
    is_about_all.then_some((rule["allow"].as_bool()?, topic))
}

//! Fuzz target of `fulmar-identity`: requests to `$CONTROL/dynamic-security/v1`, and texts as device tokens.

use fulmar_identity::{
    Asker, Desk, Ranked, State, TOKEN_PREFIX, control::respond, parse_device_token,
};
use serde_json::Value;

/// Hashing is slow on purpose: what would take long is left out.
const MAX_HASHES: usize = 2;

/// One request to a new store. Each command has an answer, no answer has a hash, and nothing in the state refers to what is
/// not there.
pub fn control(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Some((id, digest)) = parse_device_token(text)
    {
        assert!(text.starts_with(TOKEN_PREFIX) && text.contains(id) && text.len() <= 64, "{text}");
        assert!(digest.len() == 64 && !text.contains(&digest));
    }
    let hashes = data.windows(10).filter(|text| text.eq_ignore_ascii_case(b"\"password\"")).count();
    if hashes > MAX_HASHES {
        return;
    }
    let mut desk = Desk::in_memory().expect("memory");
    let asker = Asker { client_id: "fuzz".into(), username: None, from: [127, 0, 0, 1].into() };
    let answer = respond(&mut desk, &asker, &(), data);
    assert!(!answer.contains("$argon2") || contains(data, b"$argon2"), "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let responses = answer["responses"].as_array().expect("responses");
    let request: Value = serde_json::from_slice(data).unwrap_or_default();
    let expected = request["commands"].as_array().map_or(1, |commands| commands.len().min(1_001));
    assert!(responses.len() == expected || expected == 1_001 && responses.len() == 1);
    assert!(responses.iter().all(|response| response["command"].is_string()), "{answer}");
    is_consistent(&desk.state());
}

fn contains(data: &[u8], text: &[u8]) -> bool {
    data.windows(text.len()).any(|window| window == text)
}

fn is_consistent(state: &State) {
    let roles = |own: &[Ranked]| own.iter().all(|own| state.roles().contains_key(&own.name));
    for (name, client) in state.clients() {
        assert!(**name == *client.username && !name.is_empty() && roles(&client.roles));
        assert!(client.groups.iter().all(|own| state.groups().contains_key(&own.name)), "{name}");
    }
    for (name, group) in state.groups() {
        assert!(**name == *group.name && !name.is_empty() && roles(&group.roles), "{name}");
    }
    assert!(state.anonymous_group().is_none_or(|name| state.groups().contains_key(name)));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/identity-control");
        fulmar_mqtt_fuzz::replay(&folder, control);
    }
}

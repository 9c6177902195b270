//! Who may publish and subscribe where under `fulmar/`: what roles are in requests, as topics.
//!
//! Strings only: MQTT is the broker's. A filter must name its twin, so that it reaches no other one.

use crate::role::{Deed, Role};

/// What a topic's or filter's levels say behind `fulmar/TWIN/`, and whether the role allows it.
pub(crate) fn allowed(role: Role, publish: bool, levels: &[&str]) -> bool {
    if publish {
        return matches!(levels, ["receiver", _, "frame"]) && role.may(Deed::Receive);
    }
    match levels {
        ["heard", ..] => true,
        ["reading", ..] => role.may(Deed::Manage) || role == Role::Viewer,
        ["work_list", ..] | ["instance", _, "position"] => role != Role::Device,
        ["instance", device, "command"] if *device != "+" => role.may(Deed::BeDevice),
        _ => role.may(Deed::Manage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_hear_what_they_may_see() {
        let cases = [
            (false, "heard/+", "admin office reader device viewer"),
            (false, "reading/#", "admin office viewer"),
            (false, "work_list/1", "admin office reader viewer"),
            (false, "instance/+/position", "admin office reader viewer"),
            (false, "instance/van-1/command", "admin office reader device"),
            (false, "instance/+/command", "admin office"),
            (false, "instance/#", "admin office"),
            (false, "receiver/+/frame", "admin office"),
            (false, "+/m1", "admin office"),
            (false, "#", "admin office"),
            (true, "receiver/van-1/frame", "admin office reader device"),
            (true, "receiver/van-1", ""),
            (true, "heard/m1", ""),
            (true, "reading/m1", ""),
        ];
        for (publish, topic, may) in cases {
            let levels: Vec<&str> = topic.split('/').collect();
            for role in Role::ALL {
                let expected = may.split(' ').any(|name| name == role.name());
                assert_eq!(allowed(role, publish, &levels), expected, "{topic} {role:?} {publish}");
            }
        }
    }
}

//! Permissions to publish and subscribe below `fulmar/`: the roles of HTTP requests applied to topics.
//!
//! Strings only: MQTT is the broker's. A filter must name its twin, so that it reaches no other one.

use crate::role::{Deed, Role};
use crate::text::Name;

/// Whose a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The caller owns it.
    Own,
    /// Another user has it.
    Others,
    /// Nobody has registered it, and no account has its name.
    Nobodys,
}

/// Where the last position of a device is retained.
pub(crate) fn position_topic(twin: &Name, device: &Name) -> String {
    format!("fulmar/{twin}/instance/{device}/position")
}

/// Meaning of a topic's or filter's levels behind `fulmar/TWIN/`, and whether the role allows it to `user`;
/// `whose` is asked of devices, by name.
pub(crate) fn allowed(
    role: Role,
    publish: bool,
    levels: &[&str],
    user: &str,
    whose: impl FnOnce(&str) -> Whose,
) -> bool {
    let manages = role.may(Deed::Manage);
    if publish {
        return match levels {
            ["receiver", device, "frame"] => {
                role.may(Deed::Receive) && (manages || whose(device) != Whose::Others)
            }
            ["sensor", _] | ["sensor", _, _] => role.may(Deed::Measure),
            ["batch", gateway] => {
                role.may(Deed::Measure) && (manages || whose(gateway) != Whose::Others)
            }
            ["command", _, _, ..] => manages,
            _ => false,
        };
    }
    match levels {
        ["heard", ..] => true,
        ["value" | "alert", ..] => role.may(Deed::Report),
        ["reading", ..] => manages || role == Role::Viewer,
        ["work_list", ..] | ["instance", _, "position"] => role != Role::Device,
        // Nobody's device has the name of a wildcard.
        ["instance", device, "command"] if role.may(Deed::BeDevice) && !manages => {
            whose(device) == Whose::Own
        }
        // What is for a gateway and the devices behind it; nobody has the name of a wildcard.
        ["command", gateway, _, ..] if role.may(Deed::BeDevice) && *gateway == user => true,
        _ => manages,
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
            (false, "instance/own/command", "admin office reader device"),
            (false, "instance/others/command", "admin office"),
            (false, "instance/new/command", "admin office"),
            (false, "instance/+/command", "admin office"),
            (false, "instance/#", "admin office"),
            (false, "receiver/+/frame", "admin office"),
            (false, "+/m1", "admin office"),
            (false, "#", "admin office"),
            (true, "receiver/own/frame", "admin office reader device"),
            (true, "receiver/others/frame", "admin office"),
            (true, "receiver/new/frame", "admin office reader device"),
            (true, "receiver/own", ""),
            (true, "heard/m1", ""),
            (true, "sensor/attic/radon", "admin office device"),
            (true, "sensor/attic", "admin office device"),
            (true, "batch/gateway-1", "admin office device"),
            (true, "batch/own", "admin office device"),
            (true, "batch/others", "admin office"),
            (true, "value/attic/radon", ""),
            (true, "alert/1", ""),
            (false, "value/+/radon", "admin office viewer"),
            (false, "alert/+", "admin office viewer"),
            (false, "sensor/+/+", "admin office"),
            (false, "batch/+", "admin office"),
            (true, "reading/m1", ""),
            (false, "command/me/#", "admin office reader device"),
            (false, "command/me/valve/open", "admin office reader device"),
            (false, "command/other/#", "admin office"),
            (false, "command/+/#", "admin office"),
            (false, "command/#", "admin office"),
            (true, "command/me/valve", "admin office"),
            (true, "command/me", ""),
        ];
        let whose = |device: &str| match device {
            "own" => Whose::Own,
            "others" => Whose::Others,
            _ => Whose::Nobodys,
        };
        for (publish, topic, may) in cases {
            let levels: Vec<&str> = topic.split('/').collect();
            for role in Role::ALL {
                let expected = may.split(' ').any(|name| name == role.name());
                assert_eq!(
                    allowed(role, publish, &levels, "me", whose),
                    expected,
                    "{topic} {role:?} {publish}"
                );
            }
        }
    }
}

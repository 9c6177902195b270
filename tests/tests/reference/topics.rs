//! Topics: those with a meaning of their own, from the sources that give it to them.

use std::collections::BTreeSet;

use crate::{check, source, sources, table};

/// Of the broker's state: below `$SYS/broker/`, content.
const STATE: [[&str; 2]; 10] = [
    ["version", "`fulmar VERSION`"],
    ["uptime", "`N seconds`"],
    ["clients/connected", "Connected clients"],
    ["clients/connected/TRANSPORT", "The same by transport, as in the metric `fulmar_connections`"],
    ["clients/total", "Sessions, connected or not"],
    ["subscriptions/count", "Subscriptions of all sessions"],
    ["retained messages/count", "Retained messages"],
    ["retained messages/bytes", "Their bytes"],
    ["counters/NAME", "The metric `fulmar_NAME_total`, for each of the broker's own"],
    ["storage/failure", "Why the disk cannot be written; only while it cannot"],
];

/// Below `fulmar/TWIN/`: topic, content, publishers, subscribers.
const PLATFORM: [[&str; 4]; 11] = [
    [
        "alert/ID",
        "An [alert](../monitoring.md#notifications), retained while it is open",
        "the platform",
        "admin, office, viewer",
    ],
    [
        "batch/GATEWAY",
        "A gateway's [batch](../gateway.md) of messages",
        "admin, office; device, unless GATEWAY is another user or another user's device",
        "admin, office",
    ],
    [
        "command/GATEWAY/…",
        "Commands for a gateway and the devices behind it",
        "admin, office",
        "admin, office; the user called GATEWAY, unless a viewer",
    ],
    ["heard/METER", "Reception of a meter: time, place and signal", "the platform", "all"],
    [
        "instance/DEVICE/command",
        "A command for a device",
        "the platform",
        "admin, office; the device's owner",
    ],
    [
        "instance/DEVICE/position",
        "A device's position, retained",
        "the platform",
        "all but devices",
    ],
    ["reading/METER", "A stored reading", "the platform", "admin, office, viewer"],
    [
        "receiver/DEVICE/frame",
        "Frames that a receiver got",
        "admin, office, the device's owner; all but viewers if it is not registered and no other user has its name",
        "admin, office",
    ],
    [
        "sensor/DEVICE[/QUANTITY]",
        "[Measurements](../monitoring.md)",
        "admin, office, device",
        "admin, office",
    ],
    [
        "value/DEVICE/QUANTITY",
        "The newest measurement, retained",
        "the platform",
        "admin, office, viewer",
    ],
    ["work_list/ID", "Progress of a work list", "the platform", "all but devices"],
];

/// Topics in these sources' documentation, as `` | `topic` | ``.
fn documented(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

/// What is between a text and the next quotation mark, wherever it stands.
fn behind<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn page() -> String {
    let mut text = "## The broker\n\nBelow `$SYS/broker/`, retained, every `[sys] interval_s` seconds. Clients cannot publish \
                    to topics that begin with `$`, except for a bridge's state.\n\n"
        .to_owned();
    let rows = STATE.map(|[name, content]| [format!("`{name}`"), content.to_owned()]);
    text.push_str(&table(["topic", "content"], rows));
    text.push_str(
        "\n| other topic | content |\n|---|---|\n\
         | `$SYS/broker/connections/CLIENT/transport` | JSON: state of a client's path, for subscribers that the \
         [rules](../guide.md#monitoring) allow, not retained |\n\
         | `$SYS/broker/connection/CLIENT/state` | state of a mosquitto bridge, which the bridge publishes |\n\
         | `$share/GROUP/FILTER` | a shared subscription: each message goes to one client of the group |\n\n\
         ## The platform\n\nBelow `fulmar/TWIN/`. Roles are those of the [platform](../platform.md).\n\n",
    );
    let rows = PLATFORM.map(|row| {
        let [name, content, from, to] = row.map(str::to_owned);
        [format!("`{name}`"), content, from, to]
    });
    text.push_str(&table(["topic", "content", "publishers", "subscribers"], rows));
    text.push_str("\n## Roll-outs\n\nAll retained; [`fulmar rollout`](../bulk.md) has the access rules they need.\n\n");
    text.push_str(&table(
        ["topic", "content", "publisher"],
        [
            [
                "`rollout/GROUP/announce`",
                "What there is to install, and where it is sent; no keys",
                "the roll-out",
            ],
            [
                "`rollout/GROUP/device/DEVICE/keys`",
                "A device's turn, with its keys",
                "the roll-out",
            ],
            ["`rollout/GROUP/device/DEVICE/status`", "A device's progress", "the device"],
        ]
        .map(|row| row.map(str::to_owned)),
    ));
    text
}

#[test]
fn the_page_of_topics_has_those_in_the_sources() {
    let state = source("crates/broker/src/sys.rs");
    let plain = behind(&state, "(\"");
    let formatted = behind(&state, "(format!(\"");
    let named = |name: &str| name.replace("{kind}", "TRANSPORT").replace("{name}", "NAME");
    let names = plain.union(&formatted).map(|name| named(name));
    let names: BTreeSet<_> = names
        .filter(|name| {
            !name.contains(['{', '$', ' ']) && !name.starts_with("CARGO_")
                || name.starts_with("retained m")
        })
        .collect();
    assert_eq!(names, STATE.iter().map(|row| row[0].to_owned()).collect());

    let allowed = source("crates/platform/src/topics.rs");
    let allowed = allowed.split("#[cfg(test)]").next().unwrap();
    let mut words: BTreeSet<&str> = behind(allowed, "[\"");
    words.extend(behind(allowed, "[\"value\" | \""));
    let first = PLATFORM.iter().map(|row| row[0].split(['/', '[']).next().unwrap());
    assert_eq!(words, first.collect());

    let rollout = documented(&source("crates/commands/bulk/src/rollout/topics.rs"));
    let expected = ["announce", "device/DEVICE/keys", "device/DEVICE/status"];
    assert_eq!(rollout, expected.map(|name| format!("rollout/GROUP/{name}")).into());
    let transport = "$SYS/broker/connections";
    assert!(
        sources("crates/broker/src").iter().any(|text| text.contains(&format!("\"{transport}\"")))
    );
    check("topics.md", "Topics", &page());
}

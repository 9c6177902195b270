//! Codes: the reasons that the broker sends, and exit codes.

use std::collections::{BTreeMap, BTreeSet};

use crate::{check, source, sources, table};

/// Name in the code, packets, and when the broker sends it.
const SENT: [[&str; 3]; 30] = [
    ["Success", "any", "As requested; also Granted QoS 0 and Normal disconnection"],
    ["GrantedQos1", "SUBACK", "Subscribed at QoS 1"],
    ["GrantedQos2", "SUBACK", "Subscribed at QoS 2"],
    ["NoMatchingSubscribers", "PUBACK, PUBREC", "Accepted; nobody has subscribed to the topic"],
    ["NoSubscriptionExisted", "UNSUBACK", "The session has no such subscription"],
    [
        "ContinueAuthentication",
        "AUTH",
        "The method `JWT` needs the token, or `SCRAM-SHA-256` goes on",
    ],
    ["MalformedPacket", "CONNACK, DISCONNECT", "Bytes that are not MQTT"],
    ["ProtocolError", "CONNACK, DISCONNECT", "A packet or property that MQTT does not allow there"],
    [
        "ImplementationSpecificError",
        "PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT",
        "[Storage fails](../guide.md#when-storage-fails): it would have to be stored",
    ],
    ["UnsupportedProtocolVersion", "CONNACK", "Neither MQTT 3.1.1 nor 5.0"],
    [
        "ClientIdentifierNotValid",
        "CONNACK",
        "Empty where a name is required, longer than `max_client_id_bytes`, or of a session that belongs to another user",
    ],
    ["BadUserNameOrPassword", "CONNACK", "Wrong name, password or token"],
    [
        "NotAuthorized",
        "CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT",
        "An access rule denies it; anonymous clients are not allowed; the token or the certificate has expired",
    ],
    [
        "ServerUnavailable",
        "CONNACK",
        "The platform cannot check users now, storage fails, or no node of a cluster serves",
    ],
    ["ServerBusy", "CONNACK", "Too many logins wait to be checked"],
    [
        "Banned",
        "CONNACK",
        "A [ban](../administration.md) is about the client, its user or its network",
    ],
    ["ServerShuttingDown", "DISCONNECT", "The broker stops"],
    [
        "BadAuthenticationMethod",
        "CONNACK",
        "An authentication method that is not offered, or SCRAM with channel binding",
    ],
    ["KeepAliveTimeout", "DISCONNECT", "No packet for one and a half times the Keep Alive"],
    ["SessionTakenOver", "DISCONNECT", "The client connected again"],
    ["TopicFilterInvalid", "SUBACK, UNSUBACK", "An invalid filter, or more than 128 levels"],
    ["TopicNameInvalid", "CONNACK, DISCONNECT", "An invalid topic name, or more than 128 levels"],
    ["PacketIdentifierNotFound", "PUBREL, PUBCOMP", "The message is not in flight"],
    ["ReceiveMaximumExceeded", "DISCONNECT", "More than `receive_maximum` unacknowledged messages"],
    [
        "TopicAliasInvalid",
        "DISCONNECT",
        "An alias of 0, or above `topic_alias_maximum`; one that is not set has 0x82",
    ],
    [
        "PacketTooLarge",
        "CONNACK, DISCONNECT",
        "Larger than `max_packet_bytes`; a CONNECT larger than 100 KiB; an answer larger than the client accepts",
    ],
    [
        "MessageRateTooHigh",
        "DISCONNECT",
        "Above `max_publishes_per_s` or `max_publish_bytes_per_s`, with `rate_policy = \"disconnect\"`",
    ],
    [
        "QuotaExceeded",
        "CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT",
        "A [limit](settings.md#limits) of sessions, subscriptions, retained messages, queues or incomplete packets; the log names it",
    ],
    [
        "AdministrativeAction",
        "DISCONNECT",
        "An operator [disconnects](../administration.md) or bans the client, or deletes its session",
    ],
    [
        "UseAnotherServer",
        "CONNACK",
        "A [node that stands by](../cluster.md#what-a-node-that-stands-by-does-with-clients) names the one that serves",
    ],
];

/// In the sources, and not sent by the broker: what clients send, and what nothing asks for yet.
const NOT_SENT: [&str; 2] = ["DisconnectWithWill", "ReAuthenticate"];

/// Number and text of every reason there is, by its name in the code.
fn reasons() -> BTreeMap<String, (String, String)> {
    let text = source("crates/mqtt/src/reason.rs");
    let list = text.split("reason_codes! {").nth(1).unwrap().split("\n}").next().unwrap();
    let row = |line: &str| {
        let (number, rest) = line.trim().split_once(' ')?;
        let (name, text) = rest.split_once(" \"")?;
        Some((name.to_owned(), (number.to_owned(), text.trim_end_matches("\";").to_owned())))
    };
    list.lines().filter_map(row).collect()
}

/// Names of the reasons in these sources.
fn named(text: &str) -> impl Iterator<Item = String> {
    let all = text.split("ReasonCode::").skip(1);
    let name = |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
    all.map(name).filter(|name| name.starts_with(char::is_uppercase))
}

#[test]
fn the_page_of_codes_has_each_reason_that_the_broker_sends() {
    let reasons = reasons();
    assert!(reasons.len() > 40, "{reasons:?}");
    let mut files = sources("crates/broker/src");
    files.extend(sources("crates/auth/src"));
    files.push(source("crates/mqtt/src/error.rs"));
    let used: BTreeSet<String> = files.iter().flat_map(|text| named(text)).collect();
    let used = used.into_iter().filter(|name| reasons.contains_key(name));
    let listed = SENT.iter().map(|row| row[0]).chain(NOT_SENT).map(str::to_owned);
    assert_eq!(used.collect::<BTreeSet<_>>(), listed.collect());
    let mut text = "## MQTT reason codes\n\nWhat the broker sends to clients of MQTT 5.0. CONNACK to clients of 3.1.1 has return \
                    code 1 instead of 0x84, 2 instead of 0x85, 4 instead of 0x86 and 0x8C, 5 instead of 0x87 and 0x8A, and 3 \
                    instead of other errors; their SUBACK has 0x80 instead of all errors, and the broker closes the \
                    connection instead of sending DISCONNECT. The [conformance notes](../mqtt.md) list every case.\n\n"
        .to_owned();
    let rows = SENT.map(|[name, packets, when]| {
        let (number, text) = &reasons[name];
        [number.clone(), text.clone(), packets.to_owned(), when.to_owned()]
    });
    assert!(rows.windows(2).all(|pair| pair[0][0] < pair[1][0]), "the table is not in order");
    text.push_str(&table(["code", "name", "packets", "when"], rows));
    text.push_str("\n## Exit codes\n\n");
    let rows = [
        [
            "0",
            "every command",
            "success; a command whose output nobody reads any more (`fulmar lab list | head -1`)",
        ],
        ["1", "every command", "failure, described on standard error"],
        [
            "2",
            "every command",
            "wrong usage or configuration: a retry fails too, so systemd does not restart the broker",
        ],
        [
            "1",
            "`fulmar doctor`, `fulmar serve --check`",
            "also if there is a problem; 2 if it is the configuration; 0 if there are only warnings",
        ],
        ["0", "`fulmar meter decode`", "at least one telegram was decoded; 1: none was"],
        ["1", "`fulmar sensor read`", "also if a line was not a reading and was skipped"],
        ["1", "`fulmar rollout`", "also if a device failed or did not get the file"],
        [
            "any",
            "`fulmar lab link`",
            "the exit code of the program behind the link; 128 and the signal's number if a signal ended it",
        ],
    ];
    text.push_str(&table(["code", "command", "meaning"], rows.map(|row| row.map(str::to_owned))));
    check("codes.md", "Codes", &text);
}

//! What the specification refuses and what it insists on accepting, as bytes. One line a clause; the
//! name of the test is the clause's. Numbers are those of MQTT 5.0 unless a name ends in `v311`.
//! Behaviour beyond one packet is not shown here: `delivery.rs` and the broker's tests do that.
#![allow(clippy::unwrap_used)]

use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::{DecodeError, ReasonCode, Version};

fn decodes(bytes: &[u8], version: Version) -> Result<(), DecodeError> {
    let frame = peek_frame(bytes, 1 << 16)?.expect("the table holds whole packets");
    assert_eq!(frame.len, bytes.len(), "the table holds one packet a line");
    decode(&frame, version).map(drop)
}

/// A packet around `body`, so that the table need not count bytes.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, u8::try_from(body.len()).unwrap()];
    assert!(body.len() < 128);
    bytes.extend_from_slice(body);
    bytes
}

macro_rules! refused {
    ($($name:ident: $version:ident $first:literal $body:literal => $error:expr, $reason:ident;)*) => {
        $(#[test]
        fn $name() {
            let error = decodes(&packet($first, $body), Version::$version).unwrap_err();
            assert_eq!(error, $error);
            assert_eq!(error.reason(), ReasonCode::$reason);
        })*
    };
}

macro_rules! accepted {
    ($($name:ident: $version:ident $first:literal $body:literal;)*) => {
        $(#[test]
        fn $name() {
            assert_eq!(decodes(&packet($first, $body), Version::$version), Ok(()));
        })*
    };
}

use DecodeError as E;

// CONNECT, section 3.1.
refused! {
    mqtt_2_1_3_1_connect_flags_are_zero: V5 0x11 b"\0\x04MQTT\x05\x02\0\0\0\0\0" => E::Flags, MalformedPacket;
    mqtt_3_1_2_1_protocol_name_is_mqtt: V5 0x10 b"\0\x04mqtt\x05\x02\0\0\0\0\0" => E::ProtocolName, UnsupportedProtocolVersion;
    mqtt_3_1_2_2_version_3_is_unsupported: V5 0x10 b"\0\x06MQIsdp\x03\x02\0\0\0\0" => E::ProtocolVersion(3), UnsupportedProtocolVersion;
    mqtt_3_1_2_2_version_6_is_unsupported: V5 0x10 b"\0\x04MQTT\x06\x02\0\0\0\0\0" => E::ProtocolVersion(6), UnsupportedProtocolVersion;
    mqtt_3_1_2_2_bridges_do_not_set_a_bit_in_version_5: V5 0x10 b"\0\x04MQTT\x85\x02\0\0\0\0\0" => E::ProtocolVersion(0x85), UnsupportedProtocolVersion;
    mqtt_3_1_2_3_reserved_flag_is_zero: V5 0x10 b"\0\x04MQTT\x05\x03\0\0\0\0\0" => E::Flags, MalformedPacket;
    mqtt_3_1_2_11_will_qos_without_will: V5 0x10 b"\0\x04MQTT\x05\x0a\0\0\0\0\0" => E::Flags, MalformedPacket;
    mqtt_3_1_2_12_will_qos_3: V5 0x10 b"\0\x04MQTT\x05\x1e\0\0\0\0\0\0\0\x01t\0\0" => E::QoS, MalformedPacket;
    mqtt_3_1_2_13_will_retain_without_will: V5 0x10 b"\0\x04MQTT\x05\x22\0\0\0\0\0" => E::Flags, MalformedPacket;
    mqtt_3_1_2_16_user_name_flag_without_user_name: V5 0x10 b"\0\x04MQTT\x05\x82\0\0\0\0\0" => E::Length, MalformedPacket;
    mqtt_3_1_2_17_user_name_without_flag: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\0\0\0\0\x01u" => E::Length, MalformedPacket;
    mqtt_3_1_2_22_password_without_user_name_v311: V311 0x10 b"\0\x04MQTT\x04\x42\0\0\0\0\0\x01p" => E::Flags, MalformedPacket;
    mqtt_3_1_2_11_3_receive_maximum_0: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\0" => E::PropertyValue(0x21), ProtocolError;
    mqtt_3_1_2_11_4_maximum_packet_size_0: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x05\x27\0\0\0\0\0\0" => E::PropertyValue(0x27), ProtocolError;
    mqtt_3_1_2_11_6_request_response_information_2: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x02\x19\x02\0\0" => E::PropertyValue(0x19), ProtocolError;
    mqtt_3_1_2_11_7_request_problem_information_2: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x02\x17\x02\0\0" => E::PropertyValue(0x17), ProtocolError;
    mqtt_3_1_2_11_2_session_expiry_twice: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x0a\x11\0\0\0\x01\x11\0\0\0\x01\0\0" => E::PropertyTwice(0x11), ProtocolError;
    mqtt_3_1_2_11_10_authentication_data_without_method: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\x04\x16\0\x01x\0\0" => E::Protocol("authentication data without a method"), ProtocolError;
    mqtt_3_1_3_4_client_identifier_is_utf8: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\0\0\x01\xff" => E::String, MalformedPacket;
    mqtt_3_1_3_11_will_topic_is_utf8: V5 0x10 b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\x01\xff\0\0" => E::String, MalformedPacket;
    mqtt_3_1_3_2_topic_alias_is_not_a_will_property: V5 0x10 b"\0\x04MQTT\x05\x06\0\0\0\0\0\x03\x23\0\x01\0\x01t\0\0" => E::PropertyNotAllowed(0x23), MalformedPacket;
}
accepted! {
    mqtt_3_1_2_15_password_without_user_name: V5 0x10 b"\0\x04MQTT\x05\x42\0\0\0\0\0\0\x01p";
    mqtt_3_1_3_5_client_identifier_of_24_bytes: V5 0x10 b"\0\x04MQTT\x05\x02\0\0\0\0\x18abcdefghijklmnopqrstuvwx";
    mqtt_3_1_3_6_empty_client_identifier: V5 0x10 b"\0\x04MQTT\x05\0\0\0\0\0\0";
    a_bridge_of_mosquitto_speaks_3_1_1: V311 0x10 b"\0\x04MQTT\x84\x02\0\0\0\x01b";
    mqtt_3_1_3_7_empty_client_identifier_v311: V311 0x10 b"\0\x04MQTT\x04\x02\0\0\0\0";
    mqtt_3_1_3_5_password_is_binary: V5 0x10 b"\0\x04MQTT\x05\xc2\0\0\0\0\0\0\x01u\0\x02\xff\0";
}

// CONNACK, section 3.2.
refused! {
    mqtt_3_2_2_1_reserved_connack_flags_are_zero: V5 0x20 b"\x02\0\0" => E::Flags, MalformedPacket;
    mqtt_3_2_2_6_session_present_when_refused: V5 0x20 b"\x01\x87\0" => E::Protocol("a refused client cannot have a session present"), ProtocolError;
    mqtt_3_2_2_8_reason_is_in_the_table: V5 0x20 b"\0\x10\0" => E::ReasonCode(0x10), ProtocolError;
    mqtt_3_2_2_3_return_code_6_v311: V311 0x20 b"\0\x06" => E::ReasonCode(6), ProtocolError;
    mqtt_3_2_2_3_4_maximum_qos_2: V5 0x20 b"\0\0\x02\x24\x02" => E::PropertyValue(0x24), ProtocolError;
    mqtt_3_2_properties_are_not_optional: V5 0x20 b"\0\0" => E::Length, MalformedPacket;
}
accepted! {
    mqtt_3_1_4_1_refusal_by_a_server_of_3_1_1: V5 0x20 b"\0\x01";
    mqtt_3_2_2_return_code_5_v311: V311 0x20 b"\0\x05";
    mqtt_3_2_2_3_all_properties: V5 0x20 b"\0\0\x15\x11\0\0\0\x01\x21\0\x01\x24\x01\x25\x01\x28\0\x29\0\x2a\0\x13\0\x0a";
}

// PUBLISH, section 3.3.
refused! {
    mqtt_3_3_1_2_dup_with_qos_0: V5 0x38 b"\0\x01a\0" => E::Flags, MalformedPacket;
    mqtt_3_3_1_4_qos_3: V5 0x36 b"\0\x01a\0\x01\0" => E::QoS, MalformedPacket;
    mqtt_3_3_1_4_qos_3_v311: V311 0x3e b"\0\x01a\0\x01" => E::QoS, MalformedPacket;
    mqtt_2_2_1_3_identifier_0: V5 0x34 b"\0\x01a\0\0\0" => E::PacketId, MalformedPacket;
    mqtt_2_2_1_2_identifier_missing: V311 0x32 b"\0\x01a" => E::Length, MalformedPacket;
    mqtt_3_3_2_1_topic_is_utf8: V5 0x30 b"\0\x02\xc3\x28\0" => E::String, MalformedPacket;
    mqtt_1_5_4_1_topic_without_surrogates: V5 0x30 b"\0\x03\xed\xa0\x80\0" => E::String, MalformedPacket;
    mqtt_1_5_4_2_topic_without_null: V5 0x30 b"\0\x03a\0b\0" => E::String, MalformedPacket;
    mqtt_3_3_2_topic_longer_than_packet: V5 0x30 b"\0\x05a" => E::Length, MalformedPacket;
    mqtt_3_3_2_3_1_properties_longer_than_packet: V5 0x30 b"\0\x01a\x05\x01\x01" => E::Length, MalformedPacket;
    mqtt_3_3_2_3_property_longer_than_properties: V5 0x30 b"\0\x01a\x02\x02\0xx" => E::Length, MalformedPacket;
    mqtt_3_3_2_3_2_payload_format_2: V5 0x30 b"\0\x01a\x02\x01\x02" => E::PropertyValue(1), ProtocolError;
    mqtt_3_3_2_3_2_payload_format_twice: V5 0x30 b"\0\x01a\x04\x01\x01\x01\x01" => E::PropertyTwice(1), ProtocolError;
    mqtt_3_3_2_8_topic_alias_0: V5 0x30 b"\0\x01a\x03\x23\0\0" => E::TopicAlias, TopicAliasInvalid;
    mqtt_3_3_2_3_4_topic_alias_twice: V5 0x30 b"\0\0\x06\x23\0\x01\x23\0\x01" => E::PropertyTwice(0x23), ProtocolError;
    mqtt_3_3_2_13_response_topic_is_utf8: V5 0x30 b"\0\x01a\x04\x08\0\x01\xff" => E::String, MalformedPacket;
    mqtt_3_3_2_14_response_topic_without_wildcards: V5 0x30 b"\0\x01a\x06\x08\0\x03r/+" => E::PropertyValue(8), ProtocolError;
    mqtt_3_3_2_17_user_property_value_is_utf8: V5 0x30 b"\0\x01a\x07\x26\0\x01k\0\x01\xff" => E::String, MalformedPacket;
    mqtt_3_3_2_3_8_subscription_identifier_0: V5 0x30 b"\0\x01a\x02\x0b\0" => E::PropertyValue(0x0b), ProtocolError;
    mqtt_1_5_5_1_subscription_identifier_in_too_many_bytes: V5 0x30 b"\0\x01a\x03\x0b\x81\0" => E::VariableByteInteger, MalformedPacket;
    mqtt_2_2_2_2_property_that_does_not_exist: V5 0x30 b"\0\x01a\x02\x07\0" => E::PropertyNotAllowed(7), MalformedPacket;
    mqtt_2_2_2_2_property_of_connack: V5 0x30 b"\0\x01a\x03\x13\0\x01" => E::PropertyNotAllowed(0x13), MalformedPacket;
    mqtt_2_2_2_2_property_beyond_the_table: V5 0x30 b"\0\x01a\x02\x7f\0" => E::PropertyNotAllowed(0x7f), MalformedPacket;
}
accepted! {
    mqtt_3_3_3_payload_may_be_empty: V5 0x30 b"\0\x01a\0";
    mqtt_3_3_3_payload_is_any_bytes: V5 0x30 b"\0\x01a\0\0\xff\xfe";
    mqtt_3_3_2_3_4_empty_topic_with_alias: V5 0x30 b"\0\0\x03\x23\0\x01";
    mqtt_3_3_2_3_7_user_property_may_be_repeated: V5 0x30 b"\0\x01a\x0e\x26\0\x01k\0\x01v\x26\0\x01k\0\x01v";
    mqtt_3_3_2_3_8_subscription_identifiers_may_be_repeated: V5 0x30 b"\0\x01a\x04\x0b\x01\x0b\x02";
    mqtt_3_3_1_3_dup_retain_qos_2: V5 0x3d b"\0\x01a\xff\xff\0payload";
    mqtt_1_5_4_3_bom_is_a_character: V5 0x30 b"\0\x03\xef\xbb\xbf\0";
}

// PUBACK, PUBREC, PUBREL, PUBCOMP, sections 3.4 to 3.7.
refused! {
    mqtt_3_6_1_1_pubrel_flags: V5 0x60 b"\0\x01" => E::Flags, MalformedPacket;
    mqtt_3_4_1_puback_flags: V5 0x42 b"\0\x01" => E::Flags, MalformedPacket;
    mqtt_3_4_2_puback_identifier_0: V5 0x40 b"\0\0" => E::PacketId, MalformedPacket;
    mqtt_3_4_2_puback_too_short: V5 0x40 b"\0" => E::Length, MalformedPacket;
    mqtt_3_4_2_puback_too_long_v311: V311 0x40 b"\0\x01\0" => E::Length, MalformedPacket;
    mqtt_3_4_2_1_reason_that_does_not_exist: V5 0x40 b"\0\x01\x7f" => E::ReasonCode(0x7f), ProtocolError;
    mqtt_3_5_2_1_reason_of_another_packet: V5 0x50 b"\0\x01\x02" => E::ReasonCode(2), ProtocolError;
    mqtt_3_4_2_1_puback_does_not_say_0x92: V5 0x40 b"\0\x01\x92" => E::ReasonCode(0x92), ProtocolError;
    mqtt_3_5_2_1_pubrec_does_not_say_0x8f: V5 0x50 b"\0\x01\x8f" => E::ReasonCode(0x8f), ProtocolError;
    mqtt_3_6_2_1_pubrel_does_not_say_0x10: V5 0x62 b"\0\x01\x10" => E::ReasonCode(0x10), ProtocolError;
    mqtt_3_7_2_1_pubcomp_does_not_say_0x97: V5 0x70 b"\0\x01\x97" => E::ReasonCode(0x97), ProtocolError;
    mqtt_3_4_2_2_bytes_after_the_properties: V5 0x40 b"\0\x01\0\0\0" => E::Length, MalformedPacket;
    mqtt_3_4_2_2_property_of_connect: V5 0x40 b"\0\x01\0\x03\x21\0\x01" => E::PropertyNotAllowed(0x21), MalformedPacket;
    mqtt_3_4_2_2_2_reason_string_twice: V5 0x40 b"\0\x01\0\x08\x1f\0\x01a\x1f\0\x01b" => E::PropertyTwice(0x1f), ProtocolError;
}
accepted! {
    mqtt_3_4_2_1_reason_and_properties_may_be_left_out: V5 0x40 b"\0\x01";
    mqtt_3_4_2_2_1_properties_may_be_left_out: V5 0x40 b"\0\x01\x10";
    mqtt_3_4_2_1_puback_quota_exceeded: V5 0x40 b"\0\x01\x97";
    mqtt_3_5_2_1_pubrec_identifier_in_use: V5 0x50 b"\0\x01\x91";
    mqtt_3_7_2_1_pubcomp_identifier_not_found: V5 0x70 b"\0\x01\x92";
    mqtt_3_6_2_1_pubrel_identifier_not_found: V5 0x62 b"\0\x01\x92\0";
}

// SUBSCRIBE to UNSUBACK, sections 3.8 to 3.11.
refused! {
    mqtt_3_8_1_1_subscribe_flags: V5 0x80 b"\0\x01\0\0\x01a\0" => E::Flags, MalformedPacket;
    mqtt_3_8_3_2_subscribe_without_filter: V5 0x82 b"\0\x01\0" => E::NoFilter, ProtocolError;
    mqtt_3_8_3_filter_without_options: V5 0x82 b"\0\x01\0\0\x01a" => E::Length, MalformedPacket;
    mqtt_3_8_3_1_filter_is_utf8: V5 0x82 b"\0\x01\0\0\x01\xff\0" => E::String, MalformedPacket;
    mqtt_3_8_3_1_maximum_qos_3: V5 0x82 b"\0\x01\0\0\x01a\x03" => E::Protocol("maximum quality of service 3 does not exist"), ProtocolError;
    mqtt_3_8_3_1_retain_handling_3: V5 0x82 b"\0\x01\0\0\x01a\x30" => E::Protocol("retain handling 3 does not exist"), ProtocolError;
    mqtt_3_8_3_5_reserved_options: V5 0x82 b"\0\x01\0\0\x01a\x40" => E::Flags, MalformedPacket;
    mqtt_3_8_3_4_reserved_options_v311: V311 0x82 b"\0\x01\0\x01a\x04" => E::Flags, MalformedPacket;
    mqtt_3_8_2_1_2_subscription_identifier_0: V5 0x82 b"\0\x01\x02\x0b\0\0\x01a\0" => E::PropertyValue(0x0b), ProtocolError;
    mqtt_3_8_2_1_2_subscription_identifier_twice: V5 0x82 b"\0\x01\x04\x0b\x01\x0b\x02\0\x01a\0" => E::PropertyTwice(0x0b), ProtocolError;
    mqtt_2_2_1_3_subscribe_identifier_0: V5 0x82 b"\0\0\0\0\x01a\0" => E::PacketId, MalformedPacket;
    mqtt_3_9_3_2_suback_code_3: V5 0x90 b"\0\x01\0\x03" => E::ReasonCode(3), ProtocolError;
    mqtt_3_9_3_2_suback_code_0x90: V5 0x90 b"\0\x01\0\x90" => E::ReasonCode(0x90), ProtocolError;
    mqtt_3_11_3_2_unsuback_code_0x97: V5 0xb0 b"\0\x01\0\x97" => E::ReasonCode(0x97), ProtocolError;
    mqtt_3_9_3_2_suback_code_0x87_v311: V311 0x90 b"\0\x01\x87" => E::ReasonCode(0x87), ProtocolError;
    mqtt_3_9_3_1_suback_without_codes: V5 0x90 b"\0\x01\0" => E::Length, MalformedPacket;
    mqtt_3_10_1_1_unsubscribe_flags: V5 0xa0 b"\0\x01\0\0\x01a" => E::Flags, MalformedPacket;
    mqtt_3_10_3_2_unsubscribe_without_filter: V311 0xa2 b"\0\x01" => E::NoFilter, ProtocolError;
    mqtt_3_11_3_2_unsuback_code_1: V5 0xb0 b"\0\x01\0\x01" => E::ReasonCode(1), ProtocolError;
    mqtt_3_11_unsuback_has_no_payload_v311: V311 0xb0 b"\0\x01\0" => E::Length, MalformedPacket;
}
accepted! {
    mqtt_3_8_3_several_filters: V5 0x82 b"\0\x01\x02\x0b\x07\0\x01a\x2e\0\x03b/#\x01";
    mqtt_3_9_3_failures_beside_grants: V5 0x90 b"\0\x01\0\x02\x8f\x00";
    mqtt_3_11_3_no_subscription_existed: V5 0xb0 b"\0\x01\0\x11";
    mqtt_3_10_3_unsubscribe_v311: V311 0xa2 b"\0\x01\0\x01a";
}

// PINGREQ to AUTH, sections 3.12 to 3.15.
refused! {
    mqtt_3_12_pingreq_has_no_body: V5 0xc0 b"\0" => E::Length, MalformedPacket;
    mqtt_3_14_1_1_disconnect_flags: V5 0xe1 b"" => E::Flags, MalformedPacket;
    mqtt_3_14_disconnect_has_no_body_v311: V311 0xe0 b"\0" => E::Length, MalformedPacket;
    mqtt_3_14_2_1_reason_of_another_packet: V5 0xe0 b"\x18" => E::ReasonCode(0x18), ProtocolError;
    mqtt_3_14_2_1_disconnect_does_not_say_0x86: V5 0xe0 b"\x86" => E::ReasonCode(0x86), ProtocolError;
    mqtt_3_15_1_1_auth_flags: V5 0xf1 b"" => E::Flags, MalformedPacket;
    mqtt_3_15_2_1_reason_of_another_packet: V5 0xf0 b"\x87\0" => E::ReasonCode(0x87), ProtocolError;
    mqtt_3_15_2_2_3_authentication_data_without_method: V5 0xf0 b"\x18\x04\x16\0\x01x" => E::Protocol("authentication data without a method"), ProtocolError;
    mqtt_2_1_2_packet_type_0: V5 0x00 b"" => E::PacketType(0), MalformedPacket;
    mqtt_2_1_2_packet_type_15_v311: V311 0xf0 b"" => E::PacketType(15), MalformedPacket;
}
accepted! {
    mqtt_3_14_2_1_disconnect_reason_may_be_left_out: V5 0xe0 b"";
    mqtt_3_14_2_2_disconnect_properties_may_be_left_out: V5 0xe0 b"\x04";
    mqtt_3_14_2_2_2_disconnect_session_expiry: V5 0xe0 b"\0\x05\x11\0\0\0\x0a";
    mqtt_3_15_2_1_auth_may_be_empty: V5 0xf0 b"";
    mqtt_3_15_2_1_auth_continues: V5 0xf0 b"\x18\x08\x15\0\x01m\x16\0\x01d";
}

/// What cannot become a packet is refused before its body is there, not after a timeout.
#[test]
fn mqtt_2_1_3_hopeless_beginnings_are_not_waited_for() {
    for (bytes, wanted) in [
        (&b"GET / HTTP/1.1\r\n"[..], E::Flags),
        (b"\x00\x05", E::PacketType(0)),
        (b"\x36\x05\0", E::QoS),
        (b"\x38\x05\0", E::Flags),
        (b"\x80\x05\0", E::Flags),
    ] {
        assert_eq!(peek_frame(bytes, 1 << 16), Err(wanted), "{bytes:?}");
    }
}

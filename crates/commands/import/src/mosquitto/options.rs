//! The options of mosquitto 2.0: where each belongs, what it accepts, and what becomes of it.

/// Where an option belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scope {
    /// The broker.
    Global,
    /// The listener before it; with `per_listener_settings false`, all.
    Security,
    /// The listener before it.
    Listener,
    /// The bridge before it.
    Bridge,
}

/// Values that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accepts {
    Bool,
    Number(u64),
    Text,
}

/// Translation of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// A module translates it.
    Translated,
    /// Fulmar does without it.
    NotNeeded(&'static str),
    /// Fulmar cannot do it.
    No(&'static str),
    /// Fulmar always works as with this value, and cannot do it for others.
    Always(&'static str, &'static str),
}

pub(super) struct OptionSpec {
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    pub(super) accepts: Accepts,
    pub(super) fate: Fate,
}

use Accepts::{Bool, Number, Text};
use Fate::{Always, No, NotNeeded, Translated};
use Scope::{Bridge, Global, Listener, Security};

const fn known(name: &'static str, scope: Scope, accepts: Accepts, fate: Fate) -> OptionSpec {
    OptionSpec { name, scope, accepts, fate }
}

const ANY: u64 = 4_294_967_295;
const LOG: Fate =
    NotNeeded("Fulmar logs to standard error with times; the service manager keeps the log");
const TLS: Fate = No("Fulmar offers TLS 1.2 and 1.3 with rustls' cipher suites");
const SAVING: Fate = NotNeeded("what Fulmar acknowledges is on disk");

pub(super) fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|known| known.name == name)
}

#[rustfmt::skip]
static OPTIONS: &[OptionSpec] = &[
    known("allow_duplicate_messages", Global, Bool, NotNeeded("a client gets a message once, however many of its subscriptions match")),
    known("allow_anonymous", Security, Bool, Translated),
    known("allow_zero_length_clientid", Security, Bool, Always("true", "Fulmar gives such a client an identifier")),
    known("auto_id_prefix", Security, Text, No("Fulmar makes identifiers without a prefix of your choice; do not use it in access rules")),
    known("acl_file", Security, Text, Translated),
    known("password_file", Security, Text, Translated),
    known("psk_file", Security, Text, No("Fulmar has no pre-shared keys for MQTT over TLS; use a certificate for the server and passwords, or CoAP with [coap] psk_file")),
    known("plugin", Security, Text, Translated),
    known("auth_plugin", Security, Text, Translated),
    known("auth_plugin_deny_special_chars", Security, Bool, NotNeeded("a name with a wildcard fills no placeholder")),
    known("autosave_interval", Global, Number(ANY), SAVING),
    known("autosave_on_changes", Global, Bool, SAVING),
    known("persistence_file", Global, Text, SAVING),
    known("check_retain_source", Global, Bool, Always("true", "access rules apply to who receives, not to who published earlier")),
    known("clientid_prefixes", Global, Text, No("use access rules with %c")),
    known("connection_messages", Global, Bool, NotNeeded("[log] level decides what is logged")),
    known("log_dest", Global, Text, LOG),
    known("log_facility", Global, Text, LOG),
    known("log_timestamp", Global, Bool, LOG),
    known("log_timestamp_format", Global, Text, LOG),
    known("log_type", Global, Text, Translated),
    known("max_inflight_bytes", Global, Number(ANY), Always("0", "Fulmar limits messages in flight, not their bytes ([limits] max_in_flight)")),
    known("max_inflight_messages", Global, Number(65535), Translated),
    known("max_keepalive", Global, Number(65535), Translated),
    known("max_packet_size", Global, Number(268_435_460), Translated),
    known("max_queued_bytes", Global, Number(u64::MAX >> 1), Translated),
    known("max_queued_messages", Global, Number(ANY), Translated),
    known("memory_limit", Global, Number(u64::MAX >> 1), Always("0", "limit the service's memory (systemd: MemoryMax=)")),
    known("message_size_limit", Global, Number(268_435_455), Translated),
    known("per_listener_settings", Global, Bool, Translated),
    known("persistence", Global, Bool, Translated),
    known("persistence_location", Global, Text, Translated),
    known("persistent_client_expiration", Global, Text, Translated),
    known("pid_file", Global, Text, NotNeeded("the service manager knows the process")),
    known("queue_qos0_messages", Global, Bool, Always("false", "QoS 0 messages are not queued for disconnected clients; publish with QoS 1")),
    known("retain_available", Global, Bool, Translated),
    known("set_tcp_nodelay", Global, Bool, NotNeeded("Fulmar always sends without delay")),
    known("sys_interval", Global, Number(ANY), Translated),
    known("upgrade_outgoing_qos", Global, Bool, Always("false", "a message keeps its publisher's QoS if it is lower")),
    known("user", Global, Text, NotNeeded("the service manager starts Fulmar as a user of its own")),
    known("websockets_log_level", Global, Number(ANY), LOG),
    known("websockets_headers_size", Listener, Number(ANY), NotNeeded("Fulmar's limit is fixed")),
    known("bind_address", Listener, Text, Translated),
    known("bind_interface", Listener, Text, Translated),
    known("http_dir", Listener, Text, No("Fulmar serves no files; use a web server")),
    known("max_connections", Listener, Text, Translated),
    known("max_qos", Listener, Number(2), Always("2", "Fulmar accepts every QoS")),
    known("max_topic_alias", Listener, Number(65535), Translated),
    known("mount_point", Listener, Text, Translated),
    known("port", Listener, Number(65535), Translated),
    known("protocol", Listener, Text, Translated),
    known("socket_domain", Listener, Text, Translated),
    known("use_username_as_clientid", Security, Bool, Always("false", "clients choose their identifiers; a session belongs to its user in any case")),
    known("cafile", Listener, Text, Translated),
    known("capath", Listener, Text, Translated),
    known("certfile", Listener, Text, Translated),
    known("keyfile", Listener, Text, Translated),
    known("require_certificate", Listener, Bool, Translated),
    known("use_identity_as_username", Listener, Bool, Translated),
    known("use_subject_as_username", Listener, Bool, Always("false", "the user is the certificate's common name: change the names in access rules")),
    known("ciphers", Listener, Text, TLS),
    known("ciphers_tls1.3", Listener, Text, TLS),
    known("dhparamfile", Listener, Text, NotNeeded("Fulmar uses elliptic curves only")),
    known("tls_version", Listener, Text, Always("tlsv1.2", "Fulmar offers TLS 1.2 and 1.3")),
    known("crlfile", Listener, Text, Translated),
    known("psk_hint", Listener, Text, Translated),
    known("tls_engine", Listener, Text, Translated),
    known("tls_engine_kpass_sha1", Listener, Text, Translated),
    known("tls_keyform", Listener, Text, Always("pem", "keys are PEM files")),
    known("address", Bridge, Text, Translated),
    known("addresses", Bridge, Text, Translated),
    known("topic", Bridge, Text, Translated),
    known("bridge_attempt_unsubscribe", Bridge, Bool, NotNeeded("Fulmar does not unsubscribe from what it does not forward")),
    known("bridge_bind_address", Bridge, Text, No("the system chooses the local address; use a route")),
    known("bridge_max_packet_size", Bridge, Number(ANY), Always("0", "[upstream.outbox] dead_letter_file keeps messages that the upstream broker calls too large")),
    known("bridge_outgoing_retain", Bridge, Bool, Always("true", "retained messages are forwarded as such")),
    known("bridge_protocol_version", Bridge, Text, Translated),
    known("cleansession", Bridge, Bool, Translated),
    known("local_cleansession", Bridge, Bool, Always("false", "what the gateway has accepted waits in its outbox, on disk")),
    known("keepalive_interval", Bridge, Number(65535), Translated),
    known("idle_timeout", Bridge, Number(ANY), NotNeeded("the connection stays open")),
    known("local_clientid", Bridge, Text, NotNeeded("the gateway is part of the broker")),
    known("local_username", Bridge, Text, Translated),
    known("local_password", Bridge, Text, NotNeeded("the gateway is part of the broker")),
    known("notifications", Bridge, Bool, Always("false", "no state is published; /health/upstream and /metrics of the http listener have it")),
    known("notifications_local_only", Bridge, Bool, NotNeeded("no state is published")),
    known("notification_topic", Bridge, Text, No("no state is published; /health/upstream and /metrics of the http listener have it")),
    known("remote_clientid", Bridge, Text, Translated),
    known("remote_username", Bridge, Text, Translated),
    known("remote_password", Bridge, Text, Translated),
    known("clientid", Bridge, Text, Translated),
    known("username", Bridge, Text, Translated),
    known("password", Bridge, Text, Translated),
    known("restart_timeout", Bridge, Text, NotNeeded("Fulmar chooses growing intervals itself")),
    known("round_robin", Bridge, Bool, Always("false", "there is one address per upstream broker")),
    known("start_type", Bridge, Text, Always("automatic", "the gateway is always connected")),
    known("threshold", Bridge, Number(ANY), NotNeeded("the gateway is always connected")),
    known("try_private", Bridge, Bool, Translated),
    known("bridge_alpn", Bridge, Text, Always("mqtt", "the protocol name is always mqtt")),
    known("bridge_cafile", Bridge, Text, Translated),
    known("bridge_capath", Bridge, Text, Translated),
    known("bridge_certfile", Bridge, Text, Translated),
    known("bridge_keyfile", Bridge, Text, Translated),
    known("bridge_insecure", Bridge, Bool, Always("false", "the name in the certificate is always checked: use the name in the address, or a certificate with the address")),
    known("bridge_require_ocsp", Bridge, Bool, Always("false", "OCSP is not checked")),
    known("bridge_tls_version", Bridge, Text, Always("tlsv1.2", "Fulmar offers TLS 1.2 and 1.3")),
    known("bridge_identity", Bridge, Text, Translated),
    known("bridge_psk", Bridge, Text, Translated),
];

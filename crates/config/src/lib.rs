//! The configuration: settings, defaults and checks.
//!
//! It is one TOML file or text, which environment variables may override (`read`). Every section is a plain struct
//! with a default per key (`sections`; `section` has their syntax). Combinations of values are checked (`check`) before
//! anything is opened or bound. `convert` converts the sections to the other crates' types. `fulmar.example.toml` at the
//! root of the repository documents every key; a test compares the two.

mod acl_rule;
mod check;
#[allow(missing_docs, reason = "fulmar.example.toml explains the keys")]
mod cluster;
mod convert;
mod disk;
#[allow(missing_docs, reason = "each field is the section of its name")]
mod document;
mod features;
mod memory;
mod mqttsn;
mod otlp;
#[cfg(feature = "platform")]
mod platform_part;
mod proxy_protocol;
mod range;
mod read;
mod section;
#[allow(missing_docs, reason = "fulmar.example.toml explains the keys")]
mod sections;
#[allow(missing_docs, reason = "fulmar.example.toml explains the keys")]
mod sinks;
mod store_part;
#[allow(missing_docs, reason = "fulmar.example.toml explains the keys")]
mod upstream;
mod upstreams;

use std::path::{Path, PathBuf};

pub use acl_rule::AclRule;
pub use check::is_https_url;
pub use cluster::{Cluster, Standby};
pub use document::Config;
pub use memory::available_to;
pub use otlp::Otlp;
use read::Source;
pub use sections::Listeners;
pub use sections::{Acme, Auth, AuthHttp, CrlExpired, LogFormat, Tls, set};
pub use sinks::{FieldType, Origin, Payload, Sink, SinkField, SinkKind};
pub use upstream::Upstream;

impl Config {
    /// Reads a configuration file. The environment has no effect.
    ///
    /// # Errors
    /// [`Usage`](fulmar_text::Usage) with file, line and column, or the key, and with the allowed values.
    pub fn from_file(path: &Path) -> anyhow::Result<Config> {
        read::read(Source::File(path), std::iter::empty())?.complete()
    }

    /// Reads the text of a configuration file, such as `[listeners]` and `mqtt = ["127.0.0.1:0"]`.
    ///
    /// # Errors
    /// [`Usage`](fulmar_text::Usage) with line and column, or the key, and with the allowed values.
    pub fn from_toml(text: &str) -> anyhow::Result<Config> {
        read::read(Source::Text(text), std::iter::empty())?.complete()
    }

    /// The same configuration with this data folder, where sessions, messages and certificates are kept. It is created
    /// if it is missing. Without one, it is `~/.local/share/fulmar`.
    pub fn with_data_dir(mut self, folder: impl Into<PathBuf>) -> Config {
        self.server.data_dir = folder.into();
        self
    }

    /// The same configuration, and the secrets of all connections over TLS and QUIC are appended to this file.
    ///
    /// # Errors
    /// A listener is reachable from other machines, and `remote` does not allow that.
    pub fn with_key_log(mut self, file: &Path, remote: bool) -> anyhow::Result<Config> {
        let listeners = self.listeners.mqtt_listeners();
        let encrypted = listeners.iter().filter(|(name, _)| !["mqtt", "ws"].contains(name));
        let mut addresses = encrypted.flat_map(|(_, addresses)| addresses.iter());
        if let Some(address) = addresses.find(|address| !address.ip().is_loopback() && !remote) {
            return Err(fulmar_text::Usage(format!(
                "--keylog: clients of other machines can connect to {address}, and anyone who has the file can read what \
                 they send. Next: listen on loopback only, or add --keylog-remote"
            ))
            .into());
        }
        self.tls.key_log = Some(file.to_owned());
        Ok(self)
    }

    /// The data folder.
    pub fn data_dir(&self) -> PathBuf {
        set(&self.server.data_dir).map_or_else(fulmar_certs::default_data_dir, Path::to_owned)
    }

    /// Reads the file, if there is a path, then the process's environment.
    ///
    /// # Errors
    /// As for [`Config::from_file`]; an error of the environment has the variable's name.
    pub fn load(path: Option<&Path>) -> anyhow::Result<Config> {
        Config::load_with(path, std::env::vars())
    }

    fn load_with(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> anyhow::Result<Config> {
        read::read(path.map_or(Source::Text(""), Source::File), environment)?.complete()
    }

    /// Converts keys of earlier versions, and checks keys that belong together.
    ///
    /// # Errors
    /// [`Usage`](fulmar_text::Usage) with the key and the allowed values.
    pub fn complete(mut self) -> anyhow::Result<Config> {
        self.quic.rename_bbr()?;
        self.label_upstreams();
        self.adapt_to_cluster();
        self.listeners.adapt_to_machine();
        check::check(&self)?;
        Ok(self)
    }

    /// The keys with secrets in this file, if it is readable by users other than its owner and group.
    pub fn world_readable_secrets(path: &Path) -> Vec<String> {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = path.metadata().map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 == 0 {
            return Vec::new();
        }
        // Values from the environment are not in the file.
        let mut config = read::read(Source::File(path), std::iter::empty()).unwrap_or_default();
        config.label_upstreams();
        let database = config.platform.database.has_password();
        let database = database.then(|| "[platform] database".to_owned());
        let upstreams = config.upstreams().filter(|upstream| !upstream.password.0.is_empty());
        let upstreams = upstreams.map(|upstream| format!("[{}] password", upstream.section()));
        let sinks = config.sinks.iter().filter(|(_, sink)| sink.url.has_password());
        let sinks = sinks.map(|(name, _)| format!("[sinks.{name}] url"));
        upstreams.chain(database).chain(sinks).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const EXAMPLE: &str = include_str!("../../../fulmar.example.toml");

    fn load(text: &str, environment: &[(&str, &str)]) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fulmar.toml");
        std::fs::write(&path, text).unwrap();
        let owned = environment.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        Config::load_with(Some(&path), owned)
    }

    fn refused(text: &str, environment: &[(&str, &str)]) -> String {
        let error = load(text, environment).unwrap_err();
        assert!(error.downcast_ref::<fulmar_text::Usage>().is_some(), "{error}");
        error.to_string()
    }

    /// The example without the sections whose feature this build does not have.
    fn example_here() -> String {
        let sections = EXAMPLE.split("\n[").filter(|section| {
            !features::missing().any(|missing| section.starts_with(&format!("{missing}]")))
        });
        sections.collect::<Vec<_>>().join("\n[")
    }

    #[test]
    fn secrets_of_other_machines_connections_are_logged_with_a_second_word_only() {
        let with = |listeners: &str, remote| {
            Config::from_toml(listeners).unwrap().with_key_log(Path::new("keys"), remote)
        };
        let open = "[listeners]\nquic = [\"0.0.0.0:14567\"]";
        assert!(with("", false).is_ok());
        // Nothing is encrypted there.
        assert!(with("[listeners]\nmqtt = [\"0.0.0.0:1883\"]", false).is_ok());
        let refused = with(open, false).unwrap_err().to_string();
        assert!(
            refused.contains("0.0.0.0:14567") && refused.contains("--keylog-remote"),
            "{refused}"
        );
        assert!(with(open, true).is_ok());
    }

    #[test]
    fn a_section_of_a_missing_feature_is_refused_with_its_name() {
        for section in features::missing() {
            let error = refused(&format!("[server]\n[{section}]\n"), &[]);
            assert!(error.contains("fulmar.toml:2:1"), "{error}");
            assert!(error.contains(&format!("feature `{section}`")), "{error}");
            let name = format!("FULMAR_{}__X", section.to_uppercase());
            assert!(refused("", &[(&name, "1")]).contains(&name));
        }
    }

    #[test]
    fn the_example_is_the_defaults() {
        assert_eq!(load(&example_here(), &[]).unwrap(), Config::default());
    }

    #[test]
    fn the_example_documents_every_key_and_no_other() {
        let example: Value = toml::from_str(EXAMPLE).unwrap();
        let default = serde_json::to_value(Config::default()).unwrap();
        let keys = |value: &Value| -> BTreeSet<String> {
            let sections = value.as_object().unwrap().iter();
            let keys = sections.flat_map(|(section, keys)| {
                keys.as_object().unwrap().keys().map(move |key| format!("{section}.{key}"))
            });
            let lists = ["acl.rules", "mqtt_sn.predefined", "upstream.up", "upstream.down"];
            keys.filter(|key| !lists.contains(&key.as_str())).collect()
        };
        assert_eq!(keys(&example), keys(&default));
    }

    #[test]
    fn the_older_name_of_bbr_is_understood() {
        use fulmar_congestion::Congestion;
        let congestion = |text: &str| load(text, &[]).unwrap().quic.congestion;
        assert_eq!(congestion(""), Congestion::Cubic);
        assert_eq!(
            congestion("[quic]\nbbr = false\ncongestion = \"adaptive\"\n"),
            Congestion::Adaptive
        );
        let config = load("[quic]\nbbr = true\n", &[]).unwrap();
        assert_eq!(config.quic.congestion, Congestion::Bbr);
        assert_eq!(config.changes_requiring_restart(&Config::default()), ["quic.congestion"]);
        let error = refused("[quic]\nbbr = true\ncongestion = \"adaptive\"\n", &[]);
        assert!(error.contains("leave out bbr"), "{error}");
    }

    #[test]
    fn changes_that_require_a_restart_are_named() {
        let new = "[limits]\nmax_sessions = 5\n[auth]\nallow_anonymous = \"never\"\npassword_file = \"x\"\n\
                   [acl]\ndefault_allow = false\n";
        let changed = load(new, &[]).unwrap().changes_requiring_restart(&Config::default());
        assert_eq!(changed, ["auth.allow_anonymous", "limits.max_sessions"]);
        assert!(Config::default().changes_requiring_restart(&Config::default()).is_empty());
    }

    #[test]
    fn the_rules_in_the_example_are_valid() {
        let rules = EXAMPLE.find("# [[acl.rules]]").unwrap();
        let rules = EXAMPLE[rules..].split("\n\n").next().unwrap();
        let text: Vec<&str> = rules.lines().map(|line| line.trim_start_matches("# ")).collect();
        let config = load(&text.join("\n"), &[]).unwrap();
        assert!(!config.acl.rules.is_empty());
        config.access_control().unwrap();
    }

    #[test]
    fn the_gateway_in_the_example_is_valid() {
        let lines = EXAMPLE.lines().map(|line| match line.strip_prefix("# ") {
            Some(rule) if rule.starts_with('[') || rule.contains(" = ") => rule,
            _ => line,
        });
        let start = EXAMPLE.lines().position(|line| line == "[upstream]").unwrap();
        let section: Vec<&str> = lines.skip(start).take_while(|line| *line != "[log]").collect();
        let text = section.join("\n").replace("url = \"\"", "url = \"quic://broker.example\"");
        let config = load(&text, &[]).unwrap();
        assert!(!config.upstream.up.is_empty() && !config.upstream.down.is_empty());
        assert!(config.upstreams["cloud"].is_on());
    }

    #[test]
    #[cfg(feature = "sinks")]
    fn the_sink_in_the_example_is_valid_and_has_the_defaults() {
        let section = EXAMPLE.split("\n# [sinks.history]\n").nth(1).unwrap();
        let lines = section.lines().take_while(|line| !line.is_empty());
        let text: String = lines.map(|line| format!("{}\n", &line[2..])).collect();
        let mut config = load(&format!("[sinks.history]\n{text}"), &[]).unwrap();
        let sink = config.sinks.remove("history").unwrap();
        let keys = |sink: &Sink| serde_json::to_value(sink).unwrap();
        let (default, example) = (keys(&Sink::default()), keys(&sink));
        for (key, value) in default.as_object().unwrap() {
            let key_at = text.contains(&format!("{key} = ")) || text.contains(&format!(".{key}]"));
            assert!(key_at, "{key} is not in the example");
            let is_own = ["kind", "url", "filters", "time", "table", "columns"].contains(&&**key);
            assert!(is_own || example[key] == *value, "{key}");
        }
    }

    #[test]
    #[cfg(feature = "platform")]
    fn a_gateway_has_no_platform_unless_enabled() {
        let upstream =
            "[upstream]\nurl = \"quic://broker.example\"\n[[upstream.up]]\nfilter = \"#\"\n";
        let value = |word: &str| format!("[platform]\nenabled = {word}\n");
        for (text, expected) in [
            (String::new(), true),
            (value("false"), false),
            (value("\"auto\"") + upstream, false),
            (upstream.into(), false),
            (value("true") + upstream, true),
            (value("true") + "[listeners]\nhttps = []\n", false),
        ] {
            assert_eq!(load(&text, &[]).unwrap().has_platform(), expected, "{text}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let environment = [
            ("FULMAR_LIMITS__MAX_PACKET_BYTES", "4096"),
            ("FULMAR_LISTENERS__MQTT", r#"["127.0.0.1:0", "[::1]:0"]"#),
            ("FULMAR_SERVER__DATA_DIR", "/srv/fulmar"),
            ("FULMAR_PLATFORM__ENABLED", "false"),
            ("FULMAR_QUIC__EARLY_DATA", "false"),
            ("FULMAR_DATA", "/not/a/key"),
        ];
        let config =
            load("[limits]\nmax_packet_bytes = 1\nmax_sessions = 7\n", &environment).unwrap();
        assert_eq!(config.limits.max_packet_bytes, 4096);
        assert_eq!(config.limits.max_sessions, 7);
        assert_eq!(config.listeners.mqtt.len(), 2);
        assert_eq!(config.server.data_dir, Path::new("/srv/fulmar"));
        assert!(!config.quic.early_data && !config.has_platform());
    }

    #[test]
    fn a_list_of_one_needs_no_brackets_and_mosquittos_words_are_understood() {
        let text = "[listeners]\nmqtt = \"0.0.0.0:0\"\nws = \"\"\n[tls]\nnames = \"a.example\"\n\
                    [auth]\nallow_anonymous = true\n";
        let config = load(text, &[("FULMAR_LISTENERS__QUIC", "127.0.0.1:0")]).unwrap();
        let Listeners { mqtt, ws, quic, .. } = &config.listeners;
        assert_eq!((mqtt.len(), ws.len(), quic[0].port()), (1, 0, 0));
        assert_eq!(config.tls.names, ["a.example"]);
        assert_eq!(config.auth.allow_anonymous, sections::Anonymous::Always);
        let text = "[auth]\nallow_anonymous = false\npassword_file = \"passwords\"\n";
        let never = load(text, &[]).unwrap();
        assert_eq!(never.auth.allow_anonymous, sections::Anonymous::Never);
    }

    #[test]
    fn errors_name_the_place_and_what_is_allowed() {
        let cases: [(&str, &[&str]); 8] = [
            (
                "[limits]\nmax_packet_byte = 5\n",
                &["fulmar.toml:2:1", "did you mean `max_packet_bytes`?"],
            ),
            ("[limit]\n", &["fulmar.toml:1:2", "did you mean `limits`?"]),
            (
                "[quic]\nidle_timeout_s = \"long\"\n",
                &["fulmar.toml:2:", "idle_timeout_s = \"long\"", "0 to 4294967295"],
            ),
            ("[limits]\nreceive_maximum = 100000\n", &["fulmar.toml:2:", "0 to 65535"]),
            ("[limits]\ndrop_policy = \"any\"\n", &["known here: oldest, newest, disconnect"]),
            ("[platform]\nenabled = 1\n", &["fulmar.toml:2:", "expected true, false or \"auto\""]),
            ("[server]\nworkers = \n", &["fulmar.toml:2:"]),
            ("[[acl.rules]]\nallow = true\n", &["fulmar.toml:1:", "missing key `topic`"]),
        ];
        for (text, parts) in cases {
            let error = refused(text, &[]);
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in: {error}");
            }
        }
    }

    #[test]
    fn the_environment_sets_a_key_of_a_section_that_ends_with_tables() {
        let file = "[[upstream.up]]\nfilter = \"a/#\"\n[[upstream.down]]\nfilter = \"b/#\"\n";
        let environment =
            [("FULMAR_UPSTREAM__URL", "quic://broker.example"), ("FULMAR_UPSTREAM__NAME", "north")];
        let config = load(file, &environment).unwrap();
        assert_eq!(config.upstream.name, "north");
        assert_eq!((config.upstream.up.len(), config.upstream.down.len()), (1, 1));
    }

    #[test]
    fn errors_of_the_environment_name_the_variable() {
        for (variable, value, part) in [
            ("FULMAR_QUIC__RETRY", "sometimes", "known here: auto, always, never"),
            ("FULMAR_LIMITS__RECEIVE_MAX", "5", "did you mean `receive_maximum`?"),
            ("FULMAR_LISTENERS__MQTT", "localhost:1883", "not an ADDRESS:PORT"),
            ("FULMAR_TLS__NAMES", "[7]", "expected a string"),
            ("FULMAR_AUTH__ALLOW_ANONYMOUS", "nver", "did you mean `never`?"),
        ] {
            let error = refused("", &[(variable, value)]);
            assert!(error.contains(variable) && error.contains(part), "{error}");
        }
    }

    #[test]
    fn secrets_in_a_world_readable_file_are_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fulmar.toml");
        for (text, mode, expected) in [
            ("[upstream]\npassword = \"x\"\n", 0o644, &["[upstream] password"][..]),
            ("[upstreams.a]\npassword = \"x\"\n", 0o644, &["[upstreams.a] password"]),
            ("[upstream]\npassword = \"x\"\n", 0o640, &[]),
            ("[platform]\ndatabase = \"postgres://u:p@db/f\"\n", 0o644, &["[platform] database"]),
            ("[platform]\ndatabase = \"postgres://u@db/f\"\n", 0o644, &[]),
            ("[limits]\nmax_sessions = 5\n", 0o644, &[]),
        ] {
            // In a build without the platform, the file is refused earlier.
            if features::missing().any(|section| text.starts_with(&format!("[{section}]"))) {
                continue;
            }
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Config::world_readable_secrets(&path), expected, "{mode:o} {text}");
        }
    }

    #[test]
    fn text_is_read_like_a_file_and_without_the_environment() {
        let config = Config::from_toml("[limits]\nmax_sessions = 7\n").unwrap();
        assert_eq!(config.limits.max_sessions, 7);
        assert_eq!(Config::from_toml("").unwrap(), Config::default());
        let error = Config::from_toml("[limits]\nmax_session = 7\n").unwrap_err();
        let text = error.downcast_ref::<fulmar_text::Usage>().unwrap().to_string();
        assert!(text.starts_with("2:1: ") && text.contains("max_sessions"), "{text}");
        let error = Config::from_toml("[quic]\nidle_timeout_s = 0\n").unwrap_err();
        assert!(error.to_string().starts_with("[quic] idle_timeout_s = 0: must be"), "{error}");
    }

    #[test]
    fn debug_output_has_no_password() {
        let text = "[upstream]\nurl = \"quic://h\"\npassword = \"secret\"\n[[upstream.up]]\nfilter = \"#\"\n";
        let shown = format!("{:?}", Config::from_toml(text).unwrap());
        assert!(shown.contains("quic://h") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load_with(Some(Path::new("/none.toml")), std::iter::empty());
        assert!(error.unwrap_err().to_string().contains("/none.toml"));
    }

    #[test]
    fn a_small_budget_lowers_the_limits_of_its_parts_but_one_packet_fits() {
        let config = Config::from_toml("[limits]\nmemory = \"64MB\"\n").unwrap();
        let parts = config.memory();
        let incomplete = config.limits.transport(parts, 4).max_partial_bytes_per_worker;
        assert!(incomplete > config.limits.max_packet_bytes, "{incomplete}");
        assert!(incomplete < 2_000_000, "{incomplete}");
        assert_eq!(config.buffered_bodies(), config.http.max_body_bytes);
        let limits = config.limits.broker(&config.storage, parts, 4);
        assert_eq!(limits.max_retained_bytes, 6_400_000);
        assert_eq!(limits.max_cached_route_bytes, 1 << 20);
    }

    #[test]
    fn a_variable_with_one_underscore_too_few_is_an_error() {
        let load = |name: &str, value: &str| {
            Config::load_with(None, [(name.to_owned(), value.to_owned())].into_iter())
        };
        for (name, value, meant) in [
            ("FULMAR_LISTENERS_MQTT", "[\"127.0.0.1:2883\"]", "FULMAR_LISTENERS__MQTT"),
            ("FULMAR_SERVER_DATA_DIR", "/x", "FULMAR_SERVER__DATA_DIR"),
        ] {
            let error = load(name, value).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(meant), "{error}");
        }
        for (name, value) in [("FULMAR_LOG", "debug"), ("FULMAR_LAB_SAMPLE", "x"), ("FULMAR_", "")]
        {
            assert!(load(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn workers_share_what_may_be_remembered_of_receivers() {
        let config = Config::from_toml("[limits]\nmemory = \"1GB\"\n").unwrap();
        let of = |workers| {
            let limits = config.limits.broker(&config.storage, config.memory(), workers);
            workers * limits.max_cached_route_bytes
        };
        assert_eq!((of(2), of(16)), (40_000_000, 40_000_000));
    }
}

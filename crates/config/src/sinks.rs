//! `[sinks.NAME]`: databases and services that get messages, and the mapping from a message to a row or record.
//!
//! `fulmar.example.toml` and `docs/sinks.md` explain the keys; `crates/sink` does the work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmar_certs::files;
use fulmar_mqtt::topic::check_filter;
use fulmar_text::{Usage, words};
use serde::{Deserialize, Serialize};

use super::document::Config;
use super::range::Ranges as _;
use super::section::sections;
use super::sections::{Secret, set};
use super::upstreams::is_section_name;

/// Sinks of one server. Each has a session and a thread.
const MAX_SINKS: usize = 16;
/// Columns or fields of one sink.
const MAX_FIELDS: usize = 256;
/// Longest name of a table, column, field or tag in bytes: PostgreSQL's.
const MAX_NAME_BYTES: usize = 63;

sections! {
    /// A target, and which messages it gets in which form.
    pub struct Sink {
        pub kind: Option<SinkKind> = None,
        /// Address of the target; for PostgreSQL it may contain the password.
        pub url: Secret = Secret::default(),
        pub password_file: PathBuf = PathBuf::new(),
        pub token_file: PathBuf = PathBuf::new(),
        pub secret_file: PathBuf = PathBuf::new(),
        pub ca_file: PathBuf = PathBuf::new(),
        pub filters: Vec<String> = Vec::new(),
        pub payload: Payload = Payload::Json,
        /// Time of a message; that of its arrival, if none.
        pub time: Option<Origin> = None,
        pub table: String = String::new(),
        #[serde(alias = "fields")]
        pub columns: BTreeMap<String, SinkField> = BTreeMap::new(),
        pub measurement: Option<Origin> = None,
        pub tags: BTreeMap<String, Origin> = BTreeMap::new(),
        pub batch_messages: usize = 1000 => 1..=u16::MAX as usize,
        pub batch_interval_ms: u32 = 100 => 0..=60_000,
        pub dead_letter_max_bytes: u64 = 16 << 20 => 65_536..=1 << 40,
    }
}

/// Protocol of a target.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    Postgres,
    Influx,
    Http,
}

/// Form of payloads.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    Json,
    Number,
    Text,
    Bytes,
}

/// A column of a table, or a field of a record.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SinkField {
    pub from: Origin,
    pub r#type: FieldType,
    /// Whether a message without it is a dead letter.
    #[serde(default)]
    pub required: bool,
}

/// Type of a column or field.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    Number,
    Integer,
    Boolean,
    Text,
    Time,
    Json,
    Bytes,
}

/// Origin of a value within a message.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String")]
pub enum Origin {
    Id,
    At,
    Topic,
    Payload,
    /// Level of the topic, from 1.
    Level(usize),
    /// JSON pointer (RFC 6901).
    Pointer(String),
    Constant(String),
}

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Origin, String> {
        let level = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let level = level.and_then(|number| number.parse().ok()).filter(|number| *number > 0);
        Ok(match &*text {
            "id" => Origin::Id,
            "at" => Origin::At,
            "topic" => Origin::Topic,
            "payload" => Origin::Payload,
            _ if text.starts_with('/') => Origin::Pointer(text),
            _ if text.starts_with('=') => Origin::Constant(text[1..].to_owned()),
            _ => Origin::Level(level.ok_or_else(|| {
                let unknown = words::no_such("origin", &text, &["id", "at", "topic", "payload"]);
                format!(
                    "{unknown}; a JSON pointer begins with /, a topic level is {{1}}, {{2}} and so on, a constant \
                     begins with ="
                )
            })?),
        })
    }
}

impl Sink {
    /// Reads the password of PostgreSQL, the token of a service, or the secret that signs requests; `None` without that
    /// file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_secret(file: &Path) -> Result<Option<String>, fulmar_certs::CertError> {
        set(file).map(files::read_secret_line).transpose()
    }

    /// Returns the keys that name files, with their values.
    pub fn files(&self, name: &str) -> [(String, &Path); 4] {
        [
            ("password_file", &self.password_file),
            ("token_file", &self.token_file),
            ("secret_file", &self.secret_file),
            ("ca_file", &self.ca_file),
        ]
        .map(|(key, path)| (format!("[sinks.{name}] {key}"), path.as_path()))
    }

    fn origins(&self) -> impl Iterator<Item = &Origin> {
        let fields = self.columns.values().map(|field| &field.from);
        fields.chain(self.tags.values()).chain(&self.measurement).chain(&self.time)
    }

    fn check(&self) -> Result<(), String> {
        let kind = self.kind.ok_or("kind is missing: \"postgres\", \"influx\" or \"http\"")?;
        let is_set = |path: &Path| set(path).is_some();
        if self.filters.is_empty() {
            return Err("filters is missing: the topic filters of its messages".to_owned());
        }
        let wrong = self.filters.iter().find(|filter| check_filter(filter).is_err());
        if let Some(filter) = wrong.or(self.filters.iter().find(|text| text.starts_with('$'))) {
            return Err(format!("filters: {filter:?} is not a topic filter of clients' messages"));
        }
        let keys = [
            ("password_file", is_set(&self.password_file), SinkKind::Postgres),
            ("table", !self.table.is_empty(), SinkKind::Postgres),
            ("measurement", self.measurement.is_some(), SinkKind::Influx),
            ("tags", !self.tags.is_empty(), SinkKind::Influx),
            ("secret_file", is_set(&self.secret_file), SinkKind::Http),
        ];
        if let Some((key, ..)) = keys.iter().find(|(_, is_set, of)| *is_set && *of != kind) {
            return Err(format!("{key} has no meaning for this kind: leave it out"));
        }
        self.check_target(kind)?;
        self.check_mapping(kind)
    }

    fn check_target(&self, kind: SinkKind) -> Result<(), String> {
        // The URL is not repeated: it may contain a secret.
        if kind == SinkKind::Postgres {
            if !self.url.0.starts_with("postgres://") && !self.url.0.starts_with("postgresql://") {
                return Err("url: write postgres://USER@HOST/DATABASE".to_owned());
            }
            let (_, rest) = self.url.0.split_once("://").unwrap_or_default();
            let (authority, path) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
            if !authority.contains('@') || path.split('?').next().is_none_or(str::is_empty) {
                return Err("url: write postgres://USER@HOST/DATABASE".to_owned());
            }
            let parts: Vec<&str> = self.table.split('.').collect();
            if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
                return Err("table: write TABLE or SCHEMA.TABLE".to_owned());
            }
            return Ok(());
        }
        let url = self.url.0.parse::<http::Uri>().ok();
        let scheme = url.as_ref().and_then(http::Uri::scheme_str);
        if !matches!(scheme, Some("http" | "https")) || url.is_none_or(|url| url.host().is_none()) {
            return Err("url: write http://HOST/PATH or https://HOST/PATH".to_owned());
        }
        Ok(())
    }

    fn check_mapping(&self, kind: SinkKind) -> Result<(), String> {
        if self.columns.len() > MAX_FIELDS || self.tags.len() > MAX_FIELDS {
            return Err(format!("{MAX_FIELDS} columns, fields and tags at most"));
        }
        let mut names = self.columns.keys().chain(self.tags.keys());
        if let Some(name) = names.find(|name| !is_name(name)) {
            return Err(format!("{name:?} is not a name: 1 to {MAX_NAME_BYTES} bytes of text"));
        }
        let own = ["id", "at", "topic"];
        let own = own.iter().find(|name| self.columns.contains_key(**name));
        if let (Some(name), true) = (own, kind != SinkKind::Influx) {
            return Err(format!("{name} is there without a mapping: leave it out"));
        }
        if kind == SinkKind::Influx && self.measurement.is_none() {
            return Err("measurement is missing, such as \"=climate\" or \"{2}\"".to_owned());
        }
        let has_json = self.payload == Payload::Json;
        if kind == SinkKind::Influx && self.columns.is_empty() && has_json {
            return Err("fields is missing: which of the payload's values are written".to_owned());
        }
        let is_pointer = |origin: &Origin| matches!(origin, Origin::Pointer(_));
        if !has_json && self.origins().any(is_pointer) {
            return Err("a JSON pointer needs payload = \"json\"".to_owned());
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.contains(char::is_control)
}

/// Checks all sinks.
pub(crate) fn check(config: &Config) -> Result<(), Usage> {
    let sinks = &config.sinks;
    if sinks.len() > MAX_SINKS {
        return Err(Usage(format!("[sinks]: {} sinks; {MAX_SINKS} at most", sinks.len())));
    }
    if !sinks.is_empty() && !config.storage.enabled {
        let text = "[sinks] need [storage] enabled = true, which keeps what waits for them";
        return Err(Usage(text.to_owned()));
    }
    for (name, sink) in sinks {
        let section = format!("sinks.{name}");
        if !is_section_name(name) {
            let text = "1 to 32 lower-case letters, digits, - and _ name a sink";
            return Err(Usage(format!("[{section}]: {text}")));
        }
        sink.check().map_err(|error| Usage(format!("[{section}] {error}")))?;
        sink.check_ranges(&section)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[cfg(feature = "sinks")]
    use super::*;

    #[cfg(feature = "sinks")]
    const GOOD: &str = "[sinks.a]\nkind = \"postgres\"\nurl = \"postgres://u@h/d\"\ntable = \"t\"\nfilters = \"a/#\"\n";

    #[test]
    #[cfg(feature = "sinks")]
    fn mistakes_are_named_with_their_place_and_the_next_step() {
        let table = |text: &str| format!("{GOOD}[sinks.a.columns]\n{text}\n");
        Config::from_toml(&table("x = { from = \"/a/b\", type = \"number\" }")).unwrap();
        let influx = GOOD.replace("postgres\"", "influx\"");
        for (text, part) in [
            (
                GOOD.replace("filters", "filter"),
                "5:1: unknown key `filter`; did you mean `filters`?",
            ),
            (GOOD.replace("\"postgres\"", "\"postgre\""), "did you mean `postgres`?"),
            (table("x = { from = \"topik\", type = \"text\" }"), "did you mean `topic`?"),
            (table("x = { from = \"topik\", type = \"text\" }"), "7:"),
            (table("x = { from = \"{0}\", type = \"text\" }"), "unknown origin `{0}`"),
            (table("x = { from = \"/a\", type = \"float\" }"), "known here: number"),
            (table("x = { from = \"/a\" }"), "missing key `type`"),
            (table("id = { from = \"/a\", type = \"text\" }"), "[sinks.a] id is there"),
            (GOOD.replace("\"t\"", "\"a.b.c\""), "[sinks.a] table: write"),
            (GOOD.replace("a/#", "a/#/b"), "\"a/#/b\" is not a topic filter"),
            (GOOD.replace("postgres://u@h/d", "mysql://u:geheim@h"), "write postgres://"),
            (GOOD.replace("sinks.a", "sinks.A"), "[sinks.A]: 1 to 32"),
            (format!("{GOOD}payload = \"text\"\ntime = \"/t\"\n"), "needs payload = \"json\""),
            (format!("{GOOD}measurement = \"=m\"\n"), "measurement has no meaning"),
            (format!("{GOOD}batch_messages = 0\n"), "[sinks.a] batch_messages = 0: must be from 1"),
            (influx.clone(), "table has no meaning"),
            (influx.replace("table = \"t\"\n", ""), "url: write http"),
            (format!("{GOOD}[storage]\nenabled = false\n"), "need [storage] enabled"),
        ] {
            let error = Config::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("geheim"), "{part:?} not in: {error}");
        }
    }
}

//! The files: `fulmar.toml` with comments, and those with secrets.

use std::fmt::Write as _;
use std::path::Path;

use fulmar_gateway::mapping::Rule;

use super::Output;
use super::access::{self, Rules, Who};
use super::bridges::{Upstream, quoted};
use super::listeners::{Anonymous, ClientAuth, Listeners};
use super::report::{Report, plain};
use super::settings::Setting;
use super::users::Users;

const PASSWORDS: &str = "passwords";

/// Listeners that mosquitto has no counterpart of, or that it has not opened.
const KEYS: [&str; 11] = [
    "mqtt",
    "mqtts",
    "ws",
    "wss",
    "quic",
    "https",
    "webtransport",
    "http",
    "coap",
    "coaps",
    "mqtt_sn",
];

/// Sections from which the files are made.
pub(super) struct Parts<'a> {
    pub(super) path: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) listeners: Listeners,
    pub(super) users: Users,
    pub(super) rules: Rules,
    pub(super) bridges: Vec<Upstream>,
    pub(super) settings: Vec<Setting>,
}

impl Parts<'_> {
    pub(super) fn files(&self, report: &Report) -> Vec<Output> {
        let mut text = String::new();
        self.head(&mut text, report);
        self.section(&mut text, "server", &[]);
        self.listeners(&mut text);
        self.tls(&mut text);
        self.section(&mut text, "limits", &self.limits());
        self.auth(&mut text);
        self.acl(&mut text);
        for section in ["storage", "sys", "log"] {
            self.section(&mut text, section, &[]);
        }
        for upstream in &self.bridges {
            write_upstream(&mut text, upstream);
        }
        let mut files =
            vec![Output { name: "fulmar.toml".to_owned(), contents: text, secret: true }];
        if self.has_password_file() {
            let line = |(user, hash)| format!("{user}:{hash}\n");
            let contents = self.users.hashes.iter().map(line).collect();
            files.push(Output { name: PASSWORDS.to_owned(), contents, secret: true });
        }
        for (name, contents) in self.bridges.iter().filter_map(|upstream| upstream.password.clone())
        {
            files.push(Output { name, contents, secret: true });
        }
        files
    }

    /// An empty one lets nobody in, as mosquitto does; without one, the server would not start.
    fn has_password_file(&self) -> bool {
        !self.users.hashes.is_empty() || self.listeners.anonymous != Anonymous::Always
    }

    fn head(&self, text: &mut String, report: &Report) {
        comment(text, &format!("Made by `fulmar import mosquitto {}`.", self.path.display()));
        comment(text, "All keys, with their defaults: docs/reference/settings.md.");
        if !report.notes().is_empty() {
            text.push_str("#\n");
            comment(text, "What was not translated, or works differently:");
        }
        for note in report.notes() {
            comment(text, &format!("  {note}"));
        }
    }

    /// The settings of a section, and `more`.
    fn section(&self, text: &mut String, section: &str, more: &[(&str, String, String)]) {
        let own = self.settings.iter().filter(|setting| setting.section == section);
        let own = own.map(|one| (one.key, one.value.clone(), one.from.clone()));
        let all: Vec<_> = own.chain(more.iter().cloned()).collect();
        if all.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n[{section}]");
        for (key, value, from) in all {
            let _ = writeln!(text, "{key} = {value}  # {}", plain(&from));
        }
    }

    fn limits(&self) -> Vec<(&'static str, String, String)> {
        let mut limits = Vec::new();
        if let Some(number) = self.listeners.max_connections {
            limits.push(("max_connections", number.to_string(), "over all listeners".to_owned()));
        }
        if let Some(number) = &self.listeners.max_topic_alias {
            let number = number.to_string();
            limits.push(("topic_alias_maximum", number, "max_topic_alias".to_owned()));
        }
        limits
    }

    fn listeners(&self, text: &mut String) {
        text.push_str("\n[listeners]\n");
        comment(text, "Fulmar has more, which mosquitto has not: write addresses to open them.");
        for key in KEYS {
            let here = self.listeners.addresses.iter().filter(|(of, _)| *of == key);
            let here: Vec<String> = here.map(|(_, address)| format!("\"{address}\"")).collect();
            let example = match key {
                "quic" => "  # [\"0.0.0.0:14567\"]: MQTT over QUIC",
                "http" => "  # [\"127.0.0.1:14568\"]: /metrics, /health/ready and /health/upstream",
                _ => "",
            };
            let example = if here.is_empty() { example } else { "" };
            let _ = writeln!(text, "{key} = [{}]{example}", here.join(", "));
        }
    }

    fn tls(&self, text: &mut String) {
        let Some(tls) = &self.listeners.tls else { return };
        text.push_str("\n[tls]\n");
        let path = |path: &Path| quoted(&path.to_string_lossy());
        let _ = writeln!(text, "cert = {}\nkey = {}", path(&tls.cert), path(&tls.key));
        if let Some(ca) = &tls.client_ca {
            let auth = match tls.client_auth {
                ClientAuth::Off => "off",
                ClientAuth::Optional => "optional",
                ClientAuth::Required => "required",
            };
            let _ = writeln!(text, "client_ca = {}\nclient_auth = \"{auth}\"", path(ca));
        }
    }

    fn auth(&self, text: &mut String) {
        let anonymous = match self.listeners.anonymous {
            Anonymous::Always => "always",
            Anonymous::Loopback => "loopback",
            Anonymous::Never => "never",
        };
        let _ = writeln!(text, "\n[auth]\nallow_anonymous = \"{anonymous}\"");
        if self.has_password_file() {
            comment(
                text,
                "mosquitto's hashes. After a user's first login, the server uses an argon2 hash, which it",
            );
            comment(
                text,
                "keeps in its data folder. `fulmar passwd USER --file FILE` changes a password.",
            );
            let path = self.folder.join(PASSWORDS);
            let _ = writeln!(text, "password_file = {}", quoted(&path.to_string_lossy()));
        }
    }

    fn acl(&self, text: &mut String) {
        let Rules { list, default_allow } = &self.rules;
        let _ = writeln!(text, "\n[acl]\ndefault_allow = {default_allow}");
        if list.is_empty() {
            return;
        }
        comment(
            text,
            "The first rule that matches decides. Each ends with where it comes from: a line of the ACL",
        );
        comment(text, "file, or a role of the dynamic security file.");
        text.push_str("rules = [\n");
        for rule in list {
            write_rule(text, rule);
        }
        text.push_str("]\n");
    }
}

fn write_rule(text: &mut String, rule: &access::Rule) {
    let who = match &rule.who {
        Who::Anyone => String::new(),
        Who::Anonymous => "anonymous = true, ".to_owned(),
        Who::User(name) => format!("user = {}, ", quoted(name)),
    };
    let exact = if rule.exact { ", exact = true" } else { "" };
    let (allow, action, topic) = (rule.allow, rule.action, quoted(&rule.topic));
    let from = plain(&rule.from);
    let _ = writeln!(
        text,
        "  {{ allow = {allow}, {who}action = \"{action}\", topic = {topic}{exact} }},  # {from}"
    );
}

fn write_upstream(text: &mut String, upstream: &Upstream) {
    let mut own = String::new();
    let section = &upstream.section;
    let _ = writeln!(own, "[{section}]");
    for (key, value) in &upstream.keys {
        let _ = writeln!(own, "{key} = {value}");
    }
    let _ = writeln!(own, "version = \"{}\"", upstream.version());
    for (way, rules) in [("up", &upstream.up), ("down", &upstream.down)] {
        for Rule { filter, from_prefix, to_prefix, qos, .. } in rules {
            let _ = writeln!(own, "\n[[{section}.{way}]]\nfilter = {}", quoted(filter));
            for (key, prefix) in [("from_prefix", from_prefix), ("to_prefix", to_prefix)] {
                if !prefix.is_empty() {
                    let _ = writeln!(own, "{key} = {}", quoted(prefix));
                }
            }
            let _ = writeln!(own, "qos = {}", *qos as u8);
        }
    }
    text.push('\n');
    comment(text, &format!("Bridge {:?}.", upstream.bridge));
    match upstream.off {
        None => text.push_str(&own),
        Some(why) => {
            comment(text, &format!("Not used: {why}."));
            own.lines().for_each(|line| comment(text, line));
        }
    }
}

fn comment(text: &mut String, line: &str) {
    let line = format!("# {}", plain(line));
    text.push_str(line.trim_end());
    text.push('\n');
}

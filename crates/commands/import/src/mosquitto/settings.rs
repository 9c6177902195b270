//! Limits, persistence and log.

use super::conf::{Conf, Line, first_word};
use super::report::{Error, Report};

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) section: &'static str,
    pub(super) key: &'static str,
    /// Value as in TOML.
    pub(super) value: String,
    /// The line that it comes from.
    pub(super) from: String,
}

/// Where Debian's package of mosquitto has its data; ours uses the folder beside it.
const DATA: &str = "/var/lib/fulmar";

/// Messages for a session, where mosquitto has no limit.
const UNLIMITED_MESSAGES: u64 = 10_000_000;

/// Beside a payload, a PUBLISH packet has its header, topic and properties.
const OVERHEAD_BYTES: u64 = 4096;

/// The longest time that a session can outlive its connection, short of for ever.
const MAX_EXPIRY_S: u64 = 4_294_967_294;

pub(super) fn translate(
    conf: &Conf,
    has_bridges: bool,
    report: &mut Report,
) -> Result<Vec<Setting>, Error> {
    let mut all = Vec::new();
    let mut set = |line: &Line, section, key, value: String| {
        let from = format!("{} {}", line.name, line.value);
        all.push(Setting { section, key, value, from });
    };
    let number = |line: &Line| first_word(&line.value).parse::<u64>().unwrap_or_default();
    if let Some(line) = conf.global.get("max_inflight_messages") {
        let value = if number(line) == 0 { 65535 } else { number(line) };
        set(line, "limits", "max_in_flight", value.to_string());
    }
    if let Some(line) = conf.global.get("max_queued_messages") {
        let value = if number(line) == 0 { UNLIMITED_MESSAGES } else { number(line) };
        set(line, "limits", "max_queued_messages", value.to_string());
    }
    if let Some(line) = conf.global.get("max_queued_bytes").filter(|line| number(line) > 0) {
        set(line, "limits", "max_queued_bytes", number(line).to_string());
    }
    let packet = conf.global.get("max_packet_size");
    let payload = conf.global.get("message_size_limit").filter(|line| number(line) > 0);
    match (packet, payload) {
        (Some(line), _) => {
            set(line, "limits", "max_packet_bytes", number(line).max(64).to_string())
        }
        (None, Some(line)) => {
            let value = (number(line) + OVERHEAD_BYTES).min(268_435_460);
            set(line, "limits", "max_packet_bytes", value.to_string());
        }
        (None, None) => {
            let text = "mosquitto accepts messages of up to 256 MB, Fulmar packets of up to 1 MiB: set [limits] \
                        max_packet_bytes if clients send larger ones";
            report.differs(&conf.place, "message_size_limit", text);
        }
    }
    if let Some(line) = conf.global.get("max_keepalive") {
        set(line, "limits", "max_keep_alive_s", number(line).to_string());
    }
    match conf.global.get("persistent_client_expiration") {
        Some(line) => set(line, "limits", "max_session_expiry_s", expiry_s(line)?.to_string()),
        None => {
            let text = "mosquitto keeps sessions of disconnected clients for ever, Fulmar for a week: set [limits] \
                        max_session_expiry_s if clients are away for longer";
            report.differs(&conf.place, "persistent_client_expiration", text);
        }
    }
    if let Some(line) = conf.global.get("retain_available").filter(|line| !line.is_true()) {
        set(line, "limits", "max_retained_messages", "0".to_owned());
        let text = "retained messages are delivered and not retained; CONNACK does not announce it";
        report.differs(&line.place, "retain_available", text);
    }
    if let Some(line) = conf.global.get("sys_interval") {
        set(line, "sys", "interval_s", number(line).to_string());
    }
    for setting in [persistence(conf, has_bridges, report), data(conf, report), log(conf)] {
        all.extend(setting);
    }
    Ok(all)
}

/// A number with `h`, `d`, `w`, `m` or `y`.
fn expiry_s(line: &Line) -> Result<u64, Error> {
    let word = first_word(&line.value);
    let seconds = word.char_indices().next_back().and_then(|(at, unit)| {
        let hours = match unit {
            'h' => 1,
            'd' => 24,
            'w' => 7 * 24,
            'm' => 30 * 24,
            'y' => 365 * 24,
            _ => return None,
        };
        let number: u64 = word[..at].parse().ok().filter(|number| *number > 0)?;
        Some(number.saturating_mul(hours * 3600).min(MAX_EXPIRY_S))
    });
    seconds.ok_or_else(|| {
        let text =
            format!("persistent_client_expiration {word:?}: expected a number and h, d, w, m or y");
        Error::malformed(&line.place, text)
    })
}

fn persistence(conf: &Conf, has_bridges: bool, report: &mut Report) -> Option<Setting> {
    let line = conf.global.get("persistence").filter(|line| !line.is_true())?;
    if has_bridges {
        let text = "sessions and retained messages are on disk, because [upstream] needs that";
        report.differs(&line.place, "persistence", text);
        return None;
    }
    let (value, from) = ("false".to_owned(), "persistence false".to_owned());
    Some(Setting { section: "storage", key: "enabled", value, from })
}

fn data(conf: &Conf, report: &mut Report) -> Option<Setting> {
    let line = conf.global.get("persistence_location")?;
    let text = format!(
        "Fulmar's data are in {DATA}; mosquitto.db is not read: clients subscribe again when they connect, and \
         retained messages have to be published again"
    );
    report.differs(&line.place, "persistence_location", text);
    let from = format!("persistence_location {}", line.value);
    Some(Setting { section: "server", key: "data_dir", value: format!("{DATA:?}"), from })
}

fn log(conf: &Conf) -> Option<Setting> {
    let types: Vec<&str> =
        conf.global.lines_named("log_type").map(|line| first_word(&line.value)).collect();
    let level = |names: &[&str]| types.iter().any(|given| names.contains(given));
    let level = match () {
        () if types.is_empty() || level(&["none"]) => return None,
        () if level(&["all", "debug"]) => "debug",
        () if level(&["information", "notice", "subscribe", "unsubscribe", "websockets"]) => "info",
        () if level(&["warning"]) => "warn",
        () => "error",
    };
    let from = format!("log_type {}", types.join(", "));
    Some(Setting { section: "log", key: "level", value: format!("{level:?}"), from })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::super::files::tests::Memory;
    use super::*;

    fn run(text: &str, bridges: bool) -> Result<(Vec<String>, String), String> {
        let mut report = Report::default();
        let files = Memory::new(&[("m.conf", text)]);
        let conf = Conf::read(&files, Path::new("m.conf"), &mut report).unwrap();
        let all = translate(&conf, bridges, &mut report).map_err(|error| error.to_string())?;
        let line = |one: &Setting| format!("{}.{} = {}", one.section, one.key, one.value);
        Ok((all.iter().map(line).collect(), report.to_string()))
    }

    #[test]
    fn limits_are_translated() {
        let text = "max_inflight_messages 0\nmax_queued_messages 500\nmax_queued_bytes 0\nmessage_size_limit 1000\n\
                    max_keepalive 600\npersistent_client_expiration 2w\nretain_available false\nsys_interval 0\n";
        let (all, report) = run(text, false).unwrap();
        assert_eq!(
            all,
            [
                "limits.max_in_flight = 65535",
                "limits.max_queued_messages = 500",
                "limits.max_packet_bytes = 5096",
                "limits.max_keep_alive_s = 600",
                "limits.max_session_expiry_s = 1209600",
                "limits.max_retained_messages = 0",
                "sys.interval_s = 0",
            ]
        );
        assert!(report.starts_with("m.conf:7: retain_available: differs"), "{report}");
        let (_, report) = run("", false).unwrap();
        assert!(report.contains("m.conf: message_size_limit: differs"), "{report}");
        for wrong in ["5", "x", "0d", "d", "5é"] {
            let error = run(&format!("persistent_client_expiration {wrong}"), false).unwrap_err();
            assert!(error.starts_with("m.conf:1: persistent_client_expiration"), "{error}");
        }
    }

    #[test]
    fn persistence_and_log() {
        let text = "persistence false\npersistence_location /var/lib/mosquitto/\nlog_type warning\nlog_type error\n";
        let (all, report) = run(text, false).unwrap();
        assert_eq!(
            all,
            [
                "storage.enabled = false",
                "server.data_dir = \"/var/lib/fulmar\"",
                "log.level = \"warn\""
            ]
        );
        assert!(report.contains("m.conf:2: persistence_location: differs"), "{report}");
        let (all, report) = run("persistence false\n", true).unwrap();
        assert!(all.is_empty() && report.contains("m.conf:1: persistence: differs"), "{report}");
    }
}

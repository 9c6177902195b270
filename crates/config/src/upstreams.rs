//! All upstream brokers: `[upstream]`, and `[upstreams.NAME]` for further ones; what is checked between them.

use std::collections::BTreeMap;

use fulmar_gateway::mapping;
use fulmar_mqtt::Version;

use super::document::Config;
use super::upstream::Upstream;
use fulmar_text::Usage;

/// Upstream brokers of one gateway. Each has an outbox and two threads.
const MAX_UPSTREAMS: usize = 16;

impl Config {
    /// All sections of upstream brokers: `[upstream]`, which may have none, then the others by their names.
    pub fn upstreams(&self) -> impl Iterator<Item = &Upstream> + Clone {
        [&self.upstream].into_iter().chain(self.upstreams.values())
    }

    /// Whether there is an upstream broker.
    pub fn is_gateway(&self) -> bool {
        self.upstreams().any(Upstream::is_on)
    }

    /// Gives the sections their names, for errors and metrics.
    pub fn label_upstreams(&mut self) {
        for (name, upstream) in &mut self.upstreams {
            upstream.label = Some(name.clone());
        }
    }

    /// Checks each upstream broker, and what they must not have in common.
    ///
    /// # Errors
    /// A value is invalid; the error has its key and the allowed values.
    pub fn check_upstreams(&self) -> Result<(), Usage> {
        if let Some(name) = self.upstreams.keys().find(|name| !is_section_name(name)) {
            let text = "1 to 32 lower-case letters, digits, - and _ name an upstream broker";
            return Err(Usage(format!("[upstreams.{name}]: {text}")));
        }
        self.upstreams().try_for_each(Upstream::check)?;
        let largest =
            self.limits.max_packet_bytes as u64 + fulmar_gateway::outbox::ROW_BYTES as u64;
        self.upstreams().try_for_each(|upstream| upstream.check_room_for(largest))?;
        let on: Vec<&Upstream> = self.upstreams().filter(|upstream| upstream.is_on()).collect();
        if on.len() > MAX_UPSTREAMS {
            let text =
                format!("[upstreams]: {} upstream brokers; {MAX_UPSTREAMS} at most", on.len());
            return Err(Usage(text));
        }
        differ(&on, "name", |upstream| upstream.name.clone(), "loops are detected by it")?;
        let file = |upstream: &Upstream| upstream.outbox.dead_letter_file.display().to_string();
        differ(&on, "outbox: dead_letter_file", file, "each writes and renames its own")?;
        let pairs = on.iter().flat_map(|one| on.iter().map(move |other| (*one, *other)));
        pairs.filter(|(one, other)| !std::ptr::eq(*one, *other)).try_for_each(no_endless_loop)
    }
}

/// Refuses a value, unless it is empty, that two of them have.
fn differ(
    upstreams: &[&Upstream],
    key: &str,
    value: impl Fn(&Upstream) -> String,
    why: &str,
) -> Result<(), Usage> {
    let mut known = BTreeMap::new();
    for upstream in upstreams {
        let (value, section) = (value(upstream), upstream.section());
        if value.is_empty() {
            continue;
        }
        if let Some(other) = known.get(&value) {
            let text = format!("[{section}] {key} = {value:?} is also that of [{other}]: {why}");
            return Err(Usage(text));
        }
        known.insert(value, section);
    }
    Ok(())
}

/// If both addresses lead to the same broker, messages of one could return by the other for ever: the broker excludes
/// only what the same client has sent, and 3.1.1 has no property that lists the gateways passed.
fn no_endless_loop((one, other): (&Upstream, &Upstream)) -> Result<(), Usage> {
    if one.version == Version::V5 && other.version == Version::V5 {
        return Ok(());
    }
    let (up, down) = (one.mapping("up")?, other.mapping("down")?);
    if mapping::circle(&up, &down).is_none() || mapping::circle(&down, &up).is_none() {
        return Ok(());
    }
    let (one, other) = (one.section(), other.section());
    Err(Usage(format!(
        "messages could go in a loop by [[{one}.up]] and [[{other}.down]], and MQTT 3.1.1 cannot detect \
         it; use version = \"5\" for both, or prefixes that separate the two directions"
    )))
}

pub(crate) fn is_section_name(name: &str) -> bool {
    let known =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=32).contains(&name.len()) && name.bytes().all(known)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn upstream(section: &str, more: &str) -> String {
        let rule = format!("[[{section}.up]]\nfilter = \"a/#\"\n");
        format!("[{section}]\nurl = \"mqtt://{section}\"\n{more}\n{rule}")
    }

    fn refused(text: &str) -> String {
        Config::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn further_upstreams_have_names_and_the_first_needs_none() {
        let text = upstream("upstream", "") + &upstream("upstreams.cloud", "");
        let config = Config::from_toml(&text).unwrap();
        let sections: Vec<String> = config.upstreams().map(Upstream::section).collect();
        assert_eq!(sections, ["upstream", "upstreams.cloud"]);
        assert!(config.is_gateway() && !Config::default().is_gateway());
        let only = Config::from_toml(&upstream("upstreams.cloud", "")).unwrap();
        assert!(only.is_gateway());
        assert_eq!(config.changes_requiring_restart(&only), ["upstream.up", "upstream.url"]);
        assert_eq!(only.changes_requiring_restart(&Config::default()), ["upstreams.cloud"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_section() {
        let two = |one: &str, other: &str| {
            refused(&(upstream("upstreams.a", one) + &upstream("upstreams.b", other)))
        };
        let dead = "outbox.dead_letter_file = \"f\"";
        for (part, error) in [
            ("[upstreams.a] up and down need url", refused("[upstreams.a]\n")),
            ("[upstreams.A]: 1 to 32", refused(&upstream("upstreams.A", ""))),
            ("[[upstreams.a.up]] number 1: qos", {
                refused(&(upstream("upstreams.a", "") + "qos = 2\n"))
            }),
            ("[upstreams.a] nothing is forwarded", refused("[upstreams.a]\nurl = \"mqtt://a\"\n")),
            ("[upstreams.b] name = \"gw\" is also that of [upstreams.a]", {
                two("name = \"gw\"", "name = \"gw\"")
            }),
            ("[upstreams.b] outbox: dead_letter_file = \"f\" is also", two(dead, dead)),
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        let many: String = (0..=MAX_UPSTREAMS)
            .map(|number| upstream(&format!("upstreams.u{number}"), ""))
            .collect();
        assert!(refused(&many).contains("17 upstream brokers; 16 at most"));
    }

    #[test]
    fn a_loop_by_two_upstreams_is_refused_with_3_1_1() {
        let down = "[[upstreams.b.down]]\nfilter = \"a/#\"\n";
        let text = |version: &str, up: &str| {
            upstream("upstreams.a", &format!("version = {version:?}"))
                + &format!("[upstreams.b]\nurl = \"mqtt://b\"\n{down}{up}")
        };
        let error = refused(&text("3.1.1", ""));
        assert!(error.contains("[[upstreams.a.up]] and [[upstreams.b.down]]"), "{error}");
        Config::from_toml(&text("5", "")).unwrap();
        Config::from_toml(&text("3.1.1", "to_prefix = \"b/\"\n")).unwrap();
    }
}

//! mosquitto.conf: one option per line, the value after the first space. Options of listeners and bridges follow the
//! `listener` and `connection` lines.

use std::path::Path;

use super::files::{self, Files};
use super::options::{self, Accepts, Fate, Scope};
use super::report::{Error, Kind, Report, SourceLine};

/// Listeners, and bridges.
const MAX_SECTIONS: usize = 1000;

/// An option that is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Where.
    pub place: SourceLine,
    /// Name of the option.
    pub name: String,
    /// The rest of the line.
    pub value: String,
}

impl Line {
    pub(super) fn is_true(&self) -> bool {
        matches!(first_word(&self.value), "true" | "1")
    }
}

/// The options of the broker, a listener or a bridge, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options(Vec<Line>);

impl Options {
    /// The line that counts: the last one.
    pub fn get(&self, name: &str) -> Option<&Line> {
        self.0.iter().rev().find(|line| line.name == name)
    }

    /// All lines with this name.
    pub fn lines_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Line> {
        self.0.iter().filter(move |line| line.name == name)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(Line::is_true)
    }

    /// The first of several names that is set.
    pub(super) fn first(&self, names: &[&str]) -> Option<&Line> {
        names.iter().find_map(|name| self.get(name))
    }

    pub(super) fn path(&self, name: &str) -> Option<(&Line, &Path)> {
        self.get(name).map(|line| (line, Path::new(line.value.as_str())))
    }
}

/// A listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Position of the `listener` line; that of the first option for the default listener.
    pub place: SourceLine,
    /// 0 for a Unix socket.
    pub port: u16,
    /// Host name, address or path.
    pub host: Option<String>,
    /// Options of the listener.
    pub options: Options,
    /// Options for access, with `per_listener_settings true`.
    pub security: Options,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct Bridge {
    /// Position of the `connection` line.
    pub place: SourceLine,
    /// Name of the bridge.
    pub name: String,
    /// Options of the bridge.
    pub options: Options,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The file as a whole.
    pub place: SourceLine,
    /// Options of the broker.
    pub global: Options,
    /// Options for access, of all listeners.
    pub security: Options,
    /// Whether each listener has its own.
    pub per_listener: bool,
    /// Listeners, in order.
    pub listeners: Vec<Listener>,
    /// Bridges, in order.
    pub bridges: Vec<Bridge>,
}

pub(super) fn first_word(value: &str) -> &str {
    value.split(' ').next().unwrap_or_default()
}

/// The lines of one file.
///
/// # Errors
/// An option has no value.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Line>, Error> {
    let parsed = |(place, text): (SourceLine, &str)| {
        let (name, value) = text.split_once(' ').unwrap_or((text, ""));
        let value = value.trim();
        if value.is_empty() {
            return Err(Error::malformed(&place, format!("{name} has no value")));
        }
        Ok(Line { place, name: name.to_owned(), value: value.to_owned() })
    };
    files::lines(file, text).map(parsed).collect()
}

fn with_included(files: &dyn Files, path: &Path) -> Result<Vec<Line>, Error> {
    let mut all = Vec::new();
    for line in parse(path, &files::read(files, path, None)?)? {
        if line.name != "include_dir" {
            all.push(line);
            continue;
        }
        let folder = files.list(Path::new(&line.value));
        let mut paths = folder.map_err(|error| {
            Error::malformed(&line.place, format!("cannot read folder {}: {error}", line.value))
        })?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        // A.conf before a.conf before B.conf.
        paths.sort_by_cached_key(|path| {
            let name = path.to_string_lossy().into_owned();
            (name.to_lowercase(), name)
        });
        for path in paths {
            let lines = parse(&path, &files::read(files, &path, Some(&line.place))?)?;
            if let Some(nested) = lines.iter().find(|line| line.name == "include_dir") {
                return Err(Error::malformed(&nested.place, "include_dir in an included file"));
            }
            all.extend(lines);
        }
    }
    Ok(all)
}

impl Conf {
    /// Reads a configuration and what it includes.
    ///
    /// # Errors
    /// A file cannot be read, or a line is malformed.
    pub fn read(files: &dyn Files, path: &Path, report: &mut Report) -> Result<Conf, Error> {
        let lines = with_included(files, path)?;
        Conf::build(path, lines, report)
    }

    fn build(path: &Path, lines: Vec<Line>, report: &mut Report) -> Result<Conf, Error> {
        let per_listener = |line: &&Line| line.name == "per_listener_settings";
        let per_listener = lines.iter().rfind(per_listener).is_some_and(Line::is_true);
        let mut conf = Conf {
            place: SourceLine { file: path.into(), line: 0 },
            global: Options::default(),
            security: Options::default(),
            per_listener,
            listeners: Vec::new(),
            bridges: Vec::new(),
        };
        for line in lines {
            match line.name.as_str() {
                "listener" => conf.listeners.push(listener(&line)?),
                "connection" => conf.bridges.push(bridge(&line, &conf.bridges)?),
                _ => conf.set(line, report)?,
            }
            if conf.listeners.len().max(conf.bridges.len()) > MAX_SECTIONS {
                let text = format!("more than {MAX_SECTIONS} listeners or bridges");
                return Err(Error::malformed(&conf.place, text));
            }
        }
        Ok(conf)
    }

    fn set(&mut self, line: Line, report: &mut Report) -> Result<(), Error> {
        let is_plugin_option =
            ["plugin_opt_", "auth_opt_"].iter().any(|prefix| line.name.starts_with(prefix));
        let scope = match options::find(&line.name) {
            Some(known) => {
                check(&line, known.accepts)?;
                note(&line, known.fate, report);
                known.scope
            }
            None if is_plugin_option => Scope::Security,
            None => {
                report.not_translated(&line.place, &line.name, "not an option of mosquitto 2.0");
                return Ok(());
            }
        };
        let options = match scope {
            Scope::Global => &mut self.global,
            Scope::Security if !self.per_listener => &mut self.security,
            Scope::Security => &mut self.listener(&line.place).security,
            Scope::Listener => &mut self.listener(&line.place).options,
            Scope::Bridge => match self.bridges.last_mut() {
                Some(bridge) => &mut bridge.options,
                None => {
                    let text = format!("{} before any connection", line.name);
                    return Err(Error::malformed(&line.place, text));
                }
            },
        };
        options.0.push(line);
        Ok(())
    }

    /// The listener to which an option belongs; before any, the default listener.
    fn listener(&mut self, place: &SourceLine) -> &mut Listener {
        if self.listeners.is_empty() {
            self.listeners.push(Listener {
                place: place.clone(),
                port: 1883,
                host: None,
                options: Options::default(),
                security: Options::default(),
            });
        }
        let last = self.listeners.len() - 1;
        &mut self.listeners[last]
    }
}

/// Refuses what mosquitto refuses.
fn check(line: &Line, accepts: Accepts) -> Result<(), Error> {
    let word = first_word(&line.value);
    let fits = match accepts {
        Accepts::Bool => ["true", "false", "1", "0"].contains(&word),
        Accepts::Number(max) => word.parse::<u64>().is_ok_and(|number| number <= max),
        Accepts::Text => true,
    };
    if fits {
        return Ok(());
    }
    let expected = match accepts {
        Accepts::Bool => "true or false".to_owned(),
        Accepts::Number(max) => format!("a number from 0 to {max}"),
        Accepts::Text => String::new(),
    };
    Err(Error::malformed(&line.place, format!("{} {word:?}: expected {expected}", line.name)))
}

fn note(line: &Line, fate: Fate, report: &mut Report) {
    let (kind, text) = match fate {
        Fate::Translated => return,
        Fate::Always(value, _) if first_word(&line.value) == value => return,
        Fate::NotNeeded(text) => (Kind::NotNeeded, text),
        Fate::No(text) | Fate::Always(_, text) => (Kind::NotTranslated, text),
    };
    report.add(&line.place, &line.name, kind, text);
}

fn listener(line: &Line) -> Result<Listener, Error> {
    let (port, host) = line.value.split_once(' ').unwrap_or((&line.value, ""));
    let port = port.parse().map_err(|_| {
        Error::malformed(&line.place, format!("listener {port:?}: expected a port from 0 to 65535"))
    })?;
    let host = Some(host.trim().to_owned()).filter(|host| !host.is_empty());
    if port == 0 && host.is_none() {
        return Err(Error::malformed(&line.place, "listener 0: expected the path of a socket"));
    }
    let (options, security) = (Options::default(), Options::default());
    Ok(Listener { place: line.place.clone(), port, host, options, security })
}

fn bridge(line: &Line, before: &[Bridge]) -> Result<Bridge, Error> {
    if before.iter().any(|bridge| bridge.name == line.value) {
        let text = format!("a second connection {:?}", line.value);
        return Err(Error::malformed(&line.place, text));
    }
    let (place, name) = (line.place.clone(), line.value.clone());
    Ok(Bridge { place, name, options: Options::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::files::tests::Memory;
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<(Conf, Report), String> {
        let mut report = Report::default();
        let memory = Memory::new(files);
        let conf = Conf::read(&memory, Path::new("m.conf"), &mut report);
        conf.map(|conf| (conf, report)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_belong_to_the_listener_or_bridge_before_them() {
        let text = "port 1880\n# comment\nmax_connections 5\nlistener 1883 127.0.0.1\nmax_connections 7\n\
                    allow_anonymous true\nconnection b\ntopic # out\ntopic x in\nkeepalive_interval 20\n";
        let (conf, _) = read(&[("m.conf", text)]).unwrap();
        let max =
            |at: usize| conf.listeners[at].options.get("max_connections").unwrap().value.clone();
        assert_eq!([max(0), max(1)], ["5", "7"]);
        assert_eq!(conf.listeners[1].host.as_deref(), Some("127.0.0.1"));
        assert!(conf.security.is_true("allow_anonymous"));
        assert_eq!(conf.bridges[0].options.lines_named("topic").count(), 2);
        let (conf, _) =
            read(&[("m.conf", &format!("per_listener_settings true\n{text}"))]).unwrap();
        assert!(!conf.security.is_true("allow_anonymous"));
        assert!(conf.listeners[1].security.is_true("allow_anonymous"));
    }

    #[test]
    fn included_files_are_read_in_mosquittos_order() {
        let files = [
            ("m.conf", "include_dir d\nmax_keepalive 5\n"),
            ("d/b.conf", "log_type b\n"),
            ("d/B.conf", "log_type B\n"),
            ("d/a.conf", "log_type a\n"),
            ("d/01.conf", "log_type 01\n"),
            ("d/x.txt", "nonsense\n"),
        ];
        let (conf, _) = read(&files).unwrap();
        let order: Vec<_> =
            conf.global.lines_named("log_type").map(|line| line.value.as_str()).collect();
        assert_eq!(order, ["01", "a", "B", "b"]);
        assert_eq!(conf.global.get("log_type").unwrap().place.to_string(), "d/b.conf:1");
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, error) in [
            (
                "\nallow_anonymous maybe",
                "m.conf:2: allow_anonymous \"maybe\": expected true or false",
            ),
            ("password_file", "m.conf:1: password_file has no value"),
            ("max_keepalive abc", "m.conf:1: max_keepalive \"abc\": expected a number"),
            ("max_keepalive 65536", "m.conf:1: max_keepalive"),
            ("listener x", "m.conf:1: listener \"x\""),
            ("listener 0", "m.conf:1: listener 0"),
            ("topic # out", "m.conf:1: topic before any connection"),
            ("connection a\nconnection a", "m.conf:2: a second connection"),
            ("include_dir nowhere", "m.conf:1: cannot read folder nowhere"),
        ] {
            let got = read(&[("m.conf", text)]).unwrap_err();
            assert!(got.starts_with(error), "{got}");
        }
        assert!(read(&[]).unwrap_err().starts_with("m.conf: "));
        let nested = [("m.conf", "include_dir d"), ("d/a.conf", "include_dir e")];
        assert!(read(&nested).unwrap_err().starts_with("d/a.conf:1: include_dir"));
    }

    #[test]
    fn what_has_no_effect_is_reported() {
        let text = "autosave_interval 1800\nqueue_qos0_messages true\nmax_qos 2\nshiny_option 1\n";
        let (_, report) = read(&[("m.conf", text)]).unwrap();
        let lines: Vec<_> = report.notes().iter().map(ToString::to_string).collect();
        assert_eq!(
            lines[0],
            "m.conf:1: autosave_interval: not needed: what Fulmar acknowledges is on disk"
        );
        assert!(lines[1].starts_with("m.conf:2: queue_qos0_messages: not translated: QoS 0"));
        assert!(lines[2].starts_with("m.conf:4: shiny_option: not translated: not an option"));
        assert_eq!(lines.len(), 3);
    }
}

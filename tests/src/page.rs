//! Pages of `docs` as scripts: what a reader types is what a test runs, word for word but for names of machines
//! and folders, which become ports and folders of the test's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::PATIENCE;
use crate::binary::{fulmar, run_within};
use crate::broker::{LISTENERS, parse_ready};
use crate::log::Log;
use crate::ports::names_a_default_port;

/// What a command may take that works for long although nothing is wrong.
const LONG: Duration = Duration::from_secs(90);

/// The fenced blocks below a heading, up to the next of its rank: language and text.
///
/// # Panics
/// The page has no such heading.
#[must_use]
pub fn blocks(page: &str, heading: &str) -> Vec<(String, String)> {
    let start = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}"));
    let rank = heading.split(' ').next().unwrap();
    let (mut found, mut open) = (Vec::new(), None::<(String, String)>);
    for line in page[start + 1..].lines().skip(1) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {
                let other = line.split(' ').next().filter(|word| word.starts_with('#'));
                if other.is_some_and(|other| other.len() <= rank.len()) {
                    break;
                }
            }
        }
    }
    found
}

/// A machine that commands are typed on: a folder, and words that stand for something else here.
#[derive(Debug)]
pub struct Host {
    folder: PathBuf,
    words: Vec<(String, String)>,
    env: BTreeMap<String, String>,
}

impl Host {
    /// One with `fulmar` in its path, and folders of its own for `/etc/fulmar` and `/var/lib/fulmar`.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    pub fn new(folder: &Path) -> Host {
        let (etc, data, bin) = (folder.join("etc"), folder.join("data"), folder.join("bin"));
        for folder in [&etc, &bin] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let program = std::fs::canonicalize(fulmar().get_program()).unwrap();
        std::os::unix::fs::symlink(program, bin.join("fulmar")).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut host = Host { folder: folder.to_owned(), words: Vec::new(), env: BTreeMap::new() };
        host.says("/etc/fulmar", &etc.display().to_string());
        host.says("/var/lib/fulmar", &data.display().to_string());
        host.set("PATH", &path);
        for name in LISTENERS {
            host.set(&format!("FULMAR_LISTENERS__{}", name.to_uppercase()), r#"["127.0.0.1:0"]"#);
        }
        host
    }

    /// Folder, where commands are typed.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// From now on `word` stands for `meaning`.
    pub fn says(&mut self, word: &str, meaning: &str) {
        self.words.retain(|(known, _)| known != word);
        self.words.push((word.to_owned(), meaning.to_owned()));
    }

    /// An environment variable of servers that are started or checked.
    pub fn set(&mut self, key: &str, value: &str) {
        self.env.insert(key.to_owned(), value.to_owned());
    }

    /// Text as it is here.
    #[must_use]
    pub fn here(&self, text: &str) -> String {
        let put = |text: String, (word, meaning): &(String, String)| text.replace(word, meaning);
        self.words.iter().fold(text.to_owned(), put)
    }

    /// Writes a file whose name is in the comment of its first line.
    ///
    /// # Panics
    /// There is no name.
    pub fn write(&self, text: &str) {
        let text = self.here(text);
        let name = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap();
        std::fs::write(name, &text).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let here = self.here(line);
        assert!(!names_a_default_port(&here), "a default port in a test: {here}");
        let mut command = Command::new("sh");
        // A shell that is killed is to be the program itself.
        command.args(["-c", &here]).current_dir(&self.folder).stdin(Stdio::null());
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("FULMAR_") {
                command.env_remove(key);
            }
        }
        command.env("PATH", &self.env["PATH"]);
        if ["fulmar serve", "fulmar doctor"].iter().any(|name| here.contains(name)) {
            command.envs(&self.env);
        }
        command
    }

    /// Types a line and waits for its end.
    ///
    /// # Panics
    /// It does not end.
    #[must_use]
    pub fn types(&self, line: &str) -> Output {
        run_within(LONG, &mut self.command(line))
    }

    /// The same for a line that succeeds: what it printed.
    ///
    /// # Panics
    /// It fails.
    pub fn good(&self, line: &str) -> String {
        let output = self.types(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line}\n{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Types a line of a program that stays; what it prints is its log.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn leaves(&self, line: &str) -> Program {
        let mut command = self.command(&format!("exec {line}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let log = Log::follow(child.stdout.take().unwrap());
        Program { child, log, bound: Vec::new() }
    }

    /// Types a line that starts a server, and waits until it is ready.
    ///
    /// # Panics
    /// It does not get ready; shows its log.
    #[must_use]
    pub fn starts(&self, line: &str) -> Program {
        let mut command = self.command(&format!("exec {line}"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let output = Log::follow(child.stdout.take().unwrap());
        let log = Log::follow(child.stderr.take().unwrap());
        let mut program = Program { child, log, bound: Vec::new() };
        let Some(ready) = output.find(PATIENCE, |line| line.starts_with("ready")) else {
            program.kill();
            panic!("{line} does not get ready:\n{}", program.log.text());
        };
        program.bound = parse_ready(&ready);
        program
    }
}

/// A server that was started by typing; dropping it kills it.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// What it has logged.
    pub log: Log,
    bound: Vec<(String, SocketAddr)>,
}

impl Program {
    /// Where a listener is bound.
    ///
    /// # Panics
    /// The ready line does not name it.
    #[must_use]
    pub fn address(&self, name: &str) -> SocketAddr {
        let found = self.bound.iter().find(|(bound, _)| bound == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.bound)).1
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        // Both fail when it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

//! `fulmar passwd`: lines for the broker's password file.
//!
//! The password comes from the terminal or standard input, never from the command line, where
//! every user of the machine could read it.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use fulmar_broker::auth::hash_password;
use fulmar_certs::files;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar passwd ann                        ask for ann's password, print the line for the file
  fulmar passwd ann --file passwords       add ann to the file, or change ann's password
  fulmar passwd ann --file passwords < secret
                                           the password is the first line of a file

The broker reads the file named by [auth] password_file at start and on SIGHUP.";

/// Add a user to the password file, or change a password
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// User name
    user: String,
    /// Password file to change, created if missing [default: print the line for the file]
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Asks, hashes, and prints or writes the line.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let user = args.user.as_str();
    if user.is_empty() || user.starts_with('#') || user.contains([':', '\n', '\r']) {
        return Err(Usage(format!(
            "user name {user:?}: must not be empty, begin with # or contain a colon"
        ))
        .into());
    }
    let line = format!("{user}:{}", hash_password(ask()?.as_bytes())?);
    let Some(path) = &args.file else {
        println!("{line}");
        return Ok(());
    };
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    Ok(files::write(path, replaced(&before, user, &line).as_bytes(), true)?)
}

/// The file with the user's line exchanged, or with a new one at its end.
fn replaced(before: &str, user: &str, line: &str) -> String {
    let theirs = |old: &str| old.trim().split_once(':').is_some_and(|(name, _)| name == user);
    let mut lines: Vec<&str> = before.lines().collect();
    match lines.iter().position(|old| theirs(old)) {
        Some(at) => lines[at] = line,
        None => lines.push(line),
    }
    lines.join("\n") + "\n"
}

/// A password from the terminal, twice, or the first line of standard input.
pub(crate) fn ask() -> anyhow::Result<String> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return read_line(&mut input.lock());
    }
    let shown = tcgetattr(&input).context("terminal")?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &hidden).context("terminal")?;
    let answers = ["Password: ", "Again: "].map(|prompt| {
        eprint!("{prompt}");
        std::io::stderr().flush()?;
        let answer = read_line(&mut input.lock());
        eprintln!();
        answer
    });
    tcsetattr(&input, OptionalActions::Flush, &shown).context("terminal")?;
    let [first, second] = answers;
    let (first, second) = (first?, second?);
    if first != second {
        bail!("the two passwords differ; nothing was changed");
    }
    Ok(first)
}

fn read_line(input: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line).context("standard input")?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() {
        bail!("no password was given");
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_line_is_exchanged_and_the_rest_kept() {
        let before = "# who may come in\nann:old\nbob:b\n";
        assert_eq!(replaced(before, "ann", "ann:new"), "# who may come in\nann:new\nbob:b\n");
        assert_eq!(replaced("ann:a", "an", "an:x"), "ann:a\nan:x\n");
        assert_eq!(replaced("", "ann", "ann:a"), "ann:a\n");
    }

    #[test]
    fn an_empty_password_is_refused() {
        assert!(read_line(&mut &b"\n"[..]).is_err());
        assert_eq!(
            read_line(&mut &b" with spaces \r\n"[..]).ok().as_deref(),
            Some(" with spaces ")
        );
    }
}

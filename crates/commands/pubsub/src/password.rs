//! Where the password comes from when it is not on the command line, where others can read it.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsFd;

use anyhow::Context;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::exit::Usage;

/// Reads the password from the terminal without echo, or, if standard input is not a terminal and not `taken` by
/// messages, from its first line.
///
/// # Errors
/// There is no terminal, or the line is empty.
pub(super) fn ask(taken: bool) -> anyhow::Result<String> {
    let input = std::io::stdin();
    if !taken && !input.is_terminal() {
        return first_line(&mut input.lock());
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| {
        Usage("there is no terminal to ask for the password; set FULMAR_PASSWORD".to_owned())
    })?;
    hidden(&terminal)
}

fn hidden(terminal: &File) -> anyhow::Result<String> {
    let shown = tcgetattr(terminal.as_fd()).context("terminal")?;
    let mut no_echo = shown.clone();
    no_echo.local_modes.remove(LocalModes::ECHO);
    tcsetattr(terminal, OptionalActions::Flush, &no_echo).context("terminal")?;
    let mut prompt = terminal;
    let asked = prompt.write_all(b"Password: ").and_then(|()| prompt.flush());
    let answer = first_line(&mut BufReader::new(terminal));
    let restored = tcsetattr(terminal, OptionalActions::Flush, &shown);
    // The line end was not echoed.
    drop(prompt.write_all(b"\n"));
    asked.context("terminal")?;
    restored.context("terminal")?;
    answer
}

fn first_line(input: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line).context("password")?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() {
        return Err(Usage("-P -: no password was given".to_owned()).into());
    }
    Ok(password.to_owned())
}

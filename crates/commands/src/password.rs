//! Passwords from the terminal, without echo, or from standard input; never from the command line, where every user of
//! the machine could read them.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, bail};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// Consequences of a broker's first user who is not only for administration, for those who are about to add it.
pub const FIRST_USER: &str = "\
Note: this is the first user for clients. So far, a client that connects where anonymous clients may (by default, from \
this machine) can have any user name. From now on, the broker refuses user names that it does not know (reason 0x86, \
return code 4); clients without a user name connect as before. Next: add the users of your other clients, too; or add \
one for administration only, which changes nothing for clients: fulmar ctl users add NAME --role administrator";

/// A new password: from the terminal, twice, or the first line of standard input.
///
/// # Errors
/// There is none, or the two are different.
pub fn ask_new() -> anyhow::Result<String> {
    let input = std::io::stdin();
    let password = if input.is_terminal() {
        let terminal = File::from(input.as_fd().try_clone_to_owned().context("terminal")?);
        let [first, second] = hidden(&terminal, ["Password: ", "Again: "])?;
        if first != second {
            bail!("the two passwords differ; nothing was changed");
        }
        first
    } else {
        line(&mut input.lock())?
    };
    if password.is_empty() {
        bail!(
            "no password was given: type it in a terminal, or pass it as the first line of standard input"
        );
    }
    Ok(password)
}

/// An answer to each prompt, which the terminal does not show.
///
/// # Errors
/// The terminal fails.
pub fn hidden<const N: usize>(terminal: &File, prompts: [&str; N]) -> anyhow::Result<[String; N]> {
    let shown = tcgetattr(terminal).context("terminal")?;
    let mut no_echo = shown.clone();
    no_echo.local_modes.remove(LocalModes::ECHO);
    tcsetattr(terminal, OptionalActions::Flush, &no_echo).context("terminal")?;
    let mut input = BufReader::new(terminal);
    let mut answers = [(); N].map(|()| String::new());
    let asked = prompts.iter().zip(&mut answers).try_for_each(|(prompt, answer)| {
        let mut output = terminal;
        output.write_all(prompt.as_bytes()).context("terminal")?;
        *answer = line(&mut input)?;
        // The line end was not echoed.
        output.write_all(b"\n").context("terminal")
    });
    tcsetattr(terminal, OptionalActions::Flush, &shown).context("terminal")?;
    asked.map(|()| answers)
}

/// The first line of standard input or of the terminal, without its end.
///
/// # Errors
/// It cannot be read.
pub fn line(input: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line).context("password")?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn spaces_belong_to_a_password_and_the_line_end_does_not() {
        assert_eq!(line(&mut &b" with spaces \r\nmore\n"[..]).unwrap(), " with spaces ");
        assert_eq!(line(&mut &b""[..]).unwrap(), "");
    }
}

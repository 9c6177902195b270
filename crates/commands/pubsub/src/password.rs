//! Where the password comes from when it is not on the command line, where others can read it.

use std::fs::File;
use std::io::IsTerminal as _;

use fulmar_command::password::{hidden, line};

use crate::exit::Usage;

/// Reads the password from the terminal without echo, or, if standard input is not a terminal and not `taken` by
/// messages, from its first line.
pub(super) fn read_password(taken: bool) -> anyhow::Result<String> {
    let input = std::io::stdin();
    let password = if taken || input.is_terminal() {
        let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| {
            Usage("there is no terminal to ask for the password; set FULMAR_PASSWORD".to_owned())
        })?;
        let [password] = hidden(&terminal, ["Password: "])?;
        password
    } else {
        line(&mut input.lock())?
    };
    if password.is_empty() {
        return Err(Usage("-P -: no password was given".to_owned()).into());
    }
    Ok(password)
}

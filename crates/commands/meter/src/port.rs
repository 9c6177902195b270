//! Where telegrams come from: a file, standard input, or a receiver on a serial port.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::decode::InputKind;
use crate::exit::Usage;

/// Makes culfw output the telegrams received in mode T, with their level.
const CUL_RECEIVE: &[u8] = b"X21\r\nbrt\r\n";

/// Opens the source; a serial port is set up for the kind of stick.
pub(super) fn open(
    path: &Path,
    kind: InputKind,
    baud: Option<u32>,
) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let context = || path.display().to_string();
    let is_device = std::fs::metadata(path).with_context(context)?.file_type().is_char_device();
    if !is_device {
        return Ok(Box::new(File::open(path).with_context(context)?));
    }
    let mut port = OpenOptions::new().read(true).write(true).open(path).with_context(context)?;
    if !port.is_terminal() {
        return Ok(Box::new(port));
    }
    let usual = match kind {
        InputKind::Im871a => Some(57_600),
        InputKind::Amb8465 => Some(9_600),
        InputKind::Cul => Some(38_400),
        InputKind::RtlWmbus | InputKind::Hex | InputKind::Chips => Some(115_200),
        InputKind::Auto => None,
    };
    let Some(baud) = baud.or(usual) else {
        return Err(Usage(format!(
            "{}: give the kind of receiver on this port with --input",
            path.display()
        ))
        .into());
    };
    let mut settings = tcgetattr(&port).with_context(context)?;
    raw(&mut settings, baud).with_context(|| format!("{}: {baud} baud", path.display()))?;
    tcsetattr(&port, OptionalActions::Flush, &settings).with_context(context)?;
    if kind == InputKind::Cul {
        port.write_all(CUL_RECEIVE).with_context(context)?;
    }
    Ok(Box::new(port))
}

fn raw(settings: &mut Termios, baud: u32) -> rustix::io::Result<()> {
    settings.make_raw();
    settings.set_speed(baud)
}

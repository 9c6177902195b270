//! `fulmar meter decode`: telegrams in, a line each out.
//!
//! What is wrong with one telegram is its line; it never ends the stream.

use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;
use fulmar_wmbus::input::{Input, Kind};
use fulmar_wmbus::{Decoder, InMemoryKeys, KeyStore as _, Received, Sighting};

use super::{is_broken_pipe, keys, port, show};

const EXAMPLES: &str = "\
Examples:
  fulmar meter decode --keys keys.toml telegrams.txt
  fulmar meter decode --keys keys.toml --json - < telegrams.txt | jq .readings
  fulmar meter decode --keys keys.toml --input im871a /dev/ttyUSB0
  echo 1844AE4C4455223368077A55000000041389E20100023B0000 | fulmar meter decode

The keys file is TOML and readable by you alone (chmod 600):
  [keys]
  78152801 = \"000102030405060708090A0B0C0D0E0F\"
  KAM-79806477 = \"...\"      if two manufacturers share a number

Without --input the kind of stream is detected: frames of a stick, or lines of rtl_wmbus, rtl_433
(JSON), CUL, wmbusmeters' log or hexadecimal digits (with or without checksums; # begins a comment).
A serial port needs --input.

Exit codes: 0 success, even if some telegrams could not be decoded; 1 no telegram could be decoded
or the input failed; 2 wrong usage. Telegrams that could not be decoded are printed with what to do.";

/// Decode telegrams from a file, a pipe or a receiver
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// File with the meters' keys
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Kind of the stream
    #[arg(long, value_enum, default_value_t = InputKind::Auto)]
    input: InputKind,
    /// Speed of a serial port [default: the usual one of the stick]
    #[arg(long, value_name = "BAUD")]
    baud: Option<u32>,
    /// Print one JSON object per telegram
    #[arg(long)]
    json: bool,
    /// Also decode telegrams received before, as in a capture of several receivers
    #[arg(long)]
    repeats: bool,
    /// File or serial port; - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

/// Kinds of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum InputKind {
    /// Detect the kind from the input
    Auto,
    /// Lines of rtl_wmbus
    RtlWmbus,
    /// IMST iM871A or iM170A stick
    Im871a,
    /// Amber (Würth) AMB8465 stick
    Amb8465,
    /// CUL or another stick with culfw
    Cul,
    /// Lines of hexadecimal digits
    Hex,
    /// Lines of raw chips, such as: T 5555543D...
    Chips,
}

impl InputKind {
    const fn kind(self) -> Kind {
        match self {
            Self::Auto => Kind::Auto,
            Self::RtlWmbus => Kind::RtlWmbus,
            Self::Im871a => Kind::Im871a,
            Self::Amb8465 => Kind::Amb8465,
            Self::Cul => Kind::Cul,
            Self::Hex => Kind::Hex,
            Self::Chips => Kind::Chips,
        }
    }
}

/// Decodes until the input ends.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let keys = args.keys.as_deref().map(keys::read).transpose()?.unwrap_or_else(InMemoryKeys::new);
    let mut source = port::open(&args.file, args.input, args.baud)?;
    let mut lines = Lines {
        decoder: Decoder::new(keys).with_repeats(args.repeats),
        json: args.json,
        out: BufWriter::new(io::stdout().lock()),
        decoded: 0,
        failed: 0,
    };
    match lines.decode_lines(&mut *source, args.input.kind()) {
        // The reader of standard output has ended.
        Err(error) if is_broken_pipe(&error) => return Ok(()),
        outcome => outcome.with_context(|| args.file.display().to_string())?,
    }
    let (decoded, failed) = (lines.decoded, lines.failed);
    if failed > 0 {
        eprintln!("fulmar: {decoded} telegrams decoded, {failed} not");
    }
    if decoded == 0 && failed > 0 {
        bail!("no telegram could be decoded; each line shows why");
    }
    Ok(())
}

/// The output and what it needs.
struct Lines<W: Write> {
    decoder: Decoder<InMemoryKeys>,
    json: bool,
    out: W,
    decoded: u64,
    failed: u64,
}

impl<W: Write> Lines<W> {
    fn decode_lines(&mut self, source: &mut dyn Read, kind: Kind) -> anyhow::Result<()> {
        let mut input = Input::new(kind);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = match source.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if count == 0 {
                input.end();
            }
            input.feed(&buffer[..count]);
            while let Some(received) = input.next() {
                match received {
                    Ok(received) => self.telegram(&received)?,
                    Err(error) => {
                        self.failed += 1;
                        let line = show::Failure::new(None, error.code(), &error);
                        show::write(&mut self.out, self.json, &line)?;
                    }
                }
            }
            // Readings are shown as they come, not when a buffer is full.
            self.out.flush()?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn telegram(&mut self, received: &Received) -> anyhow::Result<()> {
        match self.decoder.decode(received) {
            Ok(telegram) => {
                self.decoded += 1;
                let has_key = self.decoder.keys().key(&telegram.meter).is_some();
                let line = show::Line::new(received, &telegram, has_key);
                show::write(&mut self.out, self.json, &line)
            }
            Err(error) => {
                self.failed += 1;
                let sighting = Sighting::from_received(received, None).ok();
                let line = show::Failure::new(sighting.as_ref(), error.code(), &error);
                show::write(&mut self.out, self.json, &line)
            }
        }
    }
}

//! A system's clock that is wrong, and is set while the program runs.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

/// A clock for one program, by a library that is loaded before libc.
#[derive(Debug)]
pub struct TestClock {
    folder: TempDir,
}

impl TestClock {
    /// A clock that is right. `None` if there is no C compiler: says so.
    ///
    /// # Panics
    /// The library does not compile.
    #[must_use]
    pub fn new() -> Option<TestClock> {
        let folder = TempDir::new().unwrap();
        // Programs of other users load it as well.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", source, "-o"])
            .arg(folder.path().join("clock.so"));
        let Ok(status) = compiler.status() else {
            eprintln!("NOT TESTED: there is no C compiler (cc) for a clock that is wrong");
            return None;
        };
        assert!(status.success());
        let clock = TestClock { folder };
        clock.set(0);
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ahead")
    }

    /// Sets the clock to this many seconds after the right time.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn set(&self, ahead_s: i64) {
        // Programs have it in memory: it must not be truncated.
        let mut file = File::options().write(true).create(true).truncate(false).open(self.file());
        file.as_mut().unwrap().write_all(&ahead_s.to_le_bytes()).unwrap();
    }

    /// Sets the clock to 1970.
    ///
    /// # Panics
    /// As for [`TestClock::set`].
    pub fn reset(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        self.set(100 - now.cast_signed());
    }

    /// The environment of a program that has this clock.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        [
            ("LD_PRELOAD", text(self.folder.path().join("clock.so"))),
            ("TEST_CLOCK", text(self.file())),
        ]
    }
}

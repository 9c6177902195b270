//! Systems that lack what others have: the broker serves there, or ends with one line that says why not.
#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use fulmar_tests::{Log, PATIENCE, TestClock, default_listeners, fulmar, run, shrink_pipe};
use tempfile::TempDir;

/// A broker behind commands of a shell that take something away; `exec "$@"` is it.
struct Bare {
    child: Child,
    folder: TempDir,
}

impl Bare {
    /// `None` if this machine does not let the test take it away: says so.
    fn start(taken_away: &str, stdout: Stdio, clock: Option<&TestClock>) -> Option<Bare> {
        let program = fulmar().get_program().to_owned();
        let probe = Command::new("unshare").args(["--mount", "--net", "true"]).output();
        if !probe.is_ok_and(|output| output.status.success()) {
            eprintln!("NOT TESTED: no namespaces (unshare as root) for {taken_away:?}");
            return None;
        }
        let folder = TempDir::new().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let mut command = Command::new("sh");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["-c", taken_away, "sh"]).arg(program).args(["serve", "--data"]);
        command.arg(folder.path().join("data")).args(["--log-level", "error"]);
        for (name, _) in default_listeners() {
            let address = if matches!(name, "mqtt" | "http") { r#""127.0.0.1:0""# } else { "" };
            command
                .env(format!("FULMAR_LISTENERS__{}", name.to_uppercase()), format!("[{address}]"));
        }
        if let Some(clock) = clock {
            command.envs(clock.environment());
        }
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn();
        Some(Bare { child: child.unwrap(), folder })
    }

    /// It serves, and its workers answer; nobody reads its standard error.
    fn serves(&mut self) {
        shrink_pipe(self.child.stderr.as_ref().unwrap());
        let output = Log::follow(self.child.stdout.take().unwrap());
        let line = output.find(PATIENCE, |line| line.starts_with("ready"));
        let line = line.unwrap_or_else(|| {
            let mut text = String::new();
            let _ = self.child.kill();
            let mut log = self.child.stderr.take().unwrap();
            std::io::Read::read_to_string(&mut log, &mut text).unwrap();
            panic!("it does not serve: {text}")
        });
        let address = line.split(' ').find_map(|word| word.strip_prefix("http=")).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.child.id().to_string()]);
        command.arg(fulmar().get_program()).arg("health");
        let output = run(command.arg(format!("http://{address}/health/live")));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// It ends with the exit code of a failure and one line that contains `why`.
    fn says(mut self, why: &str) {
        let log = Log::follow(self.child.stderr.take().unwrap());
        assert!(log.end(PATIENCE), "it neither ends nor says why");
        let text = log.text();
        assert!(text.starts_with("fulmar: ") && text.contains(why), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(self.child.wait().unwrap().code(), Some(1));
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(self.folder.path().join("data"));
    }
}

#[test]
fn it_serves_without_what_it_does_not_need() {
    let proc = "mount -t tmpfs none /proc";
    let etc = "mount --bind /etc /etc && mount -o remount,bind,ro /etc";
    // A network of its own, whose loopback has no ::1.
    let v4 = "ip link set lo up && ip -6 address flush dev lo";
    let user = "setpriv --reuid 65532 --regid 65532 --clear-groups";
    let clock = TestClock::new();
    clock.iter().for_each(TestClock::reset);
    for (taken_away, clock) in [
        (format!("exec unshare --mount sh -c '{proc}; exec \"$@\"' sh \"$@\""), None),
        (format!("exec unshare --mount sh -c '{etc} && exec \"$@\"' sh \"$@\""), None),
        (format!("exec unshare --net sh -c '{v4} && exec \"$@\"' sh \"$@\""), None),
        (format!("exec {user} \"$@\""), None),
        ("ulimit -n 48; exec \"$@\"".to_owned(), None),
        ("exec \"$@\"".to_owned(), clock.as_ref()),
        (
            format!(
                "ulimit -n 48; exec unshare --mount --net \
                 sh -c '{v4} && {proc} && {etc} && exec {user} \"$@\"' sh \"$@\""
            ),
            clock.as_ref(),
        ),
    ] {
        eprintln!("{taken_away}");
        let Some(mut bare) = Bare::start(&taken_away, Stdio::piped(), clock) else { return };
        bare.serves();
    }
}

#[test]
fn it_says_in_a_line_why_it_does_not_serve() {
    let few = "ulimit -n 19; exec \"$@\"";
    let Some(bare) = Bare::start(few, Stdio::piped(), None) else { return };
    bare.says("Too many open files");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let bare = Bare::start("exec \"$@\"", full.into(), None).unwrap();
    bare.says("standard output");
}

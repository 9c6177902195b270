#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;

/// Files in memory.
pub(in super::super) struct Memory(BTreeMap<PathBuf, String>);

impl Memory {
    pub(in super::super) fn new(files: &[(&str, &str)]) -> Memory {
        let files = files.iter().map(|(path, text)| (path.into(), (*text).to_owned()));
        Memory(files.collect())
    }
}

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let here = |path: &&PathBuf| path.parent() == Some(folder);
        let found: Vec<PathBuf> = self.0.keys().filter(here).cloned().collect();
        if found.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(found) }
    }

    fn is_exposed(&self, path: &Path) -> bool {
        path.to_string_lossy().contains("exposed")
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "localhost" => Ok(vec![([127, 0, 0, 1], port).into()]),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn host_name(&self) -> String {
        "edge\n".to_owned()
    }

    fn has_ipv6(&self) -> bool {
        true
    }
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("conf"), "listener 1883\n").unwrap();
    std::fs::write(path("empty"), "").unwrap();
    assert_eq!(Disk.read(&path("conf")).unwrap(), "listener 1883\n");
    assert_eq!(Disk.read(&path("empty")).unwrap(), "");
    let fifo = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
    assert!(fifo.success());
    std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
    for other in [
        path("fifo"),
        folder.path().to_owned(),
        "/dev/zero".into(),
        path("link"),
        "/proc/self/environ".into(),
    ] {
        let error = Disk.read(&other).unwrap_err();
        assert!(error.to_string().contains("regular"), "{other:?}: {error}");
    }
}

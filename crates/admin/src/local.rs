//! Callers on the same machine: the socket in the data folder, and the user at its other end.
//!
//! Only the server's own user and root can open the folder, and thus the socket, so that its callers need no token.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;

/// The socket in the data folder.
pub const SOCKET_FILE: &str = "admin.sock";

/// Bytes of the longest path of a socket that every system accepts, with room for the terminating zero.
const MAX_SOCKET_PATH: usize = 100;

/// A caller that came through the socket.
#[derive(Clone, Copy, Debug)]
pub struct LocalCaller {
    /// User on this machine; `None` if the system does not say.
    pub uid: Option<u32>,
}

impl LocalCaller {
    /// Name in the log of changes.
    pub fn name(self) -> String {
        self.uid.map_or_else(|| "local".to_owned(), |uid| format!("local:{uid}"))
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for LocalCaller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> LocalCaller {
        LocalCaller { uid: stream.io().peer_cred().ok().map(|peer| peer.uid()) }
    }
}

/// The socket's path, short enough for `bind` and `connect` also if the folder's is not.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The path leads through this open folder.
    _folder: Option<File>,
}

impl SocketPath {
    /// The socket of this data folder.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn in_folder(data: &Path) -> std::io::Result<SocketPath> {
        let path = data.join(SOCKET_FILE);
        if path.as_os_str().len() < MAX_SOCKET_PATH {
            return Ok(SocketPath { path, _folder: None });
        }
        let folder = File::open(data)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_FILE}", folder.as_raw_fd()));
        Ok(SocketPath { path, _folder: Some(folder) })
    }

    /// The path, which is good as long as this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_long_folder_has_a_socket_too() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(200));
        std::fs::create_dir(&long).unwrap();
        for data in [folder.path(), &long] {
            let _listener =
                UnixListener::bind(SocketPath::in_folder(data).unwrap().path()).unwrap();
            UnixStream::connect(SocketPath::in_folder(data).unwrap().path()).unwrap();
            assert!(data.join(SOCKET_FILE).exists());
        }
    }
}

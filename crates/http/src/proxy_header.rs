//! The header with which a proxy begins each connection (PROXY protocol), read before the TLS handshake.

use std::net::SocketAddr;

use fulmar_transport::proxy_protocol::{Header, HeaderReader, Proxies};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Bytes read at a time; what is skipped is not stored.
const READ_BYTES: usize = 256;

/// The address of the client behind the proxy at `address`; `None` if the connection is to be closed.
pub(crate) async fn client_address(
    socket: &mut TcpStream,
    address: SocketAddr,
    proxies: &Proxies,
    deadline: Instant,
) -> Option<SocketAddr> {
    match timeout_at(deadline, read(socket)).await {
        Ok(Ok(Some(Header::Proxied(client)))) => Some(client),
        Ok(Ok(Some(Header::Own))) => Some(address),
        // Closed without a byte more, as a health check of TCP alone does.
        Ok(Ok(None)) => None,
        Ok(Err(error)) => {
            proxies.refuse(address, &error);
            None
        }
        Err(_) => {
            proxies.refuse(address, &"no complete header within handshake_timeout_s");
            None
        }
    }
}

/// The header, not a byte beyond it; `None` if the connection ends before.
async fn read(
    socket: &mut TcpStream,
) -> Result<Option<Header>, fulmar_transport::proxy_protocol::HeaderError> {
    let (mut reader, mut room) = (HeaderReader::default(), [0; READ_BYTES]);
    loop {
        let wanted = reader.wanted().min(READ_BYTES);
        let read = socket.read(&mut room[..wanted]).await.unwrap_or(0);
        if read == 0 {
            return Ok(None);
        }
        if let (_, Some(header)) = reader.receive(&room[..read])? {
            return Ok(Some(header));
        }
    }
}

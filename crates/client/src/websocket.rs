//! MQTT over WebSocket (section 6): a byte stream made of binary frames.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Bytes between MQTT and the WebSocket, each way, and of one frame sent.
const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes that wait in the WebSocket for the server: a frame, and answers to pings. More of these are dropped.
const MAX_WRITE_BUFFER_BYTES: usize = 4 * BUFFER_BYTES;

/// Time for what MQTT has written before it ended, and for the Close frame.
const LINGER: Duration = Duration::from_secs(5);

/// Keeps the WebSocket open: after this is dropped, it is closed within [`LINGER`], whether the server reads or not.
#[derive(Debug)]
pub(crate) struct Bridge {
    _open: oneshot::Sender<()>,
}

/// Performs the WebSocket handshake on `stream`, and bridges it to the returned byte stream.
pub(crate) async fn connect<S>(
    stream: S,
    url: &str,
    max_packet_bytes: usize,
) -> Result<(DuplexStream, Bridge), Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("mqtt"));
    let config = WebSocketConfig::default()
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
        .max_message_size(Some(max_packet_bytes))
        .max_frame_size(Some(max_packet_bytes));
    let (socket, _) =
        tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let (open, ended) = oneshot::channel();
    tokio::spawn(async move {
        let abandoned = async {
            // Nothing is ever sent: this is the drop.
            let _ = ended.await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            outcome = bridge(socket, far) => if let Err(error) = outcome {
                tracing::debug!(%error, "WebSocket ended");
            },
            () = abandoned => tracing::debug!("WebSocket ended: the server does not read"),
        }
    });
    Ok((near, Bridge { _open: open }))
}

/// Ends when either side does; MQTT detects that because `far` is dropped.
async fn bridge<S>(socket: WebSocketStream<S>, far: DuplexStream) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sink, mut source) = socket.split();
    let (mut from_mqtt, mut to_mqtt) = tokio::io::split(far);
    let outwards = async {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = from_mqtt.read(&mut buffer).await?;
            if read == 0 {
                return timeout(LINGER, sink.close()).await.unwrap_or(Ok(()));
            }
            // Answers to pings may have filled the buffer: then there would be no room for the frame.
            sink.flush().await?;
            sink.send(Message::binary(buffer[..read].to_vec())).await?;
        }
    };
    let inwards = async {
        while let Some(message) = source.next().await {
            // The library answers pings with the next write; text is not MQTT.
            match message? {
                Message::Binary(bytes) => to_mqtt.write_all(&bytes).await?,
                Message::Close(_) | Message::Text(_) => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = outwards => ended,
        ended = inwards => ended,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};
    use tokio_tungstenite::accept_hdr_async;
    use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

    use super::*;

    const LIMIT: usize = 1 << 20;
    /// A ping of the server's with the longest payload.
    const PING: [u8; 127] = {
        let mut ping = [0; 127];
        (ping[0], ping[1]) = (0x89, 125);
        ping
    };

    /// The server's end after the handshake.
    async fn accept(stream: DuplexStream) -> WebSocketStream<DuplexStream> {
        #[allow(clippy::result_large_err)]
        let choose = |_: &Request, mut response: Response| {
            let protocol = HeaderValue::from_static("mqtt");
            response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
            Ok(response)
        };
        accept_hdr_async(stream, choose).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_socket_is_closed_though_the_server_does_not_read() {
        let (near, far) = tokio::io::duplex(4096);
        let (client, server) =
            tokio::join!(connect(near, "ws://server.example/mqtt", LIMIT), accept(far));
        let (mut client, bridge) = client.unwrap();
        let mut server = server.into_inner();
        client.write_all(&[0; 1024]).await.unwrap();
        for _ in 0..10_000 {
            server.write_all(&PING).await.unwrap();
        }
        // More than the socket takes: it is stuck.
        client.write_all(&[0; 32 * 1024]).await.unwrap();
        drop((client, bridge));
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.write_all(&PING).await.is_ok() {
            assert!(Instant::now() < deadline, "the socket is still open");
            sleep(Duration::from_millis(100)).await;
        }
    }

    #[tokio::test]
    async fn what_was_written_before_the_end_arrives_with_a_close_frame() {
        let (near, far) = tokio::io::duplex(4096);
        let (client, server) =
            tokio::join!(connect(near, "ws://server.example/mqtt", LIMIT), accept(far));
        let ((mut client, bridge), mut server) = (client.unwrap(), server);
        client.write_all(&[7; 50_000]).await.unwrap();
        drop((client, bridge));
        let mut bytes = 0;
        loop {
            match server.next().await.unwrap().unwrap() {
                Message::Binary(part) => bytes += part.len(),
                Message::Close(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bytes, 50_000);
    }
}

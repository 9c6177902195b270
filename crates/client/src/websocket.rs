//! MQTT over WebSocket (section 6): a byte stream made of binary frames.

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Bytes between MQTT and the WebSocket, each way, and of one frame sent.
const BUFFER_BYTES: usize = 64 * 1024;

/// Performs the WebSocket handshake on `stream`, and bridges it to the returned byte stream.
pub(crate) async fn connect<S>(
    stream: S,
    url: &str,
    max_packet_bytes: usize,
) -> Result<DuplexStream, Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("mqtt"));
    let config = WebSocketConfig::default()
        .max_message_size(Some(max_packet_bytes))
        .max_frame_size(Some(max_packet_bytes));
    let (socket, _) =
        tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    tokio::spawn(async move {
        if let Err(error) = bridge(socket, far).await {
            tracing::debug!(%error, "WebSocket ended");
        }
    });
    Ok(near)
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
                return sink.close().await;
            }
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

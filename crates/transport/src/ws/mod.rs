//! WebSocket as a carrier of MQTT (MQTT 5.0 section 6, RFC 6455): the upgrade, then frames.
//!
//! tungstenite reads the request and the frame headers. Its `WebSocket` type is not used: it keeps a 128 KiB read
//! buffer per connection and copies every message out of it, whereas here an idle connection owns no buffer, and
//! payloads are unmasked in the buffer into which they were read. No extensions (compression) are negotiated.

mod frame;
mod upgrade;

pub(crate) use frame::{CloseCode, Event, FrameDecoder, append_binary, append_close, append_pong};
pub(crate) use upgrade::{MAX_REQUEST_BYTES, Upgrade, answer};
pub use upgrade::{NOT_THIS_PAGE, PATHS, Refusal, accept, choose_protocol};

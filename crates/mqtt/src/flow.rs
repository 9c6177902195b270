//! Stream headers of MQTT over QUIC's advanced mode: flows that survive their stream.
//!
//! The "MQTT-next" draft (W. Yang, 2024, sections 9.4 to 9.8) begins a stream with a header of QUIC variable-length
//! integers (RFC 9000 section 16). A stream without one begins with an MQTT packet; none of a client's packets that
//! may begin a data stream has a first byte of 0x11 to 0x14, so one byte is enough to distinguish them.

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowHeader {
    /// The control stream (0x11).
    Control {
        /// The draft's persistent flag byte.
        flags: u8,
    },
    /// A client's data flow (0x12).
    ClientData(DataFlow),
    /// A server's data flow (0x13).
    ServerData(DataFlow),
    /// Another protocol's stream (0x14).
    UserDefined {
        /// Flow identifier.
        id: u64,
    },
}

/// The settings of a data flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFlow {
    /// Unique within the session; the lowest bit is 0 for a client's flow, 1 for a server's.
    pub id: u64,
    /// Seconds the state is kept after the stream is lost.
    pub expiry_s: u64,
    /// Flags that govern the treatment of the flow.
    pub flags: FlowFlags,
}

/// Flags byte of a data flow, first bit lowest (draft section 9.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFlags(pub u8);

impl FlowFlags {
    /// Earlier state is to be discarded.
    pub const CLEAN: u8 = 0x01;
    /// Abort when there is no earlier state.
    pub const ABORT_IF_NO_STATE: u8 = 0x02;
    /// Both ends keep QoS state.
    pub const PERSISTENT_QOS: u8 = 0x10;
    /// Both ends keep topic aliases.
    pub const PERSISTENT_TOPIC_ALIAS: u8 = 0x20;
    /// Both ends keep subscriptions.
    pub const PERSISTENT_SUBSCRIPTIONS: u8 = 0x40;
    /// Optional headers follow.
    pub const OPTIONAL_HEADERS: u8 = 0x80;

    /// Whether a flag is set.
    #[must_use]
    pub fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The flow type is not the draft's.
    #[error("flow type 0x{0:X} does not exist")]
    Type(u64),
    /// The control flow's identifier is not 0, or a data flow's has the wrong owner bit.
    #[error("flow identifier {0} does not fit the flow's type")]
    Identifier(u64),
    /// Flags that contradict each other.
    #[error("flow flags 0x{0:02X} contradict each other")]
    Flags(u8),
    /// A server's flow that is to keep subscriptions, which only a client can make.
    #[error("flow flags 0x{0:02X} ask for subscriptions in a server's flow")]
    ServerSubscriptions(u8),
    /// Optional headers, of which the draft defines none.
    #[error("flow flags 0x{0:02X} announce optional headers, which are not supported")]
    OptionalHeaders(u8),
}

/// Longest header in bytes: three variable-length integers and the flags.
pub const MAX_HEADER_BYTES: usize = 8 * 3 + 1;

/// Whether a data stream that begins with this byte begins with a flow header.
#[must_use]
pub fn is_flow_header(first: u8) -> bool {
    matches!(first, 0x11..=0x14)
}

/// Decodes the header at the start of `bytes` and its length; `None` when cut short.
///
/// # Errors
/// Says what is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<Option<(FlowHeader, usize)>, FlowError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let Some(kind) = cursor.varint() else { return Ok(None) };
    let Some(id) = cursor.varint() else { return Ok(None) };
    let header = match kind {
        0x11 => {
            let Some(flags) = cursor.u8() else { return Ok(None) };
            if id != 0 {
                return Err(FlowError::Identifier(id));
            }
            FlowHeader::Control { flags }
        }
        0x12 | 0x13 => {
            let (Some(expiry_s), Some(flags)) = (cursor.varint(), cursor.u8()) else {
                return Ok(None);
            };
            let server = kind == 0x13;
            if id == 0 || (id & 1 == 1) != server {
                return Err(FlowError::Identifier(id));
            }
            let flags = check_flags(flags, server)?;
            let flow = DataFlow { id, expiry_s, flags };
            if server { FlowHeader::ServerData(flow) } else { FlowHeader::ClientData(flow) }
        }
        0x14 => FlowHeader::UserDefined { id },
        other => return Err(FlowError::Type(other)),
    };
    Ok(Some((header, cursor.at)))
}

fn check_flags(flags: u8, server: bool) -> Result<FlowFlags, FlowError> {
    let has = FlowFlags(flags);
    let contradiction = has.has(FlowFlags::CLEAN) && has.has(FlowFlags::ABORT_IF_NO_STATE);
    let not_the_servers = server && has.has(FlowFlags::PERSISTENT_SUBSCRIPTIONS);
    if contradiction {
        Err(FlowError::Flags(flags))
    } else if not_the_servers {
        Err(FlowError::ServerSubscriptions(flags))
    } else if has.has(FlowFlags::OPTIONAL_HEADERS) {
        Err(FlowError::OptionalHeaders(flags))
    } else {
        Ok(has)
    }
}

/// Appends a header.
pub fn encode(header: &FlowHeader, out: &mut Vec<u8>) {
    match *header {
        FlowHeader::Control { flags } => out.extend_from_slice(&[0x11, 0, flags]),
        FlowHeader::ClientData(flow) => encode_data(0x12, flow, out),
        FlowHeader::ServerData(flow) => encode_data(0x13, flow, out),
        FlowHeader::UserDefined { id } => {
            out.push(0x14);
            put_varint(out, id);
        }
    }
}

fn encode_data(kind: u8, flow: DataFlow, out: &mut Vec<u8>) {
    out.push(kind);
    put_varint(out, flow.id);
    put_varint(out, flow.expiry_s);
    out.push(flow.flags.0);
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.at)?;
        let length = 1usize << (first >> 6);
        let bytes = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        let tail = bytes[1..].iter();
        Some(tail.fold(u64::from(first & 0x3F), |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// Appends a QUIC variable-length integer; values over 2^62 - 1 become that.
fn put_varint(out: &mut Vec<u8>, value: u64) {
    let value = value.min((1 << 62) - 1);
    let bytes = value.to_be_bytes();
    let (skip, mark) = match value {
        0..0x40 => (7, 0x00),
        0x40..0x4000 => (6, 0x40),
        0x4000..0x4000_0000 => (4, 0x80),
        _ => (0, 0xC0),
    };
    let at = out.len();
    out.extend_from_slice(&bytes[skip..]);
    out[at] |= mark;
}

/// The draft's error codes on a stream (section 12.2), as far as this implementation uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StreamError {
    /// There is no state for the flow that was to be recovered.
    NoFlowState = 0xB3,
    /// A stream of a type that is not supported.
    StreamType = 0xB5,
    /// Flow identifier and type do not match.
    BadFlowId = 0xB6,
    /// Subscriptions cannot be kept on this flow.
    PersistentSubscriptions = 0xB8,
    /// Optional headers are not supported.
    OptionalHeader = 0xB9,
    /// The flow is not allowed, or there are too many.
    FlowRefused = 0xBE,
    /// Both ends forget the flow, as after a protocol error of level 1 (section 11).
    DiscardState = 0xBF,
}

impl FlowError {
    /// The code with which to reset the stream.
    #[must_use]
    pub fn stream_error(self) -> StreamError {
        match self {
            FlowError::Type(_) => StreamError::StreamType,
            FlowError::Identifier(_) => StreamError::BadFlowId,
            FlowError::Flags(_) => StreamError::DiscardState,
            FlowError::ServerSubscriptions(_) => StreamError::PersistentSubscriptions,
            FlowError::OptionalHeaders(_) => StreamError::OptionalHeader,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn client_data_header_as_in_the_draft() {
        let bytes = [0x12, 0x04, 0x43, 0xE8, 0x50];
        let flow = DataFlow { id: 4, expiry_s: 1000, flags: FlowFlags(0x50) };
        assert_eq!(decode(&bytes), Ok(Some((FlowHeader::ClientData(flow), 5))));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn owner_bit_and_contradicting_flags_are_refused() {
        assert_eq!(decode(&[0x12, 0x03, 0x00, 0x00]), Err(FlowError::Identifier(3)));
        assert_eq!(decode(&[0x13, 0x02, 0x00, 0x00]), Err(FlowError::Identifier(2)));
        assert_eq!(decode(&[0x12, 0x02, 0x00, 0x03]), Err(FlowError::Flags(3)));
        assert_eq!(decode(&[0x13, 0x03, 0x00, 0x40]), Err(FlowError::ServerSubscriptions(0x40)));
        assert_eq!(decode(&[0x12, 0x02, 0x00, 0x80]), Err(FlowError::OptionalHeaders(0x80)));
        assert_eq!(decode(&[0x11, 0x01, 0x00]), Err(FlowError::Identifier(1)));
        assert_eq!(decode(&[0x15, 0x00]), Err(FlowError::Type(0x15)));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(id in 1u64..(1 << 61), expiry_s in 0u64..(1 << 62), flags in any::<u8>()) {
            let flow = DataFlow { id: id * 2, expiry_s, flags: FlowFlags(flags & 0x7D) };
            let header = FlowHeader::ClientData(flow);
            let mut bytes = Vec::new();
            encode(&header, &mut bytes);
            prop_assert_eq!(decode(&bytes), Ok(Some((header, bytes.len()))));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(Some((_, used))) = decode(&bytes) {
                prop_assert!(used <= bytes.len().min(MAX_HEADER_BYTES));
            }
        }
    }
}

//! Transport parameters (RFC 9000, section 18): ours written, the server's checked.

use super::packet::Id;
use crate::bytes::{Reader, Writer, varint_len};
use crate::limits::{RECEIVE_BYTES, RECEIVE_DATAGRAM_BYTES, STREAM_RECEIVE_BYTES};

const ORIGINAL_DESTINATION: u32 = 0x00;
const MAX_IDLE_TIMEOUT: u32 = 0x01;
const STATELESS_RESET_TOKEN: u32 = 0x02;
const MAX_UDP_PAYLOAD: u32 = 0x03;
const MAX_DATA: u32 = 0x04;
const MAX_STREAM_DATA_BIDI_LOCAL: u32 = 0x05;
const MAX_STREAM_DATA_BIDI_REMOTE: u32 = 0x06;
const MAX_STREAMS_BIDI: u32 = 0x08;
const ACK_DELAY_EXPONENT: u32 = 0x0a;
const MAX_ACK_DELAY: u32 = 0x0b;
const ACTIVE_CONNECTION_ID_LIMIT: u32 = 0x0e;
const INITIAL_SOURCE: u32 = 0x0f;
const RETRY_SOURCE: u32 = 0x10;

/// Longest delay of our acknowledgements, in milliseconds: RFC 9000's value if none is sent.
pub(crate) const OUR_MAX_ACK_DELAY_MS: u32 = 25;

/// Limits that the server sets on sending; kept with a ticket, for early data comes before the server's word.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SendLimits {
    pub(crate) data: u32,
    /// On each stream we open.
    pub(crate) stream_data: u32,
    pub(crate) streams: u32,
}

/// Values that we read of the server's transport parameters.
pub(crate) struct Parameters {
    pub(crate) limits: SendLimits,
    /// 0: none.
    pub(crate) idle_timeout_ms: u32,
    pub(crate) ack_delay_exponent: u32,
    pub(crate) max_ack_delay_ms: u32,
    pub(crate) original_destination: Option<Id>,
    pub(crate) initial_source: Option<Id>,
    pub(crate) retry_source: Option<Id>,
    pub(crate) reset_token: Option<[u8; 16]>,
}

/// Writes ours. Our connection ID is empty, and the server may open no streams.
pub(crate) fn write(writer: &mut Writer<'_>, idle_timeout_ms: u32) {
    for (id, value) in [
        (MAX_IDLE_TIMEOUT, idle_timeout_ms),
        (MAX_UDP_PAYLOAD, RECEIVE_DATAGRAM_BYTES as u32),
        (MAX_DATA, RECEIVE_BYTES as u32),
        (MAX_STREAM_DATA_BIDI_LOCAL, STREAM_RECEIVE_BYTES as u32),
    ] {
        writer.varint(id);
        writer.varint(varint_len(value) as u32);
        writer.varint(value);
    }
    writer.varint(INITIAL_SOURCE);
    writer.varint(0);
}

/// Reads the server's; [`None`] if they are malformed, appear twice or have values that are not allowed.
#[inline(never)]
pub(crate) fn read(bytes: &[u8]) -> Option<Parameters> {
    let mut parameters = Parameters {
        limits: SendLimits::default(),
        idle_timeout_ms: 0,
        ack_delay_exponent: 3,
        max_ack_delay_ms: 25,
        original_destination: None,
        initial_source: None,
        retry_source: None,
        reset_token: None,
    };
    let mut seen = 0u32;
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let id = reader.varint()?;
        let value = reader.block_varint()?;
        if let Some(bit) = 1u32.checked_shl(id) {
            if seen & bit != 0 {
                return None;
            }
            seen |= bit;
        }
        read_one(&mut parameters, id, value)?;
    }
    Some(parameters)
}

fn read_one(parameters: &mut Parameters, id: u32, mut value: Reader<'_>) -> Option<()> {
    match id {
        ORIGINAL_DESTINATION => parameters.original_destination = Some(Id::new(value.rest())?),
        INITIAL_SOURCE => parameters.initial_source = Some(Id::new(value.rest())?),
        RETRY_SOURCE => parameters.retry_source = Some(Id::new(value.rest())?),
        STATELESS_RESET_TOKEN => parameters.reset_token = Some(value.rest().try_into().ok()?),
        MAX_IDLE_TIMEOUT..=MAX_STREAMS_BIDI | ACK_DELAY_EXPONENT..=ACTIVE_CONNECTION_ID_LIMIT
            // Disable migration and preferred address are not numbers.
            if !matches!(id, 0x0c | 0x0d) =>
        {
            let number = value.varint()?;
            let fine = value.is_empty()
                && match id {
                    MAX_UDP_PAYLOAD => number >= 1200,
                    ACK_DELAY_EXPONENT => number <= 20,
                    MAX_ACK_DELAY => number < 1 << 14,
                    ACTIVE_CONNECTION_ID_LIMIT => number >= 2,
                    _ => true,
                };
            match id {
                _ if !fine => return None,
                MAX_IDLE_TIMEOUT => parameters.idle_timeout_ms = number,
                MAX_DATA => parameters.limits.data = number,
                MAX_STREAM_DATA_BIDI_REMOTE => parameters.limits.stream_data = number,
                MAX_STREAMS_BIDI => parameters.limits.streams = number,
                ACK_DELAY_EXPONENT => parameters.ack_delay_exponent = number,
                MAX_ACK_DELAY => parameters.max_ack_delay_ms = number,
                _ => {}
            }
        }
        _ => {}
    }
    Some(())
}

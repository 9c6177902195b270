//! The chip's Ethernet controller, polled: frames are copied between its FIFOs and a buffer, a word
//! at a time. It takes a frame while the last one is still being sent only after waiting; it keeps
//! up to 31 received ones (2 KiB).

use fulmar_tiny_ip::{MAX_FRAME, Mac};

use crate::registers::{
    MAC_ADDRESS_HIGH, MAC_ADDRESS_LOW, MAC_DATA, MAC_INTERRUPTS, MAC_RECEIVE, MAC_REQUEST,
    MAC_TRANSMIT, MAC_WAITING, RCGC2,
};

/// Clock gates: the controller and its transceiver.
const GATES: u32 = 1 << 28 | 1 << 30;
const RECEIVE_ON: u32 = 1;
/// Frames with a bad check sequence are not kept.
const RECEIVE_REJECT_BAD: u32 = 1 << 3;
const RECEIVE_RESET_FIFO: u32 = 1 << 4;
/// On, pad short frames, append the check sequence, duplex.
const TRANSMIT_ON: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 4;
const NEW_TRANSMISSION: u32 = 1;
/// Raw interrupts: a receive error, and the FIFO overrun.
const RECEIVE_ERROR: u32 = 1 << 4;
const FIFO_OVERRUN: u32 = 1 << 3;
/// Bytes in the FIFO around a frame: its length before and the check sequence behind.
const AROUND_FRAME: usize = 6;
/// Maximum number of turns of waiting for a transmission: a full frame takes 0.12 ms, 6,000 cycles.
const PATIENCE: u32 = 100_000;

/// Switches it on.
pub(crate) fn start(mac: Mac) {
    RCGC2.set(GATES);
    cortex_m::asm::delay(8);
    let [a, b, c, d, e, f] = mac;
    MAC_ADDRESS_LOW.write(u32::from_le_bytes([a, b, c, d]));
    MAC_ADDRESS_HIGH.write(u32::from_le_bytes([e, f, 0, 0]));
    reset_receiver();
    MAC_TRANSMIT.write(TRANSMIT_ON);
}

fn reset_receiver() {
    MAC_RECEIVE.write(RECEIVE_RESET_FIFO);
    MAC_INTERRUPTS.write(RECEIVE_ERROR | FIFO_OVERRUN);
    MAC_RECEIVE.write(RECEIVE_ON | RECEIVE_REJECT_BAD);
}

/// Sends a frame of 14 bytes at least; the controller pads it and adds the check sequence. False if
/// it could not, and for lengths that are not a frame's.
pub(crate) fn send(frame: &[u8]) -> bool {
    let Some((start, rest)) = frame.split_first_chunk::<2>() else { return false };
    let payload = match frame.len() {
        14..=MAX_FRAME => (frame.len() - 14) as u32,
        _ => return false,
    };
    let mut patience = PATIENCE;
    while MAC_REQUEST.read() & NEW_TRANSMISSION != 0 {
        patience -= 1;
        if patience == 0 {
            return false;
        }
    }
    MAC_DATA.write(payload | u32::from(u16::from_le_bytes(*start)) << 16);
    for chunk in rest.chunks(4) {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        MAC_DATA.write(u32::from_le_bytes(word));
    }
    MAC_REQUEST.write(NEW_TRANSMISSION);
    true
}

/// Takes the next frame that has come into `buffer`, without its check sequence: its length. One
/// that is longer than the buffer is cut off, and will not pass for a whole one above.
pub(crate) fn receive(buffer: &mut [u8]) -> Option<usize> {
    if MAC_INTERRUPTS.read() & (RECEIVE_ERROR | FIFO_OVERRUN) != 0 {
        // Where a frame begins is not known any more.
        reset_receiver();
        return None;
    }
    if MAC_WAITING.read() & 0x3f == 0 {
        return None;
    }
    let [low, high, first, second] = MAC_DATA.read().to_le_bytes();
    let held = usize::from(u16::from_le_bytes([low, high]));
    let Some(len) = held.checked_sub(AROUND_FRAME).filter(|len| (14..=MAX_FRAME).contains(len))
    else {
        reset_receiver();
        return None;
    };
    for (place, byte) in buffer.iter_mut().zip([first, second]) {
        *place = byte;
    }
    for word in 0..(held - 4).div_ceil(4) {
        let bytes = MAC_DATA.read().to_le_bytes();
        let at = 2 + 4 * word;
        for (place, byte) in buffer.iter_mut().take(len).skip(at).zip(bytes) {
            *place = byte;
        }
    }
    Some(len.min(buffer.len()))
}

//! The log: UART 0 at 115,200 baud, written as fast as it goes.

use fulmar_sensor::Word;

use crate::registers::{
    PORT_A_DIGITAL, PORT_A_FUNCTION, RCGC1, RCGC2, UART_CONTROL, UART_DATA, UART_DIVISOR,
    UART_FLAGS, UART_FRACTION, UART_LINE,
};

const FULL: u32 = 1 << 5;

/// Switches it on: pins PA0 and PA1, 8 bits, no parity, with FIFO.
pub(crate) fn start() {
    RCGC1.set(1);
    RCGC2.set(1);
    // Clocks of a peripheral come on some cycles after its gate.
    cortex_m::asm::delay(8);
    PORT_A_FUNCTION.set(3);
    PORT_A_DIGITAL.set(3);
    // 50 MHz / (16 × 115,200) = 27 + 8/64.
    UART_DIVISOR.write(27);
    UART_FRACTION.write(8);
    UART_LINE.write(0x70);
    UART_CONTROL.write(0x301);
}

/// Writes a line.
pub(crate) fn line(words: &[Word<'_>]) {
    for word in words {
        match word {
            Word::Text(text) => text.bytes().for_each(byte),
            Word::Number(number) => decimal(*number),
            Word::Bytes(bytes) => bytes.iter().for_each(|byte| self::byte(printable(*byte))),
        }
    }
    byte(b'\n');
}

fn printable(byte: u8) -> u8 {
    if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'.' }
}

fn byte(byte: u8) {
    while UART_FLAGS.read() & FULL != 0 {}
    UART_DATA.write(byte.into());
}

fn decimal(number: u32) {
    let mut digits = [0; 10];
    let text = crate::decimal(number, &mut digits);
    text.iter().for_each(|digit| byte(*digit));
}

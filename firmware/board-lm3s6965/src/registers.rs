//! The chip's registers (LM3S6965 data sheet): the one place where addresses become accesses.

// Memory-mapped registers cannot be reached otherwise. Every address here is a register's or lies
// in flash, exists on this chip, and reading or writing it changes no memory of Rust's.
#![allow(unsafe_code)]

use core::ptr;

/// A register of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Register(usize);

impl Register {
    pub(crate) fn read(self) -> u32 {
        // SAFETY: constants of this module only: aligned registers.
        unsafe { ptr::with_exposed_provenance::<u32>(self.0).read_volatile() }
    }

    pub(crate) fn write(self, value: u32) {
        // SAFETY: as above; none of them is memory.
        unsafe { ptr::with_exposed_provenance_mut::<u32>(self.0).write_volatile(value) }
    }

    pub(crate) fn set(self, bits: u32) {
        self.write(self.read() | bits);
    }
}

/// A page of flash that the linker leaves free.
#[derive(Clone, Copy)]
pub(crate) struct Page(usize);

impl Page {
    /// Content of the page. Nothing else writes it while the program runs: it is programmed from outside,
    /// before power comes on.
    pub(crate) fn bytes(self) -> &'static [u8; 1024] {
        // SAFETY: flash of this chip, 1 KiB, readable for ever.
        unsafe { &*ptr::with_exposed_provenance(self.0) }
    }
}

/// Pages, as in `memory.x`.
pub(crate) const SETTINGS_PAGE: Page = Page(0x13800);
pub(crate) const TICKET_PAGE: Page = Page(0x13C00);

/// System control: raw interrupts, run-mode clocks, clock gates 1 and 2.
pub(crate) const RIS: Register = Register(0x400F_E050);
pub(crate) const RCC: Register = Register(0x400F_E060);
pub(crate) const RCGC1: Register = Register(0x400F_E104);
pub(crate) const RCGC2: Register = Register(0x400F_E108);

/// UART 0: data, flags, divisors, line, control.
pub(crate) const UART_DATA: Register = Register(0x4000_C000);
pub(crate) const UART_FLAGS: Register = Register(0x4000_C018);
pub(crate) const UART_DIVISOR: Register = Register(0x4000_C024);
pub(crate) const UART_FRACTION: Register = Register(0x4000_C028);
pub(crate) const UART_LINE: Register = Register(0x4000_C02C);
pub(crate) const UART_CONTROL: Register = Register(0x4000_C030);

/// Port A (UART 0's pins): alternate functions, digital enable. Port F (the LED on pin 0): the pin,
/// direction, digital enable.
pub(crate) const PORT_A_FUNCTION: Register = Register(0x4000_4420);
pub(crate) const PORT_A_DIGITAL: Register = Register(0x4000_451C);
pub(crate) const PORT_F_PIN0: Register = Register(0x4002_5004);
pub(crate) const PORT_F_DIRECTION: Register = Register(0x4002_5400);
pub(crate) const PORT_F_DIGITAL: Register = Register(0x4002_551C);

/// Ethernet: interrupts, receive and transmit control, data, address, packets waiting, transmission.
pub(crate) const MAC_INTERRUPTS: Register = Register(0x4004_8000);
pub(crate) const MAC_RECEIVE: Register = Register(0x4004_8008);
pub(crate) const MAC_TRANSMIT: Register = Register(0x4004_800C);
pub(crate) const MAC_DATA: Register = Register(0x4004_8010);
pub(crate) const MAC_ADDRESS_LOW: Register = Register(0x4004_8014);
pub(crate) const MAC_ADDRESS_HIGH: Register = Register(0x4004_8018);
pub(crate) const MAC_WAITING: Register = Register(0x4004_8034);
pub(crate) const MAC_REQUEST: Register = Register(0x4004_8038);

/// The core's: what kind of fault it was, and at which address of the bus.
pub(crate) const FAULT_STATUS: Register = Register(0xE000_ED28);
pub(crate) const FAULT_ADDRESS: Register = Register(0xE000_ED38);

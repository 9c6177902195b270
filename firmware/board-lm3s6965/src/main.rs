//! The sensor on the LM3S6965, a Cortex-M3 that QEMU emulates as `lm3s6965evb`: startup, and the
//! cycle of waking and sleeping. `board` is what the sensor needs of it; `ethernet`, `uart` and
//! `clock` are its drivers; `host` stands in for what the emulator lacks.
#![no_std]
#![no_main]

mod board;
mod clock;
mod ethernet;
mod fault;
mod host;
mod memory;
mod registers;
mod stack;
mod uart;

use cortex_m::Peripherals;
use cortex_m_rt::entry;
use fulmar_sensor::Word::{Number, Text};
use fulmar_sensor::{Sensor, Settings, SettingsError, StoredTicket};

use board::Lm3s6965;
use clock::Clock;
use registers::{SETTINGS_PAGE, TICKET_PAGE};

/// The chip's interrupts: none is used, nor enabled; the drivers poll.
// The vector table has its place by the name of its section.
#[allow(unsafe_code)]
#[unsafe(link_section = ".vector_table.interrupts")]
#[unsafe(no_mangle)]
static __INTERRUPTS: [usize; 1] = [0];

#[entry]
fn main() -> ! {
    // A static of some KiB that is all zero; built on the stack it would overflow it.
    static mut SENSOR: Sensor = Sensor::new();
    static mut PAGE: [u8; StoredTicket::PAGE] = [0; StoredTicket::PAGE];

    uart::start();
    let Some(core) = Peripherals::take() else { host::switch_off() };
    let mut clock = Clock::start(core.SYST, core.SCB);
    uart::line(&[Text("boot")]);
    #[cfg(feature = "overflow")]
    uart::line(&[Number(stack::overflow(0))]);
    let settings = match Settings::read(SETTINGS_PAGE.bytes()) {
        Ok(settings) => settings,
        Err(error) => without_settings(error),
    };
    #[cfg(not(feature = "dhcp"))]
    if settings.network.is_none() {
        uart::line(&[Text("no address: set --address and --gateway, or build with dhcp")]);
        host::switch_off()
    }
    SENSOR.kept().read(TICKET_PAGE.bytes());
    let mut board = Lm3s6965::start(&settings);
    run(SENSOR, PAGE, &mut clock, &mut board, &settings)
}

/// Wakes and sleeps, until the settings say it is enough.
fn run(
    sensor: &mut Sensor,
    page: &mut [u8; StoredTicket::PAGE],
    clock: &mut Clock,
    board: &mut Lm3s6965,
    settings: &Settings<'_>,
) -> ! {
    let mut wakes = 0u16;
    loop {
        wakes = wakes.wrapping_add(1);
        uart::line(&[Text("wake "), Number(wakes.into())]);
        sensor.wake(board, settings);
        uart::line(&[Text("stack peak "), Number(stack::peak() as u32)]);
        if wakes == settings.wakes {
            let len = sensor.kept().write(page);
            let kept = host::keep_ticket_page(&page[..len]);
            uart::line(&[Text(if kept { "off" } else { "off, ticket lost" })]);
            host::switch_off()
        }
        // What takes long is done before sleeping, not when the next wake is in a hurry.
        sensor.prepare(board);
        clock.sleep(sensor.interval_s(settings).saturating_mul(1000).min(u32::MAX / 4));
    }
}

/// A device that was given no settings says so and waits for somebody who gives it some.
fn without_settings(error: SettingsError) -> ! {
    let (what, tag) = match error {
        SettingsError::Missing => ("no settings", 0),
        SettingsError::Entry(tag) => ("settings: a bad entry of tag ", tag),
        SettingsError::Lacks(tag) => ("settings: no entry of tag ", tag),
    };
    uart::line(&[Text(what), Number(tag.into())]);
    host::switch_off()
}

/// A number's decimal digits.
pub(crate) fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 || at == 0 {
            return &digits[at..];
        }
    }
}

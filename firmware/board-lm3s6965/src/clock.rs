//! Time: the core at 50 MHz, milliseconds from SysTick, and sleep.

use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m::asm;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{SCB, SYST};
use cortex_m_rt::exception;

use crate::registers::{RCC, RIS};

/// Ticks of the core's clock in a millisecond.
const TICKS_PER_MS: u32 = 50_000;
/// Time that a tick of deep sleep stands for: fewer wake-ups. SysTick counts to 2²⁴, 335 ms.
const DEEP_MS: u32 = 250;

/// System control's bits: 50 MHz is the PLL's 200 MHz by 4, from the board's crystal of 8 MHz.
const RCC_USE_DIVISOR: u32 = 1 << 22;
const RCC_DIVIDE_BY_4: u32 = 3 << 23;
const RCC_PLL_OFF: u32 = 1 << 13;
const RCC_PLL_BYPASSED: u32 = 1 << 11;
const RCC_CRYSTAL_8_MHZ: u32 = 0xE << 6;
const RCC_CRYSTAL_AND_SOURCE: u32 = 0xF << 6 | 3 << 4;
const RIS_PLL_LOCKED: u32 = 1 << 6;

/// Milliseconds since power came on.
static NOW_MS: AtomicU32 = AtomicU32::new(0);
/// Milliseconds that a tick stands for.
static STEP_MS: AtomicU32 = AtomicU32::new(1);

#[exception]
fn SysTick() {
    let step_ms = STEP_MS.load(Ordering::Relaxed);
    NOW_MS.store(NOW_MS.load(Ordering::Relaxed).wrapping_add(step_ms), Ordering::Relaxed);
}

/// The clock, and the sleep that goes by it.
pub(crate) struct Clock {
    syst: SYST,
    scb: SCB,
}

impl Clock {
    pub(crate) fn start(mut syst: SYST, scb: SCB) -> Clock {
        run_at_50_mhz();
        syst.set_clock_source(SystClkSource::Core);
        let mut clock = Clock { syst, scb };
        clock.tick_every(1);
        clock.syst.enable_interrupt();
        clock.syst.enable_counter();
        clock
    }

    /// Milliseconds since power came on, modulo 2³².
    pub(crate) fn now_ms() -> u32 {
        NOW_MS.load(Ordering::Relaxed)
    }

    /// Sleeps until the next interrupt, at most a millisecond.
    pub(crate) fn doze() {
        asm::wfi();
    }

    /// Sleeps deeply, memory kept, the chip's clocks for peripherals off.
    pub(crate) fn sleep(&mut self, ms: u32) {
        let until_ms = Clock::now_ms().wrapping_add(ms);
        let left = || until_ms.wrapping_sub(Clock::now_ms());
        self.scb.set_sleepdeep();
        self.tick_every(DEEP_MS);
        // The remainder is slept by the millisecond: at most a quarter of a second.
        while (DEEP_MS..=u32::MAX / 2).contains(&left()) {
            asm::wfi();
        }
        self.scb.clear_sleepdeep();
        self.tick_every(1);
        while (1..=u32::MAX / 2).contains(&left()) {
            asm::wfi();
        }
    }

    fn tick_every(&mut self, ms: u32) {
        STEP_MS.store(ms, Ordering::Relaxed);
        self.syst.set_reload(ms * TICKS_PER_MS - 1);
        self.syst.clear_current();
    }
}

/// Sets the clock in the data sheet's steps (section 5.3): off the PLL, change it, wait for it, onto it.
fn run_at_50_mhz() {
    let rcc = (RCC.read() | RCC_PLL_BYPASSED) & !RCC_USE_DIVISOR;
    RCC.write(rcc);
    let rcc = rcc & !(RCC_CRYSTAL_AND_SOURCE | RCC_PLL_OFF | 0xF << 23);
    let rcc = rcc | RCC_CRYSTAL_8_MHZ | RCC_DIVIDE_BY_4 | RCC_USE_DIVISOR;
    RCC.write(rcc);
    while RIS.read() & RIS_PLL_LOCKED == 0 {}
    RCC.write(rcc & !RCC_PLL_BYPASSED);
}

//! What must not happen: faults of the processor, stack overflow and panics. Each is reported on the
//! UART, then the chip is reset; a device in the field has nobody to look at it.

// Finding out about a fault means looking where the faulting program's stack was.
#![allow(unsafe_code)]

use core::arch::naked_asm;
use core::panic::PanicInfo;
use core::ptr;

use cortex_m::peripheral::SCB;
use fulmar_sensor::Word::{Number, Text};

use crate::registers::{FAULT_ADDRESS, FAULT_STATUS};
use crate::{stack, uart};

/// Fault status bits: the bus refused a push on the stack; its address is known.
const STACKING_REFUSED: u32 = 1 << 12;
const ADDRESS_KNOWN: u32 = 1 << 15;
/// Where in the frame that the processor pushes the program counter is, in bytes.
const PROGRAM_COUNTER: u32 = 24;

/// All faults escalate to this one. The stack may be what failed, so nothing is pushed before it is
/// taken from the top again.
///
/// # Safety
/// Called by the processor only.
#[unsafe(naked)]
#[unsafe(export_name = "HardFault")]
unsafe extern "C" fn hard_fault() -> ! {
    naked_asm!(
        "mrs r0, msp",
        "ldr r1, =_stack_start",
        "msr msp, r1",
        "b {report}",
        report = sym report,
    )
}

extern "C" fn report(stack_pointer: u32) -> ! {
    let status = FAULT_STATUS.read();
    let address = if status & ADDRESS_KNOWN != 0 { FAULT_ADDRESS.read() } else { 0 };
    let overflow = status & STACKING_REFUSED != 0 || !stack::contains(stack_pointer, 32);
    let what = if overflow { "fault: stack overflow" } else { "fault" };
    let program = match overflow {
        true => 0,
        // SAFETY: the processor pushed a frame of 32 bytes here, all of it within the stack.
        false => unsafe {
            let at = (stack_pointer + PROGRAM_COUNTER) as usize;
            ptr::with_exposed_provenance::<u32>(at).read_volatile()
        },
    };
    uart::line(&[Text(what), Text(", status "), Number(status)]);
    uart::line(&[Text("address "), Number(address), Text(", program counter "), Number(program)]);
    SCB::sys_reset()
}

/// The place of a panic is not told: places and messages of all that could panic take 4.8 KB of flash.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    uart::line(&[Text("panic")]);
    SCB::sys_reset()
}

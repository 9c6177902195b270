//! What the emulated board borrows from the machine it is emulated on, by ARM's semihosting: a
//! source of entropy (the chip has none), a clock that goes on without power, a file in the place of
//! a page of flash (QEMU's is read-only), and a switch to turn itself off. A real board has drivers
//! in their place; without a debugger attached these calls would fault.

// Semihosting is a breakpoint instruction with arguments in registers.
#![allow(unsafe_code)]

use core::arch::asm;

/// Operations (ARM's Semihosting specification).
const OPEN: u32 = 0x01;
const CLOSE: u32 = 0x02;
const WRITE: u32 = 0x05;
const READ: u32 = 0x06;
const TIME: u32 = 0x11;
const EXIT: u32 = 0x20;
/// Modes of fopen: "rb" and "wb".
const READ_BINARY: u32 = 1;
const WRITE_BINARY: u32 = 5;
/// "The application has ended", with a status to follow.
const APPLICATION_EXIT: u32 = 0x20026;
const FAILED: u32 = u32::MAX;

/// Calls the host. `block` holds what the operation wants, addresses included.
fn call(operation: u32, block: &[u32]) -> u32 {
    let result;
    // SAFETY: the host reads `block` and, for READ, writes the buffer that the caller of this
    // private function holds exclusively; the instruction changes r0 only.
    unsafe {
        asm!("bkpt 0xab", inout("r0") operation => result, in("r1") block.as_ptr(),
            options(nostack));
    }
    result
}

fn address<T: ?Sized>(value: *const T) -> u32 {
    value.cast::<u8>().expose_provenance() as u32
}

/// A file of the host, which ends with a zero byte; closed when dropped.
struct File(u32);

impl File {
    fn open(name: &core::ffi::CStr, mode: u32) -> Option<File> {
        let len = name.count_bytes() as u32;
        let handle = call(OPEN, &[address(name.as_ptr()), mode, len]);
        (handle != FAILED).then_some(File(handle))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        call(CLOSE, &[self.0]);
    }
}

/// Entropy from the host; false if there is none.
pub(crate) fn entropy(bytes: &mut [u8; 32]) -> bool {
    let Some(file) = File::open(c"/dev/urandom", READ_BINARY) else { return false };
    // The result is the number of bytes that are missing.
    call(READ, &[file.0, address(bytes.as_mut_ptr()), bytes.len() as u32]) == 0
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u32 {
    call(TIME, &[])
}

/// Keeps a page; true if it could be written.
pub(crate) fn keep_ticket_page(page: &[u8]) -> bool {
    let Some(file) = File::open(c"ticket.bin", WRITE_BINARY) else { return false };
    call(WRITE, &[file.0, address(page.as_ptr()), page.len() as u32]) == 0
}

/// Power off.
pub(crate) fn switch_off() -> ! {
    loop {
        call(EXIT, &[APPLICATION_EXIT, 0]);
    }
}

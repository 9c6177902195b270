//! The stack: its bounds, and how much of it has ever been used. `memory.x` puts it where an
//! overflow meets no memory; cortex-m-rt paints it at the start.

// The stack's bounds are symbols of the linker's, its unused part memory that no variable owns.
#![allow(unsafe_code)]

unsafe extern "C" {
    static _stack_start: u32;
    static _stack_end: u32;
}

fn bounds() -> (usize, usize) {
    ((&raw const _stack_end).expose_provenance(), (&raw const _stack_start).expose_provenance())
}

/// Whether `len` bytes from `address` on lie within the stack.
pub(crate) fn contains(address: u32, len: usize) -> bool {
    let (lowest, top) = bounds();
    (lowest..=top - len).contains(&(address as usize))
}

/// Maximum number of bytes of stack in use at any time since the start.
pub(crate) fn peak() -> usize {
    let (lowest, top) = bounds();
    // SAFETY: aligned words of RAM that nobody writes while this function, above them on the
    // stack, reads them.
    let word = |at: usize| unsafe { core::ptr::with_exposed_provenance::<u32>(at).read_volatile() };
    let painted = |at: &usize| word(*at) == cortex_m_rt::STACK_PAINT_VALUE;
    let untouched = (lowest..top).step_by(4).take_while(painted).count();
    top - lowest - 4 * untouched
}

/// Uses more stack than there is.
#[cfg(feature = "overflow")]
#[expect(unconditional_recursion)]
pub(crate) fn overflow(depth: u32) -> u32 {
    let room = core::hint::black_box([depth; 64]);
    room[1].wrapping_add(overflow(depth + 1)).wrapping_add(room[2])
}

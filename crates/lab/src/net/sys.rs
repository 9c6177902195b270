//! The system calls for which there is no safe wrapper: with those of `arrival` the only unsafe code
//! of the crate.
//!
//! Each function states why it is sound. Everything else goes through rustix and std.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Gives the calling thread a network namespace of its own.
pub(crate) fn new_network_namespace() -> rustix::io::Result<()> {
    // SAFETY: only unsharing file descriptor tables can break what other threads rely on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Gives the process, which must have one thread, a user namespace of its own.
pub(crate) fn new_user_namespace() -> rustix::io::Result<()> {
    // SAFETY: as above.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
}

/// Length of an interface name with its terminating zero.
const NAME_BYTES: usize = 16;
/// Packets begin with the IP header, nothing before it.
const TUN_WITHOUT_INFO: u16 = 0x0001 | 0x1000;

/// `TUNSETIFF`'s argument, `struct ifreq` with the flags of its union.
#[repr(C)]
struct TunRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

// SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes, which `TunRequest` is; the
// pointer is to `self`, which outlives the call.
unsafe impl Ioctl for TunRequest {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        0x4004_54ca // TUNSETIFF
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Creates a TUN device from an open `/dev/net/tun`, in the calling thread's namespace.
pub(crate) fn make_tun(clone: impl AsFd, name: &str) -> rustix::io::Result<()> {
    const { assert!(size_of::<TunRequest>() == 40) };
    let mut request = TunRequest { name: [0; NAME_BYTES], flags: TUN_WITHOUT_INFO, rest: [0; 22] };
    let length = name.len().min(NAME_BYTES - 1);
    request.name[..length].copy_from_slice(&name.as_bytes()[..length]);
    // SAFETY: the request is TUNSETIFF's, see its implementation.
    unsafe { rustix::ioctl::ioctl(clone, request) }
}

/// Lets a command start in a network namespace, and lets the kernel kill it when the starting thread ends.
pub(crate) fn start_in(command: &mut Command, namespace: Arc<OwnedFd>) {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before it was watched.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::Other.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes three system calls; it neither allocates nor
    // takes locks, and the descriptor that it owns is never dropped in the child.
    unsafe { command.pre_exec(prepare) };
}

/// Asks the scheduler to run the calling thread before all ordinary ones. False if that is not allowed; the thread
/// then competes like any other, but with short time slices.
pub(crate) fn run_first() -> bool {
    // One is the lowest real-time priority: above every ordinary thread, below the kernel's own. It is all there is in
    // the kernel's `sched_param`; the one of the C library has more in musl, whose function always fails.
    let priority: libc::c_int = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the pointer is to a live, initialised integer; 0 names the calling thread.
    let is_first =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) == 0 };
    if !is_first {
        ask_for_short_turns();
    }
    is_first
}

/// The shortest time slice that Linux grants (since 6.12), in ns. A thread with short slices is scheduled sooner:
/// with three busy neighbours on two cores, the 99th percentile of wake-ups fell from 3.5 to 0.1 ms.
const SHORT_TURN: u64 = 100_000;

/// Older kernels refuse, or ignore it.
fn ask_for_short_turns() {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: SHORT_TURN,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the pointer is to a live, initialised `sched_attr` that says its own size; 0 names the
    // calling thread, and no flag is set.
    let refused =
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0;
    if refused {
        tracing::debug!("the router's thread has ordinary turns");
    }
}

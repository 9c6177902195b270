//! When the kernel received a datagram, which separates delay on the link from the time that the receiving program
//! waits for a processor. (`SO_TIMESTAMPNS`, socket(7))
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Room for one control message with a time, in words, because control messages are word-aligned.
const CONTROL_WORDS: usize = 8;

/// Asks the kernel to note when each of the socket's datagrams arrives.
///
/// # Errors
/// The kernel does not know the option.
pub fn note_arrivals(socket: &UdpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int, whose address and size are given; the descriptor is open.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives a datagram: its length, truncated to the buffer's, and how long ago it arrived; zero if the kernel does
/// not report it.
///
/// # Errors
/// As of [`UdpSocket::recv`].
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Duration)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a `msghdr` of zeros is a valid one with nothing in it.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: all pointers in the header are to live memory of the lengths beside them.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok((length, arrival(&header).map_or(Duration::ZERO, age)))
}

/// The time of arrival in a received header's control messages, since 1970.
fn arrival(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the kernel has filled in the header and the control messages it points to; the macros
    // stay within them. A time is not necessarily aligned there and so is copied.
    let time: libc::timespec = unsafe {
        let first = libc::CMSG_FIRSTHDR(header).as_ref()?;
        if (first.cmsg_level, first.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            return None;
        }
        libc::CMSG_DATA(first).cast::<libc::timespec>().read_unaligned()
    };
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

/// Returns the time since a time of day.
fn age(arrival: Duration) -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
        .saturating_sub(arrival)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_waited_in_the_socket_is_told() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        note_arrivals(&receiver).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 16];
        let begin = Instant::now();
        // Kernels begin to take timestamps a moment after the request.
        loop {
            sender.send_to(b"hello", receiver.local_addr().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let (length, age) = receive(&receiver, &mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"hello");
            assert!(age <= begin.elapsed());
            if age >= Duration::from_millis(20) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "never noted");
        }
    }
}

//! A way of datagrams to a broker that a test can cut, and that may lose or delay some.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Passes datagrams between one client and a broker until it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    loses: Arc<AtomicUsize>,
    delay_ms: Arc<AtomicU64>,
    retries: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Relay {
    /// A relay on a free loopback port.
    ///
    /// # Panics
    /// There is none.
    pub async fn start(broker: SocketAddr) -> Relay {
        let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        far.connect(broker).await.unwrap();
        let address = near.local_addr().unwrap();
        let way = Way {
            near,
            far,
            loses: Arc::default(),
            delay_ms: Arc::default(),
            retries: Arc::default(),
        };
        let (loses, delay_ms) = (Arc::clone(&way.loses), Arc::clone(&way.delay_ms));
        let retries = Arc::clone(&way.retries);
        let task = tokio::spawn(way.pass());
        Relay { address, loses, delay_ms, retries, task }
    }

    /// Loses one in so many of the client's datagrams from now on; none if it is 0.
    pub fn lose(&self, one_in: usize) {
        self.loses.store(one_in, Ordering::Relaxed);
    }

    /// Delays each datagram in either direction from now on.
    pub fn delay(&self, by: Duration) {
        self.delay_ms.store(by.as_millis().try_into().unwrap(), Ordering::Relaxed);
    }

    /// How often the broker has demanded a proof of the client's address (RFC 9000 section 17.2.5).
    #[must_use]
    pub fn retries(&self) -> usize {
        self.retries.load(Ordering::Relaxed)
    }

    /// Where the client is to go.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Sockets to the client and to the broker, and what the test sets and counts.
struct Way {
    near: UdpSocket,
    far: UdpSocket,
    loses: Arc<AtomicUsize>,
    delay_ms: Arc<AtomicU64>,
    retries: Arc<AtomicUsize>,
}

impl Way {
    async fn pass(self) {
        let mut count = 0usize;
        let (mut out, mut back) = (vec![0; 65536], vec![0; 65536]);
        let mut client = None;
        // In order, each with when and where to: to the client, or else to the broker.
        let mut delayed: VecDeque<(Instant, Option<SocketAddr>, Vec<u8>)> = VecDeque::new();
        loop {
            let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
            let next = delayed.front().map(|(at, ..)| *at);
            tokio::select! {
                Ok((bytes, from)) = self.near.recv_from(&mut out) => {
                    client = Some(from);
                    count += 1;
                    let one_in = self.loses.load(Ordering::Relaxed);
                    if one_in == 0 || !count.is_multiple_of(one_in) {
                        delayed.push_back((Instant::now() + delay, None, out[..bytes].to_vec()));
                    }
                }
                Ok(bytes) = self.far.recv(&mut back) => {
                    // Whatever the QUIC bit is, which either side may send as 0 (RFC 9287).
                    if back[0] & 0xB0 == 0xB0 {
                        self.retries.fetch_add(1, Ordering::Relaxed);
                    }
                    if client.is_some() {
                        delayed.push_back((Instant::now() + delay, client, back[..bytes].to_vec()));
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
            while let Some((_, to, datagram)) =
                delayed.pop_front_if(|(at, ..)| *at <= Instant::now())
            {
                // What cannot be passed on is lost, as datagrams may be.
                drop(match to {
                    Some(client) => self.near.send_to(&datagram, client).await,
                    None => self.far.send(&datagram).await,
                });
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! A way of datagrams to a broker that a test can cut, and that may lose some.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// Passes datagrams between one client and a broker until it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    loses: Arc<AtomicUsize>,
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
        let loses = Arc::new(AtomicUsize::new(0));
        let retries = Arc::default();
        let task = tokio::spawn(pass(near, far, Arc::clone(&loses), Arc::clone(&retries)));
        Relay { address, loses, retries, task }
    }

    /// Loses one in so many of the client's datagrams from now on; none if it is 0.
    pub fn lose(&self, one_in: usize) {
        self.loses.store(one_in, Ordering::Relaxed);
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

async fn pass(near: UdpSocket, far: UdpSocket, loses: Arc<AtomicUsize>, retries: Arc<AtomicUsize>) {
    let mut count = 0usize;
    let (mut out, mut back) = (vec![0; 65536], vec![0; 65536]);
    let mut client = None;
    loop {
        // What cannot be passed on is lost, as datagrams may be.
        tokio::select! {
            Ok((bytes, from)) = near.recv_from(&mut out) => {
                client = Some(from);
                count += 1;
                let one_in = loses.load(Ordering::Relaxed);
                if one_in == 0 || !count.is_multiple_of(one_in) {
                    drop(far.send(&out[..bytes]).await);
                }
            }
            Ok(bytes) = far.recv(&mut back) => {
                // Whatever the QUIC bit is, which either side may send as 0 (RFC 9287).
                if back[0] & 0xB0 == 0xB0 {
                    retries.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(client) = client {
                    drop(near.send_to(&back[..bytes], client).await);
                }
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

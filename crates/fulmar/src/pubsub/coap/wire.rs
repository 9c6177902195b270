//! A socket and a clock for `fulmar_coap::Client`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use anyhow::Context as _;
use fulmar_coap::{Call, CallId, Client, ClientEvent, ClientLimits, Response};
use tokio::net::UdpSocket;

use super::{Url, resolve};

/// Room for the largest datagram there is.
const MAX_DATAGRAM: usize = 65_535;

/// A client with its socket.
pub(super) struct Wire {
    client: Client,
    socket: UdpSocket,
    room: Vec<u8>,
}

impl Wire {
    /// Gets ready to ask the server of `url`. Over CoAP nothing is sent for that.
    pub(super) async fn open(url: &Url) -> anyhow::Result<Wire> {
        let server = resolve(url).await?;
        let any = match server.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await.context("socket")?;
        socket.connect(server).await.with_context(|| server.to_string())?;
        let client = Client::new(ClientLimits::default(), seed()?);
        Ok(Wire { client, socket, room: vec![0; MAX_DATAGRAM] })
    }

    /// Makes a request.
    pub(super) fn call(&mut self, call: Call) -> CallId {
        self.client.call(Instant::now(), call)
    }

    /// Ends an observation.
    pub(super) async fn cancel(&mut self, id: CallId) {
        self.client.cancel(id);
        // The server learns of it otherwise too, when it tells of the next change.
        let _ = self.flush().await;
    }

    /// What happens next. Cancelling it loses nothing.
    pub(super) async fn event(&mut self) -> anyhow::Result<ClientEvent> {
        loop {
            self.flush().await?;
            if let Some(event) = self.client.poll_event() {
                return Ok(event);
            }
            let deadline = self.client.deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                received = self.socket.recv(&mut self.room) => match received {
                    Ok(len) => self.client.receive(Instant::now(), &self.room[..len]),
                    // Nobody listens there; the person at the keyboard wants to know at once.
                    Err(error) => return Err(error).context("the server cannot be reached"),
                },
                () = due => self.client.tick(Instant::now()),
            }
        }
    }

    /// Makes a request and waits for its response.
    pub(super) async fn ask(&mut self, call: Call) -> anyhow::Result<Response> {
        let asked = self.call(call);
        loop {
            match self.event().await? {
                ClientEvent::Response { id, response, .. } if id == asked => return Ok(response),
                ClientEvent::Failed { id, failure } if id == asked => return Err(failure.into()),
                _ => {}
            }
        }
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        while let Some(datagram) = self.client.poll_transmit() {
            self.socket.send(&datagram).await.context("the server cannot be reached")?;
        }
        Ok(())
    }
}

/// From the system: tokens are what keeps strangers from answering in the server's place.
fn seed() -> anyhow::Result<u64> {
    use ring::rand::SecureRandom as _;
    let mut seed = [0; 8];
    let filled = ring::rand::SystemRandom::new().fill(&mut seed).ok();
    filled.context("there are no random numbers")?;
    Ok(u64::from_ne_bytes(seed))
}

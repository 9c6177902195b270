//! Connections to a PostgreSQL server, for the platform and the sinks: its address with user and password, TLS that
//! verifies the server, and the settings with which every connection begins. Every wait has an end.

mod address;
mod tls;

use std::time::Duration;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, NoTls, Socket};

pub use address::{Address, text_of};

/// Longest time until a connection is there, whatever number of addresses the server has.
const CONNECTING: Duration = Duration::from_secs(10);

/// The first statements of every connection. A transaction ends if another process blocks it for too long, or its
/// client has vanished. Acknowledged means durable, whatever the server's settings are.
pub const SETTINGS: &str = "SET statement_timeout = '20s'; SET lock_timeout = '10s';
    SET idle_in_transaction_session_timeout = '60s'; SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET standard_conforming_strings = on;
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// TLS cannot be set up.
    #[error("{0}")]
    Setting(String),
    /// The server's answer, or the error of the network.
    #[error("{}", text_of(.0))]
    Failed(#[from] tokio_postgres::Error),
    /// The server does not answer.
    #[error("no answer")]
    Silent,
}

impl Address {
    /// Connects, within a limited time. The connection makes progress while the caller's runtime runs.
    ///
    /// # Errors
    /// The server cannot be reached, its certificate is not trusted, or it refuses the user.
    pub async fn connect(&self) -> Result<Client, ConnectError> {
        let connecting = async {
            if self.tls {
                let tls = tls::connector(self.ca_file.as_deref()).map_err(ConnectError::Setting)?;
                self.connect_with(tls).await
            } else {
                self.connect_with(NoTls).await
            }
        };
        tokio::time::timeout(CONNECTING, connecting).await.unwrap_or(Err(ConnectError::Silent))
    }

    async fn connect_with<T>(&self, tls: T) -> Result<Client, ConnectError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = self.config.connect(tls).await?;
        // The tasks that wait for a response get the error.
        tokio::spawn(async { drop(connection.await) });
        Ok(client)
    }
}

//! The address of a server, and what of it holds here.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// How long one attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(5);
/// Unanswered for so long, a connection is given up by the system.
const SILENCE: Duration = Duration::from_secs(15);

/// A PostgreSQL server, with the user and password to log in. The password is not shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub(crate) config: Config,
    /// Whether the server must show a certificate for its name.
    pub(crate) tls: bool,
    /// The trusted CAs; the system's, if none is named.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Address {
    /// Parses a URL, `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?sslmode=…]`, with a password that holds instead of
    /// the URL's, and a PEM file of authorities instead of the system's.
    ///
    /// # Errors
    /// The URL is none, or asks for what there is not; it is not repeated in the error.
    pub fn parse(
        url: &str,
        password: Option<&str>,
        ca_file: Option<&Path>,
    ) -> Result<Address, String> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err("write postgres://USER@HOST/DATABASE".to_owned());
        }
        let (url, mode) = split_mode(url);
        let parsed: Result<Config, _> = url.parse();
        let mut config = parsed.map_err(|error| text_of(&error))?;
        if config.get_hosts().is_empty() || config.get_user().is_none() {
            return Err("a host and a user are needed: postgres://USER@HOST/DATABASE".to_owned());
        }
        let tls = match mode.as_deref() {
            None => !config.get_hosts().iter().all(is_here),
            Some("disable") => false,
            Some("require" | "verify-ca" | "verify-full") => true,
            Some(_) => {
                let text = "sslmode is require (the server's certificate is verified) or disable";
                return Err(text.to_owned());
            }
        };
        config.ssl_mode(if tls { SslMode::Require } else { SslMode::Disable });
        if let Some(password) = password {
            config.password(password);
        }
        config.application_name("fulmar").target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(CONNECTING).tcp_user_timeout(SILENCE).keepalives_idle(SILENCE);
        Ok(Address { config, tls, ca_file: ca_file.map(Path::to_owned) })
    }
}

impl fmt::Display for Address {
    /// Host and database, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        f.write_str(database)?;
        for host in self.config.get_hosts() {
            match host {
                Host::Tcp(name) => write!(f, " at {name}")?,
                Host::Unix(folder) => write!(f, " at {}", folder.display())?,
            }
        }
        Ok(())
    }
}

/// The URL without `sslmode`, which has more values here than in the driver, and what it was.
fn split_mode(url: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let mut mode = None;
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.strip_prefix("sslmode=") {
            Some(value) => mode = Some(value.to_owned()),
            None => rest.push(pair),
        }
    }
    if rest.is_empty() {
        (base.to_owned(), mode)
    } else {
        (format!("{base}?{}", rest.join("&")), mode)
    }
}

/// Whether what is sent there stays on this machine.
fn is_here(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    }
}

/// Text of an error with its cause, which the driver's own lacks; without values that may be personal data.
pub fn text_of(error: &tokio_postgres::Error) -> String {
    if let Some(told) = error.as_db_error() {
        // The detail contains values, which may be personal data.
        return format!("{} (SQLSTATE {})", told.message(), told.code().code());
    }
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let text = error.to_string();
    match cause {
        Some(cause) if !text.contains(&cause) => format!("{text}: {cause}"),
        _ => text,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tls(url: &str) -> bool {
        Address::parse(url, None, None).unwrap().tls
    }

    #[test]
    fn plain_text_leaves_the_machine_only_where_it_is_asked_for() {
        assert!(!tls("postgres://ann@localhost/f"));
        assert!(!tls("postgresql://ann@127.0.0.1:5433/f"));
        assert!(!tls("postgres://ann@%2Frun%2Fpostgresql/f"));
        assert!(!tls("postgres://ann@db.example.org/f?sslmode=disable"));
        assert!(tls("postgres://ann@db.example.org/f"));
        assert!(tls("postgres://ann@localhost,db.example.org/f"));
        for mode in ["require", "verify-ca", "verify-full"] {
            assert!(tls(&format!("postgres://ann@localhost/f?connect_timeout=3&sslmode={mode}")));
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_passwords_are_not_shown() {
        for wrong in [
            "mysql://ann:geheim@h/f",
            "postgres://",
            "postgres://h/f",
            "postgres://ann:geheim@h/f?sslmode=prefer",
            "postgres://ann:geheim@h/f?what=ever",
            "postgres://ann:geheim@h:port/f",
        ] {
            let error = Address::parse(wrong, None, None).unwrap_err();
            assert!(!error.contains("geheim"), "{error}");
        }
        let address = Address::parse("postgres://ann:geheim@h/f", Some("heimlich"), None).unwrap();
        let shown = format!("{address:?}");
        assert!(!shown.contains("geheim") && !shown.contains("heimlich"), "{shown}");
        assert_eq!(address.config.get_password(), Some(&b"heimlich"[..]));
        assert_eq!(address.to_string(), "f at h");
    }
}

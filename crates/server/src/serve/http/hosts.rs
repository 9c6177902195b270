//! Which hosts requests to the `http` listener may name: a name that an attacker points at this machine (DNS rebinding)
//! would otherwise make its pages read what only this network should.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use fulmar_broker::LogLimiter;
use fulmar_certs::authority::local_names;
use fulmar_transport::{Clock, authority};
use parking_lot::Mutex;

use fulmar_config::Config;

/// In the list of hosts: any.
const ANY: &str = "*";

struct Hosts {
    names: Vec<String>,
    clock: Clock,
    /// Limits the log lines about refused hosts.
    log_limiter: Mutex<LogLimiter>,
}

/// Answers 421 to requests that name another host than an address, this machine or what the configuration names.
pub(in crate::serve) fn only_known(router: Router, config: &Config) -> Router {
    let configured = [&config.tls.names, &config.acme.domains, &config.http.allowed_hosts];
    let mut names = local_names();
    names.extend(configured.into_iter().flatten().cloned());
    names.extend(config.cluster.hosts().map(str::to_owned));
    let hosts = Hosts { names, clock: Clock::start(), log_limiter: Mutex::default() };
    router.layer(middleware::from_fn_with_state(Arc::new(hosts), admit))
}

async fn admit(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let unknown = match authority(request.uri(), request.headers()) {
        Some(host) if !is_known(&hosts.names, host.host()) => host,
        _ => return next.run(request).await,
    };
    let times = hosts.log_limiter.lock().occurred(hosts.clock.now());
    if let Some(times) = times {
        let peer = request.extensions().get().map(|ConnectInfo::<SocketAddr>(peer)| peer);
        tracing::warn!(
            ?peer,
            host = unknown.as_str(),
            times,
            "HTTP port: a request names an unknown host; add it to [http] allowed_hosts to accept it"
        );
    }
    let text =
        "this server does not know itself by that host name: [http] allowed_hosts adds names\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

fn is_known(names: &[String], host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    bare.parse::<IpAddr>().is_ok()
        || names.iter().any(|name| name == ANY || name.eq_ignore_ascii_case(bare))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_node_is_known_by_the_addresses_that_the_cluster_shows() {
        let mut config = Config::default();
        config.cluster.address = "node-1.example:1884".to_owned();
        config.cluster.addresses = vec!["quic://public.example:443".to_owned()];
        for (host, status) in
            [("node-1.example:14568", 404), ("public.example", 404), ("other.example", 421)]
        {
            let request = Request::get("/none").header("host", host).body(Body::empty()).unwrap();
            let answer = only_known(Router::new(), &config).call(request).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{host}");
        }
    }

    #[test]
    fn addresses_and_own_names_are_known_and_others_are_not() {
        let known = |host| is_known(&["localhost".into(), "broker.example".into()], host);
        for own in ["127.0.0.1", "[::1]", "192.0.2.1", "LOCALHOST", "broker.example."] {
            assert!(known(own), "{own}");
        }
        for other in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0x7f.1", ""]
        {
            assert!(!known(other), "{other}");
        }
        assert!(is_known(&["*".into()], "evil.example"));
    }
}

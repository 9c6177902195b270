//! Which configurations of nodes are accepted.

use super::*;

fn read(more: &str) -> Result<Config, String> {
    let text = format!("[cluster]\nservers = [\"nats://127.0.0.1:4222\"]\nnode = \"a\"\n{more}");
    Config::from_toml(&text).map_err(|error| format!("{error:#}"))
}

#[test]
fn what_would_stay_on_one_machine_is_refused() {
    assert_eq!(read("").unwrap().platform.enabled, Enabled::Set(false));
    let platform = "[platform]\nenabled = true\n";
    assert_eq!(read(platform).unwrap().platform.enabled, Enabled::Set(true));
    for (more, part) in [
        ("[storage]\nenabled = false\n", "[storage]"),
        ("cert = \"a.pem\"\n", "go together"),
        ("quic_server_id = \"0x12\"\n", "16 hexadecimal digits"),
        ("monitoring = [\"127.0.0.1:8222\"]\n", "http://HOST:8222"),
    ] {
        let error = read(more).unwrap_err();
        assert!(error.contains("[cluster]") && error.contains(part), "{error}");
    }
}

#[test]
fn nats_servers_elsewhere_need_credentials() {
    let with = |server: &str, more: &str| {
        let text = format!("[cluster]\nservers = [\"{server}\"]\nnode = \"a\"\n{more}");
        Config::from_toml(&text).map(drop).map_err(|error| format!("{error:#}"))
    };
    let near = ["127.0.0.1:4222", "127.9.0.1", "localhost:4222", "[::1]:4222", "[::1]"];
    let far = ["10.0.0.1:4222", "n1.example", "[2001:db8::1]:4222", "localhost.example"];
    let allow = |who: &str| format!("allow_anonymous = \"{who}\"\n");
    for host in near {
        let server = format!("nats://{host}");
        with(&server, "").unwrap();
        with(&server, &allow("never")).unwrap_err();
    }
    for host in far {
        let server = format!("nats://{host}");
        let error = with(&server, "").unwrap_err();
        assert!(
            error.contains(super::host(&server)) && error.contains("credentials_file"),
            "{error}"
        );
        with(&server, &allow("always")).unwrap();
        with(&server, "credentials_file = \"a.creds\"\n").unwrap();
    }
    let error = with("nats://user:a-secret@n1.example", "").unwrap_err();
    assert!(error.contains("n1.example") && !error.contains("a-secret"), "{error}");
    let mixed = "nats://127.0.0.1:4222\", \"nats://10.0.0.1:4222";
    assert!(with(mixed, "").unwrap_err().contains("10.0.0.1"));
}

#[test]
fn clients_reach_a_node_by_each_of_its_listeners() {
    let config = "address = \"n1.example\"\naddresses = [\"quic://n1.example:443\"]\n\
                  [listeners]\nmqtt = [\"[::]:1883\"]\nmqtts = [\"[::]:9999\"]\nws = []\nquic = [\"[::]:1\"]\n";
    let config = read(config).unwrap();
    let urls = config.cluster.urls(&config.listeners);
    assert_eq!(
        urls,
        ["quic://n1.example:443", "mqtt://n1.example:1883", "mqtts://n1.example:9999"]
    );
    for (address, url) in [("h:7", "mqtt://h:7"), ("[::1]", "mqtt://[::1]:1883")] {
        let more = format!("address = {address:?}\n[listeners]\nmqtt = [\"[::]:1883\"]\n");
        let config = read(&more).unwrap();
        assert_eq!(config.cluster.urls(&config.listeners)[0], url);
    }
    for more in [
        "standby = \"redirect\"\n",
        "address = \"mqtt://a\"\n",
        "address = \"a b\"\n",
        "addresses = [\"a:1\"]\n",
        "addresses = [\"https://a:1\"]\n",
        "addresses = [\"quic://a\"]\n",
    ] {
        assert!(read(more).unwrap_err().contains("[cluster]"), "{more}");
    }
}

#[test]
fn a_node_has_a_name_and_servers_have_addresses() {
    for (servers, node, part) in [
        ("nats://a", "", "node"),
        ("nats://a", "a b", "node"),
        ("nats://a", &"n".repeat(65), "node"),
        ("127.0.0.1:4222", "a", "nats://HOST"),
        ("http://a", "a", "nats://HOST"),
    ] {
        let text = format!("[cluster]\nservers = [{servers:?}]\nnode = {node:?}\n");
        let error = Config::from_toml(&text).unwrap_err().to_string();
        assert!(error.starts_with("[cluster]") && error.contains(part), "{error}");
    }
    Config::from_toml("[cluster]\nservers = []\n").unwrap();
}

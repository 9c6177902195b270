//! Every seed of this crate's fuzz target.

#[test]
fn seeds_pass() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/client-server");
    fulmar_mqtt_fuzz::replay(seeds, fulmar_client_fuzz::server);
}

//! Every seed of this crate's fuzz targets.

use fulmar_mqtt_fuzz::replay;
use fulmar_transport_fuzz::{datagram, frames, proxy_header, upgrade};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

#[test]
fn seeds_pass() {
    replay(SEEDS.to_owned() + "proxy-header", proxy_header);
    replay(SEEDS.to_owned() + "transport-datagram", datagram);
    replay(SEEDS.to_owned() + "ws-frames", frames);
    replay(SEEDS.to_owned() + "ws-upgrade", upgrade);
}

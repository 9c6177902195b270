//! Every seed of this crate's fuzz targets.

use fulmar_admin_fuzz::request;
use fulmar_mqtt_fuzz::replay;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

#[test]
fn seeds_pass() {
    replay(SEEDS.to_owned() + "admin-request", request);
}

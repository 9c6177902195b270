//! Every seed of this crate's fuzz targets.

use fulmar_mqtt_fuzz::replay;
use fulmar_platform_fuzz::{body, measurement, text};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

#[test]
fn seeds_pass() {
    replay(SEEDS.to_owned() + "platform-body", body);
    replay(SEEDS.to_owned() + "platform-measurement", measurement);
    replay(SEEDS.to_owned() + "platform-text", text);
}

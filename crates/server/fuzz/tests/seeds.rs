//! Every seed of this crate's fuzz targets.

use fulmar_mqtt_fuzz::replay;
use fulmar_server_fuzz::{auth_answer, credentials, traceparent};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

#[test]
fn seeds_pass() {
    replay(SEEDS.to_owned() + "server-auth-answer", auth_answer);
    replay(SEEDS.to_owned() + "server-credentials", credentials);
    replay(SEEDS.to_owned() + "server-traceparent", traceparent);
}

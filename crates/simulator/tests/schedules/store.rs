use fulmar_simulator::bad_disk::StoreVolume;
use fulmar_simulator::broker::{Schedule, play_on};

#[test]
fn every_promise_is_kept_over_the_real_store() {
    let blank = StoreVolume::blank();
    crate::play_all(0..20, 200, |schedule: &Schedule| {
        play_on(schedule, || StoreVolume::start(schedule.seed, Some(&blank)))
    });
}

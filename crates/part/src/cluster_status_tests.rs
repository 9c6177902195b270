//! What a node shows of itself and of the others.

use super::*;

use fulmar_text::metrics::Value;

fn value(status: &ClusterStatus, name: &str) -> Option<f64> {
    let mut metrics = Metrics::default();
    status.report(&mut metrics);
    let name = format!("fulmar_cluster_{name}");
    let family = metrics.families().iter().find(|family| family.name == name)?;
    match family.samples[..] {
        [(_, Value::Number(value))] => Some(value),
        _ => panic!("{family:?}"),
    }
}

#[test]
fn a_node_shows_what_it_does_and_how_far_it_is() {
    let status = ClusterStatus::new("a");
    status.set_serving("b");
    status.set_position(7);
    assert_eq!(value(&status, "behind_records"), None, "not known yet");
    let day = Duration::from_secs(86_400);
    let shared = Shared {
        last: 10,
        snapshot_at: Some(SystemTime::now() - day),
        nodes: vec![Node { role: Role::StandsBy, ..Node::default() }, Node::default()],
        ..Shared::default()
    };
    status.set_shared(true, Some(shared));
    assert_eq!(value(&status, "behind_records"), Some(3.0));
    assert_eq!(value(&status, "serves"), Some(0.0));
    assert!(value(&status, "snapshot_age_seconds").unwrap() >= day.as_secs_f64());
    let mut metrics = Metrics::default();
    status.report(&mut metrics);
    assert!(metrics.prometheus().contains("fulmar_cluster_serving_node{node=\"b\"} 1\n"));
    status.set_serves(true);
    status.renewed(Instant::now() + day);
    status.appended(11, Duration::from_millis(4));
    assert_eq!(value(&status, "behind_records"), Some(0.0));
    assert_eq!(value(&status, "position_records"), Some(11.0));
    assert_eq!(value(&status, "last_append_seconds"), Some(0.004));
    assert!(value(&status, "lease_remaining_seconds").unwrap() > 80_000.0);
    // An answer that does not come leaves what is known.
    status.set_shared(true, None);
    assert_eq!(value(&status, "nats_connected"), Some(0.0));
    assert_eq!(value(&status, "standby_nodes"), Some(1.0));
    status.set_serves(false);
    assert_eq!(value(&status, "lease_remaining_seconds"), Some(0.0));
}

#[test]
fn another_node_stands_by_as_far_as_is_known() {
    let status = ClusterStatus::new("a");
    let others = |nodes: &[(&str, Role)]| {
        let node =
            |&(name, role): &(&str, Role)| Node { name: name.to_owned(), role, ..Node::default() };
        let nodes = nodes.iter().map(node).collect();
        status.set_shared(true, Some(Shared { nodes, ..Shared::default() }));
        status.others_stand_by()
    };
    assert!(status.others_stand_by(), "not known yet");
    let (this, serves) = (("a", Role::StandsBy), ("b", Role::Serves));
    assert!(!others(&[this, serves, ("c", Role::Gone)]));
    assert!(others(&[this, serves, ("c", Role::StandsBy)]));
}

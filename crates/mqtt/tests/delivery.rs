//! The session machines: two of them over a link that loses connections, each beside a naive model,
//! and the cases worth a name.
#![allow(clippy::unwrap_used)]

mod support;

use fulmar_mqtt::session::{AckError, Outbound};
use fulmar_mqtt::{PacketId, QoS};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{link, model};

const WINDOW: u16 = 4;

proptest! {
    #[test]
    fn mqtt_4_3_3_qos2_arrives_once_and_in_order(script in vec(any::<u8>(), 0..400)) {
        link::exactly_once(&script);
    }

    #[test]
    fn mqtt_4_3_2_qos1_loses_nothing_and_keeps_the_order_of_first_arrivals(script in vec(any::<u8>(), 0..400)) {
        link::at_least_once(&script);
    }

    #[test]
    fn outbound_does_as_its_model(script in vec(any::<u8>(), 0..600)) {
        model::outbound(&script);
    }

    #[test]
    fn identifiers_wrap_as_in_the_model(last in 0xF8u8..=0xFF, script in vec(any::<u8>(), 0..600)) {
        model::outbound(&[&[0xFF, last], &script[..]].concat());
    }

    #[test]
    fn inbound_does_as_its_model(script in vec(any::<u8>(), 0..600)) {
        model::inbound(&script);
    }
}

proptest! {
    // One case walks through all identifiers and back to the first.
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// However long some messages stay in flight, no identifier is given out twice.
    #[test]
    fn identifiers_in_flight_are_distinct(held in proptest::collection::btree_set(0usize..70_000, 0..20)) {
        let mut outbound = Outbound::new(u16::MAX);
        let mut in_flight = std::collections::BTreeSet::new();
        for i in 0..70_000 {
            let id = outbound.push(QoS::AtLeastOnce, i).unwrap();
            prop_assert!(in_flight.insert(id), "{} is in flight twice", id);
            if !held.contains(&i) {
                outbound.puback(id).unwrap();
                in_flight.remove(&id);
            }
        }
    }
}

#[test]
fn acknowledgements_of_nothing_are_errors() {
    let mut outbound = Outbound::new(WINDOW);
    let id = PacketId::FIRST;
    assert_eq!(outbound.puback(id), Err(AckError::Unknown(id)));
    let id = outbound.push(QoS::ExactlyOnce, 1).unwrap();
    assert_eq!(outbound.puback(id), Err(AckError::WrongQoS(id)));
    assert_eq!(outbound.pubcomp(id), Err(AckError::WrongStep(id)));
    assert_eq!(outbound.pubrec(id), Ok(&1));
    assert_eq!(outbound.pubrec(id), Ok(&1), "a repeated PUBREC is answered again");
    assert_eq!(outbound.pubcomp(id), Ok(1));
    let id = outbound.push(QoS::AtLeastOnce, 2).unwrap();
    assert_eq!(outbound.pubrec(id), Err(AckError::WrongQoS(id)));
    assert_eq!(outbound.pubrec_refused(id), Err(AckError::WrongQoS(id)));
    assert_eq!(outbound.pubcomp(id), Err(AckError::WrongQoS(id)));
    assert_eq!(outbound.puback(id), Ok(2));
}

#[test]
fn mqtt_4_3_3_4_a_pubrec_with_an_error_ends_the_exchange_at_either_step() {
    let mut outbound = Outbound::new(1);
    for released in [false, true] {
        let id = outbound.push(QoS::ExactlyOnce, 1).unwrap();
        if released {
            assert_eq!(outbound.pubrec(id), Ok(&1));
        }
        assert_eq!(outbound.pubrec_refused(id), Ok((released, 1)));
        assert_eq!(outbound.in_flight(), 0);
        assert_eq!(outbound.pubrec_refused(id), Err(AckError::Unknown(id)));
    }
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let mut outbound = Outbound::new(2);
    let first = outbound.push(QoS::AtLeastOnce, 1).unwrap();
    outbound.push(QoS::AtLeastOnce, 2).unwrap();
    assert_eq!(outbound.push(QoS::AtLeastOnce, 3), None);
    outbound.puback(first).unwrap();
    assert!(outbound.push(QoS::AtLeastOnce, 3).is_some());
}

#[test]
fn all_identifiers_in_use_is_none_not_a_loop() {
    let mut outbound = Outbound::new(u16::MAX);
    for i in 0..65_535 {
        assert!(outbound.push(QoS::AtLeastOnce, i).is_some());
    }
    assert_eq!(outbound.reserve(), None);
}

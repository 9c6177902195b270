//! A scenario as data: which lanes exist, what each does, and how messages are paced.
//!
//! A *lane* is one ordered byte stream that speaks MQTT: a TCP connection, or a stream of a QUIC
//! connection. Lane `connection * streams + stream` belongs to that connection. A *flow* is the
//! messages of one publishing lane, all on one topic.

use fulmar_mqtt::QoS;

/// Workload to run, from the command line; bounded there.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scenario: Scenario,
    pub(super) qos: QoS,
    pub(super) payload_bytes: usize,
    /// Messages a write.
    pub(super) burst: usize,
    /// Messages a flow may have under way (flat-out scenarios).
    pub(super) window: u64,
    /// Streams a QUIC connection uses; 1 over TCP.
    pub(super) streams: usize,
    /// Clients ask for sessions that outlive the connection.
    pub(super) persistent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scenario {
    /// Idle connections.
    Conns { count: usize },
    /// Each publisher to one subscriber, flat out.
    Pairs { count: usize },
    /// Many publishers to few subscribers at a fixed total rate in messages per second.
    FanIn { publishers: usize, subscribers: usize, rate: f64 },
    /// One publisher to many subscribers, flat out.
    FanOut { subscribers: usize },
}

/// A lane's job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Idle,
    Publish { flow: usize, topic: String },
    Subscribe { flow: usize, filter: String },
}

impl Plan {
    pub(super) fn connections(&self) -> usize {
        match self.scenario {
            Scenario::Conns { count } => count,
            Scenario::Pairs { count } => count * 2,
            Scenario::FanIn { publishers, subscribers, .. } => publishers + subscribers,
            Scenario::FanOut { subscribers } => 1 + subscribers,
        }
    }

    pub(super) fn lanes(&self) -> usize {
        self.connections() * self.streams
    }

    /// Publishing lanes.
    pub(super) fn flows(&self) -> usize {
        let publishers = match self.scenario {
            Scenario::Conns { .. } => 0,
            Scenario::Pairs { count } => count,
            Scenario::FanIn { publishers, .. } => publishers,
            Scenario::FanOut { .. } => 1,
        };
        publishers * self.streams
    }

    /// Returns the number of subscribers that get each message.
    pub(super) fn receivers(&self) -> u64 {
        match self.scenario {
            Scenario::FanOut { subscribers } => subscribers as u64,
            _ => 1,
        }
    }

    /// Messages per second over all flows; `None` is full speed.
    pub(super) fn rate(&self) -> Option<f64> {
        match self.scenario {
            Scenario::FanIn { rate, .. } => Some(rate),
            _ => None,
        }
    }

    /// The job of a lane. Subscribers come first, so that they are ready before their publishers.
    pub(super) fn role(&self, lane: usize, prefix: &str) -> Role {
        let (connection, stream) = (lane / self.streams, lane % self.streams);
        let publish = |publisher: usize, topic: String| Role::Publish {
            flow: publisher * self.streams + stream,
            topic: format!("{prefix}/{topic}"),
        };
        let subscribe = |flow: usize, filter: String| Role::Subscribe {
            flow,
            filter: format!("{prefix}/{filter}"),
        };
        match self.scenario {
            Scenario::Conns { .. } => Role::Idle,
            Scenario::Pairs { count } => match connection.checked_sub(count) {
                None => subscribe(lane, format!("{connection}/{stream}")),
                Some(publisher) => publish(publisher, format!("{publisher}/{stream}")),
            },
            Scenario::FanOut { subscribers } => match connection.checked_sub(subscribers) {
                None => subscribe(stream, format!("{stream}")),
                Some(publisher) => publish(publisher, format!("{stream}")),
            },
            Scenario::FanIn { subscribers, .. } => match connection.checked_sub(subscribers) {
                // One subscription each: more streams would have to share a filter.
                None if stream > 0 => Role::Idle,
                None => subscribe(0, format!("{connection}/#")),
                Some(publisher) => {
                    publish(publisher, format!("{}/{publisher}/{stream}", publisher % subscribers))
                }
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_mqtt::topic::matches;

    fn plan(scenario: Scenario, streams: usize) -> Plan {
        Plan {
            scenario,
            qos: QoS::AtMostOnce,
            payload_bytes: 64,
            burst: 16,
            window: 64,
            streams,
            persistent: false,
        }
    }

    /// Every message of every flow reaches as many subscribers as the plan says.
    fn check(plan: &Plan) {
        let roles: Vec<Role> = (0..plan.lanes()).map(|lane| plan.role(lane, "b")).collect();
        let mut flows = vec![0; plan.flows()];
        for role in &roles {
            let Role::Publish { flow, topic } = role else { continue };
            flows[*flow] += 1;
            let hits = roles.iter().filter(
                |other| matches!(other, Role::Subscribe { filter, .. } if matches(filter, topic)),
            );
            assert_eq!(hits.count() as u64, plan.receivers(), "{topic}");
        }
        assert!(flows.iter().all(|count| *count == 1), "{flows:?}");
    }

    #[test]
    fn every_message_has_its_receivers() {
        for streams in [1, 3] {
            check(&plan(Scenario::Pairs { count: 4 }, streams));
            check(&plan(Scenario::FanOut { subscribers: 5 }, streams));
            let fan_in = Scenario::FanIn { publishers: 12, subscribers: 5, rate: 10.0 };
            check(&plan(fan_in, streams));
        }
    }

    #[test]
    fn subscribers_share_the_flow_number_of_their_publisher() {
        let plan = plan(Scenario::Pairs { count: 3 }, 2);
        for lane in 0..6 {
            let Role::Subscribe { flow, filter } = plan.role(lane, "b") else { panic!("{lane}") };
            let expected = Role::Publish { flow, topic: filter };
            assert_eq!(plan.role(lane + 6, "b"), expected);
        }
    }
}

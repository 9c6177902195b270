//! The session machines beside models too simple to be wrong: lists searched from end to end.

use fulmar_mqtt::session::{AckError, Inbound, InboundQos2, Outbound, Replay};
use fulmar_mqtt::{PacketId, QoS};

use super::script::Script;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Puback,
    Pubrec,
    Pubcomp,
}

struct Model {
    entries: Vec<(PacketId, Step, u32)>,
    reserved: Vec<PacketId>,
    window: usize,
    next_message: u32,
}

/// Mostly an identifier in flight, since most others say the same thing: unknown.
fn some_id(script: &mut Script<'_>, model: &Model) -> PacketId {
    let choice = usize::from(script.byte());
    if choice >= 240 || model.entries.is_empty() {
        return script.any_id();
    }
    model.entries[choice % model.entries.len()].0
}

impl Model {
    fn in_use(&self, id: PacketId) -> bool {
        self.entries.iter().any(|entry| entry.0 == id) || self.reserved.contains(&id)
    }

    fn take(&mut self, id: PacketId, step: Step) -> Result<u32, AckError> {
        let at = self.entries.iter().position(|entry| entry.0 == id);
        let at = at.ok_or(AckError::Unknown(id))?;
        match (self.entries[at].1, step) {
            (is, wanted) if is == wanted => Ok(self.entries.remove(at).2),
            (Step::Puback, _) | (_, Step::Puback) => Err(AckError::WrongQoS(id)),
            _ => Err(AckError::WrongStep(id)),
        }
    }

    fn pubrec_refused(&mut self, id: PacketId) -> Result<(bool, u32), AckError> {
        let released = self.entries.iter().any(|entry| entry.0 == id && entry.1 == Step::Pubcomp);
        let step = if released { Step::Pubcomp } else { Step::Pubrec };
        self.take(id, step).map(|message| (released, message))
    }

    fn pubrec(&mut self, id: PacketId) -> Result<u32, AckError> {
        let entry = self.entries.iter_mut().find(|entry| entry.0 == id);
        let entry = entry.ok_or(AckError::Unknown(id))?;
        if entry.1 == Step::Puback {
            return Err(AckError::WrongQoS(id));
        }
        entry.1 = Step::Pubcomp;
        Ok(entry.2)
    }

    fn push(&mut self, outbound: &mut Outbound<u32>, qos: QoS, wanted: Option<PacketId>) {
        let message = self.next_message;
        let pushed = match wanted {
            Some(wanted) => outbound.push_as(wanted, qos, message),
            None => outbound.push(qos, message),
        };
        if let (Some(wanted), Some(id)) = (wanted, pushed) {
            assert!(id == wanted || self.in_use(wanted), "{wanted} was free");
        }
        let Some(id) = pushed else {
            assert!(self.entries.len() >= self.window, "refused with room in the window");
            return;
        };
        assert!(self.entries.len() < self.window, "more in flight than the window has room for");
        assert!(!self.in_use(id), "{id} is in use");
        let step = if qos == QoS::ExactlyOnce { Step::Pubrec } else { Step::Puback };
        self.entries.push((id, step, message));
        self.next_message += 1;
    }

    fn push_ahead(&mut self, outbound: &mut Outbound<u32>, wanted: PacketId, back: u8) {
        let before = self.next_message.saturating_sub(u32::from(back % 8));
        let pushed =
            outbound.push_ahead(wanted, QoS::AtLeastOnce, self.next_message, |m| *m >= before);
        let id = pushed.expect("few identifiers are in use");
        assert!(!self.in_use(id), "{id} is in use");
        let at = self.entries.iter().position(|(_, _, message)| *message >= before);
        let entry = (id, Step::Puback, self.next_message);
        self.entries.insert(at.unwrap_or(self.entries.len()), entry);
        self.next_message += 1;
    }

    fn restore(&mut self, outbound: &mut Outbound<u32>, id: PacketId, step: Step) {
        if self.in_use(id) {
            return;
        }
        let qos = if step == Step::Puback { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        outbound.restore(id, qos, step == Step::Pubcomp, self.next_message);
        self.entries.push((id, step, self.next_message));
        self.next_message += 1;
    }

    fn reserve(&mut self, outbound: &mut Outbound<u32>) {
        let id = outbound.reserve().expect("few identifiers are in use");
        assert!(!self.in_use(id), "{id} is in use");
        self.reserved.push(id);
    }

    fn compare(&self, outbound: &Outbound<u32>) {
        assert_eq!(outbound.in_flight(), self.entries.len());
        assert_eq!(outbound.is_full(), self.entries.len() >= self.window);
        let wanted = self.entries.iter().map(|(packet_id, step, message)| match step {
            Step::Puback => {
                Replay::Publish { packet_id: *packet_id, qos: QoS::AtLeastOnce, message }
            }
            Step::Pubrec => {
                Replay::Publish { packet_id: *packet_id, qos: QoS::ExactlyOnce, message }
            }
            Step::Pubcomp => Replay::Pubrel { packet_id: *packet_id },
        });
        assert!(outbound.replay().eq(wanted), "replay differs");
    }
}

/// Drives [`Outbound`] and its model by `script`, from the identifier its first bytes name.
pub fn outbound(script: &[u8]) {
    let mut script = Script(script);
    let mut machine = Outbound::new(8);
    let mut model = Model { entries: Vec::new(), reserved: Vec::new(), window: 8, next_message: 0 };
    let start = script.any_id();
    model.restore(&mut machine, start, Step::Puback);
    while !script.is_over() {
        match script.byte() % 16 {
            0..2 => model.push(&mut machine, QoS::AtLeastOnce, None),
            2 => {
                let wanted = Some(script.any_id());
                model.push(&mut machine, QoS::AtLeastOnce, wanted);
            }
            3..6 => model.push(&mut machine, QoS::ExactlyOnce, None),
            6 | 7 => {
                let id = some_id(&mut script, &model);
                assert_eq!(machine.puback(id), model.take(id, Step::Puback));
            }
            8 | 9 => {
                let id = some_id(&mut script, &model);
                assert_eq!(machine.pubrec(id).copied(), model.pubrec(id));
            }
            10 => {
                let id = some_id(&mut script, &model);
                assert_eq!(machine.pubrec_refused(id), model.pubrec_refused(id));
            }
            11 | 12 => {
                let id = some_id(&mut script, &model);
                assert_eq!(machine.pubcomp(id), model.take(id, Step::Pubcomp));
            }
            13 => model.reserve(&mut machine),
            14 => {
                let id = model.reserved.pop().unwrap_or(PacketId::FIRST);
                let was_reserved = machine.unreserve(id);
                assert!(was_reserved || id == PacketId::FIRST);
            }
            _ => {
                let id = script.any_id();
                match script.byte() % 6 {
                    0 => model.restore(&mut machine, id, Step::Puback),
                    1 => model.restore(&mut machine, id, Step::Pubrec),
                    2 => model.restore(&mut machine, id, Step::Pubcomp),
                    4 => model.push_ahead(&mut machine, id, script.byte()),
                    3 => {
                        model.window = usize::from(script.byte());
                        machine.set_window(model.window as u16);
                    }
                    _ => {
                        let at = model.entries.iter().position(|entry| entry.0 == id);
                        let wanted = at.map(|at| model.entries.remove(at).2);
                        assert_eq!(machine.abandon(id), wanted);
                    }
                }
            }
        }
        model.compare(&machine);
    }
}

/// Drives [`Inbound`] and its model, a list, by `script`.
pub fn inbound(script: &[u8]) {
    const MAXIMUM: u16 = 40;
    let mut machine = Inbound::new();
    let mut open: Vec<PacketId> = Vec::new();
    for byte in script {
        // Few identifiers, so that they meet each other.
        let id = PacketId::new(u16::from(byte >> 2) + 1).unwrap();
        let at = open.iter().position(|other| *other == id);
        if byte & 1 == 0 {
            let wanted = match at {
                Some(_) => InboundQos2::Duplicate,
                None if open.len() == usize::from(MAXIMUM) => InboundQos2::TooMany,
                None => {
                    open.push(id);
                    InboundQos2::New
                }
            };
            assert_eq!(machine.publish(id, MAXIMUM), wanted);
        } else {
            assert_eq!(machine.release(id), at.map(|at| open.remove(at)).is_some());
        }
        assert!(machine.iter().eq(open.iter().copied()));
        assert_eq!((machine.len(), machine.is_empty()), (open.len(), open.is_empty()));
    }
}

//! Makes frames as meters do, for simulators and tests: the way back of `decode`.
//!
//! Short transport headers only, and no more layers than a mode needs.

use crate::address::Address;
use crate::frame::Frame;
use crate::keys::Key;
use crate::layers::cipher::{self, Purpose};
use crate::layers::tpl;
use crate::layers::{afl, ell};

/// A meter's message that nobody asked for (SND-NR).
const SEND_NO_REPLY: u8 = 0x44;

/// Protection of a message.
#[derive(Clone, Copy, Debug)]
pub enum Seal<'a> {
    /// Not at all.
    None,
    /// Security mode 5.
    Mode5(&'a Key),
    /// Security mode 7 with an authentication code; the counter must grow with every message.
    Mode7(&'a Key, u32),
    /// Encrypted by the extended link layer; the session must not go back.
    EllCtr(&'a Key, u32),
}

/// A link frame without checksums around data records.
///
/// Records beyond what a frame has room for, about 200 bytes, are cut off with the frame's end; a
/// receiver will say so.
#[must_use]
pub fn encode(
    meter: Address,
    access: u8,
    status: u8,
    protection: Seal<'_>,
    records: &[u8],
) -> Vec<u8> {
    let transport = |how: &tpl::Seal<'_>| tpl::seal(meter, access, status, how, records);
    let payload = match protection {
        Seal::None => transport(&tpl::Seal::Clear),
        Seal::Mode5(key) => transport(&tpl::Seal::Persistent(key)),
        Seal::Mode7(key, counter) => {
            let bytes = counter.to_le_bytes();
            let mac_key = cipher::derive(key, Purpose::Authentication, bytes, meter.id);
            afl::seal(counter, &mac_key, &transport(&tpl::Seal::Derived(key, counter)))
        }
        Seal::EllCtr(key, session) => {
            ell::seal(meter, access, session, key, &transport(&tpl::Seal::Clear))
        }
    };
    Frame { control: SEND_NO_REPLY, address: meter, payload: &payload }.to_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::frame::{Format, dress};
    use crate::{Decoder, InMemoryKeys, Protection, Received, Security, Value};
    use proptest::prelude::*;

    fn protections(key: &Key, counter: u32) -> [(Seal<'_>, Security); 4] {
        [
            (Seal::None, Security::None),
            (Seal::Mode5(key), Security::Mode5),
            (Seal::Mode7(key, counter), Security::Mode7),
            (Seal::EllCtr(key, counter), Security::EllCtr),
        ]
    }

    fn decoder(meter: Address, key: &Key) -> Decoder<InMemoryKeys> {
        let mut keys = InMemoryKeys::new();
        keys.insert(&meter.id.to_string(), key.clone()).unwrap();
        Decoder::new(keys)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            address: [u8; 8], key: [u8; 16], access: u8, status: u8, litres: i32, counter in 0..1_u32 << 29,
        ) {
            let (meter, key) = (Address::from_link(address), Key::new(key));
            let mut records = vec![0x04, 0x13];
            records.extend(litres.to_le_bytes());
            for (protection, security) in protections(&key, counter) {
                let bare = encode(meter, access, status, protection, &records);
                for format in [Format::A, Format::B, Format::Stripped] {
                    let received = Received {
                        bytes: dress(&bare, format).unwrap(),
                        format: Some(format),
                        ..Received::default()
                    };
                    let telegram = decoder(meter, &key).decode(&received).unwrap();
                    prop_assert_eq!(telegram.meter, meter);
                    prop_assert_eq!(telegram.security, security);
                    let expected = match security {
                        Security::None => Protection::Unauthenticated,
                        Security::Mode7 => Protection::Authenticated,
                        _ => Protection::Encrypted,
                    };
                    prop_assert_eq!(telegram.protection, expected);
                    prop_assert_eq!(telegram.main("volume").unwrap().protection, expected);
                    prop_assert!(telegram.is_whole);
                    prop_assert_eq!(telegram.access, Some(access));
                    prop_assert_eq!(telegram.status.unwrap().byte(), status);
                    let volume = telegram.main("volume").unwrap();
                    prop_assert_eq!(&volume.value, &Value::Number(f64::from(litres) / 1000.0));
                }
            }
        }
    }

    #[test]
    fn another_key_reads_nothing() {
        let (meter, key) = (Address::from_link([1, 6, 1, 2, 3, 4, 5, 7]), Key::new([1; 16]));
        for (protection, security) in protections(&key, 9) {
            let bytes = encode(meter, 1, 0, protection, &[0x04, 0x13, 1, 2, 3, 4]);
            let received = Received { bytes, ..Received::default() };
            let outcome = decoder(meter, &Key::new([2; 16])).decode(&received);
            assert_eq!(outcome.is_ok(), security == Security::None, "{outcome:?}");
        }
    }
}

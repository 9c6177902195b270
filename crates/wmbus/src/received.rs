//! What a receiver hands over, and what a device in the field may know of it: who was heard, when, how
//! well and where, but not what was said.

use serde::Serialize;

use crate::address::Address;
use crate::error::Error;
use crate::frame::{self, Format, Frame};
use crate::layers::afl::{self, Afl};
use crate::layers::ell::{self, Ell};
use crate::layers::tpl::Tpl;

/// A frame as a receiver gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// The link frame, with or without checksums.
    pub bytes: Vec<u8>,
    /// Arrangement of the checksums; `None` if that has to be found out.
    pub format: Option<Format>,
    /// The radio mode, such as `T1`, where the receiver tells it.
    pub mode: Option<String>,
    /// Received power, dBm.
    pub rssi_dbm: Option<f32>,
    /// Received power in the receiver's own measure, where it has no better one; more is stronger.
    pub rssi_raw: Option<u16>,
    /// When it was received, as the receiver wrote it.
    pub time: Option<String>,
}

/// Where something was received, in degrees north and east.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GeoPosition {
    /// Degrees north, -90 to 90.
    pub latitude: f64,
    /// Degrees east, -180 to 180.
    pub longitude: f64,
}

/// A meter that was heard: all a reader's device needs, and nothing that is read from the meter.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The meter. Behind a radio adapter that encrypts its link layer it is the adapter.
    pub meter: Address,
    /// When, as the receiver wrote it.
    pub time: Option<String>,
    /// Signal strength in dBm.
    pub rssi_dbm: Option<f32>,
    /// Signal strength in the receiver's own measure.
    pub rssi_raw: Option<u16>,
    /// The radio mode.
    pub mode: Option<String>,
    /// Where, if the device knows.
    pub place: Option<GeoPosition>,
    /// Whether reading it takes a key.
    pub encrypted: bool,
    /// The frame, without checksums, for the server to decrypt.
    pub frame: Vec<u8>,
}

impl Sighting {
    /// Looks at a frame without any key.
    ///
    /// # Errors
    /// The frame is damaged or cut.
    pub fn from_received(received: &Received, place: Option<GeoPosition>) -> Result<Self, Error> {
        let mut bare = Vec::new();
        match received.format {
            Some(format) => frame::strip(&received.bytes, format, &mut bare)?,
            None => frame::strip_any(&received.bytes, &mut bare).map(|_| ())?,
        }
        let frame = Frame::parse(&bare)?;
        let (meter, encrypted) = outside(&frame);
        Ok(Self {
            meter,
            time: received.time.clone(),
            rssi_dbm: received.rssi_dbm,
            rssi_raw: received.rssi_raw,
            mode: received.mode.clone(),
            place,
            encrypted,
            frame: bare,
        })
    }
}

/// Whose frame it is and whether it is encrypted, as far as that stands outside the encryption. A
/// frame of an unknown kind is taken for encrypted: nobody without a key can say more of it.
fn outside(frame: &Frame<'_>) -> (Address, bool) {
    let sender = frame.address;
    let look = || -> Result<(Address, bool), Error> {
        let mut payload = frame.payload;
        if payload.first().is_some_and(|ci| ell::is_ell(*ci)) {
            let ell = Ell::parse(payload)?;
            match ell.session {
                Some(session) if session.encryption() != 0 => return Ok((sender, true)),
                Some(_) => payload = ell.rest.get(2..).unwrap_or_default(),
                None => payload = ell.rest,
            }
        }
        if payload.first() == Some(&afl::CI) {
            payload = Afl::parse(payload)?.rest;
        }
        let tpl = Tpl::parse(payload)?;
        let Some(header) = tpl.header else { return Ok((sender, false)) };
        Ok((header.meter.unwrap_or(sender), header.is_encrypted()))
    };
    look().unwrap_or((sender, true))
}

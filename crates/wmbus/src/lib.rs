//! Wireless M-Bus: from what a receiver hands over to a meter's readings.
//!
//! Implements EN 13757-4 (link layer), -7 (transport and security) and -3 (records), as far as the
//! Open Metering System uses them, without I/O, clock or threads: bytes go in, readings or an error of
//! that one frame come out. Radio, serial ports and files are the caller's.
//!
//! Two types matter. A [`Decoder`] with the meters' keys is what a server has; it turns a
//! [`Received`] frame into a [`Telegram`]. A [`Sighting`] is what a device in the field sees of the
//! same frame without any key.
//!
//! ```
//! use fulmar_wmbus::{Decoder, Keys, Received};
//!
//! let hex = "1844AE4C4455223368077A55000000041389E20100023B0000";
//! let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
//! let mut decoder = Decoder::new(Keys::new());
//! let telegram = decoder.decode(&Received { bytes: bytes.collect(), ..Received::default() })?;
//! assert_eq!(telegram.meter.to_string(), "SEN 33225544");
//! let volume = telegram.main("volume").unwrap();
//! assert_eq!(format!("{} {}", volume.value, volume.unit), "123.529 m³");
//! # Ok::<(), fulmar_wmbus::Error>(())
//! ```

mod address;
pub mod chips;
mod compact;
mod crc;
mod decode;
mod encode;
mod error;
pub mod frame;
pub mod input;
mod keys;
mod layers;
mod received;
mod records;
mod replay;
pub mod simulate;
mod status;
mod vendor;

pub use address::{Address, AddressError, Manufacturer, Medium, MeterId};
pub use crc::crc;
pub use decode::{Decoder, Security, Telegram};
pub use encode::{Protection, encode};
pub use error::Error;
pub use keys::{Key, KeyError, KeyStore, Keys};
pub use received::{Place, Received, Sighting};
pub use records::date::Moment;
pub use records::value::{Profile, Value};
pub use records::{Function, Reading, Records};
pub use status::Status;

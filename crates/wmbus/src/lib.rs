#![doc = include_str!("../README.md")]

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
mod protection;
mod received;
mod records;
mod replay;
pub mod simulate;
mod status;
mod vendor;

pub use address::{Address, AddressError, Manufacturer, Medium, MeterId};
pub use crc::crc;
pub use decode::{Decoder, Telegram};
pub use encode::{Seal, encode};
pub use error::Error;
pub use keys::{InMemoryKeys, Key, KeyError, KeyStore};
pub use protection::{Protection, Security};
pub use received::{GeoPosition, Received, Sighting};
pub use records::date::Moment;
pub use records::value::{Profile, Value};
pub use records::{Function, Reading, Records};
pub use status::Status;

//! The listeners over UDP that are not QUIC's: CoAP, with DTLS and without, and MQTT-SN. Each is a part of a server
//! (`fulmar_part::Part`) with a thread of its own around a protocol library without I/O; `udp.rs` has the sockets.

pub mod coap;
pub mod mqttsn;
mod udp;

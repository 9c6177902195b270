//! The two directions of a link.

use serde::Serialize;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the link's first host
    Up = 0,
    /// To the link's first host
    Down = 1,
}

fulmar_text::names!(Direction: Up = "up", Down = "down");

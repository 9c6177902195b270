//! Clients that lie about who they are, and an operator who changes rights between any two steps. These schedules have
//! steps of their own ([`Lie`]), besides those in which workers read and send, storage commits, time passes and the
//! broker crashes.
//!
//! `law` says what a client may do, computed from plain data and never by the broker's functions; `fakes` are the parts
//! of the program that the broker asks; `stage` plays a schedule with the `deeds` of its clients, and `checks` each answer
//! and each delivery against the law; `draw` draws schedules from a seed.
//!
//! Some changes of rights reach a connection when its worker takes its events, and the end of a credential when its
//! timers fire. Until then, an answer may also be that of any law since. Deliveries and wills have to follow the present
//! one.

mod checks;
mod deeds;
mod draw;
mod fakes;
mod law;
mod stage;

use fulmar_mqtt::QoS;

pub(crate) use draw::{draw, is_chosen};
pub(crate) use stage::Stage;

/// User names. The first two are also those of the platform's accounts.
#[rustfmt::skip]
pub(crate) const NAMES: &[&str] = &[
    "ann", "bob", "$CONTROL", "$SYS", "fulmar", "#", "+", "a/b", "%c", "%u", "platform:",
    "platform:ann", "", "a\0b", "\u{202e}nna", LONG,
];

/// Client identifiers.
#[rustfmt::skip]
pub(crate) const IDS: &[&str] = &[
    "ann", "$CONTROL", "$SYS", "fulmar", "#", "+", "a/b", "%u", "%c", "platform:", "platform:ann",
    "\u{202e}nna", PROGRAM,
];

/// The client identifier of the program's session.
pub(crate) const PROGRAM: &str = "fulmar-platform";

/// A name that some sources accept and no CONNECT as a client identifier.
const LONG: &str = match std::str::from_utf8(&[b'n'; 300]) {
    Ok(text) => text,
    Err(_) => "",
};

/// The platform's accounts.
pub(crate) const ACCOUNTS: &[&str] = &["ann", "bob"];

/// Topics of publications and wills.
#[rustfmt::skip]
pub(crate) const TOPICS: &[&str] = &[
    "t/x", "t/ann", "ann/x", "a/b/x", "%c/x", "platform:ann/x", "fulmar/x", "fulmar/ann/x",
    "$SYS/x", "$SYS/broker/connection/ann/state", CONTROL, "$CONTROL/x", "x/ann",
];

/// Where requests to change the identity store are published.
pub(crate) const CONTROL: &str = "$CONTROL/dynamic-security/v1";

/// Where the answers are published.
pub(crate) const RESPONSE: &str = "$CONTROL/dynamic-security/v1/response";

/// Filters of subscriptions.
#[rustfmt::skip]
pub(crate) const FILTERS: &[&str] = &[
    "#", "+/#", "+/x", "t/#", "t/+", "ann/#", "%c/#", "platform:ann/#", "fulmar/#", "fulmar/+",
    "fulmar/ann/#", "$SYS/#", "$CONTROL/#", RESPONSE, "$share/g/t/#", "$share/g/fulmar/#",
    "$share/g/+/x",
];

/// Subject of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Publishing,
    Reading,
    Both,
}

/// A rule: what it is about, whether it allows, and its filter.
pub(crate) type Rule = (About, bool, &'static str);

use About::{Both, Publishing, Reading};

/// Lists of rules that roles, the login service and the operator's own rules can have.
pub(crate) const LISTS: &[&[Rule]] = &[
    &[],
    &[(Both, true, "%c/#")],
    &[(Both, true, "%u/#")],
    &[(Both, true, "#")],
    &[(Both, true, "+/#")],
    &[(Both, false, "t/%u"), (Both, true, "t/#")],
    &[(Both, false, "%u/#"), (Both, true, "#")],
    &[(Both, true, "fulmar/%u/#"), (Reading, true, "t/+")],
    &[(Both, true, "fulmar/#"), (Reading, true, "$SYS/#")],
    &[(Both, true, "$CONTROL/dynamic-security/#"), (Both, true, "t/#")],
    &[(Reading, false, "t/%c"), (Both, true, "%u/%c"), (Both, true, "t/+")],
    &[(Both, true, "%c/%u/#"), (Publishing, true, "%c%u/x")],
    &[(Publishing, false, "x/%c"), (Both, true, "+/x"), (Both, true, "x/#")],
    &[(Both, true, "t/#"), (Both, true, "x/#")],
];

/// The source of a client's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voucher {
    /// Nobody; it has none.
    Nobody,
    /// The login service, which accepts everybody.
    Service,
    Certificate,
    /// The platform, for one of its accounts.
    Platform,
    /// The program, for itself.
    Program,
}

/// Request of a client that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connecting {
    client: usize,
    worker: usize,
    voucher: Voucher,
    name: &'static str,
    id: &'static str,
    /// Seconds after which its credential ends.
    ends_s: Option<u32>,
    /// The topic of its will, and the delay in seconds.
    will: Option<(&'static str, u32)>,
    /// Whether its session outlives its connection.
    durable: bool,
    /// Whether it leaves its earlier connection open.
    stays: bool,
}

/// A user of the identity store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Roles, in the order in which they are asked.
    roles: [usize; 2],
    disabled: bool,
    /// The only client identifier that it may have.
    bound: Option<&'static str>,
}

/// Whom a ban or the operator's rules are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whom {
    #[default]
    Anyone,
    User(&'static str),
    Id(&'static str),
    /// The address of a client.
    Address(usize),
}

/// One step in which a client lies, or the operator changes rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie(pub(crate) Deed);

/// What is done. `line` chooses among the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Connect(Connecting),
    /// The program connects, unless it is.
    ConnectProgram,
    Publish(usize, &'static str, QoS, Retained),
    Subscribe(usize, &'static str),
    /// A connection breaks.
    Cut(usize),
    /// The client says goodbye first.
    Disconnect(usize),
    /// The store gets or changes a user, or deletes it.
    SetUser(&'static str, Option<Stored>),
    /// The roles of clients without a user name; `None` if these are not the store's.
    SetNameless(Option<[usize; 2]>),
    /// A role gets other rules.
    SetRole(usize, &'static [Rule]),
    /// Whether the store allows what no role decides.
    SetDefault(bool),
    /// The operator's rules are read again, and whether they allow what they do not decide.
    SetRules(&'static [Rule], Whom, bool),
    /// The login service says other rules.
    SetService(&'static [Rule]),
    /// For seconds.
    Ban(Whom, u32),
    /// All bans end.
    Unban,
    /// Whether this account of the platform is in order.
    SetAccount(usize, bool),
    /// Certificates of these clients are revoked, and no others: bits.
    Revoke(u8),
}

/// Whether a publication is retained.
type Retained = bool;

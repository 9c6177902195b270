//! Liars and their steps as text, for people.

use std::fmt;

use super::law::Who;
use super::{ACCOUNTS, Connecting, Deed, Lie, Stored, Voucher, Whom};

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: String = self.name.iter().flat_map(|name| name.chars()).take(20).collect();
        match self.voucher {
            Voucher::Program => return f.write_str("the program"),
            Voucher::Nobody => f.write_str("a client without a name"),
            Voucher::Service => write!(f, "the service's user {name:?}"),
            Voucher::Certificate => write!(f, "the certificate's user {name:?}"),
            Voucher::Platform => write!(f, "the account {name:?}"),
        }?;
        write!(f, " with the identifier {:?}", self.id)
    }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Whom::Anyone => f.write_str("everybody"),
            Whom::User(name) => write!(f, "the user {name:?}"),
            Whom::Id(id) => write!(f, "the identifier {id:?}"),
            Whom::Address(client) => write!(f, "the address of client {client}"),
        }
    }
}

impl fmt::Display for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connecting { client, worker, voucher, name, id, .. } = self;
        write!(f, "client {client} connects to worker {worker} as {name:?} of {voucher:?}")?;
        write!(f, " with the identifier {id:?}")?;
        if let Some(seconds) = self.ends_s {
            write!(f, ", which ends in {seconds} s")?;
        }
        if let Some((topic, delay_s)) = self.will {
            write!(f, ", with a will on {topic} after {delay_s} s")?;
        }
        f.write_str(if self.durable { ", and has a durable session" } else { "" })
    }
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Deed::Connect(asked) => asked.fmt(f),
            Deed::ConnectProgram => f.write_str("the program connects"),
            Deed::Publish(line, topic, qos, retain) => {
                let retained = if retain { ", retained" } else { "" };
                write!(f, "connection {line} publishes to {topic} at QoS {}{retained}", qos as u8)
            }
            Deed::Subscribe(line, filter) => write!(f, "connection {line} subscribes to {filter}"),
            Deed::Cut(line) => write!(f, "connection {line} breaks"),
            Deed::Disconnect(line) => write!(f, "connection {line} says goodbye"),
            Deed::SetUser(name, Some(Stored { roles, disabled, bound })) => write!(
                f,
                "the store has {name:?} with the roles {roles:?}, disabled: {disabled}, bound to {bound:?}"
            ),
            Deed::SetUser(name, None) => write!(f, "the store does not have {name:?} any more"),
            Deed::SetNameless(roles) => write!(f, "clients without a name have {roles:?}"),
            Deed::SetRole(role, rules) => write!(f, "role {role} is {rules:?}"),
            Deed::SetDefault(open) => write!(f, "by default, the store allows: {open}"),
            Deed::SetRules(rules, whom, open) => {
                write!(f, "the rules for {whom} are {rules:?}; all else is allowed: {open}")
            }
            Deed::SetService(rules) => write!(f, "the service's rules are {rules:?}"),
            Deed::Ban(whom, seconds) => write!(f, "{whom} is banned for {seconds} s"),
            Deed::Unban => f.write_str("all bans end"),
            Deed::SetAccount(account, good) => {
                write!(f, "the account {:?} is in order: {good}", ACCOUNTS[account])
            }
            Deed::Revoke(clients) => write!(f, "revoked are the certificates {clients:#b}"),
        }
    }
}

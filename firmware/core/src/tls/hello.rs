//! ClientHello and ServerHello (RFC 8446, sections 4.1 to 4.2): ours written and, for a HelloRetryRequest,
//! rewritten in place; the server's read strictly. No keys.

use super::alert::Alert;
use super::ticket::Ticket;
use crate::bytes::{Reader, Writer};
use crate::crypto::{HASH_BYTES, SCHEMES, sha256};
use crate::limits::COOKIE_BYTES;
use crate::quic;

pub(super) const CLIENT_HELLO: u8 = 1;
const TLS_AES_128_GCM_SHA256: u16 = 0x1301;
const X25519: u16 = 29;
const TLS_1_3: u16 = 0x0304;
/// A binder with its length, and the length of the list it is alone in.
const BINDERS_BYTES: usize = 3 + HASH_BYTES;

/// Numbers of extensions.
pub(super) mod extension {
    pub(in crate::tls) const SERVER_NAME: u16 = 0;
    pub(in crate::tls) const SUPPORTED_GROUPS: u16 = 10;
    pub(in crate::tls) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(in crate::tls) const ALPN: u16 = 16;
    pub(in crate::tls) const PRE_SHARED_KEY: u16 = 41;
    pub(in crate::tls) const EARLY_DATA: u16 = 42;
    pub(in crate::tls) const SUPPORTED_VERSIONS: u16 = 43;
    pub(in crate::tls) const COOKIE: u16 = 44;
    pub(in crate::tls) const PSK_KEY_EXCHANGE_MODES: u16 = 45;
    pub(in crate::tls) const KEY_SHARE: u16 = 51;
    pub(in crate::tls) const QUIC_TRANSPORT_PARAMETERS: u16 = 57;
}

/// Contents of a ClientHello.
pub(super) struct Offer<'a> {
    pub(super) random: &'a [u8; 32],
    pub(super) server_name: &'a str,
    pub(super) public_key: &'a [u8; 32],
    pub(super) idle_timeout_ms: u32,
    /// A ticket and how old it is, in milliseconds.
    pub(super) ticket: Option<(&'a Ticket<'a>, u32)>,
    pub(super) early_data: bool,
}

/// Where things are in a ClientHello.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) len: u16,
    /// Where the length of all extensions is.
    extensions_at: u16,
    /// Where early data and pre-shared key, the last extensions, begin, or would.
    resumption_at: u16,
}

impl Layout {
    pub(super) const fn none() -> Self {
        Self { len: 0, extensions_at: 0, resumption_at: 0 }
    }

    /// The length of the part that a binder is computed over.
    pub(super) fn without_binders(&self) -> usize {
        usize::from(self.len).saturating_sub(BINDERS_BYTES)
    }
}

/// Writes a ClientHello; a binder stays zero. [`None`] if it does not fit.
#[inline(never)]
pub(super) fn write(offer: &Offer<'_>, to: &mut [u8]) -> Option<Layout> {
    let mut writer = Writer::new(to);
    writer.write_bytes(&[CLIENT_HELLO, 0]);
    let message = writer.open16();
    writer.u16(0x0303);
    writer.write_bytes(offer.random);
    writer.u8(0); // no session of TLS 1.2
    writer.u16(2);
    writer.u16(TLS_AES_128_GCM_SHA256.into());
    writer.write_bytes(&[1, 0]); // no compression
    let extensions_at = writer.len() as u16;
    let extensions = writer.open16();
    write_extensions(offer, &mut writer);
    let resumption_at = writer.len() as u16;
    if let Some((ticket, age_ms)) = offer.ticket {
        if offer.early_data {
            writer.u16(extension::EARLY_DATA.into());
            writer.u16(0);
        }
        write_pre_shared_key(&mut writer, ticket, age_ms);
    }
    writer.close16(extensions);
    writer.close16(message);
    Some(Layout { len: writer.finish()? as u16, extensions_at, resumption_at })
}

fn write_extensions(offer: &Offer<'_>, writer: &mut Writer<'_>) {
    let name = offer.server_name.as_bytes();
    writer.u16(extension::SERVER_NAME.into());
    writer.u16(name.len() + 5);
    writer.u16(name.len() + 3);
    writer.u8(0);
    writer.u16(name.len());
    writer.write_bytes(name);
    writer.u16(extension::SUPPORTED_GROUPS.into());
    writer.u16(4);
    writer.u16(2);
    writer.u16(X25519.into());
    writer.u16(extension::SIGNATURE_ALGORITHMS.into());
    writer.u16(SCHEMES.len() + 2);
    writer.u16(SCHEMES.len());
    writer.write_bytes(SCHEMES);
    writer.u16(extension::ALPN.into());
    writer.u16(super::ALPN.len() + 3);
    writer.u16(super::ALPN.len() + 1);
    writer.u8(super::ALPN.len() as u8);
    writer.write_bytes(super::ALPN);
    writer.u16(extension::SUPPORTED_VERSIONS.into());
    writer.u16(3);
    writer.u8(2);
    writer.u16(TLS_1_3.into());
    writer.u16(extension::PSK_KEY_EXCHANGE_MODES.into());
    writer.u16(2);
    writer.write_bytes(&[1, 1]); // with an ephemeral key, only
    writer.u16(extension::KEY_SHARE.into());
    writer.u16(38);
    writer.u16(36);
    writer.u16(X25519.into());
    writer.u16(32);
    writer.write_bytes(offer.public_key);
    writer.u16(extension::QUIC_TRANSPORT_PARAMETERS.into());
    let parameters = writer.open16();
    quic::write_parameters(writer, offer.idle_timeout_ms);
    writer.close16(parameters);
}

fn write_pre_shared_key(writer: &mut Writer<'_>, ticket: &Ticket<'_>, age_ms: u32) {
    writer.u16(extension::PRE_SHARED_KEY.into());
    let whole = writer.open16();
    writer.u16(ticket.identity.len() + 6);
    writer.u16(ticket.identity.len());
    writer.write_bytes(ticket.identity);
    writer.u32(age_ms.wrapping_add(ticket.age_add));
    writer.u16(1 + HASH_BYTES);
    writer.u8(HASH_BYTES as u8);
    writer.write_bytes(&[0; HASH_BYTES]);
    writer.close16(whole);
}

/// Makes the second ClientHello of the first: with the cookie, without early data. [`None`] if it does not
/// fit. The memory is all that there is for a ClientHello.
#[inline(never)]
pub(super) fn add_cookie(
    memory: &mut [u8],
    layout: Layout,
    had_early_data: bool,
    cookie: &[u8],
) -> Option<Layout> {
    let at = usize::from(layout.resumption_at);
    let old_len = usize::from(layout.len);
    let kept = at + if had_early_data { 4 } else { 0 };
    let moved = at + 6 + cookie.len();
    let len = moved + old_len.checked_sub(kept)?;
    if len > memory.len() {
        return None;
    }
    memory.copy_within(kept..old_len, moved);
    let mut writer = Writer::new(memory.get_mut(at..moved)?);
    writer.u16(extension::COOKIE.into());
    writer.u16(cookie.len() + 2);
    writer.u16(cookie.len());
    writer.write_bytes(cookie);
    let extensions_at = usize::from(layout.extensions_at);
    for (place, follows) in [(2, 4), (extensions_at, extensions_at + 2)] {
        let length = (len.checked_sub(follows)? as u16).to_be_bytes();
        memory.get_mut(place..place + 2)?.copy_from_slice(&length);
    }
    // The cookie stays where another retry would find it; there is none.
    Some(Layout { len: len as u16, ..layout })
}

/// Contents of a ServerHello or HelloRetryRequest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    Hello { public_key: [u8; 32], resumed: bool },
    Retry { cookie: &'a [u8] },
}

/// Reads the body of a ServerHello.
#[inline(never)]
pub(super) fn read_answer(body: &[u8]) -> Result<Answer<'_>, Alert> {
    let mut reader = Reader::new(body);
    let (random, extensions) = read_fixed(&mut reader).ok_or(Alert::DECODE_ERROR)??;
    let retry = random == sha256(&[b"HelloRetryRequest"]);
    let mut version = None;
    let mut share = None;
    let mut identity = None;
    let mut cookie = None;
    super::each_extension(extensions, |number, mut value| {
        let repeated = match number {
            extension::SUPPORTED_VERSIONS => version.replace(value.u16()?).is_some(),
            extension::KEY_SHARE if !retry => {
                let group = value.u16()?;
                let key = value.block16()?.rest();
                share.replace((group, key)).is_some()
            }
            extension::PRE_SHARED_KEY if !retry => identity.replace(value.u16()?).is_some(),
            extension::COOKIE if retry => cookie.replace(value.block16()?.rest()).is_some(),
            // The server may only ask for another group, and we have just the one we sent a share of.
            extension::KEY_SHARE => return Some(Err(Alert::ILLEGAL_PARAMETER)),
            _ => return Some(Err(Alert::UNSUPPORTED_EXTENSION)),
        };
        Some(if repeated || !value.is_empty() { Err(Alert::ILLEGAL_PARAMETER) } else { Ok(()) })
    })?;
    if version != Some(TLS_1_3) {
        return Err(Alert(70)); // protocol_version
    }
    if retry {
        // Without a cookie our second ClientHello would be the first.
        return match cookie {
            Some(cookie) if (1..=COOKIE_BYTES).contains(&cookie.len()) => {
                Ok(Answer::Retry { cookie })
            }
            _ => Err(Alert::ILLEGAL_PARAMETER),
        };
    }
    let (group, key) = share.ok_or(Alert::MISSING_EXTENSION)?;
    match key.try_into() {
        Ok(public_key) if group == X25519 && identity.is_none_or(|chosen| chosen == 0) => {
            Ok(Answer::Hello { public_key, resumed: identity.is_some() })
        }
        _ => Err(Alert::ILLEGAL_PARAMETER),
    }
}

type Fixed<'a> = Result<([u8; 32], Reader<'a>), Alert>;

/// Random and extensions; [`None`] if malformed, an alert if something was chosen that was not offered.
fn read_fixed<'a>(reader: &mut Reader<'a>) -> Option<Fixed<'a>> {
    let version = reader.u16()?;
    let random = reader.array()?;
    let session = reader.block8()?;
    let suite = reader.u16()?;
    let compression = reader.u8()?;
    let extensions = reader.block16()?;
    if !reader.is_empty() {
        return None;
    }
    let chosen_of_ours = version == 0x0303
        && session.is_empty()
        && suite == TLS_AES_128_GCM_SHA256
        && compression == 0;
    Some(if chosen_of_ours { Ok((random, extensions)) } else { Err(Alert::ILLEGAL_PARAMETER) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::quic::SendLimits;

    fn server_hello(random: [u8; 32], extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend(random);
        body.extend([0, 0x13, 0x01, 0, 0, extensions.len() as u8]);
        body.extend(extensions);
        body
    }

    /// The lengths in a ClientHello agree with what is there; gives the numbers of its extensions.
    fn extensions_of(hello: &[u8]) -> Vec<u16> {
        let mut reader = Reader::new(hello);
        assert_eq!(reader.u8(), Some(CLIENT_HELLO));
        assert_eq!(reader.u24(), Some(hello.len() - 4));
        reader.bytes(34).unwrap();
        reader.block8().unwrap();
        reader.block16().unwrap();
        reader.block8().unwrap();
        let mut list = reader.block16().unwrap();
        assert!(reader.is_empty());
        let mut numbers = Vec::new();
        while !list.is_empty() {
            numbers.push(list.u16().unwrap());
            list.block16().unwrap();
        }
        numbers
    }

    #[test]
    fn a_cookie_takes_the_place_of_early_data() {
        let ticket = Ticket {
            lifetime_s: 1,
            age_add: 2,
            early: true,
            limits: SendLimits::default(),
            psk: [3; 32],
            identity: &[4; 50],
        };
        for ticket in [None, Some((&ticket, 5))] {
            let offer = Offer {
                random: &[1; 32],
                server_name: "broker.example",
                public_key: &[2; 32],
                idle_timeout_ms: 30_000,
                ticket,
                early_data: ticket.is_some(),
            };
            let mut memory = [0; 600];
            let first = write(&offer, &mut memory).unwrap();
            let before = extensions_of(&memory[..first.len.into()]);
            assert_eq!(before.contains(&extension::EARLY_DATA), ticket.is_some());
            let second = add_cookie(&mut memory, first, ticket.is_some(), b"cookie").unwrap();
            let after = extensions_of(&memory[..second.len.into()]);
            assert!(!after.contains(&extension::EARLY_DATA) && after.contains(&extension::COOKIE));
            let psk_is_last = after.last() == Some(&extension::PRE_SHARED_KEY);
            assert_eq!(psk_is_last, ticket.is_some());
            let mut tight = memory[..usize::from(second.len) + 100].to_vec();
            assert!(add_cookie(&mut tight, second, false, &[0; 256]).is_none(), "no room");
        }
    }

    #[test]
    fn a_retry_must_have_a_cookie_and_nothing_we_would_have_to_refuse() {
        let retry = sha256(&[b"HelloRetryRequest"]);
        let version = [0, 43, 0, 2, 3, 4];
        let cookie = [0, 44, 0, 3, 0, 1, 7];
        let group = [0, 51, 0, 2, 0, 29];
        let body = server_hello(retry, &[&version[..], &cookie].concat());
        assert_eq!(read_answer(&body), Ok(Answer::Retry { cookie: &[7] }));
        let body = server_hello(retry, &version);
        assert_eq!(read_answer(&body), Err(Alert::ILLEGAL_PARAMETER));
        let body = server_hello(retry, &[&version[..], &cookie, &group].concat());
        assert_eq!(read_answer(&body), Err(Alert::ILLEGAL_PARAMETER));
        let body = server_hello([0; 32], &[&version[..], &cookie].concat());
        assert_eq!(read_answer(&body), Err(Alert::UNSUPPORTED_EXTENSION));
        let body = server_hello([0; 32], &version);
        assert_eq!(read_answer(&body), Err(Alert::MISSING_EXTENSION));
    }
}

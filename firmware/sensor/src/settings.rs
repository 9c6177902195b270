//! What a device is told about itself when it is made: a page of flash with entries of tag, length,
//! value. A tag of 0xff, which erased flash reads as, ends them.

/// Begins a page of settings; the last byte is the format's version.
const MAGIC: [u8; 4] = *b"FLM\x01";

/// Time between two wakes, unless the settings say otherwise.
const DEFAULT_INTERVAL_S: u32 = 60;
/// Time to wait for commands after the last thing the broker sent.
const DEFAULT_LISTEN_MS: u16 = 250;

/// Addresses that do not come from DHCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The device's IPv4 address.
    pub address: [u8; 4],
    /// Bits of its network's prefix.
    pub prefix_bits: u8,
    /// Address of the gateway.
    pub gateway: [u8; 4],
}

/// A device's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    /// The broker's IPv4 address and UDP port.
    pub server: ([u8; 4], u16),
    /// The broker's name, as its certificate has it.
    pub server_name: &'a str,
    /// The key the broker proves to hold: 32 bytes for Ed25519, 65 for P-256.
    pub server_key: &'a [u8],
    /// Whether that key is not the broker's but its certificate authority's, which is P-256.
    #[cfg(feature = "x509")]
    pub authority: bool,
    /// MQTT client identifier, which is also in the topics.
    pub client_id: &'a str,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Addresses, if not by DHCP.
    pub network: Option<Fixed>,
    /// User and password, if the broker asks.
    pub user: Option<&'a str>,
    /// See [`user`](Self::user).
    pub password: Option<&'a [u8]>,
    /// Seconds between two wakes.
    pub interval_s: u32,
    /// Milliseconds of quiet after which no further command is waited for.
    pub listen_ms: u16,
    /// Wakes after which the device switches itself off; 0 for never.
    pub wakes: u16,
    /// Whether connections are resumed.
    pub resume: bool,
}

/// Why a page holds no settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// It does not begin like one: the device was never given any.
    Missing,
    /// The entry with this tag is cut off or has an impossible value.
    Entry(u8),
    /// An entry that must be there, with this tag, is not.
    Lacks(u8),
}

impl<'a> Settings<'a> {
    /// Reads a page.
    ///
    /// # Errors
    /// It is empty, damaged or incomplete.
    pub fn read(page: &'a [u8]) -> Result<Settings<'a>, SettingsError> {
        let mut rest = page.strip_prefix(&MAGIC).ok_or(SettingsError::Missing)?;
        let mut settings = Settings {
            server: ([0; 4], 0),
            server_name: "",
            server_key: &[],
            #[cfg(feature = "x509")]
            authority: false,
            client_id: "",
            mac: [0; 6],
            network: None,
            user: None,
            password: None,
            interval_s: DEFAULT_INTERVAL_S,
            listen_ms: DEFAULT_LISTEN_MS,
            wakes: 0,
            resume: true,
        };
        while let [tag, tail @ ..] = rest
            && *tag != 0xff
        {
            let entry =
                tail.split_first().and_then(|(len, tail)| tail.split_at_checked(usize::from(*len)));
            let (value, tail) = entry.ok_or(SettingsError::Entry(*tag))?;
            settings.set(*tag, value).ok_or(SettingsError::Entry(*tag))?;
            rest = tail;
        }
        settings.complete()
    }

    /// `None` if the value is impossible. Unknown tags are for later versions.
    fn set(&mut self, tag: u8, value: &'a [u8]) -> Option<()> {
        match tag {
            1 => {
                let [a, b, c, d, high, low] = *value.as_array()?;
                self.server = ([a, b, c, d], u16::from_be_bytes([high, low]));
            }
            2 => self.server_name = text(value)?,
            3 => self.server_key = Some(value).filter(|key| matches!(key.len(), 32 | 65))?,
            4 => self.client_id = text(value)?,
            5 => self.mac = *value.as_array()?,
            6 => {
                let [a, b, c, d, prefix_bits, e, f, g, h] = *value.as_array()?;
                let (address, gateway) = ([a, b, c, d], [e, f, g, h]);
                self.network = Some(Fixed { address, prefix_bits, gateway });
            }
            7 => self.user = Some(text(value)?),
            8 => self.password = Some(value),
            9 => self.interval_s = u32::from_be_bytes(*value.as_array()?),
            10 => self.listen_ms = u16::from_be_bytes(*value.as_array()?),
            11 => self.wakes = u16::from_be_bytes(*value.as_array()?),
            12 => self.resume = value != [0],
            #[cfg(feature = "x509")]
            13 => {
                self.server_key = value.as_array::<65>()?;
                self.authority = true;
            }
            _ => {}
        }
        Some(())
    }

    fn complete(self) -> Result<Settings<'a>, SettingsError> {
        let there = [
            (1, self.server.1 != 0),
            (2, !self.server_name.is_empty()),
            (3, !self.server_key.is_empty()),
            (4, !self.client_id.is_empty()),
            (5, self.mac != [0; 6]),
        ];
        match there.iter().find(|(_, there)| !there) {
            Some((tag, _)) => Err(SettingsError::Lacks(*tag)),
            None => Ok(self),
        }
    }
}

/// Printable ASCII: enough for names, and no tables for Unicode.
fn text(value: &[u8]) -> Option<&str> {
    let plain = value.iter().all(u8::is_ascii_graphic);
    core::str::from_utf8(value).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with these entries before the necessary ones, and erased flash behind.
    fn page(entries: &[(u8, &[u8])]) -> Vec<u8> {
        let mut page = MAGIC.to_vec();
        for (tag, value) in entries {
            page.extend([*tag, value.len() as u8]);
            page.extend_from_slice(value);
        }
        page.resize(1024, 0xff);
        page
    }

    const NEEDED: [(u8, &[u8]); 5] =
        [(1, &[10, 0, 2, 2, 0x38, 0xe7]), (2, b"broker"), (3, &[7; 32]), (4, b"s1"), (5, &[2; 6])];

    #[test]
    fn what_was_written_is_read() {
        let mut entries = NEEDED.to_vec();
        entries.extend([(6, &[10, 0, 2, 15, 24, 10, 0, 2, 2][..]), (11, &[0, 100]), (12, &[0])]);
        entries.push((99, b"of a later version"));
        let page = page(&entries);
        let settings = Settings::read(&page).expect("good settings");
        assert_eq!(settings.server, ([10, 0, 2, 2], 14567));
        assert_eq!((settings.server_name, settings.client_id), ("broker", "s1"));
        assert_eq!(settings.network.map(|network| network.gateway), Some([10, 0, 2, 2]));
        assert_eq!((settings.wakes, settings.resume), (100, false));
        assert_eq!(settings.interval_s, DEFAULT_INTERVAL_S);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(Settings::read(&[0xff; 1024]), Err(SettingsError::Missing));
        for missing in 0..NEEDED.len() {
            let mut entries = NEEDED.to_vec();
            let (tag, _) = entries.remove(missing);
            assert_eq!(Settings::read(&page(&entries)), Err(SettingsError::Lacks(tag)));
        }
        for (tag, value) in [(1, &[1, 2][..]), (3, &[0; 33]), (4, b"two words"), (9, &[1])] {
            assert_eq!(Settings::read(&page(&[(tag, value)])), Err(SettingsError::Entry(tag)));
        }
        let cut = [&MAGIC[..], &[4, 200, b'x']].concat();
        assert_eq!(Settings::read(&cut), Err(SettingsError::Entry(4)));
    }
}

//! The alerts a client answers with (RFC 8446, section 6). In QUIC they are error codes, not records.

/// Alert that names the server's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alert(pub(crate) u8);

impl Alert {
    pub(crate) const UNEXPECTED_MESSAGE: Self = Self(10);
    #[cfg(feature = "x509")]
    pub(crate) const BAD_CERTIFICATE: Self = Self(42);
    #[cfg(feature = "x509")]
    pub(crate) const CERTIFICATE_EXPIRED: Self = Self(45);
    #[cfg(feature = "x509")]
    pub(crate) const CERTIFICATE_UNKNOWN: Self = Self(46);
    pub(crate) const ILLEGAL_PARAMETER: Self = Self(47);
    #[cfg(feature = "x509")]
    pub(crate) const UNKNOWN_CA: Self = Self(48);
    pub(crate) const DECODE_ERROR: Self = Self(50);
    pub(crate) const DECRYPT_ERROR: Self = Self(51);
    pub(crate) const INTERNAL_ERROR: Self = Self(80);
    pub(crate) const MISSING_EXTENSION: Self = Self(109);
    pub(crate) const UNSUPPORTED_EXTENSION: Self = Self(110);
    pub(crate) const NO_APPLICATION_PROTOCOL: Self = Self(120);
}

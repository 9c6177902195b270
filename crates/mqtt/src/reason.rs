//! Reason codes (section 2.4), and the return codes of 3.1.1.

use std::fmt;

macro_rules! reason_codes {
    ($($value:literal $name:ident $text:literal;)*) => {
        /// A reason code. Values from 0x80 are errors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $(#[doc = $text] $name = $value,)*
        }

        impl ReasonCode {
            /// The code of this value, if there is one.
            #[must_use]
            pub fn from_u8(value: u8) -> Option<ReasonCode> {
                match value {
                    $($value => Some(ReasonCode::$name),)*
                    _ => None,
                }
            }

            /// Name of the reason code in the specification.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(ReasonCode::$name => $text,)*
                }
            }
        }
    };
}

reason_codes! {
    0x00 Success "Success";
    0x01 GrantedQos1 "Granted QoS 1";
    0x02 GrantedQos2 "Granted QoS 2";
    0x04 DisconnectWithWill "Disconnect with Will Message";
    0x10 NoMatchingSubscribers "No matching subscribers";
    0x11 NoSubscriptionExisted "No subscription existed";
    0x18 ContinueAuthentication "Continue authentication";
    0x19 ReAuthenticate "Re-authenticate";
    0x80 UnspecifiedError "Unspecified error";
    0x81 MalformedPacket "Malformed Packet";
    0x82 ProtocolError "Protocol Error";
    0x83 ImplementationSpecificError "Implementation specific error";
    0x84 UnsupportedProtocolVersion "Unsupported Protocol Version";
    0x85 ClientIdentifierNotValid "Client Identifier not valid";
    0x86 BadUserNameOrPassword "Bad User Name or Password";
    0x87 NotAuthorized "Not authorized";
    0x88 ServerUnavailable "Server unavailable";
    0x89 ServerBusy "Server busy";
    0x8A Banned "Banned";
    0x8B ServerShuttingDown "Server shutting down";
    0x8C BadAuthenticationMethod "Bad authentication method";
    0x8D KeepAliveTimeout "Keep Alive timeout";
    0x8E SessionTakenOver "Session taken over";
    0x8F TopicFilterInvalid "Topic Filter invalid";
    0x90 TopicNameInvalid "Topic Name invalid";
    0x91 PacketIdentifierInUse "Packet Identifier in use";
    0x92 PacketIdentifierNotFound "Packet Identifier not found";
    0x93 ReceiveMaximumExceeded "Receive Maximum exceeded";
    0x94 TopicAliasInvalid "Topic Alias invalid";
    0x95 PacketTooLarge "Packet too large";
    0x96 MessageRateTooHigh "Message rate too high";
    0x97 QuotaExceeded "Quota exceeded";
    0x98 AdministrativeAction "Administrative action";
    0x99 PayloadFormatInvalid "Payload format invalid";
    0x9A RetainNotSupported "Retain not supported";
    0x9B QosNotSupported "QoS not supported";
    0x9C UseAnotherServer "Use another server";
    0x9D ServerMoved "Server moved";
    0x9E SharedSubscriptionsNotSupported "Shared Subscriptions not supported";
    0x9F ConnectionRateExceeded "Connection rate exceeded";
    0xA0 MaximumConnectTime "Maximum connect time";
    0xA1 SubscriptionIdentifiersNotSupported "Subscription Identifiers not supported";
    0xA2 WildcardSubscriptionsNotSupported "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    /// Byte of the reason code.
    #[must_use]
    pub fn as_u8(self) -> u8 {
        self as u8
    }

    /// Whether it is a failure.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.as_u8() >= 0x80
    }

    /// The corresponding CONNACK return code of 3.1.1 (3.1.1 section 3.2.2.3).
    #[must_use]
    pub fn to_v311_return_code(self) -> u8 {
        match self {
            ReasonCode::Success => 0,
            ReasonCode::UnsupportedProtocolVersion => 1,
            ReasonCode::ClientIdentifierNotValid => 2,
            ReasonCode::BadUserNameOrPassword | ReasonCode::BadAuthenticationMethod => 4,
            ReasonCode::NotAuthorized | ReasonCode::Banned => 5,
            _ => 3,
        }
    }

    /// The reason code for a 3.1.1 CONNACK return code; `None` if that does not exist.
    #[must_use]
    pub fn from_v311_return_code(code: u8) -> Option<ReasonCode> {
        Some(match code {
            0 => ReasonCode::Success,
            1 => ReasonCode::UnsupportedProtocolVersion,
            2 => ReasonCode::ClientIdentifierNotValid,
            3 => ReasonCode::ServerUnavailable,
            4 => ReasonCode::BadUserNameOrPassword,
            5 => ReasonCode::NotAuthorized,
            _ => return None,
        })
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02X})", self.text(), self.as_u8())
    }
}

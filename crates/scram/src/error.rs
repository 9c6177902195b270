//! Why an exchange ends.

/// Fault in a message of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// It does not have the form of RFC 5802.
    #[error("malformed SCRAM message: {0}")]
    Malformed(&'static str),
    /// The client requires channel binding.
    #[error(
        "channel binding is not supported: use the mechanism SCRAM-SHA-256 with the GS2 flag n"
    )]
    ChannelBinding,
    /// The client wants to act as somebody else.
    #[error("the authorization identity is not the user's name")]
    Authorization,
    /// It does not belong to this exchange.
    #[error("the message belongs to another exchange")]
    OtherExchange,
    /// The password is wrong, or there is no such user.
    #[error("the proof is wrong")]
    WrongProof,
    /// The server wants too few iterations for safety, or too many.
    #[error("the server asks for {0} iterations; 4096 to 5000000 are accepted")]
    Iterations(u32),
    /// The server has refused the client.
    #[error("the server has refused the proof")]
    Refused,
    /// The server does not have the user's verifier.
    #[error("the server has not shown that it knows the password's verifier")]
    WrongServer,
    /// There are no random numbers.
    #[error("the system random number generator failed")]
    Random,
}

//! Random bytes of the system, fit for keys.

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::CertError;

/// Random bytes.
///
/// # Errors
/// The system has none.
pub fn random<const N: usize>() -> Result<[u8; N], CertError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| CertError::Random)?;
    Ok(bytes)
}

/// A random number.
///
/// # Errors
/// As [`random`].
pub fn random_number() -> Result<u64, CertError> {
    Ok(u64::from_le_bytes(random()?))
}

//! Verifies argon2 hashes in memory that is used again.
//!
//! A hash fills 19 MiB. If each had its own, the allocator would return them to the kernel in between, and the kernel
//! would clear them again for the next one: under a flood of wrong passwords that took a third of the processor time
//! that was used. Each hashing thread has one [`Argon2Memory`] instead, and releases it when no login has come for a while.

use argon2::password_hash::phc::{Output, PasswordHash};
use argon2::{Algorithm, Argon2, Block, Params, Version};

/// The most blocks that are kept, 1 KiB each: what Fulmar's own hashes take. A password file may have hashes that take
/// more; their memory is released at once.
const KEPT_BLOCKS: usize = Params::DEFAULT_M_COST as usize;

/// The memory of one thread.
#[derive(Debug, Default)]
pub(crate) struct Argon2Memory {
    blocks: Vec<Block>,
}

impl Argon2Memory {
    /// Whether this password has this hash, in PHC string format.
    pub(crate) fn matches(&mut self, password: &[u8], hash: &str) -> bool {
        let matches = self.verify(password, hash).unwrap_or(false);
        if self.blocks.len() > KEPT_BLOCKS {
            self.release();
        }
        matches
    }

    /// `None` if the hash is malformed.
    fn verify(&mut self, password: &[u8], hash: &str) -> Option<bool> {
        let hash = PasswordHash::new(hash).ok()?;
        let (salt, expected) = (hash.salt.as_ref()?, hash.hash.as_ref()?);
        let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
        let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
        let params = Params::try_from(&hash).ok()?;
        let blocks = params.block_count();
        if self.blocks.len() < blocks {
            // Not resized in place, which would copy.
            self.release();
            self.blocks.try_reserve_exact(blocks).ok()?;
            self.blocks.resize(blocks, Block::new());
        }
        let mut buffer = [0; Output::MAX_LENGTH];
        let out = buffer.get_mut(..expected.len())?;
        let argon2 = Argon2::new(algorithm, version, params);
        argon2.hash_password_into_with_memory(password, salt, out, &mut self.blocks).ok()?;
        // `Output` compares in constant time.
        Some(Output::new(out).ok()? == *expected)
    }

    /// Whether there is something to release.
    pub(crate) fn is_held(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Returns the memory.
    pub(crate) fn release(&mut self) {
        self.blocks = Vec::new();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use argon2::password_hash::{CustomizedPasswordHasher as _, PasswordHasher as _};

    use super::*;

    #[test]
    fn hashes_are_verified_one_after_the_other_in_the_same_memory() {
        let hash = |password: &str| Argon2::default().hash_password(password.as_bytes()).unwrap();
        let (first, second) = (hash("secret").to_string(), hash("other").to_string());
        let mut memory = Argon2Memory::default();
        assert!(memory.matches(b"secret", &first));
        let place = memory.blocks.as_ptr();
        for _ in 0..2 {
            assert!(memory.matches(b"other", &second) && !memory.matches(b"secret", &second));
            assert!(memory.matches(b"secret", &first) && !memory.matches(b"", &first));
        }
        assert_eq!(memory.blocks.as_ptr(), place, "the same memory");
        assert_eq!(memory.blocks.len(), KEPT_BLOCKS);
        memory.release();
        assert!(!memory.is_held() && memory.blocks.capacity() == 0);
        assert!(memory.matches(b"secret", &first), "and again");
    }

    #[test]
    fn a_hash_has_its_own_parameters_and_larger_ones_keep_no_memory() {
        let hash = |algorithm, version, blocks, passes, lanes| {
            let params = Params::new(blocks, passes, lanes, Some(24)).unwrap();
            let (algorithm, version) = (Some(algorithm), Some(version));
            let salt = [7; 16];
            let hash = Argon2::default()
                .hash_password_customized(b"secret", &salt, algorithm, version, params);
            hash.unwrap().to_string()
        };
        let large = u32::try_from(KEPT_BLOCKS).unwrap() + 64;
        let mut memory = Argon2Memory::default();
        for text in [
            hash("argon2i", 0x13, 64, 3, 2),
            hash("argon2d", 0x10, 32, 1, 1),
            hash("argon2id", 0x13, large, 1, 1),
        ] {
            assert!(memory.matches(b"secret", &text), "{text}");
            assert!(!memory.matches(b"Secret", &text), "{text}");
            assert!(memory.blocks.len() <= KEPT_BLOCKS, "{text}");
        }
        assert!(!memory.is_held());
        for malformed in [
            "",
            "$argon2id$v=19$m=64,t=1,p=1",
            "$argon2id$v=19$m=1,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g",
        ] {
            assert!(!memory.matches(b"secret", malformed), "{malformed}");
        }
    }
}

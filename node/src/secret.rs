//! Secrets of the API (companion 1.2): made here, shown once, kept only as digests.
//!
//! A secret is a prefix and 24 random bytes in hex: 192 bits, so SHA-256 and an indexed lookup are enough, and a slow hash
//! would only cost time on every request.

pub use coordinator::accounts::Digest;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Random bytes in a secret.
const ENTROPY: usize = 24;
/// Characters of a secret that lists may show.
const SHOWN: usize = 8;

/// What a secret opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens and joins sessions of a profile.
    Client,
    /// One session.
    Session,
    /// The admin port.
    Admin,
}

impl Kind {
    /// What every secret of this kind starts with. Must never change.
    pub fn prefix(self) -> &'static str {
        match self {
            Kind::Client => "bae_",
            Kind::Session => "bae_ses_",
            Kind::Admin => "bae_admin_",
        }
    }

    /// Makes a new one.
    ///
    /// # Errors
    /// When the operating system has no random bytes to give.
    pub fn generate(self) -> Result<SecretString, getrandom::Error> {
        let mut bytes = [0; ENTROPY];
        getrandom::fill(&mut bytes)?;
        Ok(format!("{}{}", self.prefix(), hex::encode(bytes)).into())
    }

    /// Whether a text has the form of this kind. What does not need not be looked up.
    pub fn matches(self, text: &str) -> bool {
        let digits =
            |hex: &str| hex.len() == 2 * ENTROPY && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        text.strip_prefix(self.prefix()).is_some_and(digits)
    }
}

/// The digest of a secret.
pub fn digest(secret: &str) -> Digest {
    Digest(Sha256::digest(secret.as_bytes()).into())
}

/// The part of a secret that lists show.
pub fn shown_part(secret: &SecretString) -> String {
    secret.expose_secret().chars().take(SHOWN).collect()
}

/// Whether two digests are the same, in a time that does not tell where they differ.
pub fn same(left: &Digest, right: &Digest) -> bool {
    left.0.ct_eq(&right.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_their_form_and_differ() {
        for (kind, length) in [(Kind::Client, 52), (Kind::Session, 56), (Kind::Admin, 58)] {
            let (one, other) = (kind.generate().unwrap(), kind.generate().unwrap());
            assert_ne!(one.expose_secret(), other.expose_secret());
            assert_eq!(one.expose_secret().len(), length);
            for of in [Kind::Client, Kind::Session, Kind::Admin] {
                assert_eq!(of.matches(one.expose_secret()), of == kind, "{of:?} {kind:?}");
            }
            assert_eq!(shown_part(&one), one.expose_secret()[..8]);
        }
    }

    #[test]
    fn other_texts_are_no_secrets() {
        let digits = "0123456789abcdef0123456789abcdef0123456789abcdef";
        assert!(Kind::Client.matches(&format!("bae_{digits}")));
        for bad in ["", "bae_", digits, "bae_0123", "BAE_0123456789abcdef0123456789abcdef0123456789abcdef"] {
            assert!(!Kind::Client.matches(bad), "{bad}");
        }
        for bad in [format!("bae_{digits}0"), format!("bae_{}", digits.to_uppercase()), format!("bae_{digits} ")] {
            assert!(!Kind::Client.matches(&bad), "{bad}");
        }
    }

    #[test]
    fn a_digest_is_sha256_and_does_not_print() {
        let digest = digest("abc");
        assert_eq!(hex::encode(digest.0), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(format!("{digest:?}"), "Digest(…)");
        assert!(same(&digest, &super::digest("abc")) && !same(&digest, &super::digest("abd")));
    }
}

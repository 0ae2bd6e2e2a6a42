//! Keys and tokens of the API (docs/api.md 1.2): generated here, shown once, and stored only as digests.
//!
//! A secret is a prefix and 24 random bytes in hex. With 192 random bits nobody can guess a secret from its digest, so
//! SHA-256 is enough: a slow password hash would only cost time on every request.

pub(crate) use coordinator::accounts::Digest;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// The number of random bytes in a secret.
const ENTROPY: usize = 24;
/// How many characters of a secret lists show.
const VISIBLE: usize = 8;

/// What a secret gives access to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client key: creates and joins sessions of its profile.
    Client,
    /// A session token: joins one session.
    Session,
    /// The admin key: everything on the admin port.
    Admin,
}

impl Kind {
    /// What every secret of this kind starts with. It must never change, because issued secrets start with it.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Kind::Client => "bae_",
            Kind::Session => "bae_ses_",
            Kind::Admin => "bae_admin_",
        }
    }

    /// Generates a new secret of this kind.
    ///
    /// # Errors
    /// When the operating system has no random bytes to give.
    pub(crate) fn generate(self) -> Result<SecretString, getrandom::Error> {
        let mut bytes = [0; ENTROPY];
        getrandom::fill(&mut bytes)?;
        Ok(format!("{}{}", self.prefix(), hex::encode(bytes)).into())
    }

    /// Whether a text has the form of this kind. A text that has not is refused without a look into the database.
    pub(crate) fn matches(self, text: &str) -> bool {
        let digits =
            |hex: &str| hex.len() == 2 * ENTROPY && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        text.strip_prefix(self.prefix()).is_some_and(digits)
    }
}

/// The digest of a secret.
pub(crate) fn digest(secret: &str) -> Digest {
    Digest(Sha256::digest(secret.as_bytes()).into())
}

/// The first characters of a secret, by which lists let people tell keys apart.
pub(crate) fn visible_prefix(secret: &SecretString) -> String {
    secret.expose_secret().chars().take(VISIBLE).collect()
}

/// Whether two digests are equal. The comparison takes the same time wherever they differ.
pub(crate) fn constant_time_eq(left: &Digest, right: &Digest) -> bool {
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
            assert_eq!(visible_prefix(&one), one.expose_secret()[..8]);
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
        assert!(constant_time_eq(&digest, &super::digest("abc")) && !constant_time_eq(&digest, &super::digest("abd")));
    }
}

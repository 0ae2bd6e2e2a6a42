//! Identifiers (docs/api.md 1.1): a type prefix and 32 lower-case hex digits.
//!
//! Each kind of id is a type of its own, so that code that confuses a session id with a key id does not compile. The 16
//! bytes are a UUIDv7, which is made outside of this crate; this crate parses and prints ids.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The error for a text that is not `<prefix>` followed by 32 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a valid id")]
pub struct InvalidId;

fn write_hex(f: &mut fmt::Formatter<'_>, prefix: &str, bytes: &[u8; 16]) -> fmt::Result {
    f.write_str(prefix)?;
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

fn parse_hex(text: &str, prefix: &str) -> Result<[u8; 16], InvalidId> {
    let hex = text.strip_prefix(prefix).ok_or(InvalidId)?.as_bytes();
    if hex.len() != 32 {
        return Err(InvalidId);
    }
    let digit = |b: u8| match b {
        b'0'..=b'9' => Ok(b - b'0'),
        b'a'..=b'f' => Ok(b - b'a' + 10),
        _ => Err(InvalidId),
    };
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// The beginning of every id of this kind.
            pub const PREFIX: &'static str = $prefix;
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, $prefix, &self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                parse_hex(text, $prefix).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// The id of a session.
    SessionId, "ses_"
);
id!(
    /// The id of an event in a session's log.
    EventId, "evt_"
);
id!(
    /// The id of a client key. Events are attributed to client keys.
    KeyId, "key_"
);
id!(
    /// The id of a profile.
    ProfileId, "pro_"
);
id!(
    /// The id of a remote sandbox.
    SandboxId, "sbx_"
);
id!(
    /// The id of a remote subagent.
    SubagentId, "sba_"
);
id!(
    /// The id of one `sendMessage` or `compact` call. Clients never see it.
    CallId, "cal_"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let id = SessionId(std::array::from_fn(|i| i as u8 * 16 + 1));
        let text = id.to_string();
        assert_eq!(text, "ses_01112131415161718191a1b1c1d1e1f1");
        assert_eq!(text.parse(), Ok(id));
        for bad in
            ["", "ses_", "evt_01112131415161718191a1b1c1d1e1f1", "ses_01112131415161718191A1B1C1D1E1F1", "ses_01"]
        {
            assert_eq!(bad.parse::<SessionId>(), Err(InvalidId), "{bad}");
        }
    }
}

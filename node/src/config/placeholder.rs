//! `${NAME}` in a configured secret stands for an environment variable. It is replaced just before the secret is used,
//! so that the value is neither kept nor shown, and a changed variable counts.

use super::Environment;
use secrecy::SecretString;

/// Why a placeholder could not be replaced. It names the variable and never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unresolved {
    /// The variable is not set.
    #[error("environment variable {0} is not set")]
    Unset(String),
    /// `${` without its `}`.
    #[error("unterminated ${{ in a configured value")]
    Unterminated,
}

/// Replaces every `${NAME}` once: placeholders in a variable's value stay as they are.
///
/// # Errors
/// See [`Unresolved`].
pub(crate) fn resolve(text: &str, environment: &dyn Environment) -> Result<SecretString, Unresolved> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or(Unresolved::Unterminated)?;
        whole.push_str(before);
        whole.push_str(&environment.get(name).ok_or_else(|| Unresolved::Unset(name.to_owned()))?);
        rest = after;
    }
    whole.push_str(rest);
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;
    use std::collections::BTreeMap;

    #[test]
    fn placeholders() {
        let environment = BTreeMap::from([("A", "one".to_owned()), ("B", "${A}".to_owned()), ("E", String::new())]);
        let resolved = |text| resolve(text, &environment).map(|secret| secret.expose_secret().to_owned());
        let cases = [
            ("plain", Ok("plain")),
            ("", Ok("")),
            ("${A}", Ok("one")),
            ("Bearer ${A}/${A}!", Ok("Bearer one/one!")),
            ("${B}", Ok("${A}")),
            ("[${E}]", Ok("[]")),
            ("$A {A} $", Ok("$A {A} $")),
            ("${NONE}", Err(Unresolved::Unset("NONE".into()))),
            ("${}", Err(Unresolved::Unset(String::new()))),
            ("${A", Err(Unresolved::Unterminated)),
            ("${A} ${", Err(Unresolved::Unterminated)),
        ];
        for (text, expected) in cases {
            assert_eq!(resolved(text), expected.map(str::to_owned), "{text}");
        }
        assert_eq!(Unresolved::Unterminated.to_string(), "unterminated ${ in a configured value");
    }
}

//! Where settings come from: flags, then the environment, then the `[server]` table of the file. The first that holds a
//! setting wins.

use super::Usage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Environment variables, as a trait so that tests can pass a map instead of the process's own.
pub(crate) trait Environment: Send + Sync {
    /// The value of a variable, if it is set.
    fn get(&self, name: &str) -> Option<String>;

    /// The names of all variables whose names are UTF-8.
    fn names(&self) -> Vec<String>;
}

/// The environment of this process. Nothing else reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

impl<K: std::borrow::Borrow<str> + Ord + Send + Sync> Environment for BTreeMap<K, String> {
    fn get(&self, name: &str) -> Option<String> {
        self.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().map(|name| name.borrow().to_owned()).collect()
    }
}

/// What was given on the command line. Without `Debug`: a database URL may hold a password.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    /// Flags with a value, by setting: `addr` is `--addr`, `BAE_ADDR` and `[server] addr`.
    pub(crate) values: BTreeMap<&'static str, String>,
    /// `--rotate-admin-key`
    pub(crate) rotate_admin_key: bool,
    /// `--dangerously-disable-admin-auth`
    pub(crate) disable_admin_auth: bool,
}

/// All sources of settings. A flag wins over a variable, which wins over the file.
pub(super) struct Settings<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) environment: &'a dyn Environment,
    pub(crate) file: &'a BTreeMap<String, String>,
}

/// A setting that one of the sources holds.
pub(super) struct SettingValue {
    pub(crate) text: String,
    /// The flag, variable or key of the file that it comes from, for messages.
    pub(crate) origin: String,
}

impl SettingValue {
    /// An error that names the origin and goes on with `what`. It does not show the value, which may be a secret.
    pub(crate) fn refuse(&self, what: impl std::fmt::Display) -> Usage {
        Usage::new(format!("{} {what}", self.origin))
    }
}

impl Settings<'_> {
    /// A setting by its name in the file. An empty environment variable counts as not set.
    pub(crate) fn value(&self, name: &'static str) -> Option<SettingValue> {
        if let Some(text) = self.flags.values.get(name) {
            return Some(SettingValue { text: text.clone(), origin: format!("--{}", name.replace('_', "-")) });
        }
        let variable = format!("BAE_{}", name.to_ascii_uppercase());
        if let Some(text) = self.environment.get(&variable).filter(|text| !text.is_empty()) {
            return Some(SettingValue { text, origin: variable });
        }
        self.file.get(name).map(|text| SettingValue { text: text.clone(), origin: format!("[server] {name}") })
    }

    /// A setting as it was written.
    pub(crate) fn text(&self, name: &'static str) -> Option<String> {
        self.value(name).map(|value| value.text)
    }

    /// A setting converted by `parse`. When that fails, the error shows the value and says that it must be `must`, so
    /// this is not for secrets.
    pub(crate) fn parsed<T>(
        &self,
        name: &'static str,
        must: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Usage> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match parse(value.text.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(value.refuse(format!("must be {must}, not \"{}\"", value.text.trim()))),
        }
    }

    /// A time in seconds above zero, also with a fraction.
    pub(crate) fn seconds(&self, name: &'static str, default: u64) -> Result<Duration, Usage> {
        let parse = |text: &str| seconds(text).filter(|time| !time.is_zero());
        Ok(self.parsed(name, "a number of seconds above 0", parse)?.unwrap_or_else(|| Duration::from_secs(default)))
    }

    /// A time in seconds, where zero is allowed.
    pub(crate) fn seconds_or_zero(&self, name: &'static str, default: u64) -> Result<Duration, Usage> {
        Ok(self.parsed(name, "a number of seconds", seconds)?.unwrap_or_else(|| Duration::from_secs(default)))
    }

    /// A number of days above zero, also with a fraction. Zero is the same as none.
    pub(crate) fn days(&self, name: &'static str) -> Result<Option<Duration>, Usage> {
        let parse = |text: &str| {
            let days: f64 = text.parse().ok()?;
            (0.0..=MOST_DAYS).contains(&days).then(|| Duration::from_secs_f64(days * 24.0 * 3600.0))
        };
        let must = "a number of days, at most 36500, or 0 for ever";
        Ok(self.parsed(name, must, parse)?.filter(|time| !time.is_zero()))
    }

    /// A whole number above zero.
    pub(crate) fn count(&self, name: &'static str, default: u32) -> Result<u32, Usage> {
        let parse = |text: &str| text.parse().ok().filter(|number| *number > 0);
        Ok(self.parsed(name, "a whole number above 0", parse)?.unwrap_or(default))
    }

    /// A switch, off by default.
    pub(crate) fn switch(&self, name: &'static str) -> Result<bool, Usage> {
        let parse = |text: &str| match text.to_ascii_lowercase().as_str() {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => None,
        };
        Ok(self.parsed(name, "1 or 0", parse)?.unwrap_or(false))
    }
}

/// The longest time that a setting may hold, in seconds: a year.
pub(super) const LONGEST: f64 = 366.0 * 24.0 * 3600.0;

/// The most days that a setting may hold: a hundred years.
const MOST_DAYS: f64 = 36_500.0;

fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.parse().ok()?;
    (0.0..=LONGEST).contains(&number).then(|| Duration::from_secs_f64(number))
}

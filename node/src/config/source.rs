//! Where settings come from: flags, the environment, the `[server]` table of the file, and in that order.

use super::Usage;
use std::collections::BTreeMap;
use std::time::Duration;

/// The environment, as a thing that can be passed in: a test passes a map.
pub trait Environment: Send + Sync {
    /// The value of a variable, if it is set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The environment of this process.
#[derive(Debug, Clone, Copy)]
pub struct Process;

impl Environment for Process {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

impl<K: std::borrow::Borrow<str> + Ord + Send + Sync> Environment for BTreeMap<K, String> {
    fn get(&self, name: &str) -> Option<String> {
        self.get(name).cloned()
    }
}

/// What was given on the command line.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// Flags with a value, by setting: `addr` is `--addr`, `BAE_ADDR` and `[server] addr`.
    pub values: BTreeMap<&'static str, String>,
    /// `--rotate-admin-key`
    pub rotate_admin_key: bool,
    /// `--dangerously-disable-admin-auth`
    pub disable_admin_auth: bool,
}

/// The sources, one over the other.
pub(super) struct Settings<'a> {
    pub flags: &'a Flags,
    pub environment: &'a dyn Environment,
    pub file: &'a BTreeMap<String, String>,
}

/// A setting that somebody has made.
pub(super) struct Given {
    pub text: String,
    /// How its maker calls it, for messages.
    pub called: String,
}

impl Given {
    pub fn refuse(&self, what: impl std::fmt::Display) -> Usage {
        Usage::new(format!("{} {what}", self.called))
    }
}

impl Settings<'_> {
    /// A setting by its name in the file. An empty environment variable counts as not set.
    pub fn given(&self, name: &'static str) -> Option<Given> {
        if let Some(text) = self.flags.values.get(name) {
            return Some(Given { text: text.clone(), called: format!("--{}", name.replace('_', "-")) });
        }
        let variable = format!("BAE_{}", name.to_ascii_uppercase());
        if let Some(text) = self.environment.get(&variable).filter(|text| !text.is_empty()) {
            return Some(Given { text, called: variable });
        }
        self.file.get(name).map(|text| Given { text: text.clone(), called: format!("[server] {name}") })
    }

    /// A setting as text.
    pub fn text(&self, name: &'static str) -> Option<String> {
        self.given(name).map(|given| given.text)
    }

    /// A setting read by `parse`; `must` says what it must be.
    pub fn parsed<T>(
        &self,
        name: &'static str,
        must: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Usage> {
        let Some(given) = self.given(name) else { return Ok(None) };
        match parse(given.text.trim()) {
            Some(value) => Ok(Some(value)),
            None => Err(given.refuse(format!("must be {must}, not \"{}\"", given.text.trim()))),
        }
    }

    /// A time in seconds above zero; parts of seconds may follow a point.
    pub fn seconds(&self, name: &'static str, default: u64) -> Result<Duration, Usage> {
        let parse = |text: &str| seconds(text).filter(|time| !time.is_zero());
        Ok(self.parsed(name, "a number of seconds above 0", parse)?.unwrap_or_else(|| Duration::from_secs(default)))
    }

    /// A time in seconds, of which zero has a meaning of its own.
    pub fn seconds_or_zero(&self, name: &'static str, default: u64) -> Result<Duration, Usage> {
        Ok(self.parsed(name, "a number of seconds", seconds)?.unwrap_or_else(|| Duration::from_secs(default)))
    }

    /// A whole number above zero.
    pub fn count(&self, name: &'static str, default: u32) -> Result<u32, Usage> {
        let parse = |text: &str| text.parse().ok().filter(|number| *number > 0);
        Ok(self.parsed(name, "a whole number above 0", parse)?.unwrap_or(default))
    }

    /// A switch, off unless somebody turned it on.
    pub fn switch(&self, name: &'static str) -> Result<bool, Usage> {
        let parse = |text: &str| match text.to_ascii_lowercase().as_str() {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => None,
        };
        Ok(self.parsed(name, "1 or 0", parse)?.unwrap_or(false))
    }
}

/// The longest time that a setting may hold: a year.
const LONGEST: f64 = 366.0 * 24.0 * 3600.0;

fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.parse().ok()?;
    (0.0..=LONGEST).contains(&number).then(|| Duration::from_secs_f64(number))
}

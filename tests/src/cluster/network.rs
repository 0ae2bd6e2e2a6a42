//! A network of a node's own: a namespace that one cable joins to this machine. Pulled, packets vanish and nobody is
//! told, which no proxy can do.
//!
//! Needs root, or the capabilities `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.

use crate::services;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The namespace, and this machine's end of the cable. Gone on drop.
#[derive(Debug)]
pub struct Network {
    /// Its name for `ip netns`.
    pub name: String,
    /// Where this machine is reached from within.
    pub host: Ipv4Addr,
    /// Where a process within is reached.
    pub inside: Ipv4Addr,
    cable: String,
}

impl Drop for Network {
    fn drop(&mut self) {
        // The cable has two ends, and goes with either.
        let _ = ip(&["link", "del", &self.cable]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

impl Network {
    /// Makes one.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let allowed = Command::new("unshare").args(["--net", "true"]).output();
        assert!(
            allowed.as_ref().is_ok_and(|done| done.status.success()),
            "these tests need network namespaces (`unshare --net` as root, or CAP_NET_ADMIN and CAP_SYS_ADMIN): {allowed:?}"
        );
        remove_orphans();
        let name = format!("bae-test-{process}-{number}");
        // Of 198.18.0.0/15, which is for tests: four addresses each.
        let first = (u32::from(Ipv4Addr::new(198, 18, 0, 0))) + (process.wrapping_mul(8) + number) % 32_768 * 4;
        let (host, inside) = (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2));
        let network = Self { name, host, inside, cable: format!("bae{process}n{number}") };
        let Self { name, cable, .. } = &network;
        must(&["netns", "add", name]);
        must(&["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name]);
        must(&["addr", "add", &format!("{host}/30"), "dev", cable]);
        must(&["-n", name, "addr", "add", &format!("{inside}/30"), "dev", "eth0"]);
        for device in ["lo", "eth0"] {
            must(&["-n", name, "link", "set", device, "up"]);
        }
        network.plug();
        network
    }

    /// Pulls the cable.
    pub fn pull(&self) {
        must(&["link", "set", &self.cable, "down"]);
    }

    /// Puts it back.
    pub fn plug(&self) {
        must(&["link", "set", &self.cable, "up"]);
    }

    /// A GET from within, of a port there: the status and the body.
    pub async fn get(&self, port: u16, path: &str) -> (u16, String) {
        let (name, url) = (self.name.clone(), format!("http://{}:{port}{path}", self.inside));
        let ask = move || {
            let mut ask = Command::new(services::program("ip", "iproute2"));
            ask.args(["netns", "exec", &name]).arg(services::program("curl", "curl"));
            ask.args(["--silent", "--noproxy", "*", "--max-time", "20", "--write-out", "\n%{http_code}", &url]);
            let done = ask.output().expect("curl");
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            let (body, status) = text.rsplit_once('\n').unwrap_or((&text, "0"));
            (status.parse().unwrap_or(0), body.to_owned())
        };
        tokio::task::spawn_blocking(ask).await.expect("curl")
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

/// What the killed left.
fn remove_orphans() {
    let listed = ip(&["netns", "list"]).unwrap_or_default();
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix("bae-test-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|process| !std::path::Path::new("/proc").join(process).exists()) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn must(words: &[&str]) {
    ip(words).unwrap_or_else(|error| panic!("ip {words:?}: {error}"));
}

fn ip(words: &[&str]) -> Result<String, String> {
    let done = Command::new(services::program("ip", "iproute2")).args(words).output().map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

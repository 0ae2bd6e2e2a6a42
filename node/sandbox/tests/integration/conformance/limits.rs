//! What a sandbox may use.

use crate::fixture::{Fixture, command};
use sandbox::{Command, Error};
use std::time::Duration;

/// Doubles its memory until it has none.
pub(super) const MEMORY_HOG: &str = "x=0123456789abcdef; while true; do x=$x$x; done";
/// Forks without an end.
pub(super) const FORK_BOMB: &str = "bomb() { bomb | bomb & }; bomb 2>/dev/null";

pub(super) async fn a_memory_hog_ends(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let output = fixture.exec(&id, MEMORY_HOG).await.unwrap();
    assert!(output.exit_code != 0, "{output:?}");
    let hog = fixture.exec(&id, "tail /dev/zero").await.unwrap();
    assert!(hog.exit_code != 0, "{hog:?}");
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
}

pub(super) async fn a_fork_bomb_stays_within_the_limit(fixture: &Fixture) {
    let (id, beside) = (fixture.start("a").await, fixture.start("b").await);
    let bomb = Command { timeout: Duration::from_secs(3), ..command(FORK_BOMB) };
    // The shell that lit it exits.
    let _ = fixture.sandboxes.exec(&id, &bomb).await;
    assert_eq!(fixture.sh(&beside, "echo works").await, "works\n");
    // No new command can be started, or it cannot do anything; but it does not hang.
    let next = Command { timeout: Duration::from_secs(3), ..command("echo works") };
    let output = fixture.sandboxes.exec(&id, &next).await;
    assert!(!matches!(&output, Err(Error::Unavailable(_))), "{output:?}");
    fixture.sandboxes.stop(&id).await.unwrap();
    fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
}

pub(super) async fn a_fork_bomb_is_ended_with_its_time(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let script = format!("({FORK_BOMB}) & while true; do :; done");
    let error = fixture
        .sandboxes
        .exec(&id, &Command { timeout: Duration::from_secs(2), ..command(&script) })
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::TimedOut(_)), "{error:?}");
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
    fixture.empty(&id).await;
}

pub(super) async fn nothing_can_be_gained(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let status = fixture.sh(&id, "cat /proc/self/status").await;
    for line in
        ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert!(status.contains("Seccomp:\t2"), "{status}");
    let mount = fixture.exec(&id, "mount -t tmpfs tmpfs /tmp").await.unwrap();
    assert_ne!(mount.exit_code, 0, "{mount:?}");
    let owner = fixture.exec(&id, "touch /tmp/x; chown 1 /tmp/x").await.unwrap();
    assert_ne!(owner.exit_code, 0, "{owner:?}");
}

pub(super) async fn there_is_no_network(fixture: &Fixture) {
    let id = fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "ls /sys/class/net").await, "lo\n");
}

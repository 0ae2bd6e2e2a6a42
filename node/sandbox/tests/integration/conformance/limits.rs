//! What a sandbox may use.

use crate::fixture::{Fixture, command, limits};
use sandbox::{Command, Error, Limits, Network};
use std::time::{Duration, Instant};
use tests::poll;

/// Doubles its memory until it has none.
pub(super) const MEMORY_HOG: &str = "x=0123456789abcdef; while true; do x=$x$x; done";
/// Time in which the thousand processes of a fork bomb are ended where the machine has other work to do.
pub(super) const ENDED: Duration = Duration::from_secs(120);
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

/// With memory for all the processes that it may have: Kubernetes has one limit of processes, for all pods of a node.
pub(super) fn roomy() -> Limits {
    Limits { memory: 1 << 30, ..limits() }
}

async fn start_roomy(fixture: &Fixture, id: &str) -> String {
    let spec = fixture.spec(id);
    fixture.with_limits(roomy()).start(&spec).await.unwrap();
    spec.id
}

pub(super) async fn a_fork_bomb_stays_within_the_limit(fixture: &Fixture) {
    let (id, beside) = (start_roomy(fixture, "a").await, fixture.start("b").await);
    let bomb = Command { timeout: Duration::from_secs(3), ..command(FORK_BOMB) };
    // The shell that lit it exits.
    let _ = fixture.sandboxes.exec(&id, &bomb).await;
    assert_eq!(fixture.sh(&beside, "echo works").await, "works\n");
    // No new command can be started, or it cannot do anything; but it does not hang.
    let next = Command { timeout: Duration::from_secs(3), ..command("echo works") };
    let began = Instant::now();
    let output = fixture.sandboxes.exec(&id, &next).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}: {output:?}", began.elapsed());
    fixture.sandboxes.stop(&id).await.unwrap();
    fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
}

pub(super) async fn a_fork_bomb_is_ended_with_its_time(fixture: &Fixture) {
    let id = start_roomy(fixture, "a").await;
    let script = format!("({FORK_BOMB}) & while true; do :; done");
    let error = fixture
        .sandboxes
        .exec(&id, &Command { timeout: Duration::from_secs(2), ..command(&script) })
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::TimedOut(_)), "{error:?}");
    // The main process may still have a thousand dead ones to take note of.
    poll::until(ENDED, "a command can be run again", async || match fixture.exec(&id, "echo works").await {
        Ok(output) if output.stdout.text == "works\n" => Ok(()),
        other => Err(other),
    })
    .await;
    fixture.empty_within(&id, ENDED).await;
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
    if !fixture.isolate().await {
        assert_eq!(fixture.sh(&id, "ls /sys/class/net").await, "lo\n");
        return;
    }
    // Kubernetes gives every pod a network, and a policy takes it away.
    let open = fixture.with_limits(Limits { network: Network::On, ..limits() });
    for spec in [fixture.spec("b"), fixture.spec("c")] {
        open.start(&spec).await.unwrap();
    }
    let serve = "while true; do echo served | nc -l -p 8080; done >/dev/null 2>&1 & hostname -i";
    let address = fixture.sh(&fixture.spec("b").id, serve).await;
    let ask = format!("timeout 2 nc {} 8080 </dev/null", address.trim());
    poll::until(poll::DEADLINE, "who may have a network has it", async || {
        let output = fixture.exec(&fixture.spec("c").id, &ask).await.unwrap();
        if output.stdout.text == "served\n" { Ok(()) } else { Err(output) }
    })
    .await;
    // The policy takes a moment to reach the node.
    poll::until(poll::DEADLINE, "who may not does not", async || {
        let output = fixture.exec(&id, &ask).await.unwrap();
        if output.exit_code != 0 && output.stdout.text.is_empty() { Ok(()) } else { Err(output) }
    })
    .await;
}

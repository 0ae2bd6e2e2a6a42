//! Commands that are ended.

use crate::fixture::{Fixture, command};
use sandbox::{Command, Error};
use std::time::{Duration, Instant};
use tests::poll;

/// Runs a script that does not end by itself, until its time is over.
async fn times_out(fixture: &Fixture, id: &str, script: &str) {
    let started = Instant::now();
    let limit = Duration::from_millis(1500);
    let error = fixture.sandboxes.exec(id, &Command { timeout: limit, ..command(script) }).await.unwrap_err();
    assert!(matches!(&error, Error::TimedOut(time) if *time == limit), "{error:?}");
    let took = started.elapsed();
    assert!(took >= limit && took < Duration::from_secs(9), "{took:?}");
}

pub(super) async fn a_timeout_ends_all_of_its_session(fixture: &Fixture) {
    let id = fixture.start("a").await;
    times_out(fixture, &id, "sleep 100 & (sleep 100 & sleep 100) & sh -c 'sleep 100 & sleep 100'").await;
    assert_eq!(fixture.processes(&id).await, [""; 0]);
    times_out(fixture, &id, "cat /dev/zero & cat /dev/zero >&2").await;
    assert_eq!(fixture.processes(&id).await, [""; 0]);
}

pub(super) async fn a_timeout_ends_what_left_the_session(fixture: &Fixture) {
    let id = fixture.start("a").await;
    times_out(fixture, &id, "setsid sleep 100 & setsid sh -c 'sleep 100; sleep 100' & wait").await;
    assert_eq!(fixture.processes(&id).await, [""; 0]);
}

pub(super) async fn a_dropped_call_ends_the_command(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let (node, own) = (fixture.another_node(), id.clone());
    let call = tokio::spawn(async move { node.exec(&own, &command("touch /tmp/runs; sleep 100 & sleep 100")).await });
    poll::until(poll::DEADLINE, "the command runs", async || {
        let output = fixture.exec(&id, "cat /tmp/runs").await.unwrap();
        if output.exit_code == 0 { Ok(()) } else { Err(output) }
    })
    .await;
    assert_ne!(fixture.processes(&id).await, [""; 0]);
    call.abort();
    fixture.empty(&id).await;
    // At any moment of the call.
    for after in (0..100).step_by(5) {
        let limit = Duration::from_millis(after);
        let dropped = tokio::time::timeout(limit, fixture.exec(&id, "sleep 100 & sleep 100")).await;
        assert!(dropped.is_err(), "{dropped:?}");
    }
    fixture.empty(&id).await;
}

pub(super) async fn a_command_that_ignores_signals_is_ended(fixture: &Fixture) {
    let id = fixture.start("a").await;
    times_out(fixture, &id, "trap '' TERM INT HUP QUIT; while true; do sleep 1; done").await;
    assert_eq!(fixture.processes(&id).await, [""; 0]);
    let ignoring = "trap '' TERM INT HUP QUIT; touch /tmp/runs; while true; do sleep 1; done";
    let (node, own) = (fixture.another_node(), id.clone());
    let call = tokio::spawn(async move { node.exec(&own, &command(ignoring)).await });
    poll::until(poll::DEADLINE, "the command runs", async || {
        let output = fixture.exec(&id, "cat /tmp/runs").await.unwrap();
        if output.exit_code == 0 { Ok(()) } else { Err(output) }
    })
    .await;
    let started = Instant::now();
    fixture.sandboxes.stop(&id).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Gone(_)), "{error:?}");
}

pub(super) async fn signals_of_the_command_do_not_reach_the_watcher(fixture: &Fixture) {
    let id = fixture.start("a").await;
    times_out(
        fixture,
        &id,
        "trap '' TERM INT HUP; kill -TERM 0; kill -INT 0; kill -HUP 0; while true; do sleep 1; done",
    )
    .await;
    assert_eq!(fixture.processes(&id).await, [""; 0]);
}

pub(super) async fn the_keeper_survives_commands(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let output =
        fixture.exec(&id, "kill -KILL -1; kill -KILL 1; killall sleep; killall -9 sh; echo alive").await.unwrap();
    assert!(output.exit_code == 0 || output.exit_code == 137, "{output:?}");
    for _ in 0..3 {
        fixture.exec(&id, "kill -9 -1").await.unwrap();
        assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
    }
    let error = fixture.exec(&id, "kill -TERM 1; sleep 30").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("asked to end")), "{error:?}");
}

pub(super) async fn of_two_commands_one_is_ended(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let other = fixture.exec(&id, "sleep 4; echo done");
    let ended = times_out(fixture, &id, "sleep 100");
    let (other, ()) = tokio::join!(other, ended);
    assert_eq!(other.unwrap().stdout.text, "done\n");
}

pub(super) async fn stopping_during_a_command_says_so(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let stop = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        fixture.sandboxes.stop(&id).await.unwrap();
    };
    let (output, ()) = tokio::join!(fixture.exec(&id, "echo begun; sleep 100"), stop);
    assert!(matches!(&output, Err(Error::Gone(_))), "{output:?}");
}

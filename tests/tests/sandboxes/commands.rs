//! What becomes of commands and their output (F19).

use super::{EXEC, IMAGE, Runtime, STOP, driver, exec, lifecycle_types, over_both, payloads, sh, start};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

over_both!(a_command_that_takes_too_long, much_output, a_flood, odd_commands, a_caller_that_leaves, greedy_commands,);

/// A command that takes too long is ended, and whatever it has started.
async fn a_command_that_takes_too_long(runtime: Runtime) {
    let fixture = runtime.plan().env("BAE_SANDBOX_EXEC_TIMEOUT", "2").start().await;
    let session = driver(&fixture).await;
    let id = start(&session).await;
    let began = Instant::now();
    let (code, text) = exec(&session, "sleep 1234 & (sleep 1235); sleep 1236").await.error();
    assert!(code == -32000 && text.starts_with("sandbox exec failed: ") && text.contains("2 s"), "{code} {text}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let detail = text.strip_prefix("sandbox exec failed: ").unwrap();
    let events = session.events().await;
    let payload = json!({"image": IMAGE, "sandbox_id": id, "phase": "exec", "detail": detail, "dispatch": "remote"});
    assert_eq!(payloads(&events, "sandbox.error"), [payload]);
    tests::poll::until(tests::poll::DEADLINE, "the command's end", async || {
        let left = sh(&session, "ps | grep 'sleep 123' | grep -v grep || true").await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Output beyond the bound is cut, and that is said; both streams have a bound of their own.
async fn much_output(runtime: Runtime) {
    let fixture = runtime.plan().env("BAE_SANDBOX_OUTPUT_CAP", "1000").start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    let outcome = exec(&session, "yes | head -c 100000; printf short >&2; exit 3").await;
    let result = outcome.result();
    let stdout = result["stdout"].as_str().unwrap();
    assert!(stdout.starts_with(&"y\n".repeat(500)), "{stdout}");
    assert!(stdout.len() > 1000 && stdout.len() < 1100 && stdout.contains("99000"), "{stdout}");
    assert_eq!((&result["stderr"], &result["exit_code"]), (&json!("short"), &json!(3)));
}

/// The default bound; a hundred times as much costs the node no more than that.
async fn a_flood(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    sh(&session, "true").await;
    let before = fixture.server.resident();
    let outcome = exec(&session, "yes | head -c 104857600").await;
    let stdout = outcome.result()["stdout"].as_str().unwrap().to_owned();
    assert!((1 << 20..(1 << 20) + 100).contains(&stdout.len()), "{}", stdout.len());
    let more = fixture.server.resident().saturating_sub(before);
    assert!(more < 40 << 20, "{} MiB more", more >> 20);
}

/// Output that is not text, standard input, and what a shell may be given.
async fn odd_commands(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    assert_eq!(sh(&session, r"printf 'a\377\376b\303\274'").await, "a\u{FFFD}\u{FFFD}bü");
    assert_eq!(sh(&session, "cat; echo end").await, "end\n", "standard input is empty");
    assert_eq!(sh(&session, "printf '%s' \"it's $((1+1)) 'quoted'\" # ünï\n").await, "it's 2 'quoted'");
    assert_eq!(sh(&session, "echo one\necho two").await, "one\ntwo\n");
    let result = exec(&session, "no-such-program").await.result().clone();
    assert_eq!(result["exit_code"], 127, "{result}");
    let result = exec(&session, "kill -9 $$").await.result().clone();
    assert_eq!(result["exit_code"], 137, "{result}");
    // What is left behind does not hold the answer.
    let began = Instant::now();
    assert_eq!(sh(&session, "sleep 50 & echo started").await, "started\n");
    assert!(began.elapsed() < Duration::from_secs(20));
    let big = "x".repeat(200_000);
    let (code, text) = exec(&session, &format!("echo {big}")).await.error();
    assert!(code == -32000 && text.starts_with("sandbox exec failed: "), "{code} {text}");
    assert_eq!(sh(&session, "echo fine").await, "fine\n");
    for command in ["", " "] {
        let outcome = session.rpc(EXEC, json!({"command": command})).await;
        let frame = outcome.frames.last().unwrap();
        assert!(frame["error"]["code"] == -32602 || frame["result"]["exit_code"] == 0, "{frame}");
    }
}

/// A hundred commands at once, each with its own output and exit code. (Over a cluster that takes too long for a wire test: the
/// conformance suite does it.)
#[tokio::test]
async fn a_hundred_at_once() {
    let fixture = Runtime::docker().plan().env("BAE_SANDBOX_PIDS", "4000").start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    let one = async |n: u32| {
        let mut frames = session.start(EXEC, json!({"command": format!("echo {n}; exit {}", n % 3)})).await;
        // On a loaded machine the last ones wait for more than the usual deadline.
        let line = tokio::time::timeout(Duration::from_secs(120), frames.line()).await.expect("an answer");
        let frame: Value = serde_json::from_str(&line.expect("a line")).unwrap();
        assert_eq!(frame["result"], json!({"stdout": format!("{n}\n"), "stderr": "", "exit_code": n % 3}), "{frame}");
    };
    futures_util::future::join_all((0..100).map(one)).await;
    let events = session.events().await;
    assert_eq!(lifecycle_types(&events), ["sandbox.start", "sandbox.running"]);
}

/// A caller that goes away takes its command with it.
async fn a_caller_that_leaves(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    let running = session.start(EXEC, json!({"command": "touch /tmp/runs; sleep 1234"}));
    let there = tests::poll::until(tests::poll::DEADLINE, "the command runs", async || {
        let found = exec(&session, "cat /tmp/runs").await.result().clone();
        if found["exit_code"] == 0 { Ok(()) } else { Err(found) }
    });
    tokio::select! {
        _ = async { running.await.line().await } => panic!("a command ended"),
        () = there => {}
    }
    tests::poll::until(tests::poll::DEADLINE, "the command's end", async || {
        let left = sh(&session, "ps | grep 'sleep 1234' | grep -v grep || true").await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(lifecycle_types(&session.events().await), ["sandbox.start", "sandbox.running"]);
}

/// A fork bomb and a memory hog end within their limits, and are told of.
async fn greedy_commands(runtime: Runtime) {
    let fixture = runtime
        .plan()
        .env("BAE_SANDBOX_MEMORY", "67108864")
        .env("BAE_SANDBOX_PIDS", "64")
        .env("BAE_SANDBOX_EXEC_TIMEOUT", "5")
        .start()
        .await;
    let session = driver(&fixture).await;
    start(&session).await;
    let bomb = exec(&session, "b() { b | b & }; b; wait").await;
    assert!(bomb.frames[0]["error"].is_object() || bomb.frames[0]["result"]["exit_code"].is_i64(), "{bomb:?}");
    // Whatever is left of it goes with the sandbox.
    session.rpc(STOP, json!({})).await;
    start(&session).await;
    let hog = exec(&session, "tail /dev/zero").await;
    let frame = &hog.frames[0];
    assert!(frame["error"]["message"].is_string() || frame["result"]["exit_code"] == 137, "{frame}");
    session.rpc(STOP, json!({})).await;
    start(&session).await;
    assert_eq!(sh(&session, "echo fine").await, "fine\n");
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
}

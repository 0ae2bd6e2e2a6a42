//! Commands: what goes in and what comes out.

use crate::fixture::{Fixture, command, limits};
use sandbox::{Command, Error, Limits};
use std::time::{Duration, Instant};

pub(super) async fn outputs_and_exit_code_are_apart(fixture: &Fixture) {
    let id = fixture.start("a").await;
    for code in [0, 1, 2, 42, 125, 126, 127, 128, 130, 137, 143, 255] {
        let output = fixture.exec(&id, &format!("echo out; echo err >&2; exit {code}")).await.unwrap();
        assert_eq!(
            (output.stdout.text.as_str(), output.stderr.text.as_str(), output.exit_code),
            ("out\n", "err\n", code)
        );
        assert_eq!((output.stdout.dropped, output.stderr.dropped), (0, 0));
    }
    for signal in [1, 2, 9, 10, 13, 14, 15] {
        assert_eq!(fixture.exec(&id, &format!("kill -{signal} $$")).await.unwrap().exit_code, 128 + signal);
    }
    let missing = fixture.exec(&id, "no-such-program").await.unwrap();
    assert!(missing.exit_code == 127 && missing.stderr.text.contains("not found"), "{missing:?}");
    let quoted = r#"printf '%s' "it's \"quoted\" \$HOME"; echo; printf '%s\n' ü€😀"#;
    assert_eq!(fixture.sh(&id, quoted).await, "it's \"quoted\" $HOME\nü€😀\n");
}

pub(super) async fn standard_input_is_empty(fixture: &Fixture) {
    let id = fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "cat; echo end; read -r line || echo nothing").await, "end\nnothing\n");
    // Nor does it have anything else open than the three.
    let open = "readlink /proc/$$/fd/0; for fd in 3 4 5 6 7 8 9; do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done";
    assert_eq!(fixture.sh(&id, open).await, "/dev/null\n");
}

pub(super) async fn binary_output_is_text(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let script = r"printf 'a\377\000b\303'; printf '\360\237\230\200\355\240\200' >&2; exit 3";
    let output = fixture.exec(&id, script).await.unwrap();
    assert_eq!(output.stdout.text, "a\u{FFFD}\0b\u{FFFD}");
    assert_eq!(output.stderr.text, "😀\u{FFFD}\u{FFFD}\u{FFFD}");
    let random = Command { output_cap: 100_000, ..command("head -c 3000000 /dev/urandom") };
    let output = fixture.sandboxes.exec(&id, &random).await.unwrap();
    assert!((99_998..=100_000).contains(&output.stdout.text.len()) && output.stdout.dropped > 2_900_000);
}

pub(super) async fn much_output_is_cut(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let before = resident();
    let script = "head -c 104857600 /dev/zero | tr '\\0' x & head -c 104857600 /dev/zero | tr '\\0' y >&2; wait";
    let output = fixture.sandboxes.exec(&id, &Command { output_cap: 1000, ..command(script) }).await.unwrap();
    assert_eq!((output.stdout.text, output.stdout.dropped), ("x".repeat(1000), 104_856_600));
    assert_eq!((output.stderr.text, output.stderr.dropped), ("y".repeat(1000), 104_856_600));
    assert_eq!(output.exit_code, 0);
    let more = resident().saturating_sub(before);
    assert!(more < 50 << 20, "{more} bytes more than before");
}

/// Memory of this process, in bytes. Other tests use it as well.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

pub(super) async fn a_hundred_at_once(fixture: &Fixture) {
    let node = fixture.with_limits(Limits { pids: 2000, memory: 1 << 30, ..limits() });
    let spec = fixture.spec("a");
    node.start(&spec).await.unwrap();
    let execs = (0..100).map(|n| {
        let (node, id) = (node.clone(), spec.id.clone());
        // containerd starts them one after the other, and the more wait the slower.
        let command = Command { timeout: Duration::from_secs(300), ..command(&format!("echo {n}; exit {n}")) };
        tokio::spawn(async move { (n, node.exec(&id, &command).await) })
    });
    for exec in execs.collect::<Vec<_>>() {
        let (n, output) = exec.await.unwrap();
        let output = output.unwrap();
        assert_eq!((output.stdout.text, output.exit_code), (format!("{n}\n"), n));
    }
    fixture.empty(&spec.id).await;
}

pub(super) async fn what_is_left_behind_does_not_hold_the_call(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let started = Instant::now();
    assert_eq!(fixture.sh(&id, "sleep 100 & echo started").await, "started\n");
    let output = fixture.exec(&id, "yes & echo started >&2; exit 7").await.unwrap();
    assert_eq!((output.exit_code, output.stderr.text.as_str()), (7, "started\n"));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    // They go on.
    let processes = fixture.processes(&id).await;
    for program in ["(sleep)", "(yes)"] {
        assert!(processes.iter().any(|process| process.contains(program)), "{program}: {processes:?}");
    }
}

pub(super) async fn a_long_script_is_refused(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let text = "x".repeat(120_000);
    assert_eq!(fixture.sh(&id, &format!("printf %s {text} | wc -c")).await, "120000\n");
    for script in ["x".repeat(131_072), "x".repeat(1 << 20), "echo \0".into()] {
        let error = fixture.exec(&id, &script).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(why) if why.contains("131071 bytes")), "{error:?}");
    }
    let comment = format!("echo ok #{}", "x".repeat(131_071 - 9));
    assert_eq!(fixture.sh(&id, &comment).await, "ok\n");
}

pub(super) async fn a_program_that_waits_for_all_its_children_ends(fixture: &Fixture) {
    let id = fixture.start("a").await;
    // It has no child that the command did not start.
    let script = r#"sleep 0.1 & wait; for p in /proc/[0-9]*; do
        read -r line <$p/stat || continue; set -- ${line##*) }; [ "$2" = $$ ] && echo $line; done 2>/dev/null; true"#;
    assert_eq!(fixture.sh(&id, script).await, "");
    fixture.empty(&id).await;
}

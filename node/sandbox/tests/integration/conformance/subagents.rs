//! Subagents.

use super::limits::{ENDED, FORK_BOMB, MEMORY_HOG, roomy};
use crate::fixture::Fixture;
use sandbox::{End, Ended, Error, Progress, Spec, SubagentSpec};
use std::time::{Duration, Instant};

/// 200 KB of what is hard to pass on.
fn prompt() -> Vec<u8> {
    let mut prompt = b"it's \"quoted\" `x` $(touch /pwned) \\ \n\r\t'; touch /pwned; '\xFF\xFE\xC3(\n--\n".to_vec();
    prompt.extend((0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).filter(|byte| *byte != 0));
    prompt
}

fn text(ended: &Ended) -> (&str, &str) {
    (&ended.stdout.text, &ended.stderr.text)
}

pub(super) async fn a_prompt_arrives_byte_for_byte(fixture: &Fixture) {
    let prompt = prompt();
    // Whole pages of it as numbers, which are text.
    let spec = SubagentSpec {
        prompt: prompt.clone(),
        output_cap: 1 << 20,
        ..fixture.subagent("a", "od -An -v -t x1 | tr -d ' \\n'; cat; ls / >&2")
    };
    let ended = fixture.run(&spec).await;
    assert_eq!(ended.end, End::Exited(0, None));
    let hex: String = prompt.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(ended.stdout.text == hex, "{} of {} digits", ended.stdout.text.len(), hex.len());
    assert!(!ended.stderr.text.contains("pwned"), "{}", ended.stderr.text);
    let without = fixture.run(&fixture.subagent("b", "cat; echo end")).await;
    assert_eq!(text(&without), ("end\n", ""));
}

pub(super) async fn the_prompt_is_in_no_description(fixture: &Fixture) {
    let spec = SubagentSpec {
        prompt: b"sesame-prompt".to_vec(),
        ..fixture
            .subagent("a", "cat /proc/*/cmdline /proc/*/environ >/tmp/seen; grep -c sesame /tmp/seen; : sesame-command")
    };
    let ended = fixture.run(&spec).await;
    assert_eq!(text(&ended), ("0\n", ""));
    let description = fixture.description(&spec.container.id).await;
    assert!(!description.contains("sesame"), "{description}");
}

pub(super) async fn outputs_are_capped_apart(fixture: &Fixture) {
    let script = "head -c 30000000 /dev/zero | tr '\\0' x; printf '%065535d€' 0 >&2; exit 5";
    let ended = fixture.run(&fixture.subagent("a", script)).await;
    assert_eq!(ended.end, End::Exited(5, None));
    assert_eq!(ended.stdout.text, "x".repeat(65_536));
    assert!(ended.stdout.dropped > 0);
    assert_eq!(ended.stderr.text, "0".repeat(65_535));
    assert!(ended.stderr.dropped > 0);
    let exact = fixture.run(&fixture.subagent("b", "head -c 65536 /dev/zero | tr '\\0' x; printf 'a\\377b' >&2")).await;
    assert_eq!((exact.stdout.text.len(), exact.stdout.dropped), (65_536, 0));
    assert_eq!((exact.stderr.text.as_str(), exact.stderr.dropped), ("a\u{FFFD}b", 0));
}

pub(super) async fn exit_codes_are_kept(fixture: &Fixture) {
    for (name, script, code) in
        [("a", "exit 0", 0), ("b", "exit 42", 42), ("c", "kill -9 $$", 137), ("d", "nonesuch", 127)]
    {
        let ended = fixture.run(&fixture.subagent(name, script)).await;
        assert_eq!(ended.end, End::Exited(code, None), "{script}: {ended:?}");
        // It stays.
        assert_eq!(fixture.ended(&fixture.subagent(name, script)).await, ended);
    }
}

pub(super) async fn a_timeout_ends_it_without_a_node(fixture: &Fixture) {
    let script = "trap '' TERM USR1; echo begun; sleep 100 & setsid sleep 100 & while true; do sleep 1; done";
    let spec = SubagentSpec { timeout: Duration::from_secs(2), ..fixture.subagent("a", script) };
    let started = Instant::now();
    let ended = fixture.run(&spec).await;
    assert_eq!((&ended.end, text(&ended)), (&End::TimedOut, ("begun\n", "")));
    assert!(started.elapsed() >= Duration::from_secs(2));
}

pub(super) async fn what_it_leaves_behind_is_ended(fixture: &Fixture) {
    let script = "sleep 100 & yes >/dev/null & setsid sh -c 'trap \"\" TERM; while true; do echo more; sleep 0.01; done' & echo done >&2; exit 3";
    let started = Instant::now();
    let ended = fixture.run(&fixture.subagent("a", script)).await;
    assert_eq!((&ended.end, ended.stderr.text.as_str()), (&End::Exited(3, None), "done\n"));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

pub(super) async fn cancelling_leaves_nothing(fixture: &Fixture) {
    let marker = format!("{}", 10_000_000 + std::process::id());
    let script = format!("trap '' TERM; sleep {marker} & while true; do sleep 1; done");
    let spec = fixture.subagent("a", &script);
    fixture.sandboxes.launch(&spec).await.unwrap();
    assert_eq!(fixture.sandboxes.collect(&spec.container.id, 65_536).await.unwrap(), Progress::Running);
    fixture.sandboxes.stop(&spec.container.id).await.unwrap();
    fixture.sandboxes.stop(&spec.container.id).await.unwrap();
    let error = fixture.sandboxes.collect(&spec.container.id, 65_536).await.unwrap_err();
    assert!(matches!(&error, Error::Gone(_)), "{error:?}");
}

pub(super) async fn launching_twice_runs_once(fixture: &Fixture) {
    let spec = fixture.subagent("a", "cat /proc/sys/kernel/random/uuid; sleep 1");
    fixture.sandboxes.launch(&spec).await.unwrap();
    fixture.another_node().launch(&spec).await.unwrap();
    let ended = fixture.ended(&spec).await;
    fixture.another_node().launch(&spec).await.unwrap();
    assert_eq!(fixture.ended(&spec).await, ended);
    assert_eq!(fixture.sandboxes.list().await.unwrap().len(), 1);
}

pub(super) async fn launches_that_race_run_once(fixture: &Fixture) {
    for round in 0..3 {
        let spec = SubagentSpec {
            prompt: prompt(),
            ..fixture.subagent(&format!("r{round}"), "wc -c; cat /proc/sys/kernel/random/uuid >&2")
        };
        let launches = (0..10).map(|_| {
            let (node, spec) = (fixture.another_node(), spec.clone());
            tokio::spawn(async move { node.launch(&spec).await })
        });
        for launch in launches.collect::<Vec<_>>() {
            launch.await.unwrap().unwrap();
        }
        let ended = fixture.ended(&spec).await;
        assert_eq!(ended.end, End::Exited(0, None));
        assert_eq!(ended.stdout.text.trim(), spec.prompt.len().to_string());
        assert_eq!(ended.stderr.text.lines().count(), 1, "{ended:?}");
    }
}

pub(super) async fn one_that_was_never_started_is_known(fixture: &Fixture) {
    let spec = fixture.subagent("a", "echo works");
    // A node that dies while it launches: at any moment.
    for after in 0..40 {
        let limit = Duration::from_millis(after * 2);
        let _ = tokio::time::timeout(limit, fixture.another_node().launch(&spec)).await;
        match fixture.sandboxes.collect(&spec.container.id, 65_536).await {
            Ok(_) | Err(Error::Gone(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    fixture.sandboxes.launch(&spec).await.unwrap();
    assert_eq!(text(&fixture.ended(&spec).await), ("works\n", ""));
}

pub(super) async fn one_that_runs_out_of_memory_says_so(fixture: &Fixture) {
    let ended = fixture.run(&fixture.subagent("a", "echo begun; tail /dev/zero; exit 9")).await;
    assert_eq!(ended.stdout.text, "begun\n");
    let killed = fixture.run(&fixture.subagent("b", "exec tail /dev/zero")).await;
    let why = |ended: &Ended| match &ended.end {
        End::Exited(9 | 137, Some(why)) | End::Died(why) => why.contains("out of memory"),
        End::Exited(..) | End::TimedOut => false,
    };
    assert!(why(&ended) && why(&killed), "{ended:?} {killed:?}");
    let shell = fixture.run(&fixture.subagent("c", MEMORY_HOG)).await;
    assert!(!matches!(shell.end, End::Exited(0, _) | End::TimedOut), "{shell:?}");
}

pub(super) async fn a_fork_bomb_ends_with_its_time(fixture: &Fixture) {
    let script = format!("echo begun; ({FORK_BOMB}) & while true; do :; done");
    let spec = SubagentSpec { timeout: Duration::from_secs(2), ..fixture.subagent("a", &script) };
    fixture.with_limits(roomy()).launch(&spec).await.unwrap();
    let ended = fixture.ended_within(&spec, ENDED).await;
    assert_eq!((&ended.end, ended.stdout.text.as_str()), (&End::TimedOut, "begun\n"));
}

pub(super) async fn an_unknown_image_is_refused(fixture: &Fixture) {
    let spec = fixture.subagent("a", "true");
    for image in ["localhost:1/no/such-image:7", tests::docker::BARE_IMAGE] {
        let spec = SubagentSpec { container: Spec { image: image.into(), ..spec.container.clone() }, ..spec.clone() };
        let error = fixture.sandboxes.launch(&spec).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(_)), "{error:?}");
        assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
    }
}

pub(super) async fn an_unknown_subagent_is_gone(fixture: &Fixture) {
    let error = fixture.sandboxes.collect("sba_none", 100).await.unwrap_err();
    assert!(matches!(&error, Error::Gone(_)), "{error:?}");
    fixture.sandboxes.stop("sba_none").await.unwrap();
    let spec = fixture.subagent("a", "sleep 100");
    fixture.sandboxes.launch(&spec).await.unwrap();
    fixture.remove_by_hand(&spec.container.id).await;
    let gone = fixture.sandboxes.collect(&spec.container.id, 100).await.unwrap_err();
    assert!(matches!(&gone, Error::Gone(_)), "{gone:?}");
}

pub(super) async fn what_looks_like_a_command_stays_text(fixture: &Fixture) {
    let spec = fixture.subagent("a", r"printf '%s\n' ''\''; touch /pwned; '\'''; ls /pwned");
    let ended = fixture.run(&spec).await;
    assert_eq!(ended.stdout.text, "'; touch /pwned; '\n");
    assert!(ended.stderr.text.contains("No such file"), "{ended:?}");
}

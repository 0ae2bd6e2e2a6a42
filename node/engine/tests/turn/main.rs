//! Properties of the turn (docs/api.md 3, 4, 6, 7; ARCHITECTURE.md, I6), over random scripts of everything that can
//! happen to a session: whatever append a program is stopped after, the log that another one goes on from it with is
//! the same.
#![allow(clippy::unwrap_used)]

mod compactions;
mod fields;
mod fixture;
mod order;
mod peers;
mod plan;
mod read;
mod requests;
mod script;
mod takeover;

use engine::event::Event;
use fixture::{Fixture, run};
use order::Seen;
use plan::{Plan, Stops};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use script::Script;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;

/// What must have happened at least once over all scripts.
const EVERYTHING: &[&str] = &[
    "mixed rounds",
    "fallbacks",
    "answers",
    "answers nobody awaits",
    "answers that do not fit",
    "abandonments by the owner's message",
    "abandonments by another's message",
    "abandonments by a compact",
    "compacts answered at once",
    "automatic compactions",
    "failed automatic compactions",
    "manual compactions",
    "failed manual compactions",
    "backoffs",
    "retries",
    "store failures",
    "caps reached",
    "takeover limits",
    "takeover limits in a compaction",
    "lost tools",
    "subagents",
    "tools nobody offers",
    "logs carried on",
];

/// Events as text, ids by the order in which they appear.
fn lines<'a>(log: impl IntoIterator<Item = &'a Event>) -> Vec<String> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut line = |event: &Event| {
        let whole = format!(
            "{} {:?} {} {} {} {}",
            event.event.id,
            event.call,
            event.event.key,
            event.event.kind.as_str(),
            event.event.from_client,
            event.event.payload.text()
        );
        let (mut text, mut rest) = (String::new(), whole.as_str());
        while let Some(at) = rest.find("evt_").into_iter().chain(rest.find("sba_")).min() {
            let end = at + 36;
            let next = known.len();
            let number = *known.entry(rest[at..end].to_owned()).or_insert(next);
            let _ = write!(text, "{}<{number}>", &rest[..at]);
            rest = &rest[end..];
        }
        text + rest
    };
    log.into_iter().map(&mut line).collect()
}

fn looked_at(script: &Script, plan: Plan, seen: &RefCell<Seen>) -> (Vec<String>, Vec<usize>, usize) {
    let look = |fixture: &Fixture<'_>| {
        let checked = order::check(fixture);
        let mut seen = seen.borrow_mut();
        for (what, times) in checked.0 {
            seen.add(what, times);
        }
        (lines(&fixture.log), fixture.tool_appends.clone(), fixture.appends)
    };
    run(script, plan, look)
}

fn holds(script: &Script, seen: &RefCell<Seen>) {
    let plan = Plan { stops: Stops::Never, newest: false, takeovers: 1, swap_tools: false, looks: true };
    let (whole, tool_appends, appends) = looked_at(script, plan, seen);
    // Where no outcome is lost the log is the same.
    for newest in [false, true] {
        for stops in [Stops::Harmless, Stops::Only(script.stops as usize % appends.max(1))] {
            if matches!(stops, Stops::Only(append) if tool_appends.contains(&append)) {
                continue;
            }
            let again = Plan { stops, newest, takeovers: 4, looks: false, ..plan };
            let carried_on = run(script, again, |fixture| lines(&fixture.log));
            assert_eq!(carried_on, whole, "another log after {stops:?}, newest {newest}");
            seen.borrow_mut().add("logs carried on", 1);
        }
    }
    // Where one is, the log is the same up to there, and well-formed.
    for append in tool_appends.into_iter().take(3) {
        let lost = Plan { stops: Stops::Only(append), newest: true, ..plan };
        let (text, ..) = looked_at(script, lost, seen);
        let same = text.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        let response = |line: &str| [" mcp.response ", " sandbox.response "].iter().any(|kind| line.contains(kind));
        assert!(response(&text[same]) && text[same].contains("unknown"), "{:?}", text[same]);
        assert!(response(&whole[same]), "{:?}", whole[same]);
        assert!(text[same + 1].contains(" tool.result ") && text[same + 1].contains("unknown"), "{:?}", text[same + 1]);
    }
    let bits = Stops::Bits(script.stops);
    for (stops, newest, swap_tools) in [(Stops::Every, true, false), (bits, false, false), (bits, true, true)] {
        looked_at(script, Plan { stops, newest, swap_tools, ..plan }, seen);
    }
    let given_up = Plan { stops: Stops::Only((script.stops >> 32) as usize % appends.max(1)), takeovers: 5, ..plan };
    looked_at(script, given_up, seen);
}

/// The same scripts in every run, unless `PROPTEST_CASES` asks for more or `PROPTEST_RNG_SEED` for others.
#[test]
fn a_turn_is_a_function_of_its_log() {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if config.rng_seed == RngSeed::Random && std::env::var_os("PROPTEST_CASES").is_none() {
        (config.rng_seed, config.cases) = (RngSeed::Fixed(1), 200);
    }
    let cases = config.cases;
    let seen = RefCell::new(Seen::default());
    let outcome = TestRunner::new(config).run(&script::script(), |script| {
        holds(&script, &seen);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    println!("{cases} scripts: {seen:#?}");
    for what in EVERYTHING {
        assert!(seen.0.get(what).is_some_and(|times| *times > 0), "no {what} in {cases} scripts");
    }
}

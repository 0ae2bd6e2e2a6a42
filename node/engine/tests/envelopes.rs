//! Properties of what a client sends to `/rpc`: whatever the bytes, the envelope and the params of every method are
//! read or refused, never a panic, and what was read is what was sent.
//!
//! The normal run tries 2,000 cases; a long one is `PROPTEST_CASES=1000000 cargo test -p engine --test envelopes`.

#![allow(clippy::unwrap_used)]

use engine::json::{self, Raw};
use engine::params::{self, LocalSandbox, LocalSubagent, SendMessage, Subscribe};
use engine::rpc;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const WORDS: [&str; 24] = [
    "jsonrpc",
    "2.0",
    "id",
    "method",
    "params",
    "session.sendMessage",
    "session.compact",
    "message",
    "role",
    "content",
    "type",
    "text",
    "tool_result",
    "tool_use",
    "tool_use_id",
    "idempotency_key",
    "prompt",
    "since_event_id",
    "image",
    "state",
    "running",
    "detail",
    "subagent_id",
    "user",
];

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        select(&WORDS[..]).prop_map(|word| format!("\"{word}\"")),
        any::<String>().prop_map(|text| json::encode(&text).get().to_owned()),
        select(vec![
            "null",
            "true",
            "1.10",
            "-0",
            "12345678901234567890123",
            "1e400",
            "\"\\ud800\"",
            "\"\\u0000\"",
            "\"\""
        ])
        .prop_map(str::to_owned),
    ]
}

fn value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(|all| format!("[{}]", all.join(", "))),
            proptest::collection::vec((select(&WORDS[..]), inner), 0..6).prop_map(|all| {
                let members: Vec<String> = all.iter().map(|(key, value)| format!("\"{key}\":\n{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

/// A well-formed call around any content.
fn call() -> impl Strategy<Value = String> {
    (scalar(), value()).prop_map(|(id, content)| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session.sendMessage","params":{{"message":{{"content":{content}}}}}}}"#)
    })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (prop_oneof![call(), value()], proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4))
        .prop_map(|(text, hits)| {
            let mut bytes = text.into_bytes();
            for (place, byte) in hits {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes
        });
    prop_oneof![
        3 => call().prop_map(String::into_bytes),
        2 => value().prop_map(String::into_bytes),
        2 => damaged,
        1 => proptest::collection::vec(any::<u8>(), 0..200),
    ]
}

/// Every reader of params; what the one for messages accepts, it keeps as it came.
fn read_all(params: &Raw) -> Result<(), TestCaseError> {
    if let Ok(message) = SendMessage::parse(params) {
        prop_assert!(params.get().contains(message.content.get()), "{params} -> {}", message.content);
        prop_assert!(!message.content.get().contains('\n'));
    }
    let _ = (params::compact(params), Subscribe::parse(params), params::none(params));
    let _ =
        (params::start_remote_sandbox(params), params::exec_remote_sandbox(params), params::cancel_subagent(params));
    let _ = (LocalSandbox::parse(params), LocalSubagent::parse(params));
    Ok(())
}

fn config() -> ProptestConfig {
    let long = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if long { default } else { ProptestConfig { cases: 2_000, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn envelopes_are_read_or_refused(bytes in bytes()) {
        match rpc::parse(&bytes) {
            Ok(envelope) => {
                if let Some(id) = &envelope.id {
                    prop_assert!(!id.get().contains('\n'));
                    let frame = rpc::result(id, "true");
                    prop_assert!(json::parse(&frame).is_ok(), "{frame}");
                }
                read_all(&envelope.params)?;
            }
            Err(malformed) => {
                prop_assert!(matches!(malformed.error.code, -32700 | -32600));
                let frame = rpc::error(&malformed.id, &malformed.error);
                prop_assert!(json::parse(&frame).is_ok() && frame.trim_end().lines().count() == 1, "{frame}");
            }
        }
        if let Ok(raw) = json::read(&bytes) {
            read_all(&raw)?;
        }
    }
}

//! F15: content that breaks careless databases, parsers and pipes.

use serde_json::{Value, json};
use tests::client::Session;
use tests::fixture::{Fixture, Plan};
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;

/// Sends content exactly as it is written. Returns the lines of the answer as text, because a parser might refuse them.
async fn send_raw(session: &Session, content: &str) -> Vec<String> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"session.sendMessage","params":{{"message":{{"role":"user","content":{content}}}}}}}"#
    );
    session.raw(body).await.lines().await
}

/// Whether the terminal line is a result.
fn succeeded(lines: &[String]) -> bool {
    let last = lines.last().expect("a terminal frame");
    let start: String = last.chars().take(200).collect();
    assert!(start.contains(r#""result":"#) || start.contains(r#""error":"#), "{start}");
    start.contains(r#""result":"#)
}

/// Numbers, key order, escapes and unknown blocks arrive at the provider, in the log and in the history byte for byte.
#[tokio::test]
async fn json_is_passed_on_byte_for_byte() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let content = concat!(
        r#"[{"type":"text","text":"NUL \u0000, \u00e9 é, slash \/, pair \ud83d\ude00"},"#,
        r#"{"zeta":1.10,"type":"custom","alpha":9007199254740993,"big":123456789012345678901234567890,"e":1E400,"neg":-0,"a":1}]"#
    );
    assert!(succeeded(&send_raw(&session, content).await));
    assert!(succeeded(&send_raw(&session, r#""again""#).await));
    let [first, second] = &fixture.provider.requests()[..] else { panic!("two requests") };
    assert!(first.text().contains(content), "{}", first.text());
    assert!(second.text().contains(content), "{}", second.text());
    let log = fixture.api.get(&session.path("/events"), &session.key).await.body;
    assert_eq!(log.matches(content).count(), 3, "the message and two requests: {log}");
}

/// Half a surrogate pair, which the JSON writers of some languages produce, is passed on as it came or refused. It
/// never makes a log unreadable.
#[tokio::test]
async fn half_a_surrogate_pair() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let content = r#"[{"type":"text","text":"half \ud83d a pair"}]"#;
    if succeeded(&send_raw(&session, content).await) {
        assert!(fixture.provider.requests()[0].text().contains(content));
    }
    assert!(succeeded(&send_raw(&session, r#""again""#).await));
    fixture.api.get(&session.path("/events"), &session.key).await.expect(200);
    fixture.server_lives().await;
}

/// The same holds for what a model sends: answers and the inputs of tools.
#[tokio::test]
async fn answers_are_passed_on_byte_for_byte() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let input = r#"{"z":1.10,"a":9007199254740993,"n":"\u0000"}"#;
    let body = |name: &str, id: &str| {
        format!(
            r#"{{"id":"m","type":"message","role":"assistant","content":[{{"type":"tool_use","id":"{id}","name":"{name}","input":{input}}}],"stop_reason":"tool_use","usage":{{"input_tokens":1,"output_tokens":1}}}}"#
        )
    };
    fixture.provider.push(Answer::raw(&body("ls", "tu_1")));
    fixture.provider.push(Answer::raw(&body("clock", "tu_2")));
    let mut turn = session.start_send("go").await;
    let mut all = String::new();
    while let Some(line) = turn.line().await {
        all.push_str(&line);
    }
    assert!(all.matches(input).count() >= 4, "{all}");
    session.answer(&[("tu_2", "x")]).await.text();
    let last = fixture.provider.requests().last().unwrap().text();
    assert_eq!(last.matches(input).count(), 2, "{last}");
}

#[tokio::test]
async fn a_megabyte_in_one_line() {
    let mcp = Mcp::start("files", Kind::Stdio, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let line = "0123456789abcdef".repeat(1 << 16);
    mcp.push(Outcome::Text(line.clone()));
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"text": line}))]));
    fixture.provider.push(Answer::text(&line));
    let outcome = session.send(line.as_str()).await;
    assert_eq!(outcome.text(), line);
    assert_eq!(mcp.calls()[0]["arguments"]["text"], json!(line));
    assert!(fixture.provider.last()["messages"][2].to_string().contains(&line));
    assert_eq!(session.events().await.last().unwrap()["payload"]["content"][0]["text"], json!(line));
}

/// JSON that is nested deeply enough to overflow the stack of a careless parser is refused or passed on, and the server
/// keeps running.
#[tokio::test]
async fn deep_nesting() {
    let fixture = Fixture::start().await;
    for depth in [100, 10_000, 1_000_000] {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let session = fixture.driver().await;
        succeeded(&send_raw(&session, &format!(r#"[{{"type":"text","text":"x","deep":{nested}}}]"#)).await);
        // The nesting is in a member that the server does not know.
        let envelope = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session.registerDriver","deep":{nested}}}"#);
        succeeded(&session.raw(envelope).await.lines().await);
        let request = fixture.api.request("POST", "/api/v1/sessions").header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", fixture.key.secret));
        let reply = fixture.api.send(request.body(format!(r#"{{"client_version":"1","deep":{nested}}}"#))).await;
        assert!([201, 400].contains(&reply.status), "{reply:?}");
        // The nesting comes from a provider.
        let answer = format!(r#"{{"content":[{{"type":"x","deep":{nested}}}],"stop_reason":"end_turn"}}"#);
        fixture.provider.push(Answer::raw(&answer));
        let session = fixture.driver().await;
        succeeded(&send_raw(&session, r#""deep""#).await);
        fixture.api.get(&session.path("/events"), &session.key).await.expect(200);
        fixture.server_lives().await;
    }
}

/// Bytes that are not UTF-8 are refused if a client sends them. If a provider or tool server sends them, they are
/// replaced visibly or refused. They never make an append fail.
#[tokio::test]
async fn invalid_utf8() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let bad = b"\xff\xfe\x80".as_slice();
    let mut body =
        br#"{"jsonrpc":"2.0","id":1,"method":"session.sendMessage","params":{"message":{"content":""#.to_vec();
    body.extend_from_slice(bad);
    body.extend_from_slice(br#""}}}"#);
    assert_eq!(session.raw(body).await.finish().await.error().0, -32700);

    let mut result = br#"{"jsonrpc":"2.0","id":9,"result":{"content":[{"type":"text","text":""#.to_vec();
    result.extend_from_slice(bad);
    result.extend_from_slice(br#""}]}}"#);
    mcp.push(Outcome::Garbage(result));
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
    assert_eq!(session.send("a tool").await.text(), "ok");

    let mut answer = br#"{"content":[{"type":"text","text":"before "#.to_vec();
    answer.extend_from_slice(bad);
    answer.extend_from_slice(br#" after"}],"stop_reason":"end_turn"}"#);
    fixture.provider.push(Answer::Raw { status: 200, headers: Vec::new(), body: answer });
    let outcome = session.send("a provider").await;
    assert!(outcome.result()["message"]["content"].is_array());
    // The bodies of errors are recorded too, whatever they contain.
    fixture.provider.push(Answer::Raw { status: 400, headers: Vec::new(), body: b"\xffnot\0json".to_vec() });
    fixture.driver().await.send("an error").await.result();
}

/// Tool results in every form that MCP allows, and in some that it does not allow.
#[tokio::test]
async fn tool_results_of_every_shape() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    for (index, result) in [
        json!({"content": []}),
        json!({"content": [{"type": "text", "text": ""}]}),
        json!({"content": [{"type": "text", "text": "NUL \u{0} \u{1F600}"}]}),
        json!({"content": [{"type": "image", "data": "QQ==", "mimeType": "image/png"}]}),
        json!({"content": [{"type": "resource", "resource": {"uri": "file:///x", "text": "r"}}]}),
        json!({"content": [], "structuredContent": {"n": 9007199254740993u64}}),
        json!({"content": [{"type": "unheard-of", "x": 1}]}),
        json!({}),
        json!(null),
        json!("text"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("tu_{index}");
        mcp.push(Outcome::Result(result.clone()));
        fixture.provider.push(Answer::tools(&[(&id, "ls", json!({}))]));
        assert_eq!(session.send("go").await.text(), "ok", "{result}");
        let sent = fixture.provider.last()["messages"].as_array().unwrap().last().unwrap().clone();
        let block: &Value = &sent["content"][0];
        assert_eq!((&block["type"], &block["tool_use_id"]), (&json!("tool_result"), &json!(id)), "{result}: {sent}");
    }
    tests::history::assert_all_paired(&fixture.provider);
}

/// Requests with bytes changed, doubled, dropped and swapped: each gets one well-formed answer.
#[tokio::test]
async fn mutated_requests() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let seeds = [
        r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":"x","method":"session.updateClientTools","params":{"tools":[{"name":"clock","input_schema":{"a":[1.5e3]}}]}}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"session.reportLocalSandbox","params":{"state":"running","image":"\u00e9\ud83d\ude00"}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"session.cancelSubagent","params":{"subagent_id":"sba_0"}}"#,
    ];
    let bodies = [
        r#"{"client_version":"1","tools":[{"name":"clock","description":"d","input_schema":{}}],"compaction":{"mode":"auto","size":1000}}"#,
        r#"{"sandbox_tools":[{"name":"s","input_schema":{"properties":{"command":{"type":"string"}},"required":["command"]}}]}"#,
    ];
    let mut rng = fastrand::Rng::with_seed(4711);
    let mut next = |below: usize| rng.usize(..below.max(1));
    let mut mutate = |seed: &str| {
        let mut bytes = seed.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let at = next(bytes.len());
            match next(5) {
                0 => bytes[at] = next(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"{}[]\",:0\\\0 "[next(11)]),
                3 => bytes.truncate(at),
                _ => {
                    let end = (at + next(20)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    };
    for round in 0..800 {
        let body = mutate(seeds[round % seeds.len()]);
        let shown = String::from_utf8_lossy(&body).into_owned();
        let frames = session.raw(body).await.finish().await.frames;
        // A request without `id` is a notification and gets no frame. Three changed bytes cannot turn a method into
        // `session.subscribe`, whose answer would have more frames.
        assert!(frames.len() <= 1, "{shown}: {frames:?}");
        if round % 4 == 0 {
            let body = mutate(bodies[round % bodies.len()]);
            let shown = String::from_utf8_lossy(&body).into_owned();
            let request = fixture.api.request("POST", "/api/v1/sessions").header("content-type", "application/json");
            let request = request.header("authorization", format!("Bearer {}", fixture.key.secret)).body(body);
            let reply = fixture.api.send(request).await;
            assert!([201, 400, 403, 422].contains(&reply.status), "{shown}: {reply:?}");
            reply.json();
        }
    }
    fixture.server_lives().await;
}

//! Edge cases where two rules of the API meet.

use serde_json::{Value, json};
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan, clock};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp};
use tests::provider::{Answer, Stop};

/// The owner of a pause is the client key, not the connection or the session key with which the call came.
#[tokio::test]
async fn the_owner_answers_with_another_session_key() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    let again = fixture.api.join(&session.id, &fixture.key.secret, &json!({"tools": [clock()]})).await;
    assert_eq!(again.answer(&[("tu_1", "now")]).await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// Tool results that another driver sends wait like any of its messages, and then answer no tool use.
#[tokio::test]
async fn a_strangers_results() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "600").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    let forged = json!([{"type": "tool_result", "tool_use_id": "tu_1", "content": "forged"}]);
    let mut waiting = second.start_send(forged).await;
    assert!(waiting.is_silent());
    assert_eq!(session.answer(&[("tu_1", "real")]).await.text(), "ok");
    let (code, text) = waiting.finish().await.error();
    assert!(code == -32000 && text.starts_with("tool result merge invalid: no paused turn"), "{code} {text}");
    assert!(!json!(session.events().await).to_string().contains("forged"), "nothing is recorded");
    assert_eq!(second.send("my own").await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// An update of the tools applies to the next provider call of a running turn, never to the one that is running.
#[tokio::test]
async fn tools_updated_in_a_turn() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let turn = session.start_send("go").await;
    held.arrived().await;
    session.rpc("session.updateClientTools", json!({"tools": [{"name": "weather"}]})).await.result();
    held.release();
    assert_eq!(turn.finish().await.text(), "ok");
    let names = |index: usize| -> Vec<String> {
        let tools = fixture.provider.requests()[index].json()["tools"].clone();
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(0), ["clock", "ls"]);
    assert_eq!(names(1), ["weather", "ls"]);
}

/// A compaction of a session without messages, and two compactions in a row.
#[tokio::test]
async fn compacting_little() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    for _ in 0..2 {
        let outcome = session.rpc("session.compact", json!({})).await;
        assert_eq!(outcome.result()["event_type"], "session.compaction.completed");
        assert!(outcome.live()[0]["payload"]["token_count"].is_null(), "no turn has reported usage");
    }
    assert_eq!(session.send("hello").await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// A paused turn is not completed, so that no automatic compaction begins, however many tokens the turn took.
#[tokio::test]
async fn no_compaction_in_a_pause() {
    let fixture = Fixture::start().await;
    let session = fixture.driver_with(json!({"tools": [clock()], "compaction": {"mode": "auto", "size": 1000}})).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]).usage(5000, 1));
    session.send("pause").await;
    fixture.provider.push(Answer::text("little").usage(10, 1));
    assert_eq!(session.answer(&[("tu_1", "now")]).await.text(), "little");
    assert!(of_type(&session.events().await, "session.compaction.started").is_empty());
}

/// No automatic compaction begins after a failed turn either.
#[tokio::test]
async fn no_compaction_after_a_failure() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 1000}})).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]).usage(5000, 1));
    fixture.provider.push(Answer::status(400));
    let outcome = session.send("go").await;
    assert_eq!(outcome.types().last().unwrap(), "session.error");
    assert!(of_type(&session.events().await, "session.compaction.started").is_empty());
}

/// The call that led to a pause and the call that answered it have idempotency keys of their own, and each keeps its
/// outcome.
#[tokio::test]
async fn resending_both_halves_of_a_pause() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    let asked = session.start_once("time?", "ask").await.finish().await;
    let result = json!([{"type": "tool_result", "tool_use_id": "tu_1", "content": "now"}]);
    let params = json!({"message": {"content": result}, "idempotency_key": "answer"});
    // Sending the first call again does not disturb the pause.
    assert_eq!(session.start_once("time?", "ask").await.finish().await.result(), asked.result());
    let answered = session.rpc("session.sendMessage", params.clone()).await;
    assert_eq!(answered.text(), "ok");
    assert_eq!(session.rpc("session.sendMessage", params.clone()).await.result(), answered.result());
    fixture.server.crash().await;
    assert_eq!(session.start_once("time?", "ask").await.finish().await.result(), asked.result());
    assert_eq!(session.rpc("session.sendMessage", params).await.result(), answered.result());
    assert_eq!(fixture.provider.requests().len(), 2);
}

/// Where the stop reason and the content blocks of an answer contradict each other, the blocks decide.
#[tokio::test]
async fn contradictory_answers() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let uses = vec![json!({"type": "tool_use", "id": "tu_1", "name": "ls", "input": {}})];
    fixture.provider.push(Answer::Message { blocks: uses, stop: Stop::EndTurn, usage: None });
    assert_eq!(session.send("go").await.text(), "ok");
    assert_eq!(mcp.calls().len(), 1);
    let text = vec![json!({"type": "text", "text": "no tool after all"})];
    fixture.provider.push(Answer::Message { blocks: text, stop: Stop::ToolUse, usage: None });
    assert_eq!(session.send("go").await.text(), "no tool after all");
    assert_all_paired(&fixture.provider);
}

/// An answer that uses one tool use id twice cannot get one result for each. Later requests are valid all the same.
#[tokio::test]
async fn one_id_twice_in_an_answer() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({"n": 1})), ("tu_1", "clock", json!({"n": 2}))]));
    let outcome = session.send("go").await;
    assert!(outcome.frames.last().unwrap().get("result").is_some());
    if fixture.admin.state(&session.id).await == "open" {
        session.answer(&[("tu_1", "now")]).await;
    }
    if fixture.admin.state(&session.id).await == "open" {
        session.send("next").await;
    }
    assert_all_paired(&fixture.provider);
}

/// While another program keeps the database locked, writes wait.
#[tokio::test]
async fn a_locked_database() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let lock = fixture.database().await.lock().await;
    let mut turn = session.start_send("patience").await;
    let read = session.events().await;
    assert_eq!(types(&read), ["session.open", "session.driver.register"], "reading goes on meanwhile");
    assert!(turn.is_silent());
    lock.undo().await;
    assert_eq!(turn.finish().await.text(), "ok");
}

/// A request whose connection breaks in the middle of its body has no effect.
#[tokio::test]
async fn half_a_body() {
    use tokio::io::AsyncWriteExt;
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": {"message": {"content": "x"}}})
            .to_string();
    for sent in [0, 1, body.len() / 2, body.len() - 1] {
        let mut socket = tokio::net::TcpStream::connect(fixture.server.addr()).await.unwrap();
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            session.path("/rpc"),
            session.key,
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(&body.as_bytes()[..sent]).await.unwrap();
        socket.shutdown().await.unwrap();
    }
    assert_eq!(session.send("whole").await.text(), "ok");
    let said: Vec<Value> = of_type(&session.events().await, "client.message.send")
        .iter()
        .map(|e| e["payload"]["content"].clone())
        .collect();
    assert_eq!(said, ["whole"]);
}

/// A log of more than one page, read in pages of different sizes.
#[tokio::test]
async fn pages_of_every_size() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    for number in 0..205 {
        let report = json!({"state": "running", "image": number.to_string()});
        session.rpc("session.reportLocalSandbox", report).await.result();
    }
    let log = session.events().await;
    assert_eq!(log.len(), 207);
    for (query, expected) in
        [("", 50), ("?limit=1", 1), ("?limit=200", 200), ("?limit=201", 200), ("?limit=18446744073709551615", 200)]
    {
        let page = fixture.api.get(&session.path(&format!("/events{query}")), &session.key).await;
        if page.status == 200 {
            assert_eq!(page.json()["items"].as_array().unwrap().len(), expected, "{query}");
        } else {
            assert!(query.len() > 15, "{query}: {page:?}");
            page.problem(400, "bad_request");
        }
    }
    for limit in [7, 69, 103, 207] {
        let mut seen: Vec<Value> = Vec::new();
        let mut query = format!("?limit={limit}");
        loop {
            let page =
                fixture.api.get(&session.path(&format!("/events{query}")), &session.key).await.expect(200).json();
            seen.extend(page["items"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next_cursor"].as_str() else { break };
            query = format!("?limit={limit}&cursor={next}");
        }
        assert_eq!(seen, log, "{limit}");
    }
}

/// After any answer, even a refusal before the body was read, the next request on the same connection works. Client
/// libraries depend on that, because they keep connections open.
#[tokio::test]
async fn connections_are_used_again() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let pooled = reqwest::Client::builder().pool_max_idle_per_host(1).no_proxy().build().unwrap();
    let api = tests::client::Api::new(pooled, fixture.server.url());
    let rpc = async |key: &str, body: String| {
        let request = api.request("POST", &session.path("/rpc")).header("authorization", format!("Bearer {key}"));
        api.send(request.header("content-type", "application/json").body(body)).await
    };
    let call = |content: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": {"message": {"content": content}}})
            .to_string()
    };
    for round in 0..30 {
        let padding = "x".repeat(if round % 2 == 0 { 10 } else { 20_000 });
        assert_eq!(rpc("bae_ses_wrong", call(&padding)).await.status, 401);
        let turn = rpc(&session.key, call(&padding)).await;
        assert!(turn.status == 200 && turn.body.lines().last().unwrap().contains("\"result\""), "{turn:?}");
        api.get("/nowhere", "").await.expect(404);
        api.post("/healthz", "", &json!({"padding": padding})).await.expect(405);
        api.post("/api/v1/sessions", &fixture.key.secret, &json!({"tools": [{"name": padding}]})).await.expect(403);
        api.get(&session.path("/events?limit=1"), &session.key).await.expect(200);
    }
}

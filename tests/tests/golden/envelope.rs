//! The RPC envelope (docs/api.md 2).

use super::golden;
use serde_json::json;
use tests::fixture::Fixture;
use tests::transcript::Transcript;

#[tokio::test]
async fn malformed_envelopes() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    for (body, code, id) in [
        ("", -32700, json!(null)),
        ("{", -32700, json!(null)),
        ("not json", -32700, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session.subscribe"} trailing"#, -32700, json!(null)),
        ("[]", -32600, json!(null)),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"session.registerDriver"}]"#, -32600, json!(null)),
        ("1", -32600, json!(null)),
        ("{}", -32600, json!(null)),
        (r#"{"id":1,"method":"session.registerDriver"}"#, -32600, json!(1)),
        (r#"{"jsonrpc":"1.0","id":"a","method":"session.registerDriver"}"#, -32600, json!("a")),
        (r#"{"jsonrpc":2.0,"id":null,"method":"session.registerDriver"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600, json!(1)),
        (r#"{"jsonrpc":"2.0","id":{},"method":"session.registerDriver"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":true,"method":"session.registerDriver"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"session.nothing"}"#, -32601, json!("x")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver","params":[]}"#, -32602, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver","params":"x"}"#, -32602, json!(1)),
    ] {
        let outcome = t.raw(&session, body).await;
        assert_eq!(outcome.frames.len(), 1, "{body}");
        let frame = &outcome.frames[0];
        assert_eq!((outcome.error().0, &frame["id"], &frame["jsonrpc"]), (code, &id, &json!("2.0")), "{body}: {frame}");
        assert!(frame.as_object().unwrap().contains_key("id"), "{frame}");
    }
    assert_eq!(t.raw(&session, r#"{"jsonrpc":"2.0","id":1,"method":"a b"}"#).await.error().1, "Method not found: a b");
    assert_eq!(t.raw(&session, "[1]").await.error().1, "Invalid Request: batch requests are not supported");
    golden("envelope_errors", t);
}

#[tokio::test]
async fn ids_and_params() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    for id in [r#""text""#, "0", "-7", "9007199254740993", "1.50", "null"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session.registerDriver"}}"#);
        t.raw(&session, &body).await.result();
        // The id comes back as it was written.
        let line = session.raw(body).await.line().await.unwrap();
        assert!(line.contains(&format!(r#""id":{id}"#)), "{line}");
    }
    t.note("a missing params counts as {}; unknown members are ignored");
    t.raw(&session, r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver","extra":[1]}"#).await.result();
    t.note("the content type is ignored");
    let request =
        fixture.api.request("POST", &session.path("/rpc")).header("authorization", format!("Bearer {}", session.key));
    let request = request
        .header("content-type", "text/plain")
        .body(r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver"}"#);
    t.request(&fixture.api, "registerDriver as text/plain", request).await.expect(200);
    golden("envelope", t);
}

/// docs/api.md 2.2: no `id` member: the effect happens, no terminal frame is written.
#[tokio::test]
async fn notifications() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let silent = t
        .raw(&session, r#"{"jsonrpc":"2.0","method":"session.sendMessage","params":{"message":{"content":"x"}}}"#)
        .await;
    assert_eq!(silent.frames.len(), 0, "an error is not written either");
    assert_eq!(t.raw(&session, r#"{"jsonrpc":"2.0","method":"session.registerDriver"}"#).await.frames.len(), 0);
    assert_eq!(session.types().await, ["session.open", "session.driver.register"]);
    t.note("a message: its events stream, no result follows");
    let turn = t
        .raw(&session, r#"{"jsonrpc":"2.0","method":"session.sendMessage","params":{"message":{"content":"x"}}}"#)
        .await;
    assert!(turn.frames.iter().all(|frame| frame["method"] == "session.event"), "{turn:?}");
    session.until_last("server.message.send").await;
    golden("notifications", t);
}

/// docs/api.md 2.6: trace headers are never an error.
#[tokio::test]
async fn trace_headers() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    for value in [
        "garbage",
        "",
        "00-00000000000000000000000000000000-0000000000000000-00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        let request = fixture
            .api
            .request("POST", &session.path("/rpc"))
            .header("authorization", format!("Bearer {}", session.key));
        let request = request.header("traceparent", value).header("tracestate", "a=b, =,,");
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": {"message": {"content": "x"}}});
        let reply = fixture.api.send(request.body(body.to_string())).await.expect(200);
        assert!(reply.body.lines().last().unwrap().contains("\"result\""), "{value:?}: {}", reply.body);
    }
}

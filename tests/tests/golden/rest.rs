//! Utility endpoints, unknown paths and methods, participants, the event log, and closing.

use super::golden;
use serde_json::json;
use tests::client::types;
use tests::fixture::Fixture;
use tests::transcript::Transcript;

#[tokio::test]
async fn utility_endpoints() {
    let fixture = Fixture::start().await;
    let mut t = Transcript::default();
    let health = t.rest(&fixture.api, "GET", "/healthz", "", None).await.expect(200);
    assert_eq!(health.body, "");
    let meta = t.rest(&fixture.api, "GET", "/api/v1/meta", "", None).await.expect(200);
    assert_eq!(meta.json(), json!({"version": "0.1.0", "api_versions": ["v1"]}));

    t.note("unknown paths and methods are problem documents (docs/api.md 2.4, D11)");
    for path in ["/", "/api/v1/nothing", "/api/v1/sessions/ses_0/nothing"] {
        t.rest(&fixture.api, "GET", path, "", None).await.problem(404, "not_found");
    }
    for (method, path) in [("POST", "/healthz"), ("PUT", "/api/v1/sessions"), ("GET", "/api/v1/sessions/ses_0/rpc")] {
        t.rest(&fixture.api, method, path, "", None).await.problem_of(405);
    }
    golden("utility", t);
}

#[tokio::test]
async fn participants_are_sorted_and_durable() {
    let mut fixture = Fixture::start().await;
    let mut t = Transcript::default();
    let first = fixture.api.open(&fixture.key.secret, &json!({})).await;
    t.rest(&fixture.api, "GET", &first.path("/participants"), &first.key, None).await.expect(200);
    first.register().await;
    let second = fixture.second(&first).await;
    let reply = t.rest(&fixture.api, "GET", &first.path("/participants"), &second.key, None).await.expect(200);
    let drivers = reply.json()["drivers"].as_array().unwrap().clone();
    assert_eq!(drivers.len(), 2);
    assert!(drivers.is_sorted_by_key(|id| id.as_str().unwrap().to_owned()), "{drivers:?}");

    // docs/api.md 3.10: registration outlives the process.
    fixture.server.crash().await;
    let reply = t.rest(&fixture.api, "GET", &first.path("/participants"), &first.key, None).await.expect(200);
    assert_eq!(reply.json()["drivers"], json!(drivers));
    golden("participants", t);
}

#[tokio::test]
async fn events_are_paged() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    session.send("hello").await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    t.rest(&fixture.api, "GET", &session.path("/events"), &session.key, None).await.expect(200);

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = session.path(&format!("/events?limit=4&cursor={cursor}"));
        let page = fixture.api.get(&path, &session.key).await.expect(200).json();
        seen.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => {
                assert!(page["next_cursor"].is_null());
                break;
            }
        }
    }
    assert_eq!(seen, session.events().await);
    assert_eq!(seen.len(), 6, "{:?}", types(&seen));

    t.note("bad queries (docs/api.md 10, D11); a limit above 200 is clamped");
    for query in ["limit=abc", "limit=0", "limit=-1", "limit=1.5", "cursor=%00", "cursor=nonsense"] {
        let path = session.path(&format!("/events?{query}"));
        t.rest(&fixture.api, "GET", &path, &session.key, None).await.problem(400, "bad_request");
    }
    fixture.api.get(&session.path("/events?limit=100000"), &session.key).await.expect(200);
    golden("events", t);
}

#[tokio::test]
async fn closing() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    let closed = t.rest(&fixture.api, "DELETE", &session.path(""), &session.key, None).await.expect(200);
    assert_eq!(closed.json(), json!({"session_id": session.id, "state": "closed"}));
    let again = t.rest(&fixture.api, "DELETE", &session.path(""), &session.key, None).await;
    assert_eq!(again.problem(409, "session_closed"), "session is already closed");
    t.note("the log stays readable");
    t.rest(&fixture.api, "GET", &session.path("/events"), &session.key, None).await.expect(200);
    t.rest(&fixture.api, "GET", &session.path("/participants"), &session.key, None).await.expect(200);

    t.note("what a closed session answers to each method");
    let closed = (-32000, "session is closed, not open".to_owned());
    let message = json!({"message": {"content": "x"}});
    for (method, params) in [
        ("session.registerDriver", json!({})),
        ("session.sendMessage", message),
        ("session.compact", json!({})),
        ("session.startRemoteSandbox", json!({"image": "x"})),
        ("session.updateClientTools", json!({"tools": []})),
        ("session.reportLocalSandbox", json!({"state": "running", "image": "x"})),
        (
            "session.reportLocalSubagent",
            json!({"state": "start", "subagent_id": "sba_1", "harness": "h", "model": "m"}),
        ),
    ] {
        assert_eq!(t.rpc(&session, method, params).await.error(), closed, "{method}");
    }
    golden("close", t);
}

#[tokio::test]
async fn closing_a_failed_session() {
    let fixture = Fixture::start().await;
    fixture.provider.otherwise(tests::provider::Answer::status(400));
    let session = fixture.driver().await;
    session.send("fail").await;
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    let mut t = Transcript::default();
    let reply = t.rest(&fixture.api, "DELETE", &session.path(""), &session.key, None).await;
    assert_eq!(reply.problem(409, "session_closed"), "session is already error");
    let refused = (-32000, "session is error, not open".to_owned());
    for method in ["session.registerDriver", "session.compact"] {
        assert_eq!(t.rpc(&session, method, json!({})).await.error(), refused);
    }
    assert_eq!(t.rpc(&session, "session.sendMessage", json!({"message": {"content": "x"}})).await.error(), refused);
    golden("close_failed", t);
}

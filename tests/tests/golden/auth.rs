//! Who may call what, and that authentication comes before everything else.

use super::golden;
use serde_json::json;
use tests::fixture::Fixture;
use tests::server::ADMIN_KEY;
use tests::transcript::Transcript;

#[tokio::test]
async fn wrong_keys() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let other = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let unknown = format!("bae_{}", "0".repeat(48));
    let unknown_session = format!("bae_ses_{}", "0".repeat(48));

    t.note("opening and joining need a client key");
    for key in ["", &session.key, &unknown, ADMIN_KEY, "bae_short"] {
        t.rest(&fixture.api, "POST", "/api/v1/sessions", key, Some(json!({}))).await.problem(401, "unauthorized");
        t.rest(&fixture.api, "POST", &session.path("/join"), key, Some(json!({}))).await.problem(401, "unauthorized");
    }
    t.note("everything else needs the session's own key");
    for key in ["", &fixture.key.secret, &other.key, &unknown_session] {
        for (method, rest) in [("GET", "/events"), ("GET", "/participants"), ("DELETE", ""), ("POST", "/rpc")] {
            t.rest(&fixture.api, method, &session.path(rest), key, None).await.problem(401, "unauthorized");
        }
    }
    golden("unauthorized", t);
}

#[tokio::test]
async fn header_forms() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let get = async |header: String| {
        let request = fixture.api.request("GET", &session.path("/participants")).header("authorization", header);
        fixture.api.send(request).await.status
    };
    assert_eq!(get(format!("Bearer {}", session.key)).await, 200);
    assert_eq!(get(format!("bearer {}", session.key)).await, 200);
    for bad in [
        String::new(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        session.key.clone(),
        format!("Basic {}", session.key),
    ] {
        assert_eq!(get(bad.clone()).await, 401, "{bad:?}");
    }
}

/// "Checked before the request body is even parsed, so a bad key wins over a malformed body."
#[tokio::test]
async fn authentication_comes_first() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    for (path, body) in [
        ("/api/v1/sessions".to_owned(), "not json"),
        (session.path("/join"), r#"{"compaction":null}"#),
        ("/api/v1/sessions/ses_00000000000000000000000000000000/join".to_owned(), "{}"),
        (session.path("/rpc"), "not json"),
    ] {
        let request = fixture.api.request("POST", &path).header("authorization", "Bearer bae_wrong").body(body);
        fixture.api.send(request).await.problem(401, "unauthorized");
    }
    // A bad key is told before the body has arrived: only the head is sent.
    fixture.api.announce(&session.path("/rpc"), "bae_wrong", 1_000_000).await.problem(401, "unauthorized");
    fixture.api.announce("/api/v1/sessions", "bae_wrong", 1_000_000).await.problem(401, "unauthorized");
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    let over = (32 << 20) + 1;
    for (path, key) in [("/api/v1/sessions".to_owned(), &fixture.key.secret), (session.path("/rpc"), &session.key)] {
        let reply = fixture.api.announce(&path, key, over).await;
        t.note(&format!("POST {path} that announces 32 MiB and one byte"));
        t.reply(&reply);
        reply.problem_of(413);
    }
    t.note("just under the limit is read");
    let padded = format!("{}{{}}", " ".repeat((32 << 20) - 2));
    let request = fixture
        .api
        .request("POST", "/api/v1/sessions")
        .header("authorization", format!("Bearer {}", fixture.key.secret));
    fixture.api.send(request.header("content-type", "application/json").body(padded)).await.expect(201);
    golden("too_large", t);
}

/// docs/api.md 2.4: 503 when authentication cannot be decided; nothing is cached for longer than a second.
#[tokio::test]
async fn the_database_is_away() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let fault = fixture.database().await.hide_keys().await;
    let mut t = Transcript::default();
    tests::poll::until(tests::poll::DEADLINE, "503 once the cache has run out", async || {
        let reply = fixture.api.post(&session.path("/rpc"), &session.key, &json!({})).await;
        if reply.status == 503 { Ok(()) } else { Err(reply) }
    })
    .await;
    t.rest(&fixture.api, "POST", &session.path("/rpc"), &session.key, Some(json!({}))).await.problem_of(503);
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(json!({}))).await.problem_of(503);
    golden("unavailable", t);
    fault.undo().await;
    // Recovery without a restart (F23).
    tests::poll::until(tests::poll::DEADLINE, "recovery", async || {
        let reply = fixture.api.get(&session.path("/participants"), &session.key).await;
        if reply.status == 200 { Ok(()) } else { Err(reply) }
    })
    .await;
}

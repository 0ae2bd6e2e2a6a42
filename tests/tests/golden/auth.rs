//! Who may call what, and that authentication comes before everything else.

use super::golden;
use serde_json::json;
use tests::server::ADMIN_KEY;
use tests::transcript::Transcript;
use tests::world::World;

#[tokio::test]
async fn wrong_keys() {
    let world = World::start().await;
    let session = world.api.open(&world.key.secret, &json!({})).await;
    let other = world.api.open(&world.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let unknown = format!("bae_{}", "0".repeat(48));
    let unknown_session = format!("bae_ses_{}", "0".repeat(48));

    t.note("opening and joining need a client key");
    for key in ["", &session.key, &unknown, ADMIN_KEY, "bae_short"] {
        t.rest(&world.api, "POST", "/api/v1/sessions", key, Some(json!({}))).await.problem(401, "unauthorized");
        t.rest(&world.api, "POST", &session.path("/join"), key, Some(json!({}))).await.problem(401, "unauthorized");
    }
    t.note("everything else needs the session's own key");
    for key in ["", &world.key.secret, &other.key, &unknown_session] {
        for (method, rest) in [("GET", "/events"), ("GET", "/participants"), ("DELETE", ""), ("POST", "/rpc")] {
            t.rest(&world.api, method, &session.path(rest), key, None).await.problem(401, "unauthorized");
        }
    }
    golden("unauthorized", t);
}

#[tokio::test]
async fn header_forms() {
    let world = World::start().await;
    let session = world.api.open(&world.key.secret, &json!({})).await;
    let get = async |header: String| {
        let request = world.api.request("GET", &session.path("/participants")).header("authorization", header);
        world.api.send(request).await.status
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
    let world = World::start().await;
    let session = world.api.open(&world.key.secret, &json!({})).await;
    for (path, body) in [
        ("/api/v1/sessions".to_owned(), "not json"),
        (session.path("/join"), r#"{"compaction":null}"#),
        ("/api/v1/sessions/ses_00000000000000000000000000000000/join".to_owned(), "{}"),
        (session.path("/rpc"), "not json"),
    ] {
        let request = world.api.request("POST", &path).header("authorization", "Bearer bae_wrong").body(body);
        world.api.send(request).await.problem(401, "unauthorized");
    }
    // A bad key is told before the body has arrived: only the head is sent.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(world.server.addr()).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer bae_wrong\r\ncontent-type: application/json\r\n\
         content-length: 1000000\r\n\r\n",
        session.path("/rpc")
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tests::poll::within("a 401 without the body", socket.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let world = World::start().await;
    let session = world.driver().await;
    let mut t = Transcript::default();
    let huge = vec![b' '; (32 << 20) + 1];
    for (path, key) in [("/api/v1/sessions".to_owned(), &world.key.secret), (session.path("/rpc"), &session.key)] {
        let request = world.api.request("POST", &path).header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").body(huge.clone());
        t.request(&world.api, &format!("POST {path} with 32 MiB and one byte"), request).await.problem_of(413);
    }
    golden("too_large", t);
}

/// Companion 2.4: 503 when authentication cannot be decided; nothing is cached for longer than a second.
#[tokio::test]
async fn the_database_is_away() {
    let world = World::start().await;
    let session = world.driver().await;
    let fault = world.database().await.hide_keys().await;
    let mut t = Transcript::default();
    tests::poll::until(tests::poll::DEADLINE, "503 once the cache has run out", async || {
        let reply = world.api.post(&session.path("/rpc"), &session.key, &json!({})).await;
        if reply.status == 503 { Ok(()) } else { Err(reply) }
    })
    .await;
    t.rest(&world.api, "POST", &session.path("/rpc"), &session.key, Some(json!({}))).await.problem_of(503);
    t.rest(&world.api, "POST", "/api/v1/sessions", &world.key.secret, Some(json!({}))).await.problem_of(503);
    golden("unavailable", t);
    fault.mend().await;
    // Recovery without a restart (F23).
    tests::poll::until(tests::poll::DEADLINE, "recovery", async || {
        let reply = world.api.get(&session.path("/participants"), &session.key).await;
        if reply.status == 200 { Ok(()) } else { Err(reply) }
    })
    .await;
}

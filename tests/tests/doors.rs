//! The doors of a server: TLS, how long a peer may be silent, how many connections there may be, and how long what was
//! said is kept (docs/settings.md).

use serde_json::json;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tests::fixture::{Fixture, Plan, provider_toml};
use tests::poll::{DEADLINE, until, within};
use tests::program::program;
use tests::provider::{Answer, Provider};
use tests::server::{ADMIN_KEY, Config, Server};
use tests::tls::certificate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn baesrv(dir: &Path, args: &[&str]) -> (bool, String) {
    let mut command = tokio::process::Command::new(program("baesrv"));
    command.args(args).current_dir(dir).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let Output { status, stdout, stderr } = within("the command's end", command.output()).await.unwrap();
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

/// Both ports speak TLS, the program's own commands know it, and a renewed certificate is used without a restart.
#[tokio::test]
async fn tls() {
    let provider = Provider::start().await;
    let config = Config::default()
        .toml(&provider_toml("main", "anthropic", &provider.url(), ""))
        .env("BAE_TLS_CERT", "server.pem")
        .env("BAE_TLS_KEY", "server.key");
    let mut server = Server::prepare(config);
    let dir = server.dir.clone();
    certificate(&dir, "first", "server");
    server.spawn();
    let url = format!("https://{}", server.addr());
    let (ready, said) = baesrv(&dir, &["ready", "--url", &url, "--ca", "first.pem", "--timeout", "20"]).await;
    assert!(ready, "{said}");

    let (ready, said) = baesrv(&dir, &["ready", "--url", &url]).await;
    assert!(!ready && said.contains("is not trusted") && said.contains("--ca"), "{said}");
    let (ready, said) = baesrv(&dir, &["ready", "--url", &server.url()]).await;
    assert!(!ready, "plain HTTP is not answered: {said}");

    // The admin port is on a loopback address here, which no certificate names: it stays plain.
    let admin = ["--url", &server.admin_url(), "--admin-key", ADMIN_KEY].map(str::to_owned);
    let run = async |words: &[&str]| {
        let mut args: Vec<&str> = vec!["admin"];
        args.extend(admin.iter().map(String::as_str));
        args.extend(words);
        baesrv(&dir, &args).await
    };
    let (made, said) = run(&["profile", "create", "main", "--primary-provider", "main"]).await;
    assert!(made, "{said}");
    let (made, said) = run(&["--json", "key", "create", "app", "--profile", "main"]).await;
    assert!(made, "{said}");
    let key: serde_json::Value = serde_json::from_str(&said).unwrap();
    let key = key["key"].as_str().unwrap().to_owned();
    provider.push(Answer::text("over TLS"));
    let chat = ["chat", "--url", &url, "--ca", "first.pem", "--key", &key, "--message", "hi"];
    let (answered, said) = baesrv(&dir, &chat).await;
    assert!(answered && said.contains("over TLS"), "{said}");

    certificate(&dir, "second", "server");
    let (ready, said) = baesrv(&dir, &["ready", "--url", &url, "--ca", "second.pem", "--timeout", "20"]).await;
    assert!(ready, "the new certificate is shown: {said}");

    std::fs::write(dir.join("server.pem"), "no certificate").unwrap();
    until(DEADLINE, "a line about the broken file", async || {
        let log = server.log();
        if log.contains("the one from before stays") { Ok(()) } else { Err(log) }
    })
    .await;
    let (ready, said) = baesrv(&dir, &["ready", "--url", &url, "--ca", "second.pem"]).await;
    assert!(ready, "the old one is still shown: {said}");
    assert!(!server.log().contains("PRIVATE KEY"));
}

/// An admin port that others reach speaks TLS, too; files that cannot be used end the start with one line.
#[tokio::test]
async fn tls_of_the_admin_port_and_of_wrong_files() {
    let port = tests::ports::Port::reserve();
    let config = Config::default()
        .toml(&provider_toml("main", "anthropic", "http://127.0.0.1:9", ""))
        .env("BAE_TLS_CERT", "server.pem")
        .env("BAE_TLS_KEY", "server.key")
        .env("BAE_ADMIN_ALLOW_REMOTE", "1")
        .env("BAE_ADMIN_ADDR", &format!("0.0.0.0:{}", port.number));
    let mut server = Server::prepare(config);
    let dir = server.dir.clone();
    server.spawn();
    assert_eq!(server.ended().await.code(), Some(2));
    assert!(server.log().contains("BAE_TLS_CERT") && server.log().contains("server.pem"), "{}", server.log());
    certificate(&dir, "ca", "server");
    std::fs::rename(dir.join("server.key"), dir.join("its.key")).unwrap();
    std::fs::copy(dir.join("ca.key"), dir.join("server.key")).unwrap();
    server.spawn();
    assert_eq!(server.ended().await.code(), Some(2), "the key of another certificate");
    std::fs::rename(dir.join("its.key"), dir.join("server.key")).unwrap();
    server.spawn();
    let url = format!("https://{}", server.addr());
    let (ready, said) = baesrv(&dir, &["ready", "--url", &url, "--ca", "ca.pem", "--timeout", "20"]).await;
    assert!(ready, "{said}");
    let admin = format!("https://127.0.0.1:{}", port.number);
    let nodes = ["admin", "--url", &admin, "--ca", "ca.pem", "--admin-key", ADMIN_KEY, "nodes"];
    let (listed, said) = baesrv(&dir, &nodes).await;
    assert!(listed, "{said}");
}

/// The bytes that the server sends until it closes the connection.
async fn rest(socket: &mut TcpStream, deadline: Duration) -> String {
    let mut said = Vec::new();
    match tokio::time::timeout(deadline, socket.read_to_end(&mut said)).await {
        Ok(_) => String::from_utf8_lossy(&said).into_owned(),
        Err(_) => panic!("still open after {deadline:?}; said: {}", String::from_utf8_lossy(&said)),
    }
}

/// A peer that does not ask, asks half, or sends half a body keeps no connection, and a running turn goes on beside it.
#[tokio::test]
async fn silent_peers() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let held = fixture.provider.hold(Answer::text("in the end"));
    let call = session.start_send("go").await;
    let connect = async || TcpStream::connect(fixture.server.addr()).await.unwrap();
    let (mut nothing, mut half, mut slow) = (connect().await, connect().await, connect().await);
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nx-half: ").await.unwrap();
    let head = format!(
        "POST /api/v1/sessions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"client_",
        fixture.key.secret
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let limit = Duration::from_secs(25);
    let (nothing, half, slow) =
        tokio::join!(rest(&mut nothing, limit), rest(&mut half, limit), rest(&mut slow, limit + DEADLINE));
    assert_eq!((nothing.as_str(), half.as_str()), ("", ""));
    assert!(slow.starts_with("HTTP/1.1 400") && slow.contains("did not go on in time"), "{slow}");
    held.release();
    assert_eq!(call.finish().await.text(), "in the end");
}

/// When all places are taken, probes are answered and everything else is told so; a place that is free is used.
#[tokio::test]
async fn too_many_connections() {
    let fixture = Plan::default().env("BAE_MAX_CONNECTIONS", "8").start().await;
    let session = fixture.driver().await;
    let mut kept = Vec::new();
    // A place that was used a moment ago may not be free yet.
    while kept.len() < 8 {
        let mut socket = TcpStream::connect(fixture.server.addr()).await.unwrap();
        socket.write_all(b"GET /api/v1/meta HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        if &answer == b"HTTP/1.1 200" {
            kept.push(socket);
        }
    }
    fixture.api.get("/healthz", "").await.expect(200);
    fixture.api.get("/readyz", "").await.expect(200);
    fixture.api.get("/api/v1/meta", "").await.problem(503, "unavailable");
    assert!(fixture.server.log().contains("all connections of a port are taken"), "{}", fixture.server.log());
    fixture.admin.get("/admin/v1/sessions").await.expect(200);
    kept.pop();
    until(DEADLINE, "a free place", async || {
        let answer = fixture.api.get("/api/v1/meta", "").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    drop(kept);
    assert_eq!(session.send("go").await.text(), "ok");
}

/// Ended sessions are removed whole when they are old, or when an operator says so; open ones never are.
#[tokio::test]
async fn retention() {
    let fixture = Fixture::start().await;
    let (open, closed, other) = (fixture.driver().await, fixture.driver().await, fixture.driver().await);
    for session in [&open, &closed, &other] {
        assert_eq!(session.send("hello").await.text(), "ok");
    }
    let purge =
        async |id: &str| fixture.admin.0.call("POST", &format!("/admin/v1/sessions/{id}/purge"), ADMIN_KEY, None).await;
    purge(&closed.id).await.problem(409, "session_open");
    closed.delete().await.expect(200);
    purge(&closed.id).await.expect(204);
    purge(&closed.id).await.problem(404, "not_found");
    fixture.admin.get(&format!("/admin/v1/sessions/{}/events", closed.id)).await.problem(404, "not_found");
    assert!(fixture.server.log().contains("session removed with its events"), "{}", fixture.server.log());
    // Its key is no key any more, at most a second later.
    until(DEADLINE, "the end of the session's key", async || {
        let answer = fixture.api.get(&closed.path("/events"), &closed.key).await;
        if answer.status == 401 { Ok(()) } else { Err(answer.status) }
    })
    .await;

    let Fixture { mut server, admin, api, provider: _provider, .. } = fixture;
    other.delete().await.expect(200);
    server.kill9();
    // About nine seconds.
    server.set_env("BAE_RETENTION_DAYS", "0.0001");
    server.restart().await;
    until(DEADLINE, "the removal of the old session", async || {
        let list = admin.get("/admin/v1/sessions").await.expect(200).json();
        let ids: Vec<_> = list["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
        if ids == [json!(open.id)] { Ok(()) } else { Err(ids) }
    })
    .await;
    let tables = ["session_keys", "clients", "calls", "events"];
    let database = tests::database::Database::open(&server).await;
    for table in tables {
        assert_eq!(database.sessions_in(table).await, 1, "{table}");
    }
    api.get(&open.path("/events"), &open.key).await.expect(200);
    assert_eq!(open.send("still here").await.text(), "ok");
}

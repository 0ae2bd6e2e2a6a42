//! Starting: configuration, exit codes, the admin key (docs/api.md 10.1, 10.2, 11).

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use tests::admin::Admin;
use tests::client::Api;
use tests::poll::within;
use tests::server::{ADMIN_KEY, Config, Server};

/// Runs a server that should refuse to start, and returns its output. One that starts all the same is killed.
async fn refused(config: Config, env: &[(&str, Option<&str>)]) -> Output {
    refused_in(&Server::prepare(config), env).await
}

/// [`refused`], in the directory of a server that the test has prepared.
async fn refused_in(server: &Server, env: &[(&str, Option<&str>)]) -> Output {
    let mut command = server.command();
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut command = tokio::process::Command::from(command);
    within("the server's refusal", command.kill_on_drop(true).output()).await.unwrap()
}

/// Exit 2, and one line on standard error that names the culprit.
async fn usage_error(config: Config, env: &[(&str, Option<&str>)], culprit: &str) {
    let output = refused(config, env).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{culprit}: {said}");
    assert!(said.contains(culprit), "{culprit} is not named in: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{culprit}: {said}");
}

#[tokio::test]
async fn bad_configuration_files() {
    let provider = |name: &str| {
        format!(
            "[[providers.entries]]\nname = \"{name}\"\nprovider = \"anthropic\"\nmodel = \"m\"\nauth_token = \"t\"\n"
        )
    };
    let mcp = |rest: &str| format!("[[mcp.servers]]\nname = \"one\"\n{rest}\n");
    for (toml, culprit) in [
        ("this is no toml".to_owned(), "configuration file"),
        (provider("p1") + &provider("p1"), "p1"),
        (provider(" "), "name"),
        (provider("p1").replace("anthropic", "gemini"), "gemini"),
        (mcp("transport = \"stdio\""), "command"),
        (mcp("transport = \"http\""), "url"),
        (mcp("transport = \"sse\""), "url"),
        (mcp("transport = \"carrier-pigeon\""), "carrier-pigeon"),
        (mcp("transport = \"stdio\"\ncommand = \"x\"").repeat(2), "one"),
        ("[telemetry]\nsample_ratio = 1.5".to_owned(), "sample_ratio"),
        ("[telemetry]\nenabled = true\notlp_endpoint = \"not a url\"".to_owned(), "otlp_endpoint"),
        ("[telemetry.metrics]\ndisabled = [\"bae.nothing\"]".to_owned(), "bae.nothing"),
    ] {
        usage_error(Config::default().toml(&toml), &[], culprit).await;
    }
}

#[tokio::test]
async fn bad_environments() {
    for (name, value) in [
        ("BAE_ADDR", "nowhere"),
        ("BAE_DATABASE_URL", "mysql://x"),
        ("BAE_TURN_TIMEOUT", "soon"),
        ("BAE_SHUTDOWN_TIMEOUT", "-1"),
        ("BAE_SANDBOX_DRIVER", "chroot"),
        ("BAE_LOG_FORMAT", "xml"),
        ("BAE_MAX_TURN_ITERATIONS", "0"),
        ("BAE_MCP_TIMEOUT", "0"),
    ] {
        usage_error(Config::default(), &[(name, Some(value))], name).await;
    }
    usage_error(Config::default(), &[("BAE_ADMIN_ADDR", Some("0.0.0.0:0"))], "BAE_ADMIN_ALLOW_REMOTE").await;
    // SQLite is one process's; a cluster needs a database that its nodes share.
    usage_error(Config::default(), &[("BAE_REDIS_URL", Some("redis://127.0.0.1:1"))], "BAE_REDIS_URL").await;
    let both = Config::default().arg("--rotate-admin-key").arg("--dangerously-disable-admin-auth");
    usage_error(both, &[], "--rotate-admin-key").await;
    usage_error(Config::default().arg("--no-such-flag"), &[], "--no-such-flag").await;
}

#[tokio::test]
async fn runtime_errors_exit_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let output = refused(Config::default(), &[("BAE_ADDR", Some(&addr))]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&addr), "{said}");
    // The server makes the folders of its database that are missing. It cannot make one where there is a file.
    let server = Server::prepare(Config::default());
    let file = server.dir.join("a-file");
    std::fs::write(&file, "").unwrap();
    let url = format!("sqlite:{}/bae.db", file.display());
    let output = refused_in(&server, &[("BAE_DATABASE_URL", Some(&url))]).await;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Two processes never serve one SQLite file.
#[tokio::test]
async fn a_second_process_on_the_same_file() {
    let server = Server::start(Config::default()).await;
    let url = format!("sqlite:{}", server.database_path().display());
    let output = refused(Config::default(), &[("BAE_DATABASE_URL", Some(&url))]).await;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_configuration_path_that_does_not_exist_is_an_empty_file() {
    let mut server = Server::prepare(Config::default());
    std::fs::remove_file(server.dir.join("config.toml")).unwrap();
    server.spawn();
    server.wait_ready().await;
    let admin = Admin(Api::new(server.http(), server.admin_url()));
    assert_eq!(admin.get("/admin/v1/providers").await.expect(200).json()["items"], json!([]));
}

/// The first start makes an admin key, keeps it in a file of mode 0600, and never logs it; rotating replaces it.
#[tokio::test]
async fn the_admin_key_file() {
    let mut server = Server::prepare(Config::default().env("BAE_ADMIN_KEY_FILE", "admin.key"));
    server.unset_env("BAE_ADMIN_KEY");
    server.spawn();
    server.wait_ready().await;
    let path = server.dir.join("admin.key");
    let read = || std::fs::read_to_string(&path).unwrap().trim().to_owned();
    let first = read();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(first.starts_with("bae_admin_") && first.len() == 58, "{} characters", first.len());
    assert!(!server.log().contains(&first));
    let api = Api::new(server.http(), server.admin_url());
    api.get("/admin/v1/keys", &first).await.expect(200);
    api.get("/admin/v1/keys", ADMIN_KEY).await.problem(401, "unauthorized");
    server.crash().await;
    assert_eq!(read(), first, "made once");
    api.get("/admin/v1/keys", &first).await.expect(200);
    server.kill9();
    server.add_arg("--rotate-admin-key");
    server.restart().await;
    let second = read();
    assert_ne!(second, first);
    api.get("/admin/v1/keys", &first).await.problem(401, "unauthorized");
    api.get("/admin/v1/keys", &second).await.expect(200);
    assert!(!server.log().contains(&second));
}

#[tokio::test]
async fn the_admin_check_can_be_turned_off_and_says_so() {
    let server = Server::start(Config::default().arg("--dangerously-disable-admin-auth")).await;
    let api = Api::new(server.http(), server.admin_url());
    api.get("/admin/v1/keys", "").await.expect(200);
    let log = server.log();
    assert!(log.to_lowercase().contains("warn"), "{log}");
}

#[tokio::test]
async fn the_admin_port_may_be_opened_on_purpose() {
    let mut server = Server::prepare(Config::default());
    let port = server.admin_url().rsplit(':').next().unwrap().to_owned();
    server.set_env("BAE_ADMIN_ADDR", &format!("0.0.0.0:{port}"));
    server.set_env("BAE_ADMIN_ALLOW_REMOTE", "1");
    server.spawn();
    server.wait_ready().await;
    Api::new(server.http(), server.admin_url()).get("/admin/v1/keys", ADMIN_KEY).await.expect(200);
}

/// `BAE_LOG_FORMAT=json`: every line that the server writes is an object.
#[tokio::test]
async fn json_logs() {
    let fixture = tests::fixture::Plan::default().env("BAE_LOG_FORMAT", "json").start().await;
    fixture.driver().await.send("hello").await.text();
    let log = fixture.server.log();
    assert!(!log.trim().is_empty());
    for line in log.lines() {
        let parsed: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(line);
        assert!(parsed.is_ok(), "{line}");
    }
}

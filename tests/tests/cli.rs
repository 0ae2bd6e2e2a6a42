//! The other commands of the program: `dev`, `chat`, `admin`, `migrate`.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tests::client::Api;
use tests::fixture::Fixture;
use tests::poll::{DEADLINE, until};
use tests::ports::Port;
use tests::program::program;
use tests::provider::Answer;
use tests::server::{ADMIN_KEY, Config, Server};

fn baesrv(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program("baesrv"));
    command.args(args).current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs a command to its end. It is killed when it takes too long.
async fn run(command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    tests::poll::within("the command's end", command.kill_on_drop(true).output()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A `baesrv dev` in a folder of its own; killed on drop.
struct Dev {
    dir: std::path::PathBuf,
    ports: [Port; 2],
    child: Option<std::process::Child>,
}

impl Dev {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join("bae-tests").join(format!("dev-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, ports: [Port::reserve(), Port::reserve()], child: None }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0].number)
    }

    fn api(&self) -> Api {
        Api::new(reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap(), self.url())
    }

    fn key(&self) -> String {
        std::fs::read_to_string(self.dir.join(".bae/client.key")).unwrap().trim().to_owned()
    }

    async fn start(&mut self) {
        let addr = |port: &Port| format!("127.0.0.1:{}", port.number);
        let output = std::fs::File::options().create(true).append(true).open(self.dir.join("output")).unwrap();
        let mut command = baesrv(&self.dir, &["dev"]);
        command.env("BAE_ADDR", addr(&self.ports[0])).env("BAE_ADMIN_ADDR", addr(&self.ports[1]));
        self.child = Some(command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap());
        let (api, output) = (self.api(), self.dir.join("output"));
        let child = self.child.as_mut().unwrap();
        until(DEADLINE, "baesrv dev", async || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("baesrv dev ended with {status}: {}", std::fs::read_to_string(&output).unwrap_or_default());
            }
            let answer = api.request("GET", "/healthz").send().await;
            answer.map(drop).map_err(|error| error.to_string())
        })
        .await;
        until(DEADLINE, "its greeting", async || {
            let said = self.said();
            if said.contains("curl") { Ok(()) } else { Err(said) }
        })
        .await;
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("output")).unwrap_or_default()
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// One command in an empty folder: a model, a profile and a key; it is all still there after `kill -9`.
#[tokio::test]
async fn dev_and_chat() {
    let mut dev = Dev::new("chat");
    dev.start().await;
    let key = dev.key();
    let said = dev.said();
    assert!(said.contains(&dev.url()) && said.contains(&key), "{said}");
    let url = dev.url();
    // The client finds the key that `dev` left in the folder.
    let output = run(baesrv(&dev.dir, &["chat", "--url", &url, "--message", "Hello, my name is Ada"])).await;
    let (answer, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{answer}{errors}");
    assert!(!answer.trim().is_empty());
    let session = dev.api().open(&key, &json!({})).await;
    session.register().await;
    session.send("remember: ultramarine").await.result();
    dev.kill();
    dev.start().await;
    assert_eq!(dev.key(), key, "made once");
    session.send("and again").await.result();
    let output = run(baesrv(&dev.dir, &["chat", "--url", &url, "--session", &session.id, "--message", "hello"])).await;
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let said: Vec<Value> =
        session.events().await.into_iter().filter(|event| event["event_type"] == "client.message.send").collect();
    assert_eq!(said.len(), 3);
}

/// The curl line that `dev` prints works as it stands.
#[tokio::test]
async fn the_printed_curl_line_works() {
    let mut dev = Dev::new("curl");
    dev.start().await;
    let said = dev.said();
    let line = said.lines().map(str::trim).find(|line| line.contains("curl -")).expect("a curl line").to_owned();
    if Command::new("curl").arg("--version").output().is_err() {
        // Without curl the same calls are made by the other tests; the line itself cannot be tried.
        assert!(line.contains("session.sendMessage"), "{line}");
        return;
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", &line]).stdin(Stdio::null());
    let output = run(shell).await;
    let answer = text(&output.stdout);
    let last: Value =
        serde_json::from_str(answer.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(last["result"]["message"]["role"], "assistant", "{answer}");
}

/// `chat` exits with 1 when there was no answer.
#[tokio::test]
async fn chat_against_a_failing_model() {
    let fixture = Fixture::start().await;
    let (url, dir) = (fixture.server.url(), fixture.server.dir.clone());
    let chat = |key: &str| baesrv(&dir, &["chat", "--url", &url, "--key", key, "--message", "hello"]);
    fixture.provider.push(Answer::text("a fine answer"));
    let output = run(chat(&fixture.key.secret)).await;
    assert!(output.status.success() && text(&output.stdout).contains("a fine answer"), "{output:?}");
    fixture.provider.push(Answer::status(400));
    let output = run(chat(&fixture.key.secret)).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = run(chat("bae_wrong")).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// `admin` over the admin port: what is made there works on the client port.
#[tokio::test]
async fn admin_commands() {
    let fixture = Fixture::start().await;
    let (url, dir) = (fixture.server.admin_url(), fixture.server.dir.clone());
    let admin = async |args: &[&str]| {
        let mut command = baesrv(&dir, &["admin", "--url", &url, "--json"]);
        command.args(args).env("BAE_ADMIN_KEY", ADMIN_KEY);
        let output = run(command).await;
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let made = async |args: &[&str]| -> Value {
        let (code, stdout, stderr) = admin(args).await;
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    };
    let profile = made(&["profile", "create", "cli", "--primary-provider", "main"]).await;
    let key = made(&["key", "create", "laptop", "--profile", "cli"]).await;
    assert_eq!(key["profile_id"], profile["id"]);
    let session = fixture.api.open(key["key"].as_str().unwrap(), &json!({})).await;
    let sessions = made(&["session", "list"]).await;
    assert!(sessions.to_string().contains(&session.id), "{sessions}");
    let events = made(&["session", "events", &session.id]).await;
    assert!(events.to_string().contains("session.open"), "{events}");
    for args in
        [&["profile", "list"][..], &["key", "list"], &["providers"], &["mcp-servers"], &["config"], &["sandbox-status"]]
    {
        made(args).await;
    }
    let (code, _, stderr) = admin(&["profile", "create", "cli", "--primary-provider", "main"]).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("exists"), "{stderr}");
    let (code, ..) = admin(&["profile", "explode"]).await;
    assert_eq!(code, Some(2));
    let mut wrong = baesrv(&dir, &["admin", "--url", &url, "profile", "list"]);
    wrong.env("BAE_ADMIN_KEY", "bae_admin_wrong");
    assert_eq!(run(wrong).await.status.code(), Some(1));
    let mut table = baesrv(&dir, &["admin", "--url", &url, "profile", "list"]);
    table.env("BAE_ADMIN_KEY", ADMIN_KEY);
    let output = run(table).await;
    assert!(text(&output.stdout).contains("cli"), "{output:?}");
}

/// `migrate` makes the schema and exits; a server then starts on it, and migrating again changes nothing.
#[tokio::test]
async fn migrate() {
    let mut server = Server::prepare(Config::default());
    let url = format!("sqlite:{}", server.database_path().display());
    for _ in 0..2 {
        let output = run(baesrv(&server.dir, &["migrate", "--database-url", &url])).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(server.database_path().exists());
    }
    server.spawn();
    server.wait_ready().await;
}

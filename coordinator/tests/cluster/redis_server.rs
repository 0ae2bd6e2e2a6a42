//! A Redis server of the tests' own: its own port and folder, gone with the process that started it.
//!
//! `BAE_TEST_REDIS_URL` names a server to use instead, for all cases but those that empty, restart or stop it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Stops the server and removes its folder once standard input ends, however the tests end.
const SUPERVISE: &str = r#"
redis-server --port "$2" --dir "$1" --bind 127.0.0.1 --save "" --appendonly no --loglevel warning >>"$1/log" 2>&1 </dev/null &
server=$!
echo "$server"
read -r word
kill -CONT "$server"
kill -TERM "$server"
wait "$server"
[ "$word" = keep ] || rm -rf "$1"
"#;

pub struct RedisServer {
    folder: PathBuf,
    port: u16,
    running: Option<(Child, ChildStdin, u32)>,
}

/// The URL of the server that most cases share.
pub fn shared() -> String {
    static GIVEN: OnceLock<Option<String>> = OnceLock::new();
    static OWN: OnceLock<RedisServer> = OnceLock::new();
    let given = GIVEN.get_or_init(|| std::env::var("BAE_TEST_REDIS_URL").ok());
    given.clone().unwrap_or_else(|| OWN.get_or_init(RedisServer::start).url())
}

impl RedisServer {
    pub fn start() -> Self {
        install();
        let folder = std::env::temp_dir().join(format!("bae-redis-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&folder).expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a free port").port();
        let mut server = Self { folder, port, running: None };
        server.run();
        server
    }

    /// Starts it, empty; returns when it answers.
    pub fn run(&mut self) {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(SUPERVISE).arg("sh").arg(&self.folder).arg(self.port.to_string());
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = shell.spawn().expect("a shell");
        let stdin = child.stdin.take().expect("its input");
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().expect("its output"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("the server's process id");
        self.running = Some((child, stdin, line.trim().parse().expect("a number")));
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let client = redis::Client::open(self.url()).expect("a URL");
            let asked = client
                .get_connection_with_timeout(Duration::from_secs(1))
                .map(|mut c| redis::cmd("PING").query::<String>(&mut c));
            if matches!(asked, Ok(Ok(_))) {
                return;
            }
            let log = std::fs::read_to_string(self.folder.join("log"));
            assert!(Instant::now() < end, "Redis is not ready ({:?}): {log:?}", asked.err());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it; what it knew is lost.
    pub fn stop(&mut self) {
        if let Some((mut child, mut stdin, _)) = self.running.take() {
            std::io::Write::write_all(&mut stdin, b"keep\n").expect("the shell listens");
            child.wait().expect("the shell ends");
        }
    }

    /// It answers nothing any more, and connections stay open; or goes on.
    pub fn signal(&self, name: &str) {
        let (_, _, pid) = self.running.as_ref().expect("a running server");
        let done = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().expect("kill");
        assert!(done.success(), "kill -{name} {pid}");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some((mut child, stdin, _)) = self.running.take() {
            drop(stdin);
            let _ = child.wait();
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Debian's package is installed where it is missing.
fn install() {
    let there = || Command::new("redis-server").arg("--version").output().is_ok_and(|output| output.status.success());
    if there() {
        return;
    }
    let script = "apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null";
    let done = Command::new("sh").arg("-c").arg(script).env("DEBIAN_FRONTEND", "noninteractive").output();
    let failure = done.as_ref().map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stderr).into_owned());
    assert!(there(), "these tests need Redis (Debian and Ubuntu: apt-get install redis-server, as root): {failure}");
}

//! A Postgres server of the tests' own: its own data, its own port, gone with the process that started it.
//!
//! A shell stands between: it stops the server and removes the data once its standard input ends, however the tests end.
//! `BAE_TEST_POSTGRES_URL` names a server to use instead, for all cases but those that restart it.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const SUPERVISE: &str = r#"
"$1" -D "$2" -p "$3" -k "$2" -c listen_addresses=127.0.0.1 -c max_connections="$4" -c shared_buffers=64MB \
    -c fsync="${5:-off}" -c log_min_messages=fatal -c logging_collector=off >>"$2/log" 2>&1 </dev/null &
server=$!
read -r word
kill -INT "$server"
wait "$server"
[ "$word" = keep ] || rm -rf "$2"
"#;

pub struct Server {
    data: PathBuf,
    port: u16,
    connections: u32,
    running: Option<(Child, ChildStdin)>,
}

/// The URL of the server that all cases share, without a database.
pub fn shared() -> &'static str {
    static GIVEN: OnceLock<Option<String>> = OnceLock::new();
    let given = GIVEN.get_or_init(|| std::env::var("BAE_TEST_POSTGRES_URL").ok());
    given.as_deref().map_or_else(|| own().0, |url| url.trim_end_matches('/'))
}

/// URL and port of a server on this machine that speaks without TLS, for cases with a proxy between.
pub fn own() -> (&'static str, u16) {
    static OWN: OnceLock<(String, Server)> = OnceLock::new();
    let start = || {
        let server = Server::start(300);
        (server.url(), server)
    };
    let (url, server) = OWN.get_or_init(start);
    (url, server.port)
}

impl Server {
    /// Makes the data and starts the server.
    pub fn start(connections: u32) -> Self {
        let data = std::env::temp_dir().join(format!("bae-postgres-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&data).expect("a folder for the data");
        let user = user();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(&data, Some(uid), Some(gid)).expect("the folder given away");
        }
        let mut init = Command::new(program("initdb"));
        init.args(["--auth=trust", "--username=bae", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]).arg(&data);
        let done = as_user(&mut init, user).current_dir("/").output().expect("initdb");
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        let mut server = Self { data, port: free_port(), connections, running: None };
        server.run();
        server
    }

    /// Starts it on the data it has; returns when it takes connections.
    pub fn run(&mut self) {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(SUPERVISE).arg("sh").arg(program("postgres")).arg(&self.data);
        shell.args([self.port.to_string(), self.connections.to_string()]);
        shell.args(std::env::var("BAE_TEST_POSTGRES_FSYNC"));
        as_user(&mut shell, user()).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = shell.spawn().expect("a shell");
        let stdin = child.stdin.take().expect("its input");
        self.running = Some((child, stdin));
        let ready = program("pg_isready");
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let mut ask = Command::new(&ready);
            let asked = ask.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status().expect("pg_isready");
            if asked.success() {
                return;
            }
            let log = || std::fs::read_to_string(self.data.join("log"));
            assert!(Instant::now() < end, "Postgres is not ready ({asked}): {:?}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it at once; what was committed stays.
    pub fn stop(&mut self) {
        if let Some((mut child, mut stdin)) = self.running.take() {
            stdin.write_all(b"keep\n").expect("the shell listens");
            child.wait().expect("the shell ends");
        }
    }

    /// Its URL, without a database.
    pub fn url(&self) -> String {
        format!("postgres://bae@127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((mut child, stdin)) = self.running.take() {
            drop(stdin);
            let _ = child.wait();
        } else {
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

/// Whom to become: Postgres does not run as root.
fn user() -> Option<(u32, u32)> {
    let id = Command::new("id").arg("-u").output().expect("id");
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let find = |name: &str| {
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = lines.find(|fields| fields[0] == name)?;
        Some((fields[2].parse().ok()?, fields[3].parse().ok()?))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("a user to run Postgres as"))
}

fn as_user(command: &mut Command, user: Option<(u32, u32)>) -> &mut Command {
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

/// One of Postgres's programs; Debian's package is installed where it is missing.
fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| installed().unwrap_or_else(install)).join(name)
}

/// The folder of the newest version.
fn installed() -> Option<PathBuf> {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|v| v.path().join("bin"));
    let elsewhere = ["/usr/local/bin", "/usr/bin", "/usr/local/pgsql/bin"].into_iter().map(PathBuf::from);
    let complete = |folder: &PathBuf| folder.join("initdb").exists() && folder.join("postgres").exists();
    let newest = |folder: &PathBuf| {
        let version = folder.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse::<u32>().ok());
        version.unwrap_or(0)
    };
    versions.chain(elsewhere).filter(complete).max_by_key(newest)
}

fn install() -> PathBuf {
    let script = "apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null";
    let done = Command::new("sh").arg("-c").arg(script).env("DEBIAN_FRONTEND", "noninteractive").output();
    let failure = done.as_ref().map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stderr).into_owned());
    installed().unwrap_or_else(|| {
        panic!("these tests need Postgres (Debian and Ubuntu: apt-get install postgresql, as root): {failure}")
    })
}

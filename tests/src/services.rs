//! Redis and Postgres servers of the tests' own: data and ports of their own, gone with the process that started them.
//!
//! `BAE_TEST_POSTGRES_URL` and `BAE_TEST_REDIS_URL` name servers to share instead; tests that stop or empty a
//! server always start one of their own.

use crate::ports::Port;
use crate::supervised::{self, Supervised};
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Postgres counts what each statement costs, for tests that `CREATE EXTENSION pg_stat_statements`.
const STATEMENTS: &str = "shared_preload_libraries=pg_stat_statements";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    Redis,
}

/// A server that can be stopped and started again on its port.
#[derive(Debug)]
pub struct Service {
    kind: Kind,
    data: PathBuf,
    port: Port,
    running: Option<Supervised>,
}

/// The URL of the Postgres server that tests share, without a database.
pub fn postgres() -> String {
    given("BAE_TEST_POSTGRES_URL").unwrap_or_else(|| plain_postgres().url())
}

/// A Postgres server on this machine that speaks without TLS, for tests with a proxy between.
pub fn plain_postgres() -> &'static Service {
    static SHARED: OnceLock<Service> = OnceLock::new();
    SHARED.get_or_init(Service::postgres)
}

/// The URL of the Redis server that tests share.
pub fn redis() -> String {
    static SHARED: OnceLock<Service> = OnceLock::new();
    given("BAE_TEST_REDIS_URL").unwrap_or_else(|| SHARED.get_or_init(Service::redis).url())
}

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|url| url.trim_end_matches('/').to_owned())
}

impl Service {
    /// Starts a Postgres server with nothing in it.
    pub fn postgres() -> Self {
        Self::postgres_with(&["max_connections=300"])
    }

    /// One with settings of its own, each `NAME=VALUE`.
    pub fn postgres_with(settings: &[&str]) -> Self {
        let mut service = Self::prepare(Kind::Postgres);
        let mut init = Command::new(program("initdb", "postgresql"));
        init.args(["--auth=trust", "--username=bae", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]);
        let done = as_user(init.arg(&service.data), user()).current_dir("/").output().expect("initdb");
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        let fsync = format!("fsync={}", given("BAE_TEST_POSTGRES_FSYNC").unwrap_or_else(|| "off".into()));
        let ours =
            ["listen_addresses='127.0.0.1'", "shared_buffers=64MB", "log_min_messages=fatal", STATEMENTS, &fsync];
        // Later lines of the file win.
        service.configure("postgresql.conf", &[&ours, settings].concat().join("\n"));
        service.run();
        service
    }

    /// Starts a Redis server with nothing in it, which keeps nothing over a restart.
    pub fn redis() -> Self {
        Self::redis_with("")
    }

    /// One with lines of its own in its configuration, `PORT` for its port; with `sentinel` lines it is a Sentinel.
    pub fn redis_with(lines: &str) -> Self {
        let mut service = Self::prepare(Kind::Redis);
        let ours = format!("port PORT\nbind 127.0.0.1\nsave \"\"\nappendonly no\ndir {}\n", service.data.display());
        service.configure("redis.conf", &(ours + lines).replace("PORT", &service.port.number.to_string()));
        service.run();
        service
    }

    fn prepare(kind: Kind) -> Self {
        let data = supervised::folder(&format!("{kind:?}").to_lowercase());
        if let (Kind::Postgres, Some((uid, gid))) = (kind, user()) {
            std::os::unix::fs::chown(&data, Some(uid), Some(gid)).expect("the folder given away");
        }
        Self { kind, data, port: Port::reserve(), running: None }
    }

    fn configure(&self, file: &str, lines: &str) {
        let mut file = File::options().append(true).create(true).open(self.data.join(file)).expect("a configuration");
        writeln!(file, "\n{lines}").expect("written");
    }

    /// Starts it on its port and data; returns when it takes connections.
    pub fn run(&mut self) {
        let port = self.port.number.to_string();
        let shell = match self.kind {
            Kind::Postgres => {
                let mut shell = supervised::command(&self.data, "INT", &program("postgres", "postgresql"));
                shell.arg("-D").arg(&self.data).args(["-p", &port, "-k"]).arg(&self.data);
                as_user(&mut shell, user());
                shell
            }
            Kind::Redis => {
                let file = self.data.join("redis.conf");
                let lines = std::fs::read_to_string(&file).expect("a configuration");
                let mut shell = supervised::command(&self.data, "KILL", &program("redis-server", "redis-server"));
                shell.arg(file).args(lines.contains("\nsentinel ").then_some("--sentinel"));
                shell
            }
        };
        self.running = Some(Supervised::start(shell));
        let end = Instant::now() + Duration::from_secs(30);
        while !self.answers() {
            let log = || std::fs::read_to_string(self.data.join("log"));
            assert!(Instant::now() < end, "{:?} is not ready: {:?}", self.kind, log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        match self.kind {
            Kind::Postgres => {
                let mut ask = Command::new(program("pg_isready", "postgresql"));
                ask.args(["-q", "-h", "127.0.0.1", "-p", &self.port.number.to_string()]);
                ask.status().is_ok_and(|status| status.success())
            }
            // It may ask for a password or for TLS.
            Kind::Redis => TcpStream::connect(("127.0.0.1", self.port.number)).is_ok(),
        }
    }

    /// Stops it at once. Postgres keeps what was committed, Redis nothing.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }

    /// Sends its process a signal, such as `STOP`: then it answers nothing, and connections stay open.
    pub fn signal(&self, name: &str) {
        self.running.as_ref().expect("a running server").signal(name);
    }

    /// Sends Redis a command.
    pub fn redis_cli(&self, words: &[&str]) -> String {
        assert_eq!(self.kind, Kind::Redis);
        let mut cli = Command::new(program("redis-cli", "redis-server"));
        let done = cli.args(["-p", &self.port.number.to_string()]).args(words).output().expect("redis-cli");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Its URL; for Postgres without a database.
    pub fn url(&self) -> String {
        match self.kind {
            Kind::Postgres => format!("postgres://bae@127.0.0.1:{}", self.port.number),
            Kind::Redis => format!("redis://127.0.0.1:{}", self.port.number),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.running.take());
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// The library that gives a process another wall clock.
pub fn faketime() -> PathBuf {
    program("faketime", "faketime");
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("the library of the package faketime")
}

/// The user and group that Postgres runs as when the tests run as root, as which it refuses to run.
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

/// A program of a Debian package. `tests/run` installs what is missing; a test never does.
pub(crate) fn program(name: &str, package: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("these tests need {name} (Debian and Ubuntu: apt-get install {package})"))
}

/// On the search path, or in the folder of the newest Postgres.
fn find(name: &str) -> Option<PathBuf> {
    let version = |folder: &Path| folder.file_name().and_then(|v| v.to_str()?.parse::<u32>().ok()).unwrap_or(0);
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|v| v.path()).collect();
    versions.sort_by_key(|folder| std::cmp::Reverse(version(folder)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = versions.iter().map(|folder| folder.join("bin")).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|path| path.exists())
}

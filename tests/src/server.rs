//! A real `baesrv` process with a directory and ports of its own.
//!
//! The directory (configuration, database, log file) is deleted when the test passed, and named when it failed. A panic
//! anywhere in the server fails its test. The ports stay the same over restarts, as those of a deployment would.

use crate::poll;
use crate::ports::Port;
use crate::program::program;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The admin key of every server here.
pub const ADMIN_KEY: &str = "bae_admin_0123456789abcdef0123456789abcdef0123456789abcdef";

/// What a server is started with.
#[derive(Debug, Clone, Default)]
pub struct Config {
    toml: String,
    env: Vec<(String, String)>,
    args: Vec<String>,
    unset: Vec<String>,
    soft_files: Option<u32>,
}

impl Config {
    /// Adds lines to the configuration file.
    pub fn toml(mut self, text: &str) -> Self {
        self.toml.push_str(text);
        self.toml.push('\n');
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether this environment variable is set.
    pub fn has(&self, name: &str) -> bool {
        self.env.iter().any(|(n, _)| n == name)
    }

    /// Starts the program with this soft limit of open files, as a login shell's is.
    pub fn soft_files(mut self, limit: u32) -> Self {
        self.soft_files = Some(limit);
        self
    }

    /// Adds a command line argument after `serve`.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }
}

/// The server; killed on drop.
#[derive(Debug)]
pub struct Server {
    /// Its directory.
    pub dir: PathBuf,
    config: Config,
    port: Port,
    admin_port: Port,
    program: Option<PathBuf>,
    /// The network namespace that it runs in, and its address there.
    network: Option<(String, Ipv4Addr)>,
    child: Option<Child>,
    http: reqwest::Client,
}

impl Server {
    /// Starts one and waits until it answers.
    pub async fn start(config: Config) -> Self {
        let mut server = Self::prepare(config);
        server.spawn();
        server.wait_ready().await;
        server
    }

    /// Everything but the process.
    pub fn prepare(config: Config) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let test = std::thread::current().name().unwrap_or("main").replace("::", "-");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join("bae-tests").join(format!("{test}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the test's directory");
        std::fs::write(dir.join("config.toml"), &config.toml).expect("the configuration file");
        // A connection per request: what one test cuts or kills is then never another request's.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().expect("an HTTP client");
        let (port, admin_port) = (Port::reserve(), Port::reserve());
        Self { dir, config, port, admin_port, program: None, network: None, child: None, http }
    }

    /// The command that starts the program with this server's configuration.
    pub fn command(&self) -> Command {
        let program = self.program.clone().unwrap_or_else(|| program("baesrv"));
        let mut command = match (&self.network, self.config.soft_files) {
            (Some((name, _)), _) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
            (None, Some(limit)) => {
                let mut command = Command::new("sh");
                command.args(["-c", "ulimit -Sn \"$0\" && exec \"$@\"", &limit.to_string()]).arg(program);
                command
            }
            (None, None) => Command::new(program),
        };
        command
            .arg("serve")
            .args(&self.config.args)
            .current_dir(&self.dir)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| ["PATH", "HOME", "TMPDIR"].iter().any(|keep| name == keep)))
            .env("BAE_ADDR", self.addr())
            .env("BAE_ADMIN_ADDR", format!("{}:{}", self.host(), self.admin_port.number))
            .env("BAE_DATABASE_URL", format!("sqlite:{}", self.database_path().display()))
            .env("BAE_ADMIN_KEY", ADMIN_KEY)
            .env("BAE_CONFIG", self.dir.join("config.toml"))
            .env("BAE_SANDBOX_DRIVER", "none")
            .env("BAE_LOG", "info")
            .envs(self.config.env.iter().cloned())
            .stdin(Stdio::null());
        if self.network.is_some() {
            command.env("BAE_ADMIN_ALLOW_REMOTE", "1");
        }
        for name in &self.config.unset {
            command.env_remove(name);
        }
        command
    }

    /// Starts the process without waiting.
    pub fn spawn(&mut self) {
        let log = || {
            let path = self.log_path();
            std::fs::File::options().create(true).append(true).open(path).expect("the server's log file")
        };
        let child = self.command().stdout(log()).stderr(log()).spawn().expect("the server's program starts");
        self.child = Some(child);
    }

    /// Waits until `/healthz` answers.
    pub async fn wait_ready(&mut self) {
        let url = format!("{}/healthz", self.url());
        let http = self.http.clone();
        let child = self.child.as_mut().expect("a started server");
        let log = self.dir.join("server.log");
        poll::until(poll::DEADLINE, "the server's /healthz", async || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the server ended with {status}: {}", std::fs::read_to_string(&log).unwrap_or_default());
            }
            match http.get(&url).send().await {
                Ok(answer) if answer.status() == 200 => Ok(()),
                Ok(answer) => Err(answer.status().to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// The client port's address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// The admin port's address as a URL.
    pub fn admin_url(&self) -> String {
        format!("http://{}:{}", self.host(), self.admin_port.number)
    }

    /// `host:port` of the client port.
    pub fn addr(&self) -> String {
        format!("{}:{}", self.host(), self.port.number)
    }

    fn host(&self) -> Ipv4Addr {
        self.network.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address)
    }

    /// The client port's number.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// A client with a connection per request.
    pub fn http(&self) -> reqwest::Client {
        self.http.clone()
    }

    /// The SQLite file.
    pub fn database_path(&self) -> PathBuf {
        self.dir.join("bae.db")
    }

    /// Where standard output and error go.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// All that the program has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a started server").id()
    }

    /// `kill -9`, and waits for the end.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("a started server");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &script]).status().expect("sh").success(), "{script}");
    }

    /// SIGSTOP, and waits until every thread has stopped: what happens after this, the process does not see before
    /// [`thaw`](Self::thaw).
    pub async fn freeze(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.pid());
        poll::until(poll::DEADLINE, "every thread's stop", async || {
            let stats = std::fs::read_dir(&tasks).expect("a process's threads").filter_map(|task| {
                // A thread that has just ended has no file any more.
                std::fs::read_to_string(task.ok()?.path().join("stat")).ok()
            });
            // The state is the word after the program's name, which stands in parentheses.
            let states: Vec<char> =
                stats.filter_map(|stat| stat.rsplit_once(')')?.1.trim_start().chars().next()).collect();
            if !states.is_empty() && states.iter().all(|state| *state == 'T') { Ok(()) } else { Err(states) }
        })
        .await;
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("a started server");
        let status = poll::until(poll::DEADLINE, "the server's end", async || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })
        .await;
        self.child = None;
        status
    }

    /// Starts it again: same ports, same data.
    pub async fn restart(&mut self) {
        assert!(self.child.is_none(), "end the server before starting it again");
        self.spawn();
        self.wait_ready().await;
    }

    /// `kill -9` and a new start.
    pub async fn crash(&mut self) {
        self.kill9();
        self.restart().await;
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("/proc");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of kB");
        kib * 1024
    }

    /// Replaces the configuration file, for the next start.
    pub fn write_config(&self, toml: &str) {
        std::fs::write(self.dir.join("config.toml"), toml).expect("the configuration file");
    }

    /// Runs another build of the server from the next start on.
    pub fn set_program(&mut self, path: PathBuf) {
        self.program = Some(path);
    }

    /// Runs the build under test again from the next start on.
    pub fn unset_program(&mut self) {
        self.program = None;
    }

    /// Runs it in a network namespace, at this address of it.
    pub fn set_network(&mut self, name: &str, address: Ipv4Addr) {
        self.network = Some((name.to_owned(), address));
    }

    /// Leaves an environment variable out.
    pub fn unset_env(&mut self, name: &str) {
        self.config.unset.push(name.to_owned());
    }

    /// Adds a command line argument for the next start.
    pub fn add_arg(&mut self, arg: &str) {
        self.config.args.push(arg.to_owned());
    }

    /// Sets an environment variable for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.config.env.retain(|(n, _)| n != name);
        self.config.env.push((name.to_owned(), value.to_owned()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let panicked = self.log().contains("panicked at");
        if std::thread::panicking() || panicked {
            eprintln!("kept for inspection: {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        assert!(!panicked || std::thread::panicking(), "the server has panicked: {}", self.log_path().display());
    }
}

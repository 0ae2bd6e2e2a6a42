//! A Docker daemon of the tests' own: data, socket and images of its own, gone with the process that started it.
//!
//! `BAE_TEST_DOCKER_HOST` names a daemon to use instead; tests that stop a daemon always start one of their own. It
//! runs as root, without a network and without touching the machine's firewall. Its images are made here, [`IMAGE`] of
//! the machine's busybox.

pub mod gate;

use crate::services::program;
use crate::supervised::{self, Supervised};
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name of the image: busybox with a link for each of its programs.
pub const IMAGE: &str = "bae-test-busybox:1";
/// The name of an image without any program.
pub const BARE_IMAGE: &str = "bae-test-bare:1";

/// A Docker daemon that can be stopped and started again with its data.
#[derive(Debug)]
pub struct Dockerd {
    data: PathBuf,
    arguments: Vec<&'static str>,
    storage: Option<&'static str>,
    running: Option<Supervised>,
}

/// The address of the daemon that tests share; it has the images.
pub fn host() -> String {
    static GIVEN: OnceLock<Option<String>> = OnceLock::new();
    let given = || {
        let host = std::env::var("BAE_TEST_DOCKER_HOST").ok()?;
        import(&host);
        Some(host)
    };
    GIVEN.get_or_init(given).clone().unwrap_or_else(|| own().host())
}

/// The daemon of the tests' own that tests share.
fn own() -> &'static Dockerd {
    static SHARED: OnceLock<Dockerd> = OnceLock::new();
    SHARED.get_or_init(|| Dockerd::start(&[]))
}

impl Dockerd {
    /// Starts a daemon that has the images and nothing else, with more arguments on its command line.
    pub fn start(arguments: &[&'static str]) -> Self {
        let data = supervised::folder("docker");
        // Else the daemon writes a key below /etc.
        let key = format!("{{\"deprecated-key-path\": \"{}\"}}", data.join("key.json").display());
        std::fs::write(data.join("daemon.json"), key).expect("a configuration");
        let mut daemon = Self { data, arguments: arguments.to_vec(), storage: None, running: None };
        daemon.run();
        import(&daemon.host());
        daemon
    }

    /// Its address.
    pub fn host(&self) -> String {
        format!("unix://{}", self.data.join("sock").display())
    }

    /// Starts it with its data; returns when it takes connections.
    pub fn run(&mut self) {
        // Where the data is itself on an overlay, as in a container, the daemon cannot make overlays.
        let drivers = self.storage.map_or_else(|| vec!["overlay2", "vfs"], |storage| vec![storage]);
        self.storage = drivers.into_iter().find(|storage| self.try_run(storage));
        if self.storage.is_none() {
            let log = std::fs::read_to_string(self.data.join("log"));
            panic!("the Docker daemon does not start: {}", log.unwrap_or_default());
        }
    }

    fn try_run(&mut self, storage: &str) -> bool {
        let part = |name: &str| self.data.join(name);
        let mut shell = supervised::command(&self.data, "TERM", &program("dockerd", "docker.io"));
        shell.arg("--config-file").arg(part("daemon.json")).arg("--data-root").arg(part("data"));
        shell.arg("--exec-root").arg(part("exec")).arg("-p").arg(part("pid")).arg("-H").arg(self.host());
        shell.args(["--bridge=none", "--iptables=false", "--shutdown-timeout=3"]).args(&self.arguments);
        shell.arg(format!("--storage-driver={storage}"));
        let running = self.running.insert(Supervised::start(shell));
        let end = Instant::now() + Duration::from_secs(60);
        while !answers(&self.data.join("sock")) {
            if !running.is_alive() || Instant::now() > end {
                self.stop();
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Ends it, and its containers, as on a shutdown of the machine; what it has is kept.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }

    /// Kills it; its containers do not notice. It can be [run](Self::run) again.
    pub fn kill(&mut self) {
        self.signal("KILL");
        self.stop();
        // Its containerd dies with it. Where nobody has taken note of that yet, the next daemon would wait for it.
        let _ = std::fs::remove_file(self.data.join("exec/containerd/containerd.pid"));
    }

    /// Sends its process a signal, such as `STOP`: then it answers nothing, and connections stay open.
    pub fn signal(&self, name: &str) {
        self.running.as_ref().expect("a running daemon").signal(name);
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        drop(self.running.take());
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok::<_, std::io::Error>(line.contains("200"))
    };
    ask().unwrap_or(false)
}

/// Gives a daemon the images.
fn import(host: &str) {
    let host = host.to_owned();
    // Tests call this within a runtime of their own, which must not be blocked by another.
    let imported = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = bollard::Docker::connect_with_host(&host).expect("the daemon's address");
            let client = client.negotiate_version().await.expect("the daemon answers");
            for (name, files) in [(IMAGE, busybox()), (BARE_IMAGE, bare())] {
                let (repository, tag) = name.split_once(':').expect("a tag");
                let options = CreateImageOptionsBuilder::new().from_src("-").repo(repository).tag(tag).build();
                let mut steps = client.create_image(Some(options), Some(bollard::body_full(files.into())), None);
                while let Some(step) = steps.next().await {
                    step.expect("the image is taken");
                }
            }
        });
    });
    imported.join().expect("the images");
}

pub(crate) fn bare() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    add_folder(&mut tar, "etc", 0o755);
    tar.into_inner().expect("an archive")
}

fn add_folder(tar: &mut tar::Builder<Vec<u8>>, folder: &str, mode: u32) {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(mode);
    header.set_size(0);
    tar.append_data(&mut header, folder, &[][..]).expect("a folder");
}

pub(crate) fn busybox() -> Vec<u8> {
    let path = program("busybox", "busybox-static");
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["bin", "etc", "proc", "sys", "dev"] {
        add_folder(&mut tar, folder, 0o755);
    }
    add_folder(&mut tar, "tmp", 0o1777);
    tar.append_path_with_name(&path, "bin/busybox").expect("busybox");
    let list = Command::new(&path).arg("--list").output().expect("busybox --list");
    for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{name}"), "busybox").expect("a link");
    }
    tar.into_inner().expect("an archive")
}

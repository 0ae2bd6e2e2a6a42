//! A real Kubernetes cluster of one node (`tests/kubernetes/cluster`), gone with the process that started it.
//!
//! `BAE_TEST_KUBECONFIG` names the kubeconfig of a cluster to use instead, whose nodes have the images already; the variable
//! that other programs read is not looked at, for it may name a cluster that is no place for tests. The node has the images
//! that Docker daemons of the tests have.

use crate::docker::{BARE_IMAGE, IMAGE, bare, busybox};
use crate::supervised::{self, Supervised};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What holds a pod's network: it sleeps.
const PAUSE_IMAGE: &str = "bae-test-pause:1";
/// How long a cluster may take to start, when its programs are compiled.
const START: Duration = Duration::from_secs(240);

/// A cluster that runs.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    script: Supervised,
}

/// The kubeconfig of the cluster that tests share.
pub fn kubeconfig() -> PathBuf {
    static SHARED: OnceLock<(Option<Cluster>, PathBuf)> = OnceLock::new();
    let start = || match std::env::var_os("BAE_TEST_KUBECONFIG") {
        Some(given) => (None, given.into()),
        None => {
            let cluster = Cluster::start();
            let kubeconfig = cluster.kubeconfig();
            (Some(cluster), kubeconfig)
        }
    };
    SHARED.get_or_init(start).1.clone()
}

/// The socket at which the API server of that cluster answers without asking for a certificate, `unix://PATH`.
pub fn socket() -> String {
    format!("unix://{}", proxy().0.join("sock").display())
}

/// A kubeconfig for an API server at this address that asks for no certificate; removed at the end.
pub fn kubeconfig_of(url: &str) -> PathBuf {
    let name: String = url.chars().filter(char::is_ascii_alphanumeric).collect();
    let file = proxy().0.join(name);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "users": [{ "name": "nobody", "user": {} }],
        "clusters": [{ "name": "test", "cluster": { "server": url } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "nobody" } }],
    });
    std::fs::write(&file, config.to_string()).expect("a kubeconfig");
    file
}

/// The folder of the cluster's programs: `kubernetes`, which is `kubectl` too, and `helm`.
pub fn programs() -> PathBuf {
    let built = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/build")).output();
    String::from_utf8(built.expect("tests/kubernetes/build").stdout).expect("a path in UTF-8").trim().into()
}

/// A proxy of the shared cluster's API server that adds the certificate: its folder, and its process.
fn proxy() -> &'static (PathBuf, Supervised) {
    static SHARED: OnceLock<(PathBuf, Supervised)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let data = supervised::folder("kubernetes-proxy");
        let mut command = supervised::command(&data, "TERM", &programs().join("kubernetes"));
        // Without the filter it passes on commands, too.
        command.args(["kubectl", "proxy", "--disable-filter", "--kubeconfig"]).arg(kubeconfig());
        command.arg("--unix-socket").arg(data.join("sock"));
        let process = Supervised::start(command);
        let end = Instant::now() + Duration::from_secs(30);
        while !data.join("sock").exists() {
            let said = || std::fs::read_to_string(data.join("log")).unwrap_or_default();
            assert!(process.is_alive() && Instant::now() < end, "the proxy does not start: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
        (data, process)
    })
}

impl Cluster {
    /// Starts a cluster that has the images and nothing else.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with the images of these archives, which are moved away.
    pub fn start_with(archives: &[PathBuf]) -> Self {
        let data = supervised::folder("kubernetes");
        std::fs::create_dir_all(data.join("images")).expect("a folder for images");
        for (number, archive) in archives.iter().enumerate() {
            std::fs::rename(archive, data.join(format!("images/more{number}.tar"))).expect("an archive of images");
        }
        std::fs::write(data.join("images/all.tar"), images()).expect("the images");
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/cluster");
        let mut command = supervised::command(&data, "TERM", &program);
        command.arg(&data);
        let cluster = Self { data, script: Supervised::start(command) };
        let end = Instant::now() + START;
        while !cluster.data.join("ready").exists() {
            let alive = cluster.script.is_alive();
            let said = || std::fs::read_to_string(cluster.data.join("log")).unwrap_or_default();
            assert!(alive && Instant::now() < end, "the Kubernetes cluster does not start: {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
        cluster
    }

    /// The file that says where it is, with an administrator's certificate.
    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfig")
    }

    /// The address of its node, as this machine reaches it.
    pub fn node(&self) -> Ipv4Addr {
        let config = std::fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        let address = config.split_once("https://").and_then(|(_, rest)| rest.split_once(':')).expect("a server").0;
        address.parse().expect("an address")
    }

    /// The address of this machine, as pods reach it.
    pub fn host(&self) -> Ipv4Addr {
        let [a, b, c, _] = self.node().octets();
        Ipv4Addr::new(a, b, c, 1)
    }

    /// Sends one of its parts a signal, such as `STOP`: `kube-apiserver`, `kubelet`, `etcd`.
    pub fn signal(&self, part: &str, name: &str) {
        let pid = |part| std::fs::read_to_string(self.data.join("pid").join(part)).expect("a part of the cluster");
        let mut kill = Command::new("nsenter");
        kill.arg(format!("--pid=/proc/{}/ns/pid_for_children", pid("unshare").trim()));
        let done = kill.args(["kill", &format!("-{name}"), pid(part).trim()]).status().expect("nsenter");
        assert!(done.success(), "kill -{name} {part}");
    }
}

/// An archive of all images, as `docker save` writes it.
fn images() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &str, contents: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(contents.len() as u64);
        tar.append_data(&mut header, name, contents).expect("a file of the archive");
    };
    let mut manifest = Vec::new();
    let (busybox, bare) = (busybox(), bare());
    let sleep = json!(["/bin/busybox", "sleep", "2147483647"]);
    for (name, layer, main) in
        [(IMAGE, &busybox, Value::Null), (BARE_IMAGE, &bare, Value::Null), (PAUSE_IMAGE, &busybox, sleep)]
    {
        let (folder, digest) = (name.replace(':', "-"), digest(layer));
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Entrypoint": main },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
            "history": [{ "created_by": "tests" }],
        });
        let (layer_file, config_file) = (format!("{folder}/layer.tar"), format!("{folder}.json"));
        add(&layer_file, layer);
        add(&config_file, config.to_string().as_bytes());
        manifest.push(json!({ "Config": config_file, "RepoTags": [name], "Layers": [layer_file] }));
    }
    add("manifest.json", Value::from(manifest).to_string().as_bytes());
    tar.into_inner().expect("an archive")
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

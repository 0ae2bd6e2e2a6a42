//! The image and the chart on a real cluster (`tests/kubernetes`): installed, used, upgraded and scaled under load, removed.
//!
//! The image is the `run` stage of the project's Dockerfile with the program under test; Postgres and Redis come with the
//! release, from an image made of Debian's packages. Programs of this machine reach the release through its Service, on a port
//! of the cluster's node.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests::client::{Api, Session};
use tests::docker::{self, IMAGE};
use tests::kubernetes::{Cluster, programs};
use tests::poll::until;
use tests::ports::Port;
use tests::program::program;
use tests::provider::Provider;
use tests::server::ADMIN_KEY;
use tests::tls::{JsonServer, certificate};

/// How long pods may take that must start, be ready, or go.
const SETTLED: Duration = Duration::from_secs(180);
/// The port of the cluster's node for the client Service.
const NODE_PORT: u16 = 30080;

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("charts/bae")
}

/// Runs a command to its end; returns what it wrote, or fails with what it said.
fn run(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&done.stdout));
    String::from_utf8(done.stdout).expect("output in UTF-8")
}

/// Makes the images in the tests' Docker daemon; returns the folder with their archive.
fn images(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join("bae-tests").join(format!("images-{name}-{}", std::process::id()));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/images");
    run(Command::new(script).arg(&folder).arg(program("baesrv")).env("DOCKER_HOST", docker::host()));
    folder
}

/// The image serves with a read-only root, as its own user, and ends at once when it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn the_image_runs_read_only_and_as_nobody_special() {
    let folder = images("alone");
    let docker = |words: &[&str]| run(Command::new("docker").env("DOCKER_HOST", docker::host()).args(words));
    let (port, admin) = (Port::reserve(), Port::reserve());
    let addr = format!("BAE_ADDR=127.0.0.1:{}", port.number);
    let admin = format!("BAE_ADMIN_ADDR=127.0.0.1:{}", admin.number);
    let options = ["run", "--detach", "--network=host", "--read-only", "--tmpfs=/tmp:mode=1777", "--cap-drop=ALL"];
    let settings = ["--env", &addr, "--env", &admin, "--env", "BAE_DATABASE_URL=sqlite:/tmp/bae.db"];
    let file = ["--env", "BAE_ADMIN_KEY_FILE=/tmp/admin.key", "bae:test"];
    let id = docker(&[&options[..], &settings, &file].concat());
    let id = id.trim();
    let url = format!("http://127.0.0.1:{}/readyz", port.number);
    until(SETTLED, "the container's /readyz", async || match reqwest::get(&url).await {
        Ok(answer) if answer.status() == 200 => Ok(()),
        other => Err(format!("{other:?}: {}", docker(&["logs", id]))),
    })
    .await;
    let ready = format!("http://127.0.0.1:{}", port.number);
    docker(&["exec", id, "baesrv", "ready", "--url", &ready]);
    let status = docker(&["exec", id, "sh", "-c", "cat /proc/1/comm /proc/1/status"]);
    assert!(status.starts_with("tini") && status.contains("Uid:\t10001\t10001"), "{status}");
    docker(&["stop", "--time", "20", id]);
    let ended = docker(&["inspect", "--format", "{{.State.ExitCode}}", id]);
    assert!(["0", "143"].contains(&ended.trim()), "{ended}: {}", docker(&["logs", id]));
    docker(&["rm", "--volumes", id]);
    let _ = std::fs::remove_dir_all(folder);
}

/// A release on a cluster of its own.
struct Release {
    cluster: Cluster,
    programs: PathBuf,
    folder: PathBuf,
}

impl Release {
    fn kubectl(&self, words: &[&str]) -> String {
        run(self.command("kubernetes").arg("kubectl").args(words))
    }

    fn helm(&self, words: &[&str]) -> String {
        run(self.command("helm").args(["--namespace", "bae"]).args(words))
    }

    fn upgrade(&self, words: &[String]) {
        self.helm(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.env("KUBECONFIG", self.cluster.kubeconfig()).env("HOME", &self.folder);
        command
    }

    /// `baesrv admin` in a node's pod; returns its JSON.
    fn admin(&self, words: &[&str]) -> Value {
        let exec = ["--namespace", "bae", "exec", "deploy/bae", "--", "baesrv", "admin", "--json"];
        let said = self.kubectl(&[&exec[..], words].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The pods of the nodes that are ready.
    fn ready_nodes(&self) -> usize {
        let status = "jsonpath={.status.readyReplicas}";
        let said = self.kubectl(&["--namespace", "bae", "get", "deploy/bae", "--output", status]);
        said.trim().parse().unwrap_or(0)
    }

    async fn until_nodes(&self, what: &str, fits: impl Fn(usize) -> bool) {
        until(SETTLED, what, async || {
            let ready = self.ready_nodes();
            if fits(ready) {
                return Ok(());
            }
            Err(self.kubectl(&["--namespace", "bae", "get", "hpa,pods"]))
        })
        .await;
    }
}

/// Calls that go on until they are told to stop. None may fail.
struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Result<(), String>>>,
}

impl Load {
    fn start(sessions: Vec<Session>, pause: Duration) -> Self {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = sessions.into_iter().map(|session| {
            let (stop, calls) = (stop.clone(), calls.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let outcome = session.try_rpc("session.sendMessage", message("hello")).await?;
                    if outcome.text() != "ok" {
                        return Err(outcome.text());
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(pause).await;
                }
                Ok(())
            })
        });
        let tasks = tasks.collect();
        Self { stop, calls, tasks }
    }

    /// Ends it; returns how many calls were made, all of which succeeded.
    async fn end(self, what: &str) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await
                .unwrap_or_else(|error| panic!("{what}: {error}"))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let calls = self.calls.load(Ordering::Relaxed);
        println!("{what}: {calls} calls, 0 failed");
        calls
    }
}

fn message(text: &str) -> Value {
    json!({"message": {"role": "user", "content": [{"type": "text", "text": text}]}})
}

fn values(provider: &Provider) -> Value {
    json!({
        "image": {"repository": "bae", "tag": "test", "pullPolicy": "Never"},
        "replicas": 2,
        "secret": {"name": "bae"},
        "service": {"type": "NodePort", "nodePort": NODE_PORT},
        "shutdownTimeout": 20,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "postgres": {
            "enabled": true, "image": "bae-test-servers:1", "userId": 10002, "persistence": {"enabled": false},
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        },
        "redis": {
            "enabled": true, "image": "bae-test-servers:1", "userId": 10002,
            "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
        },
        "sandbox": {"driver": "kubernetes", "namespace": "bae-sandboxes"},
        "settings": {"sandbox_pull_policy": "Never", "sandbox_cpu": 0.1, "sandbox_memory": 67_108_864},
        "config": tests::fixture::provider_toml("main", "anthropic", &provider.url(), ""),
    })
}

/// From `helm install` to nothing left: a served turn, a sandbox, an upgrade and the autoscaler under load.
#[tokio::test(flavor = "multi_thread")]
async fn from_install_to_uninstall() {
    let folder = images("chart");
    let cluster = Cluster::start_with(&[folder.join("images.tar")]);
    let provider = Provider::start_at(cluster.host()).await;
    let release = Release { cluster, programs: programs(), folder };
    rendered_values_are_taken(&release);

    release.kubectl(&["create", "namespace", "bae"]);
    let secret = ["--from-literal=postgres-password=trial", "--from-literal=redis-password=trial"];
    let key = format!("--from-literal=admin-key={ADMIN_KEY}");
    release.kubectl(&[&["--namespace", "bae", "create", "secret", "generic", "bae", &key], &secret[..]].concat());
    let file = release.folder.join("values.json");
    std::fs::write(&file, values(&provider).to_string()).unwrap();
    let (chart, file) = (chart(), file.display().to_string());
    let chart = chart.to_str().unwrap();
    let said = release.helm(&["install", "bae", chart, "--values", &file, "--wait", "--timeout", "4m"]);
    assert!(said.contains("kubectl"), "the notes say how to go on: {said}");
    assert!(release.helm(&["test", "bae"]).contains("Succeeded"));

    let images = format!("--available-sandboxes={IMAGE}");
    release.admin(&["profile", "create", "main", "--primary-provider", "main", &images]);
    let key = release.admin(&["key", "create", "app", "--profile", "main"]);
    let key = key["key"].as_str().unwrap().to_owned();
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap();
    let api = Api::new(http, format!("http://{}:{NODE_PORT}", release.cluster.node()));
    let session = api.open(&key, &json!({})).await;
    session.register().await;
    assert_eq!(session.send("hello").await.text(), "ok");

    a_sandbox(&release, &session).await;

    let open = async |count: usize| {
        let mut sessions = Vec::new();
        for _ in 0..count {
            let session = api.open(&key, &json!({})).await;
            session.register().await;
            sessions.push(session);
        }
        sessions
    };
    let load = Load::start(open(4).await, Duration::from_millis(20));
    let round = [
        "upgrade",
        "bae",
        chart,
        "--values",
        &file,
        "--wait",
        "--timeout",
        "4m",
        "--set-string",
        "podAnnotations.round=2",
    ];
    release.helm(&round);
    release.helm(&["rollback", "bae", "1", "--wait", "--timeout", "4m"]);
    assert!(load.end("upgrade and rollback under load").await > 100);

    // Out as load comes, in as it goes; calls go on all the time.
    let few = Load::start(open(1).await, Duration::from_millis(500));
    let scale = |more: &[&'static str]| {
        let mut words = vec!["upgrade", "bae", chart, "--values", file.as_str(), "--wait"];
        let sets = [
            "autoscaling.enabled=true,autoscaling.minReplicas=2,autoscaling.maxReplicas=4,autoscaling.cpuUtilization=60",
            "autoscaling.behavior.scaleDown.stabilizationWindowSeconds=0",
            "autoscaling.behavior.scaleDown.policies[0].type=Pods,autoscaling.behavior.scaleDown.policies[0].value=2",
            "autoscaling.behavior.scaleDown.policies[0].periodSeconds=5",
        ];
        words.extend(sets.iter().chain(more).flat_map(|set| ["--set", set]));
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    release.upgrade(&scale(&[]));
    let many = Load::start(open(12).await, Duration::ZERO);
    release.until_nodes("more nodes under load", |ready| ready > 2).await;
    many.end("load that makes pods").await;
    release.until_nodes("fewer nodes without load", |ready| ready == 2).await;
    of_turns_that_run(&release, &scale(&["autoscaling.custom.enabled=true", "autoscaling.cpuUtilization=null"])).await;
    few.end("calls while nodes come and go").await;

    release.helm(&["uninstall", "bae", "--wait", "--timeout", "4m"]);
    let kinds =
        "all,configmap,secret,pvc,ingress,networkpolicy,serviceaccount,role,rolebinding,poddisruptionbudget,hpa";
    until(SETTLED, "nothing but the Secret, which is not the release's", async || {
        let left = release.kubectl(&["--namespace", "bae", "get", kinds, "--output", "name"]);
        let of_the_cluster = |name: &&str| name.contains("kube-root-ca") || name.ends_with("/default");
        let left: Vec<String> = left.lines().filter(|name| !of_the_cluster(name)).map(str::to_owned).collect();
        if left == ["secret/bae"] { Ok(()) } else { Err(left) }
    })
    .await;
    let _ = std::fs::remove_dir_all(&release.folder);
}

/// The autoscaler follows the turns that run on the nodes, as an adapter for custom metrics tells it; here, the test.
async fn of_turns_that_run(release: &Release, upgrade: &[String]) {
    let told = Arc::new(Mutex::new((Vec::<String>::new(), 0)));
    let shared = told.clone();
    certificate(&release.folder, "authority", "server");
    let server = JsonServer::start(release.cluster.host(), &release.folder, move |path| {
        let path = path.replace("%2A", "*");
        let group = "/apis/custom.metrics.k8s.io/v1beta2";
        if path.split('?').next() == Some(group) {
            let metric = json!({"name": "pods/bae_turns_running", "namespaced": true, "kind": "MetricValueList", "verbs": ["get"]});
            let list = json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "custom.metrics.k8s.io/v1beta2",
                "resources": [metric],
            });
            return Some(list.to_string());
        }
        let metric = path.strip_prefix(&format!("{group}/namespaces/bae/pods/*/"))?.split('?').next()?.to_owned();
        let (pods, turns) = &*shared.lock().unwrap();
        let value = |pod: &String| {
            let value = if metric == "bae_turns_running" { *turns } else { 0 };
            let object = json!({"kind": "Pod", "apiVersion": "v1", "namespace": "bae", "name": pod});
            let time = "2026-01-01T00:00:00Z";
            json!({"describedObject": object, "metric": {"name": metric}, "timestamp": time, "value": value.to_string()})
        };
        let items: Vec<Value> = pods.iter().map(value).collect();
        let list = json!({"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {}, "items": items});
        Some(list.to_string())
    })
    .await;
    let name = json!({"name": "metrics-of-the-test", "namespace": "kube-system"});
    let objects = json!({"kind": "List", "apiVersion": "v1", "items": [
        {"kind": "Service", "apiVersion": "v1", "metadata": name,
            "spec": {"ports": [{"port": 443, "targetPort": server.addr.port()}]}},
        {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {"name": "metrics-of-the-test", "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "metrics-of-the-test"}},
            "ports": [{"port": server.addr.port()}], "endpoints": [{"addresses": [server.addr.ip().to_string()]}]},
        {"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1", "metadata": {"name": "v1beta2.custom.metrics.k8s.io"},
            "spec": {"group": "custom.metrics.k8s.io", "version": "v1beta2", "groupPriorityMinimum": 100,
                "versionPriority": 100, "insecureSkipTLSVerify": true, "service": name}},
    ]});
    let file = release.folder.join("metrics.json");
    std::fs::write(&file, objects.to_string()).unwrap();
    release.kubectl(&["apply", "--filename", file.to_str().unwrap()]);
    release.kubectl(&[
        "wait",
        "--for=condition=Available",
        "apiservice/v1beta2.custom.metrics.k8s.io",
        "--timeout=60s",
    ]);
    release.upgrade(upgrade);
    for (turns, nodes) in [(150, 4), (1, 2)] {
        until(SETTLED, &format!("{nodes} nodes for {turns} turns on each"), async || {
            let selector = "app.kubernetes.io/component=node";
            let names = ["--output", "jsonpath={.items[*].metadata.name}", "--selector", selector];
            let pods = release.kubectl(&[&["--namespace", "bae", "get", "pods"], &names[..]].concat());
            *told.lock().unwrap() = (pods.split_whitespace().map(str::to_owned).collect(), turns);
            if release.ready_nodes() == nodes {
                return Ok(());
            }
            Err(release.kubectl(&["--namespace", "bae", "describe", "hpa"]))
        })
        .await;
    }
}

/// What the chart makes of each file of values is taken by the API server.
fn rendered_values_are_taken(release: &Release) {
    // Kinds of other projects are there with any content.
    let kinds = [("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")].map(|(kind, plural)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        })
    });
    for kind in kinds {
        let path = release.folder.join("kind.json");
        std::fs::write(&path, kind.to_string()).unwrap();
        release.kubectl(&["apply", "--filename", path.to_str().unwrap()]);
    }
    release.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    for namespace in ["rendered", "bae-sandboxes-rendered"] {
        release.kubectl(&["create", "namespace", namespace]);
    }
    // Objects that name no namespace belong into this one; others may name another.
    let config = std::fs::read_to_string(release.cluster.kubeconfig()).unwrap();
    let kubeconfig = release.folder.join("rendered.kubeconfig");
    std::fs::write(&kubeconfig, config.replace("user: admin}", "user: admin, namespace: rendered}")).unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(chart().join("ci")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        files += 1;
        let (chart, path) = (chart(), path.display().to_string());
        let mut helm = release.command("helm");
        helm.args(["--namespace", "rendered", "template", "x"]).arg(chart).args(["--values", &path]);
        // Objects in a namespace that is made by the same release cannot be tried before it exists.
        helm.args(["--kube-version", "1.34.0", "--set", "sandbox.namespace=bae-sandboxes-rendered"]);
        let rendered = run(&mut helm);
        assert!(rendered.contains("kind: Deployment"), "{path}");
        std::fs::write(release.folder.join("rendered.yaml"), &rendered).unwrap();
        let mut kubectl = release.command("kubernetes");
        kubectl.env("KUBECONFIG", &kubeconfig).args(["kubectl", "apply", "--dry-run=server", "--filename"]);
        let said = run(kubectl.arg(release.folder.join("rendered.yaml")));
        assert!(said.contains("deployment.apps/"), "{path}: {said}");
    }
    assert!(files >= 6, "{files} files of values");
    for namespace in ["rendered", "bae-sandboxes-rendered"] {
        release.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
}

/// A sandbox is a pod under the chart's own rights and policies; what the rights do not name is refused.
async fn a_sandbox(release: &Release, session: &Session) {
    let started = session.rpc("session.startRemoteSandbox", json!({"image": IMAGE})).await;
    assert!(started.result()["sandbox_id"].is_string(), "{:?}", started.result());
    let done = session.rpc("session.execRemoteSandbox", json!({"command": "echo from a pod"})).await;
    assert_eq!(done.result()["stdout"], "from a pod\n");
    let database = "timeout 3 nc bae-postgres.bae.svc 5432 </dev/null && echo reached || echo refused";
    let done = session.rpc("session.execRemoteSandbox", json!({"command": database})).await;
    assert_eq!(done.result()["stdout"], "refused\n", "a sandbox does not reach the release's database");
    let node = "--as=system:serviceaccount:bae:bae";
    let may = |words: &[&str]| {
        let mut ask = release.command("kubernetes");
        ask.args(["kubectl", "auth", "can-i", node]).args(words);
        let said = ask.output().expect("kubectl").stdout;
        String::from_utf8_lossy(&said).trim() == "yes"
    };
    assert!(may(&["create", "pods", "--namespace", "bae-sandboxes"]));
    for (verb, what, namespace) in [
        ("create", "pods", "bae"),
        ("get", "secrets", "bae"),
        ("create", "pods/exec", "bae"),
        ("create", "rolebindings", "bae-sandboxes"),
        ("delete", "namespaces", "bae-sandboxes"),
        ("get", "nodes", "bae"),
    ] {
        assert!(!may(&[verb, what, "--namespace", namespace]), "{verb} {what} in {namespace}");
    }
    assert_eq!(session.delete().await.status, 200);
    until(SETTLED, "no sandbox is left", async || {
        let pods = release.kubectl(&["--namespace", "bae-sandboxes", "get", "pods", "--output", "name"]);
        if pods.is_empty() { Ok(()) } else { Err(pods) }
    })
    .await;
}

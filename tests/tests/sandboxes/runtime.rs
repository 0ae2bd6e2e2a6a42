//! Where sandboxes and subagents run, as the tests see it: each of the same tests is run over each runtime.

use super::{BARE_IMAGE, IMAGE, MISSING_IMAGE};
use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions, TopOptions,
};
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{AttachParams, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::docker::gate::{Gate, HeldCall, Point};
use tests::docker::host;
use tests::fixture;
use tests::poll;

/// A container runtime: its address for nodes, and a client of the test's own.
pub(super) enum Runtime {
    Docker { host: String, client: Docker },
    Kubernetes { kubeconfig: PathBuf, client: Client },
}

/// Runs each test over each runtime, with the runtime as its argument.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        mod docker {
            $(#[tokio::test]
            async fn $test() {
                Box::pin(super::$test(crate::sandboxes::Runtime::docker())).await;
            })+
        }
        mod kubernetes {
            $(#[tokio::test]
            async fn $test() {
                Box::pin(super::$test(crate::sandboxes::Runtime::kubernetes().await)).await;
            })+
        }
    };
}
pub(super) use over_both;

/// A container, or a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Container {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Something that a node asks of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// To make a container.
    Create,
    /// To start it, or to be told when it has started.
    Run,
    /// To hand a subagent its prompt.
    Prompt,
    /// To read what a subagent has left.
    Collect,
    /// To remove a container.
    Remove,
}

impl Runtime {
    /// The Docker daemon that tests share.
    pub(super) fn docker() -> Self {
        Self::docker_at(&host())
    }

    pub(super) fn docker_at(host: &str) -> Self {
        let client = Docker::connect_with_host(host).expect("the daemon's address");
        Self::Docker { host: host.to_owned(), client }
    }

    /// The cluster that tests share.
    pub(super) async fn kubernetes() -> Self {
        Self::kubernetes_of(&tests::kubernetes::kubeconfig()).await
    }

    pub(super) async fn kubernetes_of(kubeconfig: &Path) -> Self {
        let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
        let client = Client::try_from(config).expect("a client");
        Self::Kubernetes { kubeconfig: kubeconfig.to_owned(), client }
    }

    /// The settings of nodes that use it.
    fn settings(&self) -> [(&'static str, String); 2] {
        match self {
            Self::Docker { host, .. } => [("BAE_SANDBOX_DRIVER", "docker".into()), ("DOCKER_HOST", host.clone())],
            Self::Kubernetes { kubeconfig, .. } => {
                let kubeconfig = kubeconfig.to_str().expect("a path in UTF-8").to_owned();
                [("BAE_SANDBOX_DRIVER", "kubernetes".into()), ("KUBECONFIG", kubeconfig)]
            }
        }
    }

    /// One node on SQLite whose profile has the images.
    pub(super) fn plan(&self) -> fixture::Plan {
        let plan = fixture::Plan::default().profile("available_sandboxes", json!([IMAGE, BARE_IMAGE, MISSING_IMAGE]));
        self.settings().iter().fold(plan, |plan, (name, value)| plan.env(name, value))
    }

    /// Three nodes whose profile has the images.
    pub(super) fn cluster_plan(&self) -> tests::cluster::Plan {
        let plan = tests::cluster::Plan::default().images(&[IMAGE, BARE_IMAGE]);
        self.settings().iter().fold(plan, |plan, (name, value)| plan.env(name, value))
    }

    /// The same runtime behind a gate, and the gate.
    pub(super) async fn gated(&self) -> (Gate, Self) {
        match self {
            Self::Docker { host, client } => {
                let gate = Gate::before(host).await;
                let host = gate.host();
                (gate, Self::Docker { host, client: client.clone() })
            }
            Self::Kubernetes { client, .. } => {
                let gate = Gate::before(&tests::kubernetes::socket()).await;
                let kubeconfig = tests::kubernetes::kubeconfig_of(&gate.host().replace("tcp:", "http:"));
                (gate, Self::Kubernetes { kubeconfig, client: client.clone() })
            }
        }
    }

    /// Holds the next call that asks for this.
    pub(super) fn hold(&self, gate: &Gate, step: Step, point: Point) -> HeldCall {
        let (method, part) = match (self, step) {
            (Self::Docker { .. }, Step::Create) => ("POST", "/containers/create"),
            (Self::Docker { .. }, Step::Run) => ("POST", "/start"),
            (Self::Docker { .. }, Step::Prompt) => ("PUT", "/archive"),
            (Self::Docker { .. }, Step::Collect) => ("GET", "/archive"),
            (Self::Docker { .. }, Step::Remove) => ("DELETE", "/containers/"),
            (Self::Kubernetes { .. }, Step::Create) => ("POST", "/pods?"),
            (Self::Kubernetes { .. }, Step::Run) => ("GET", "watch=true"),
            (Self::Kubernetes { .. }, Step::Prompt) => ("POST", "/secrets?"),
            (Self::Kubernetes { .. }, Step::Collect) => ("GET", "/exec?"),
            (Self::Kubernetes { .. }, Step::Remove) => ("DELETE", "/pods/"),
        };
        gate.hold(method, part, point)
    }

    async fn all(&self) -> Vec<Container> {
        match self {
            Self::Docker { client, .. } => {
                let options = ListContainersOptionsBuilder::new().all(true).build();
                let found = client.list_containers(Some(options)).await.expect("the daemon lists its containers");
                let container = |found: bollard::models::ContainerSummary| Container {
                    name: found.names.expect("names")[0].trim_start_matches('/').to_owned(),
                    labels: found.labels.unwrap_or_default().into_iter().collect(),
                };
                found.into_iter().map(container).collect()
            }
            Self::Kubernetes { .. } => {
                let found = |metadata: ObjectMeta, prefix: &str| Container {
                    name: format!("{prefix}{}", metadata.name.expect("a name")),
                    labels: metadata.labels.unwrap_or_default(),
                };
                let secrets = self.api::<Secret>().list(&ListParams::default()).await.expect("the secrets");
                let pods = self.api::<Pod>().list(&ListParams::default()).await.expect("the pods");
                let mut all: Vec<_> = pods.items.into_iter().map(|pod| found(pod.metadata, "")).collect();
                for secret in secrets.items {
                    // One that goes with its pod is part of it.
                    if !all.iter().any(|pod| Some(&pod.name) == secret.metadata.name.as_ref()) {
                        all.push(found(secret.metadata, "secret/"));
                    }
                }
                all
            }
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let Self::Kubernetes { client, .. } = self else { panic!("there is no cluster") };
        Api::default_namespaced(client.clone())
    }

    /// What there is of a session.
    pub(super) async fn of(&self, session: &str) -> Vec<Container> {
        let mut all = self.all().await;
        all.retain(|container| container.labels.values().any(|value| value == session));
        all
    }

    /// The container that is a sandbox or a subagent of this id.
    pub(super) async fn container(&self, id: &str) -> Container {
        let mut all = self.all().await;
        all.retain(|container| container.labels.values().any(|value| value == id));
        assert_eq!(all.len(), 1, "{id}: {all:?}");
        all.remove(0)
    }

    /// Waits until a session has so many containers.
    pub(super) async fn until(&self, session: &str, count: usize, limit: Duration) {
        poll::until(limit, &format!("{count} containers"), async || {
            let found = self.of(session).await;
            if found.len() == count { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Everything that the runtime shows of a container, and the processes in it.
    pub(super) async fn inspect(&self, container: &Container) -> String {
        let name = container.name.as_str();
        match self {
            Self::Docker { client, .. } => {
                let shown = client.inspect_container(name, None::<InspectContainerOptions>).await.expect("it is shown");
                let processes = client.top_processes(name, None::<TopOptions>).await.expect("its processes");
                format!("{shown:?} {processes:?}")
            }
            Self::Kubernetes { .. } => {
                let shown = self.api::<Pod>().get(name).await.expect("it is shown");
                format!("{shown:?} {}", self.run(container, &["sh", "-c", "cat /proc/[0-9]*/cmdline"]).await)
            }
        }
    }

    /// Removes a container behind the server's back.
    pub(super) async fn remove(&self, container: &Container) {
        let name = container.name.as_str();
        match self {
            Self::Docker { client, .. } => {
                let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
                client.remove_container(name, Some(options)).await.expect("it is removed");
            }
            Self::Kubernetes { .. } => {
                let pods = self.api::<Pod>();
                pods.delete(name, &DeleteParams::default().grace_period(1)).await.expect("it is removed");
                poll::until(poll::DEADLINE, "the pod is gone", async || {
                    match pods.get_opt(name).await.expect("a pod") {
                        None => Ok(()),
                        Some(pod) => Err(pod.status),
                    }
                })
                .await;
            }
        }
    }

    /// Has a pod removed, and holds it back so that it stays; or lets it go.
    pub(super) async fn hold_back(&self, pod: &Container, held: bool) {
        let pods = self.api::<Pod>();
        let finalizers = if held { json!(["bae.test/held"]) } else { json!(null) };
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        pods.patch(&pod.name, &PatchParams::default(), &patch).await.expect("it is changed");
        if held {
            pods.delete(&pod.name, &DeleteParams::default().grace_period(1)).await.expect("it is to be removed");
        }
    }

    /// Makes a file in a container, as a sign for what runs there.
    pub(super) async fn touch(&self, container: &Container, path: &str) {
        self.run(container, &["touch", path]).await;
    }

    /// Runs a command in a container; returns what it says.
    async fn run(&self, container: &Container, command: &[&str]) -> String {
        match self {
            Self::Docker { client, .. } => {
                let options = CreateExecOptions { cmd: Some(command.to_vec()), ..CreateExecOptions::default() };
                let exec = client.create_exec(&container.name, options).await.expect("a command").id;
                let started = client.start_exec(&exec, None::<StartExecOptions>).await.expect("it starts");
                let StartExecResults::Attached { output, .. } = started else { return String::new() };
                let output: Vec<_> = output.try_collect().await.expect("its output");
                output.iter().map(ToString::to_string).collect()
            }
            Self::Kubernetes { .. } => {
                let parameters = AttachParams { container: Some("main".into()), ..AttachParams::default() };
                let started = self.api::<Pod>().exec(&container.name, command.to_vec(), &parameters).await;
                let mut process = started.expect("it starts");
                let mut said = Vec::new();
                let mut stdout = process.stdout().expect("its output");
                tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut said).await.expect("its output");
                process.join().await.expect("it ends");
                String::from_utf8_lossy(&said).into_owned()
            }
        }
    }

    /// Makes a container that says it is the sandbox of that id, of another deployment perhaps.
    pub(super) async fn forge(&self, real: &Container, id: &str, forged: &str, deployment: Option<&str>) {
        let replace = |text: &str| text.replace(id, forged);
        let mut labels = real.labels.clone();
        for (label, value) in &mut labels {
            *value = replace(value);
            if let Some(deployment) = deployment.filter(|_| label.ends_with("deployment")) {
                deployment.clone_into(value);
            }
        }
        match self {
            Self::Docker { client, .. } => {
                let body = ContainerCreateBody {
                    image: Some(IMAGE.to_owned()),
                    cmd: Some(vec!["sleep".to_owned(), "1000".to_owned()]),
                    labels: Some(labels.into_iter().collect()),
                    host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
                    ..ContainerCreateBody::default()
                };
                let name = replace(&real.name);
                let options = CreateContainerOptionsBuilder::new().name(&name).build();
                client.create_container(Some(options), body).await.unwrap();
                client.start_container(&name, None::<StartContainerOptions>).await.unwrap();
            }
            Self::Kubernetes { .. } => {
                let pods = self.api::<Pod>();
                let mut pod = pods.get(&real.name).await.unwrap();
                let own = |id: &str| id.replace('_', "-");
                let name = Some(real.name.replace(&own(id), &own(forged)));
                pod.metadata = ObjectMeta { name, labels: Some(labels), ..ObjectMeta::default() };
                pod.status = None;
                pods.create(&PostParams::default(), &pod).await.unwrap();
            }
        }
    }
}

//! A driver with a deployment of its own, so that each test sees only what it has started.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use sandbox::{
    Command, Docker, Error, Kind, Kubernetes, Limits, Network, Output, PodSettings, Progress, Sandboxes, Settings,
    Spec, SubagentSpec,
};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tests::docker::{self, IMAGE};
use tests::poll;
use tokio::runtime::Handle;

pub(crate) struct Fixture {
    pub(crate) sandboxes: Sandboxes,
    deployment: String,
    runtime: Runtime,
}

/// Where the containers run.
#[derive(Debug, Clone)]
enum Runtime {
    /// A Docker daemon at this address.
    Docker(String),
    /// The cluster of this kubeconfig.
    Kubernetes(PathBuf),
}

/// What tests have that do not say otherwise.
pub(crate) fn limits() -> Limits {
    Limits { memory: 256 << 20, milli_cpus: 2000, pids: 100, max_age: Duration::from_secs(600), network: Network::Off }
}

/// How pods are made that do not say otherwise.
pub(crate) fn pods() -> PodSettings {
    PodSettings {
        memory_request: 8 << 20,
        milli_cpus_request: 1,
        start_timeout: Duration::from_secs(90),
        ..PodSettings::default()
    }
}

/// A driver for the cluster of this kubeconfig.
pub(crate) fn kubernetes(kubeconfig: &Path, settings: Settings, pods: PodSettings) -> Kubernetes {
    let made = Kubernetes::new(Some(kubeconfig), settings, pods);
    tokio::task::block_in_place(|| Handle::current().block_on(made)).unwrap()
}

impl Fixture {
    pub(crate) fn docker() -> Self {
        Self::on(docker::host(), limits(), Duration::from_secs(60))
    }

    pub(crate) fn on(host: String, limits: Limits, call_timeout: Duration) -> Self {
        Self::new(Runtime::Docker(host), limits, call_timeout)
    }

    pub(crate) fn kubernetes() -> Self {
        let kubeconfig = tokio::task::block_in_place(tests::kubernetes::kubeconfig);
        Self::in_cluster(kubeconfig, Duration::from_secs(60))
    }

    pub(crate) fn in_cluster(kubeconfig: PathBuf, call_timeout: Duration) -> Self {
        Self::new(Runtime::Kubernetes(kubeconfig), limits(), call_timeout)
    }

    fn new(runtime: Runtime, limits: Limits, call_timeout: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let deployment = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let settings = Settings { deployment: deployment.clone(), limits, call_timeout };
        Self { sandboxes: runtime.driver(settings, pods()), deployment, runtime }
    }

    /// Another deployment that shares the runtime.
    pub(crate) fn stranger(&self) -> Self {
        Self::new(self.runtime.clone(), limits(), Duration::from_secs(60))
    }

    /// The same deployment, as another node sees it.
    pub(crate) fn another_node(&self) -> Sandboxes {
        self.with_limits(limits())
    }

    /// The same deployment with other limits.
    pub(crate) fn with_limits(&self, limits: Limits) -> Sandboxes {
        self.runtime.driver(self.settings(limits), pods())
    }

    /// The same deployment with other pods.
    pub(crate) fn with_pods(&self, pods: PodSettings) -> Sandboxes {
        self.runtime.driver(self.settings(limits()), pods)
    }

    /// The same deployment, as a node sees it that has this token in place of an administrator's certificate.
    pub(crate) fn with_token(&self, token: &str) -> Sandboxes {
        let Runtime::Kubernetes(kubeconfig) = &self.runtime else { panic!("there is no cluster") };
        let mut file = Kubeconfig::read_from(kubeconfig).unwrap();
        file.auth_infos[0].auth_info = Some(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() });
        let own = std::env::temp_dir().join(format!("bae-{}", self.deployment));
        std::fs::write(&own, k8s_openapi::serde_json::to_string(&file).unwrap()).unwrap();
        let node = Runtime::Kubernetes(own.clone()).driver(self.settings(limits()), pods());
        std::fs::remove_file(own).unwrap();
        node
    }

    pub(crate) fn deployment(&self) -> &str {
        &self.deployment
    }

    /// The same deployment with the usual time for calls.
    pub(crate) fn patient(&self) -> Self {
        let (deployment, runtime) = (self.deployment.clone(), self.runtime.clone());
        Self { sandboxes: self.another_node(), deployment, runtime }
    }

    /// The address of this machine as the cluster sees it.
    pub(crate) fn host_address(&self) -> IpAddr {
        let Runtime::Kubernetes(kubeconfig) = &self.runtime else { panic!("there is no cluster") };
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let server = file.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.as_deref()).unwrap();
        let server: http::Uri = server.parse().unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((server.host().unwrap(), server.port_u16().unwrap_or(443))).unwrap();
        socket.local_addr().unwrap().ip()
    }

    fn settings(&self, limits: Limits) -> Settings {
        Settings { deployment: self.deployment.clone(), limits, call_timeout: Duration::from_secs(60) }
    }

    /// Removes a container as a person would, behind the driver's back.
    pub(crate) async fn remove_by_hand(&self, id: &str) {
        let name = format!("bae-{id}");
        match &self.runtime {
            Runtime::Docker(host) => {
                let options = bollard::query_parameters::RemoveContainerOptionsBuilder::new().force(true).build();
                bollard(host).await.remove_container(&name, Some(options)).await.unwrap();
            }
            Runtime::Kubernetes(_) => {
                let pods: Api<Pod> = self.api().await;
                pods.delete(&name, &DeleteParams::default().grace_period(1)).await.unwrap();
                poll::until(poll::DEADLINE, "the pod is gone", async || match pods.get_opt(&name).await.unwrap() {
                    None => Ok(()),
                    Some(pod) => Err(pod.status),
                })
                .await;
            }
        }
    }

    /// Everything that a person sees who asks the runtime what a container is made of.
    pub(crate) async fn description(&self, id: &str) -> String {
        let name = format!("bae-{id}");
        match &self.runtime {
            Runtime::Docker(host) => {
                let options = None::<bollard::query_parameters::InspectContainerOptions>;
                format!("{:?}", bollard(host).await.inspect_container(&name, options).await.unwrap())
            }
            Runtime::Kubernetes(_) => format!("{:?}", self.api::<Pod>().await.get(&name).await.unwrap()),
        }
    }

    /// Takes the network from those that must not have one, where the driver leaves that to somebody else; false where not.
    pub(crate) async fn isolate(&self) -> bool {
        let Runtime::Kubernetes(_) = &self.runtime else { return false };
        // The policy of docs/operations.md.
        let labels = [("bae.deployment", self.deployment.as_str()), ("bae.network", "off")];
        let selector = LabelSelector {
            match_labels: Some(labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into()),
            ..LabelSelector::default()
        };
        let policy = NetworkPolicy {
            metadata: ObjectMeta { name: Some(self.deployment.clone()), ..ObjectMeta::default() },
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(selector),
                policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
                ..NetworkPolicySpec::default()
            }),
        };
        self.api::<NetworkPolicy>().await.create(&PostParams::default(), &policy).await.unwrap();
        true
    }

    /// Objects of the cluster.
    pub(crate) async fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let Runtime::Kubernetes(kubeconfig) = &self.runtime else { panic!("there is no cluster") };
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        Api::default_namespaced(kube::Client::try_from(config).unwrap())
    }

    pub(crate) fn spec(&self, id: &str) -> Spec {
        let id = format!("{}-{id}", self.deployment);
        Spec { id, image: IMAGE.into(), session: "ses_1".into(), profile: "prf_1".into() }
    }

    pub(crate) fn subagent(&self, id: &str, command: &str) -> SubagentSpec {
        SubagentSpec {
            container: self.spec(id),
            command: command.into(),
            prompt: Vec::new(),
            timeout: Duration::from_secs(60),
            output_cap: 65_536,
        }
    }

    /// Starts a sandbox; answers with its id.
    pub(crate) async fn start(&self, id: &str) -> String {
        let spec = self.spec(id);
        self.sandboxes.start(&spec).await.unwrap();
        spec.id
    }

    pub(crate) async fn exec(&self, id: &str, script: &str) -> Result<Output, Error> {
        self.sandboxes.exec(id, &command(script)).await
    }

    /// The standard output of a command that succeeds.
    pub(crate) async fn sh(&self, id: &str, script: &str) -> String {
        let output = self.exec(id, script).await.unwrap();
        assert_eq!((output.exit_code, output.stderr.text.as_str()), (0, ""), "{script}: {output:?}");
        output.stdout.text
    }

    /// Launches a subagent, and waits for its end.
    pub(crate) async fn run(&self, spec: &SubagentSpec) -> sandbox::Ended {
        self.sandboxes.launch(spec).await.unwrap();
        self.ended(spec).await
    }

    pub(crate) async fn ended(&self, spec: &SubagentSpec) -> sandbox::Ended {
        self.ended_within(spec, poll::DEADLINE).await
    }

    /// The same, where that may take longer.
    pub(crate) async fn ended_within(&self, spec: &SubagentSpec, limit: Duration) -> sandbox::Ended {
        poll::until(limit, "the subagent ends", async || {
            match self.sandboxes.collect(&spec.container.id, spec.output_cap).await.unwrap() {
                Progress::Ended(ended) => Ok(ended),
                other => Err(other),
            }
        })
        .await
    }

    /// The command lines of the processes in a sandbox but its main process and the `sleep` that belongs to that.
    pub(crate) async fn processes(&self, id: &str) -> Vec<String> {
        self.try_processes(id).await.unwrap()
    }

    async fn try_processes(&self, id: &str) -> Result<Vec<String>, Error> {
        // One process only, which does not show itself.
        let script = r#"read -r own </proc/$$/stat; set -- ${own##*) }; session=$4; for p in /proc/[0-9]*; do
            read -r line <$p/stat || continue; pid=${line%% *}; set -- ${line##*) }
            [ $pid != 1 ] && [ $pid != $$ ] && [ "$2" != 1 -o "$4" != 1 ] && [ "$4" != $session ] && [ "$1" != Z ] || continue
            echo $pid $line
        done 2>/dev/null; true"#;
        Ok(self.exec(id, script).await?.stdout.text.lines().map(str::to_owned).collect())
    }

    /// Waits until nothing but its main process runs in a sandbox.
    pub(crate) async fn empty(&self, id: &str) {
        self.empty_within(id, poll::DEADLINE).await;
    }

    /// The same, where that may take longer.
    pub(crate) async fn empty_within(&self, id: &str, limit: Duration) {
        poll::until(limit, "no process is left", async || match self.try_processes(id).await {
            Ok(left) if left.is_empty() => Ok(()),
            left => Err(left),
        })
        .await;
    }

    /// Stops what the test has started; then nothing may be left.
    pub(crate) async fn end(self) {
        for found in self.sandboxes.list().await.unwrap() {
            assert!(matches!(found.kind, Kind::Sandbox | Kind::Subagent));
            self.sandboxes.stop(&found.id).await.unwrap();
        }
        assert_eq!(self.sandboxes.list().await.unwrap(), []);
    }
}

impl Runtime {
    fn driver(&self, settings: Settings, pods: PodSettings) -> Sandboxes {
        match self {
            Self::Docker(host) => Sandboxes::Docker(Docker::new(host, settings).unwrap()),
            Self::Kubernetes(kubeconfig) => Sandboxes::Kubernetes(Box::new(kubernetes(kubeconfig, settings, pods))),
        }
    }
}

async fn bollard(host: &str) -> bollard::Docker {
    bollard::Docker::connect_with_host(host).unwrap().negotiate_version().await.unwrap()
}

pub(crate) fn command(script: &str) -> Command {
    Command { script: script.into(), timeout: Duration::from_secs(60), output_cap: 1 << 20 }
}

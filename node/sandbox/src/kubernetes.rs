//! The Kubernetes driver: each sandbox and each subagent is a pod of one namespace. The API server is reached as other
//! programs reach it: by a kubeconfig (`KUBECONFIG`), or from within the cluster by the pod's own service account.
//!
//! A pod's name is made of the id, so the API server itself makes sure that there is one. Every call has a time limit, and none
//! is repeated here: what asks again adopts what the first call has left. A pod that has ended stays, so that the next command
//! can say why it did; it is removed when the sandbox is stopped.
//!
//! The service account needs, in the namespace: `get`, `list`, `watch`, `create` and `delete` on pods, `get` and `create` on
//! `pods/exec`, `get`, `create` and `delete` on secrets, and if it is to say more of pods that do not start, `list` on events.

mod exec;
mod image;
mod pod;
mod state;
mod subagent;

use crate::{Error, Settings};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use state::State;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The pause before a question is asked again.
const POLL: Duration = Duration::from_millis(100);
/// How long a watch may be silent before the pod is asked for: the watch may be cut off without either side noticing.
const SILENCE: Duration = Duration::from_secs(15);

/// How pods are made, beside what all drivers are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSettings {
    /// The namespace; where there is none, the one that the kubeconfig or the service account names.
    pub namespace: Option<String>,
    /// The runtime class, for a sandboxing runtime such as gVisor.
    pub runtime_class: Option<String>,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that a node may have.
    pub tolerations: Vec<Toleration>,
    /// The names of secrets of the namespace, with what registries ask for.
    pub pull_secrets: Vec<String>,
    /// When a node fetches an image that it may have already.
    pub pull_policy: PullPolicy,
    /// More labels for each pod.
    pub labels: BTreeMap<String, String>,
    /// Bytes of memory that a node must have left for a pod; at most the limit.
    pub memory_request: u64,
    /// Thousandths of a processor that a node must have left for a pod; at most the limit.
    pub milli_cpus_request: u32,
    /// Bytes that a pod may write to its node's disk; more and the pod is evicted. Not every cluster counts them.
    pub disk: Option<u64>,
    /// How long a pod may take to be scheduled, to fetch its image and to start.
    pub start_timeout: Duration,
    /// How long the result of a subagent waits to be collected.
    pub result_age: Duration,
}

impl Default for PodSettings {
    fn default() -> Self {
        Self {
            namespace: None,
            runtime_class: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            pull_secrets: Vec::new(),
            pull_policy: PullPolicy::IfNotPresent,
            labels: BTreeMap::new(),
            memory_request: 64 << 20,
            milli_cpus_request: 50,
            disk: None,
            start_timeout: Duration::from_secs(120),
            result_age: Duration::from_secs(3600),
        }
    }
}

/// A taint that a node may have, with the words of the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key; any where there is none.
    pub key: Option<String>,
    /// Its value; any where there is none.
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; any where there is none.
    pub effect: Option<String>,
}

/// When a node fetches an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// For each pod.
    Always,
    /// When it does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// Pods of a Kubernetes cluster.
#[derive(Clone)]
pub struct Kubernetes {
    pods: Arc<Api<Pod>>,
    secrets: Arc<Api<Secret>>,
    settings: Arc<Settings>,
    pod: Arc<PodSettings>,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Kubernetes").field("settings", &self.settings).field("pod", &self.pod).finish()
    }
}

impl Kubernetes {
    /// A driver for the cluster that this kubeconfig names; without one, that `KUBECONFIG` or `~/.kube/config` names, or else
    /// that this process runs in. Nothing is asked yet.
    ///
    /// # Errors
    /// `Refused` when there is no configuration, or one that cannot be used.
    pub async fn new(kubeconfig: Option<&Path>, settings: Settings, pod: PodSettings) -> Result<Self, Error> {
        let unusable = |error: &dyn std::error::Error| {
            Error::Refused(format!("the Kubernetes cluster cannot be used: {}", describe(error)))
        };
        let mut config = match kubeconfig {
            None => Config::infer().await.map_err(|error| unusable(&error))?,
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| unusable(&error))?
            }
        };
        // It would repeat calls for longer than they may take.
        config.default_retry = false;
        config.connect_timeout = Some(settings.call_timeout);
        let namespace = pod.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| unusable(&error))?;
        Ok(Self {
            pods: Arc::new(Api::namespaced(client.clone(), &namespace)),
            secrets: Arc::new(Api::namespaced(client, &namespace)),
            settings: Arc::new(settings),
            pod: Arc::new(pod),
        })
    }

    /// Whether the API server answers, and lets this process see the pods of the namespace.
    ///
    /// # Errors
    /// `Refused`, `Unavailable`.
    pub async fn ping(&self) -> Result<(), Error> {
        let one = kube::api::ListParams::default().limit(1);
        Ok(self.call(self.pods.list(&one)).await.map(drop)?)
    }

    async fn call<T>(&self, question: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
        let limit = self.settings.call_timeout;
        // The client's futures are large.
        match timeout(limit, Box::pin(question)).await {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => {
                Err(Failure::Silent(format!("the Kubernetes API server did not answer in {} s", limit.as_secs_f64())))
            }
        }
    }

    async fn get(&self, name: &str) -> Result<Option<Pod>, Error> {
        Ok(self.call(self.pods.get_opt(name)).await?)
    }

    /// Looks at a pod, and again whenever it has changed, until `decide` knows. It is asked with nothing when there is no such
    /// pod (any more), and then must know. Answers with nothing when the time is over.
    async fn follow<T>(
        &self,
        name: &str,
        deadline: Instant,
        mut decide: impl FnMut(Option<&Pod>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let fields = format!("metadata.name={name}");
        loop {
            let found = self.get(name).await?;
            if let Some(decision) = decide(found.as_ref()) {
                return Ok(Some(decision));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let version = found.and_then(|pod| pod.metadata.resource_version).unwrap_or_default();
            let parameters = WatchParams::default().fields(&fields);
            let watched = async {
                let events = self.call(self.pods.watch(&parameters, &version)).await.ok()?;
                let mut events = pin!(events);
                while let Ok(Some(Ok(event))) = timeout(SILENCE, events.next()).await {
                    let decision = match event {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => decide(Some(&pod)),
                        WatchEvent::Deleted(_) => decide(None),
                        WatchEvent::Bookmark(_) => None,
                        // The version is too old, for instance.
                        WatchEvent::Error(_) => return None,
                    };
                    if decision.is_some() {
                        return decision;
                    }
                }
                None
            };
            match timeout_at(deadline, Box::pin(watched)).await {
                Ok(Some(decision)) => return Ok(Some(decision)),
                Ok(None) => sleep(POLL).await,
                Err(_) => {}
            }
        }
    }

    /// Why no command can be run in a sandbox; nothing if one can.
    async fn why_gone(&self, id: &str) -> Result<Option<Error>, Error> {
        let Some(pod) = self.get(&pod::name(id)?).await? else {
            return Ok(Some(Error::Gone("its pod does not exist any more".into())));
        };
        Ok(match State::of(&pod) {
            State::Running => None,
            State::Leaving => Some(Error::Gone("its pod is being removed".into())),
            State::Ended(why) | State::Broken(why) => Some(Error::Gone(why)),
            State::Waiting(_) => Some(Error::Gone("its pod has not started".into())),
        })
    }
}

/// Why a call of the API server brought nothing.
#[derive(Debug)]
enum Failure {
    /// The API server said no: the status of HTTP, and its words.
    Answer(u16, String),
    /// It could not be asked, or did not answer.
    Silent(String),
}

impl Failure {
    /// As an error that begins with what was tried.
    fn during(self, what: &str) -> Error {
        match self {
            // Too many requests, its storage does not answer, or a node does not.
            Self::Answer(429 | 500..600, message) => Error::Unavailable(message),
            Self::Answer(_, message) => Error::Refused(format!("{what}: {}", message.trim())),
            Self::Silent(why) => Error::Unavailable(why),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.during("the Kubernetes API server refused")
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Answer(status.code, status.message),
            other => Self::Silent(describe(&other)),
        }
    }
}

/// An error with its causes: the client's own text often names neither the address nor the reason.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

//! Pods: made, adopted, waited for, found and removed.

use super::state::State;
use super::{Failure, Kubernetes, PullPolicy};
use crate::script::keep_alive;
use crate::{Error, Found, Kind, Network, Spec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, Event, LocalObjectReference, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The name of the container that a pod is for.
pub(super) const MAIN: &str = "main";
/// How long a pod that is being removed may take to be gone.
const REMOVAL: Duration = Duration::from_secs(60);
/// Seconds that a pod's processes have to end after they were asked to.
const GRACE: u32 = 1;
/// What is added to the age at which a pod ends by itself to have the age at which the cluster ends it.
const MARGIN: Duration = Duration::from_secs(60);

const DEPLOYMENT: &str = "bae.deployment";
const ID: &str = "bae.id";
const SESSION: &str = "bae.session";
const PROFILE: &str = "bae.profile";
const KIND: &str = "bae.kind";
/// `on` or `off`: what network policies select by (docs/operations.md).
const NETWORK: &str = "bae.network";

/// What a pod is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Sandbox,
    Subagent,
    /// It shows whether an image can be fetched.
    Probe,
}

impl Role {
    fn label(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Subagent => "subagent",
            Self::Probe => "probe",
        }
    }

    fn kind(label: &str) -> Option<Kind> {
        match label {
            "sandbox" => Some(Kind::Sandbox),
            "subagent" => Some(Kind::Subagent),
            _ => None,
        }
    }
}

/// A pod that exists, and whether this call has made it.
pub(super) struct Made {
    pub(super) pod: Pod,
    pub(super) new: bool,
}

impl Kubernetes {
    pub(crate) async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let age = self.settings.limits.max_age;
        let main = vec!["/bin/sh".into(), "-c".into(), keep_alive(age)];
        let pod = self.pod(spec, Role::Sandbox, main, age)?;
        let deadline = Instant::now() + self.pod.start_timeout;
        loop {
            let made = self.create(&pod, deadline).await?;
            if !made.new && matches!(State::of(&made.pod), State::Ended(_) | State::Broken(_)) {
                // A pod cannot be started a second time.
                self.remove(&made.pod, deadline).await?;
                continue;
            }
            if self.wait(&made.pod, deadline).await? {
                return Ok(());
            }
            // Another node has removed it.
        }
    }

    /// Makes the pod, or finds the one that was made before.
    pub(super) async fn create(&self, pod: &Pod, deadline: Instant) -> Result<Made, Error> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        loop {
            match self.call(self.pods.create(&PostParams::default(), pod)).await {
                Ok(pod) => return Ok(Made { pod, new: true }),
                Err(Failure::Answer(409, _)) => {}
                Err(failure) => return Err(failure.during("the pod cannot be made")),
            }
            let adopted = self.follow(name, deadline, |found| match found {
                Some(found) if State::of(found) == State::Leaving => None,
                found => Some(found.cloned()),
            });
            match adopted.await? {
                Some(Some(found)) if is_same(&found, pod) => return Ok(Made { pod: found, new: false }),
                Some(Some(_)) => {
                    return Err(Error::Refused(format!("there is a pod {name} already, and it is another one")));
                }
                // It was removed in between.
                Some(None) if Instant::now() < deadline => sleep(super::POLL).await,
                _ => return Err(Error::Unavailable(format!("an older pod {name} is still being removed"))),
            }
        }
    }

    /// Waits until a pod's main container runs or has ended; false if the pod was removed. One that cannot be started is removed.
    pub(super) async fn wait(&self, pod: &Pod, deadline: Instant) -> Result<bool, Error> {
        let uid = pod.metadata.uid.as_deref();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let mut last = String::new();
        let started = self.follow(name, deadline, |found| {
            let Some(found) = found.filter(|found| found.metadata.uid.as_deref() == uid) else {
                return Some(Ok(false));
            };
            match State::of(found) {
                State::Running => Some(Ok(true)),
                State::Ended(_) if is(found, Role::Subagent) => Some(Ok(true)),
                State::Ended(why) | State::Broken(why) => Some(Err(why)),
                State::Waiting(why) => {
                    last = why;
                    None
                }
                State::Leaving => None,
            }
        });
        let why = match started.await? {
            Some(Ok(started)) => return Ok(started),
            Some(Err(why)) => why,
            None => {
                let seconds = self.pod.start_timeout.as_secs_f64();
                let event = self.last_event(pod).await.unwrap_or_default();
                format!("the pod did not start in {seconds} s: {last} {event}").trim_end().to_owned()
            }
        };
        if let Err(error) = self.remove(pod, Instant::now() + REMOVAL).await {
            tracing::warn!(pod = name, error = %error, "a pod that cannot be started is left");
        }
        Err(Error::Refused(why))
    }

    /// What was last said about a pod by those that start it, if this process may read that.
    async fn last_event(&self, pod: &Pod) -> Option<String> {
        let events: Api<Event> =
            Api::namespaced(self.pods.as_ref().clone().into_client(), pod.metadata.namespace.as_deref()?);
        let about = format!("involvedObject.uid={}", pod.metadata.uid.as_deref()?);
        let events = self.call(events.list(&ListParams::default().fields(&about))).await.ok()?.items;
        let last =
            events.into_iter().max_by_key(|event| event.metadata.resource_version.as_ref()?.parse::<u64>().ok())?;
        Some(format!("({})", last.message?))
    }

    pub(crate) async fn stop(&self, id: &str) -> Result<(), Error> {
        let name = name(id)?;
        self.delete(&name, None, Instant::now() + REMOVAL).await?;
        // The cluster would remove it as well, some time later.
        match self.call(self.secrets.delete(&name, &DeleteParams::default())).await {
            Ok(_) | Err(Failure::Answer(404, _)) => Ok(()),
            Err(failure) => Err(failure.during("the secret of the pod cannot be removed")),
        }
    }

    /// Removes this pod, and none that has its name.
    pub(super) async fn remove(&self, pod: &Pod, deadline: Instant) -> Result<(), Error> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        self.delete(name, pod.metadata.uid.clone(), deadline).await
    }

    async fn delete(&self, name: &str, uid: Option<String>, deadline: Instant) -> Result<(), Error> {
        let only = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let parameters =
            DeleteParams { grace_period_seconds: Some(GRACE), preconditions: only, ..DeleteParams::default() };
        let deleted = match self.call(self.pods.delete(name, &parameters)).await {
            Ok(deleted) => deleted.left(),
            // There is none, or another one.
            Err(Failure::Answer(404 | 409, _)) => return Ok(()),
            Err(failure) => return Err(failure.during("the pod cannot be removed")),
        };
        // Otherwise it had no process, and is gone.
        let Some(uid) = deleted.and_then(|pod| pod.metadata.uid) else { return Ok(()) };
        let gone = self.follow(name, deadline, |found| match found {
            Some(found) if found.metadata.uid.as_ref() == Some(&uid) => None,
            _ => Some(()),
        });
        match gone.await? {
            Some(()) => Ok(()),
            None => Err(Error::Unavailable(format!("the pod {name} is still being removed"))),
        }
    }

    pub(crate) async fn list(&self) -> Result<Vec<Found>, Error> {
        let deployment = &self.settings.deployment;
        let selector = format!("{DEPLOYMENT}={deployment},{KIND} in (sandbox, subagent)");
        let listed = self.call(self.pods.list(&ListParams::default().labels(&selector))).await?;
        let found = listed.items.into_iter().filter_map(|pod| {
            let running = State::of(&pod) == State::Running;
            let mut labels = pod.metadata.labels?;
            Some(Found {
                id: labels.remove(ID)?,
                kind: Role::kind(labels.get(KIND)?)?,
                session: labels.remove(SESSION)?,
                running,
            })
        });
        Ok(found.collect())
    }

    fn labels(&self, spec: &Spec, role: Role) -> Result<BTreeMap<String, String>, Error> {
        let network = match self.settings.limits.network {
            Network::On => "on",
            Network::Off => "off",
        };
        let own = [
            (DEPLOYMENT, self.settings.deployment.as_str()),
            (ID, &spec.id),
            (SESSION, &spec.session),
            (PROFILE, &spec.profile),
            (KIND, role.label()),
            (NETWORK, network),
        ];
        let mut labels = self.pod.labels.clone();
        for (label, value) in own {
            if !is_label(value) {
                return Err(Error::Refused(format!("{value:?} cannot be the label {label} of a pod")));
            }
            labels.insert(label.to_owned(), value.to_owned());
        }
        Ok(labels)
    }

    /// The pod that runs `main`, and ends at this age by itself.
    pub(super) fn pod(&self, spec: &Spec, role: Role, main: Vec<String>, age: Duration) -> Result<Pod, Error> {
        let settings = &self.pod;
        let own = |text: &Option<String>| text.clone();
        let tolerations = settings.tolerations.iter().map(|toleration| Toleration {
            key: own(&toleration.key),
            operator: Some(if toleration.value.is_some() { "Equal" } else { "Exists" }.into()),
            value: own(&toleration.value),
            effect: own(&toleration.effect),
            ..Toleration::default()
        });
        let secrets = settings.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
        let deadline = age + settings.start_timeout + MARGIN;
        Ok(Pod {
            metadata: ObjectMeta {
                name: Some(name(&spec.id)?),
                labels: Some(self.labels(spec, role)?),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![self.container(MAIN, &spec.image, main, self.resources())],
                restart_policy: Some("Never".into()),
                active_deadline_seconds: Some(deadline.as_secs().try_into().unwrap_or(i64::MAX)),
                termination_grace_period_seconds: Some(GRACE.into()),
                automount_service_account_token: Some(false),
                enable_service_links: Some(false),
                runtime_class_name: settings.runtime_class.clone(),
                node_selector: Some(settings.node_selector.clone()),
                tolerations: Some(tolerations.collect()),
                image_pull_secrets: Some(secrets.collect()),
                security_context: Some(PodSecurityContext {
                    seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
                    ..PodSecurityContext::default()
                }),
                ..PodSpec::default()
            }),
            status: None,
        })
    }

    pub(super) fn container(
        &self,
        name: &str,
        image: &str,
        command: Vec<String>,
        resources: ResourceRequirements,
    ) -> Container {
        let pull_policy = match self.pod.pull_policy {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        };
        Container {
            name: name.into(),
            image: Some(image.into()),
            image_pull_policy: Some(pull_policy.into()),
            // Kubernetes replaces `$(NAME)` in a command by a variable, and `$$` by `$`; scripts mean neither.
            command: Some(command.into_iter().map(|part| part.replace('$', "$$")).collect()),
            resources: Some(resources),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                privileged: Some(false),
                capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
                ..SecurityContext::default()
            }),
            ..Container::default()
        }
    }

    fn resources(&self) -> ResourceRequirements {
        let limits = &self.settings.limits;
        let quantities = |memory: u64, milli_cpus: u32| {
            let memory = ("memory".to_owned(), Quantity(memory.to_string()));
            BTreeMap::from([memory, ("cpu".to_owned(), Quantity(format!("{milli_cpus}m")))])
        };
        let mut allowed = quantities(limits.memory, limits.milli_cpus);
        let mut requested =
            quantities(self.pod.memory_request.min(limits.memory), self.pod.milli_cpus_request.min(limits.milli_cpus));
        if let Some(disk) = self.pod.disk {
            allowed.insert("ephemeral-storage".to_owned(), Quantity(disk.to_string()));
            // Without a request of its own the limit would be requested.
            requested.insert("ephemeral-storage".to_owned(), Quantity("0".to_owned()));
        }
        ResourceRequirements { limits: Some(allowed), requests: Some(requested), claims: None }
    }
}

fn is(pod: &Pod, role: Role) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(KIND)).is_some_and(|kind| kind == role.label())
}

/// Whether a pod is the one that is asked for.
fn is_same(found: &Pod, wanted: &Pod) -> bool {
    let own = |pod: &Pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        [DEPLOYMENT, ID, SESSION, PROFILE, KIND].map(|label| labels.get(label).cloned())
    };
    own(found) == own(wanted)
}

/// Whether Kubernetes takes this as the value of a label.
fn is_label(text: &str) -> bool {
    let ends = text.bytes().next().into_iter().chain(text.bytes().last());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(fits) && ends.into_iter().all(|byte| byte.is_ascii_alphanumeric())
}

/// The name of a pod. Kubernetes knows neither capital letters nor underscores in names; two ids that differ in nothing else
/// have one name, of which the labels show whose it is.
///
/// # Errors
/// `Refused` for an id that could not be part of one.
pub(super) fn name(id: &str) -> Result<String, Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let name = format!("bae-{}", id.to_ascii_lowercase().replace('_', "-"));
    if id.is_empty() || name.len() > 63 || name.ends_with('-') || !id.bytes().all(fits) {
        return Err(Error::Refused(format!("{id:?} cannot be the id of a pod")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::{is_label, name};

    #[test]
    fn ids_become_names() {
        assert_eq!(name("sbx_0a").unwrap(), "bae-sbx-0a");
        assert_eq!(name("A-1").unwrap(), "bae-a-1");
        for id in ["", "a/b", "a.b", "a-", "_", "ä", &"a".repeat(60)] {
            assert!(name(id).is_err(), "{id}");
        }
    }

    #[test]
    fn labels_are_what_kubernetes_takes() {
        assert!(["", "a", "prf_1", "A.b-c"].into_iter().all(is_label));
        assert!(!["_a", "a b", "a/b", "ü", &"a".repeat(64)].into_iter().any(is_label));
    }
}

//! What the status of a pod says about its main container.

use super::pod::MAIN;
use crate::script::{NOT_FOUND, TERMINATED};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It has not started; and what it waits for, where that is said.
    Waiting(String),
    /// It has not started and never will, and why.
    Broken(String),
    /// It runs.
    Running,
    /// It has ended, and why.
    Ended(String),
    /// It is being removed.
    Leaving,
}

/// What a container waits for in vain. The kubelet tries some of them again; by then the image has been provisioned or the
/// caller has asked again.
const BROKEN: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerError",
    "CreateContainerConfigError",
];
/// The reasons of a container that could not be started at all.
const NOT_STARTED: [&str; 2] = ["StartError", "ContainerCannotRun"];

impl State {
    pub(super) fn of(pod: &Pod) -> Self {
        if pod.metadata.deletion_timestamp.is_some() {
            return Self::Leaving;
        }
        let main = container(pod, MAIN).and_then(|container| container.state.as_ref());
        if let Some(ended) = main.and_then(|state| state.terminated.as_ref()) {
            let not_started = ended.reason.as_deref().filter(|reason| NOT_STARTED.contains(reason));
            if not_started.is_some() {
                let why = ended.message.as_deref().unwrap_or_default();
                return Self::Broken(format!("the container cannot be started: {}", why.trim()));
            }
            return Self::Ended(why_ended(pod));
        }
        if is_over(pod) {
            return Self::Ended(why_ended(pod));
        }
        if main.is_some_and(|state| state.running.is_some()) {
            return Self::Running;
        }
        if let Some(waiting) = main.and_then(|state| state.waiting.as_ref()) {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let message = waiting.message.as_deref().unwrap_or_default();
            let image =
                pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref()).unwrap_or_default();
            if BROKEN.contains(&reason) {
                return Self::Broken(format!("the image {image} cannot be used: {reason}: {message}"));
            }
        }
        Self::Waiting(why_waiting(pod))
    }
}

/// Whether all of the pod has ended.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// The status of one of the pod's containers.
pub(super) fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == name)
}

/// How the main container ended, if it has.
pub(super) fn ended(pod: &Pod) -> Option<&ContainerStateTerminated> {
    container(pod, MAIN)?.state.as_ref()?.terminated.as_ref()
}

/// Why a pod's main process is not there any more.
pub(super) fn why_ended(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let message = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
    match status.and_then(|status| status.reason.as_deref()) {
        Some("DeadlineExceeded") => return "its pod reached its maximum age and ended".into(),
        Some("Evicted") => return format!("its pod was evicted: {message}"),
        Some(reason) => return format!("its pod was ended: {reason}: {message}"),
        None => {}
    }
    let Some(ended) = ended(pod) else { return "its pod was ended".into() };
    match (i64::from(ended.exit_code), ended.reason.as_deref()) {
        (0, _) => "its container reached its maximum age and ended".into(),
        (TERMINATED, _) => "its container was asked to end".into(),
        (NOT_FOUND, _) => "its image lacks one of the programs `sleep` and `mkdir`".into(),
        (_, Some("OOMKilled")) => "its container ran out of memory and was ended".into(),
        (code, _) => format!("its container was ended (exit code {code})"),
    }
}

/// What a pod that has not started waits for.
fn why_waiting(pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unscheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        return format!("no node can take it: {}", condition.message.as_deref().unwrap_or_default());
    }
    let waiting = container(pod, MAIN).and_then(|container| container.state.as_ref()?.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.clone()).unwrap_or_else(|| "no node has taken it".into())
}

#[cfg(test)]
mod tests {
    use super::State;
    use k8s_openapi::serde_json::{from_value, json};

    fn state(status: k8s_openapi::serde_json::Value) -> State {
        State::of(&from_value(json!({ "metadata": {}, "status": status })).unwrap())
    }

    fn main(state: k8s_openapi::serde_json::Value) -> k8s_openapi::serde_json::Value {
        json!([{ "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    #[test]
    fn an_evicted_pod_says_why() {
        let status =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." });
        assert_eq!(state(status), State::Ended("its pod was evicted: The node was low on resource: memory.".into()));
    }

    #[test]
    fn a_pod_past_its_deadline_says_so() {
        let status = json!({ "phase": "Failed", "reason": "DeadlineExceeded", "message": "" });
        assert_eq!(state(status), State::Ended("its pod reached its maximum age and ended".into()));
    }

    #[test]
    fn a_container_out_of_memory_says_so() {
        let ended = |code| {
            let ended = json!({ "terminated": { "exitCode": code, "reason": "OOMKilled" } });
            json!({ "phase": "Failed", "containerStatuses": main(ended) })
        };
        assert_eq!(state(ended(137)), State::Ended("its container ran out of memory and was ended".into()));
        // A command ran out of memory at some time, and the container ended later.
        assert_eq!(state(ended(0)), State::Ended("its container reached its maximum age and ended".into()));
    }

    #[test]
    fn a_pod_that_no_node_takes_waits() {
        let condition =
            json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" });
        let status = json!({ "phase": "Pending", "conditions": [condition] });
        assert_eq!(state(status), State::Waiting("no node can take it: 0/1 nodes".into()));
    }

    #[test]
    fn an_image_that_cannot_be_pulled_breaks_it() {
        let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off" } });
        let found = state(json!({ "phase": "Pending", "containerStatuses": main(waiting) }));
        assert!(matches!(&found, State::Broken(why) if why.contains("ImagePullBackOff: Back-off")), "{found:?}");
        let starting = json!({ "waiting": { "reason": "ContainerCreating" } });
        let found = state(json!({ "phase": "Pending", "containerStatuses": main(starting) }));
        assert_eq!(found, State::Waiting("ContainerCreating".into()));
    }
}

//! Subagents: pods that run one command line. `script::SUBAGENT` says what the main process does.
//!
//! The command line and the prompt are in a secret that belongs to the pod and goes with it; the pod waits until it is there.
//!
//! No command can be run in a container that has ended, and its log holds no more than the node keeps and goes where logs are
//! collected. So the result is written to a volume of the pod, and a second container, the keeper, waits beside the main one
//! until somebody reads the result there. The main container's end is seen in the pod's status, with its reason, and what the
//! subagent does to its own container (runs out of memory, kills everything) does not reach the keeper.

use super::pod::{Role, name};
use super::state::{State, container, ended, is_over, why_ended};
use super::{Failure, Kubernetes};
use crate::script::{FOLDER, RESULT, SUBAGENT, WHOLE, keep_alive};
use crate::{Captured, End, Ended, Error, Progress, SubagentSpec};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, Pod, ResourceRequirements, Secret, SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

/// The container that keeps the result.
const KEEPER: &str = "keeper";
/// What the keeper may use: it sleeps, and copies files.
const KEEPER_LIMITS: [(&str, &str); 2] = [("memory", "32Mi"), ("cpu", "500m")];
const KEEPER_REQUESTS: [(&str, &str); 2] = [("memory", "4Mi"), ("cpu", "1m")];
/// Kubernetes takes no larger secret.
const LARGEST_SECRET: usize = 1 << 20;
/// Bytes of the line that says how a subagent ended.
const END: usize = 4 << 10;

impl Kubernetes {
    pub(crate) async fn launch(&self, spec: &SubagentSpec) -> Result<(), Error> {
        let size = spec.command.len() + spec.prompt.len();
        if size > LARGEST_SECRET {
            return Err(Error::Refused(format!(
                "a subagent's command line and prompt have at most {LARGEST_SECRET} bytes together, and these have {size}"
            )));
        }
        let deadline = Instant::now() + self.pod.start_timeout;
        let pod = self.subagent(spec)?;
        loop {
            let made = self.create(&pod, deadline).await?;
            match State::of(&made.pod) {
                State::Running | State::Ended(_) => return Ok(()),
                State::Waiting(_) | State::Broken(_) | State::Leaving => {}
            }
            self.hand_over(spec, &made.pod).await?;
            if self.wait(&made.pod, deadline).await? {
                return Ok(());
            }
            // Another node has removed it.
            if Instant::now() > deadline {
                return Err(Error::Gone("its pod was removed while it was launched".into()));
            }
        }
    }

    fn subagent(&self, spec: &SubagentSpec) -> Result<Pod, Error> {
        let kept = spec.output_cap.saturating_add(1).to_string();
        let seconds = spec.timeout.as_secs().max(1).to_string();
        let main = ["/bin/sh", "-c", SUBAGENT, "sh", &seconds, &kept].map(str::to_owned).into();
        let age = spec.timeout + self.pod.start_timeout + self.pod.result_age;
        let mut pod = self.pod(&spec.container, Role::Subagent, main, age)?;
        let wait = ["/bin/sh", "-c", &keep_alive(age)].map(str::to_owned).into();
        let quantities = |pairs: [(&str, &str); 2]| {
            pairs.into_iter().map(|(what, amount)| (what.to_owned(), Quantity(amount.to_owned()))).collect()
        };
        let resources = ResourceRequirements {
            limits: Some(quantities(KEEPER_LIMITS)),
            requests: Some(quantities(KEEPER_REQUESTS)),
            claims: None,
        };
        let mut keeper = self.container(KEEPER, &spec.container.image, wait, resources);
        let mount = |volume: &str, path: String, read_only| VolumeMount {
            name: volume.into(),
            mount_path: path,
            read_only: Some(read_only),
            ..VolumeMount::default()
        };
        keeper.volume_mounts = Some(vec![mount("result", FOLDER.into(), true)]);
        if let Some(inner) = pod.spec.as_mut() {
            inner.containers[0].volume_mounts =
                Some(vec![mount("result", FOLDER.into(), false), mount("input", format!("{FOLDER}/input"), true)]);
            // The first is started first: the result of a subagent that ends at once has somebody who keeps it.
            inner.containers.insert(0, keeper);
            let result = EmptyDirVolumeSource::default();
            let input = SecretVolumeSource {
                secret_name: Some(name(&spec.container.id)?),
                // The image may name any user.
                default_mode: Some(0o444),
                ..SecretVolumeSource::default()
            };
            inner.volumes = Some(vec![
                Volume { name: "result".into(), empty_dir: Some(result), ..Volume::default() },
                Volume { name: "input".into(), secret: Some(input), ..Volume::default() },
            ]);
        }
        Ok(pod)
    }

    /// Makes the secret that the pod waits for.
    async fn hand_over(&self, spec: &SubagentSpec, pod: &Pod) -> Result<(), Error> {
        let name = name(&spec.container.id)?;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let files = [("command", spec.command.as_bytes()), ("prompt", &spec.prompt), ("ready", b"")];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: pod.metadata.labels.clone(),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: "Pod".into(),
                    name: name.clone(),
                    uid: uid.clone(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            data: Some(files.map(|(file, contents)| (file.to_owned(), ByteString(contents.to_vec()))).into()),
            immutable: Some(true),
            ..Secret::default()
        };
        let deadline = Instant::now() + self.settings.call_timeout;
        loop {
            match self.call(self.secrets.create(&PostParams::default(), &secret)).await {
                Ok(_) => return Ok(()),
                Err(Failure::Answer(409, _)) => {}
                Err(failure) => return Err(failure.during("the prompt cannot be put into the cluster")),
            }
            let Some(found) = self.call(self.secrets.get_opt(&name)).await? else { continue };
            let owners = found.metadata.owner_references.unwrap_or_default();
            if owners.iter().any(|owner| owner.uid == uid) {
                return Ok(());
            }
            // It belonged to a pod that is gone.
            match self.call(self.secrets.delete(&name, &DeleteParams::default())).await {
                Ok(_) | Err(Failure::Answer(404, _)) => {}
                Err(failure) => return Err(failure.during("an older prompt cannot be removed")),
            }
            if Instant::now() > deadline {
                return Err(Error::Unavailable(format!("an older secret {name} is still being removed")));
            }
            sleep(super::POLL).await;
        }
    }

    pub(crate) async fn collect(&self, id: &str, output_cap: usize) -> Result<Progress, Error> {
        let name = name(id)?;
        let Some(pod) = self.get(&name).await? else {
            return Err(Error::Gone("its pod does not exist any more".into()));
        };
        match State::of(&pod) {
            State::Leaving => return Err(Error::Gone("its pod is being removed".into())),
            State::Running => return Ok(Progress::Running),
            State::Waiting(_) => return Ok(Progress::NotStarted),
            State::Broken(why) => return Ok(Progress::Ended(died(why))),
            State::Ended(_) => {}
        }
        match container(&pod, KEEPER).and_then(|keeper| keeper.state.as_ref()) {
            Some(state) if state.running.is_some() => {}
            // It is still being started, and the result waits for it.
            Some(state) if state.terminated.is_none() && !is_over(&pod) => return Ok(Progress::Running),
            Some(_) | None => return Ok(Progress::Ended(died(why_ended(&pod)))),
        }
        let (line, stdout, stderr) = match self.result(id, output_cap).await {
            // It can be read as often as need be.
            Err(Error::Unavailable(_)) => self.result(id, output_cap).await?,
            read => read?,
        };
        let out_of_memory = ended(&pod).is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"));
        let why = out_of_memory.then(|| "it ran out of memory".to_owned());
        let end = match line.split_once(' ') {
            Some(("exit", code)) => code.parse().ok().map(|code| End::Exited(code, why.filter(|_| code != 0))),
            Some(("missing", tool)) => Some(End::Died(format!("the image has no program `{tool}`"))),
            None if line == "timeout" => Some(End::TimedOut),
            _ => None,
        };
        let end = end.unwrap_or_else(|| End::Died(why_ended(&pod)));
        Ok(Progress::Ended(Ended { end, stdout, stderr }))
    }
}

impl Kubernetes {
    /// The line that says how a subagent ended, and its output.
    async fn result(&self, id: &str, output_cap: usize) -> Result<(String, Captured, Captured), Error> {
        let cap = output_cap.saturating_add(END);
        let output = self.ask(id, KEEPER, RESULT, (cap, cap)).await?;
        let line = output.stdout.text.find('\n').map_or(0, |end| end + 1);
        let (line, rest) = output.stdout.text.split_at(line);
        let stdout = whole(Captured { text: rest.to_owned(), dropped: output.stdout.dropped }, output_cap)?;
        Ok((line.trim_end().to_owned(), stdout, whole(output.stderr, output_cap)?))
    }
}

fn died(why: String) -> Ended {
    Ended { end: End::Died(why), stdout: Captured::default(), stderr: Captured::default() }
}

/// A stream of the result without what marks its end, and not beyond its bound.
///
/// # Errors
/// `Unavailable` when the end did not come: not every version of containerd passes on all that was written in a hurry.
fn whole(mut captured: Captured, cap: usize) -> Result<Captured, Error> {
    match captured.text.strip_suffix(WHOLE) {
        Some(text) => captured.text.truncate(text.len()),
        // It was dropped.
        None if captured.dropped >= WHOLE.len() as u64 => captured.dropped -= WHOLE.len() as u64,
        None => return Err(Error::Unavailable("the result did not arrive whole".into())),
    }
    let room = captured.text.floor_char_boundary(cap.min(captured.text.len()));
    captured.dropped += (captured.text.len() - room) as u64;
    captured.text.truncate(room);
    Ok(captured)
}

#[cfg(test)]
mod tests {
    use super::{Captured, whole};

    fn cut(text: &str, dropped: u64) -> Option<(String, u64)> {
        whole(Captured { text: text.into(), dropped }, 4).ok().map(|captured| (captured.text, captured.dropped))
    }

    #[test]
    fn the_output_is_cut_at_a_character() {
        assert_eq!(cut("ab€whole\n", 0), Some(("ab".into(), 3)));
        assert_eq!(cut("abcdef", 7), Some(("abcd".into(), 3)));
        assert_eq!(cut("abwhole\n", 0), Some(("ab".into(), 0)));
    }

    #[test]
    fn output_that_did_not_arrive_is_not_empty_output() {
        assert_eq!((cut("", 0), cut("abc", 0)), (None, None));
    }
}

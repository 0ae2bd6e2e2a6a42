//! Images: fetched by the nodes of the cluster, so whether one can be fetched is seen by a pod that wants it.

use super::Kubernetes;
use super::pod::Role;
use super::state::State;
use crate::{Error, Spec};
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::time::Instant;

/// How long fetching an image may take.
const PULL: Duration = Duration::from_secs(600);

impl Kubernetes {
    /// There is one probe of an image at a time, whoever asks, so that at most one is left by nodes that die meanwhile.
    ///
    /// What was found is true of one node of the cluster; another one fetches the image when a pod comes to it.
    pub(crate) async fn provision(&self, image: &str) -> Result<(), Error> {
        let digest = Sha256::digest(format!("{} {image}", self.settings.deployment));
        let id: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let spec =
            Spec { id: format!("probe-{id}"), image: image.into(), session: String::new(), profile: String::new() };
        // An image without a shell is fetched as well: then the container cannot be started.
        let main = vec!["/bin/sh".into(), "-c".into(), "exit 0".into()];
        let probe = self.pod(&spec, Role::Probe, main, PULL)?;
        let name = probe.metadata.name.clone().unwrap_or_default();
        let deadline = Instant::now() + PULL;
        loop {
            let made = self.create(&probe, deadline).await?;
            if !made.new && !matches!(State::of(&made.pod), State::Waiting(_)) {
                // It tells how it was then.
                self.remove(&made.pod, deadline).await?;
                continue;
            }
            let uid = made.pod.metadata.uid.as_deref();
            let mut last = String::new();
            let fetched = self.follow(&name, deadline, |found| {
                let Some(found) = found.filter(|found| found.metadata.uid.as_deref() == uid) else { return Some(None) };
                match State::of(found) {
                    State::Running | State::Ended(_) => Some(Some(Ok(()))),
                    State::Broken(why) if why.starts_with("the image") => Some(Some(Err(why))),
                    State::Broken(_) => Some(Some(Ok(()))),
                    State::Waiting(why) => {
                        last = why;
                        None
                    }
                    State::Leaving => None,
                }
            });
            let fetched = match fetched.await? {
                // Another node has seen enough, and removed it.
                Some(None) => continue,
                Some(Some(fetched)) => fetched.map_err(Error::Refused),
                None => Err(Error::Unavailable(format!(
                    "the image {image} was not fetched in {} s: {last}",
                    PULL.as_secs()
                ))),
            };
            if let Err(error) = self.remove(&made.pod, Instant::now() + PULL).await {
                tracing::warn!(pod = name, error = %error, "the probe of an image is left");
            }
            return fetched;
        }
    }
}

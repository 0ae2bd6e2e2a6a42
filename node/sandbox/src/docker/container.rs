//! Containers: made, started, found and removed.

use super::{Docker, Failure, POLL};
use crate::script::keep_alive;
use crate::{Error, Found, Kind, Network, Spec};
use bollard::models::{
    ContainerCreateBody, ContainerState, ContainerStateStatusEnum as Status, HealthConfig, HostConfig,
    HostConfigLogConfig,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a container that is being removed may take to be gone.
const REMOVAL: Duration = Duration::from_secs(30);

const DEPLOYMENT: &str = "bae.deployment";
const ID: &str = "bae.id";
const SESSION: &str = "bae.session";
const PROFILE: &str = "bae.profile";
const KIND: &str = "bae.kind";

impl Kind {
    fn label(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Subagent => "subagent",
        }
    }
}

impl Docker {
    pub(crate) async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let script = keep_alive(self.settings.limits.max_age);
        self.create(spec, Kind::Sandbox, vec!["/bin/sh".into(), "-c".into(), script]).await?;
        self.run(&spec.id).await
    }

    /// Makes the container, or finds the one that was made before; answers with its state.
    pub(super) async fn create(&self, spec: &Spec, kind: Kind, main: Vec<String>) -> Result<ContainerState, Error> {
        let name = name(&spec.id)?;
        let client = self.client().await?;
        let body = self.body(spec, kind, main);
        let deadline = Instant::now() + REMOVAL;
        loop {
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            match self.call(client.create_container(Some(options), body.clone())).await {
                Ok(_) => return Ok(ContainerState { status: Some(Status::CREATED), ..ContainerState::default() }),
                Err(Failure::Answer(409, _)) => {}
                Err(failure) => return Err(failure.during("the container cannot be made")),
            }
            match self.adopt(spec, kind).await {
                Ok(state) if matches!(state.status, Some(Status::REMOVING | Status::DEAD)) => {}
                Ok(state) => return Ok(state),
                // It was removed in between.
                Err(Error::Gone(_)) => {}
                Err(error) => return Err(error),
            }
            if Instant::now() > deadline {
                return Err(Error::Unavailable(format!("an older container {name} is still being removed")));
            }
            sleep(POLL).await;
        }
    }

    /// The container with this name exists: it has to be the one that is asked for.
    async fn adopt(&self, spec: &Spec, kind: Kind) -> Result<ContainerState, Error> {
        let found = self.inspect(&spec.id).await?;
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        let wanted = self.labels(spec, kind);
        if wanted.iter().all(|(label, value)| labels.get(label) == Some(value)) {
            return Ok(found.state.unwrap_or_default());
        }
        Err(Error::Refused(format!("there is a container {} already, and it is another one", name(&spec.id)?)))
    }

    /// Starts a container that was made. One that cannot be started is removed.
    pub(super) async fn run(&self, id: &str) -> Result<(), Error> {
        let name = name(id)?;
        let client = self.client().await?;
        // That it runs already, because another node was faster, is a success for the daemon as well.
        match self.call(client.start_container(&name, None::<StartContainerOptions>)).await {
            Ok(()) => Ok(()),
            Err(failure @ Failure::Silent(_)) => Err(failure.into()),
            Err(failure) => {
                // Without force: if it runs after all, it is left alone.
                let options = RemoveContainerOptionsBuilder::new().v(true).build();
                match self.call(client.remove_container(&name, Some(options))).await {
                    Ok(()) | Err(Failure::Answer(404, _)) => {}
                    Err(left) => {
                        tracing::warn!(container = name, error = ?left, "a container that cannot be started is left")
                    }
                }
                Err(failure.during("the container cannot be started"))
            }
        }
    }

    fn labels(&self, spec: &Spec, kind: Kind) -> HashMap<String, String> {
        let labels = [
            (DEPLOYMENT, self.settings.deployment.as_str()),
            (ID, &spec.id),
            (SESSION, &spec.session),
            (PROFILE, &spec.profile),
            (KIND, kind.label()),
        ];
        labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into()
    }

    fn body(&self, spec: &Spec, kind: Kind, main: Vec<String>) -> ContainerCreateBody {
        let limits = &self.settings.limits;
        let memory = i64::try_from(limits.memory).unwrap_or(i64::MAX);
        let network = match limits.network {
            Network::On => None,
            Network::Off => Some("none".to_owned()),
        };
        ContainerCreateBody {
            image: Some(spec.image.clone()),
            entrypoint: Some(main),
            cmd: Some(Vec::new()),
            healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
            labels: Some(self.labels(spec, kind)),
            host_config: Some(HostConfig {
                memory: Some(memory),
                memory_swap: Some(memory),
                nano_cpus: Some(i64::from(limits.milli_cpus) * 1_000_000),
                pids_limit: Some(i64::from(limits.pids)),
                network_mode: network,
                cap_drop: Some(vec!["ALL".into()]),
                security_opt: Some(vec!["no-new-privileges".into()]),
                log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    pub(crate) async fn stop(&self, id: &str) -> Result<(), Error> {
        let name = name(id)?;
        let client = self.client().await?;
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match self.call(client.remove_container(&name, Some(options))).await {
            Ok(()) | Err(Failure::Answer(404, _)) => return Ok(()),
            // Somebody else removes it at this moment.
            Err(Failure::Answer(409, _)) => {}
            Err(failure) => return Err(failure.during("the container cannot be removed")),
        }
        let deadline = Instant::now() + REMOVAL;
        while Instant::now() < deadline {
            match self.inspect(id).await {
                Err(Error::Gone(_)) => return Ok(()),
                Ok(_) => sleep(POLL).await,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable(format!("the container {name} is still being removed")))
    }

    pub(crate) async fn list(&self) -> Result<Vec<Found>, Error> {
        let filters = HashMap::from([("label", vec![format!("{DEPLOYMENT}={}", self.settings.deployment)])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let listed = self.call(self.client().await?.list_containers(Some(options))).await?;
        let found = listed.into_iter().filter_map(|container| {
            let mut labels = container.labels?;
            let kind = labels.remove(KIND)?;
            Some(Found {
                id: labels.remove(ID)?,
                kind: [Kind::Sandbox, Kind::Subagent].into_iter().find(|known| known.label() == kind)?,
                session: labels.remove(SESSION)?,
                running: container.state.is_some_and(|state| state.as_ref() == "running"),
            })
        });
        Ok(found.collect())
    }
}

/// The name of a container. The daemon makes sure that there is one of a name.
///
/// # Errors
/// `Refused` for an id that could not be part of one, nor of the daemon's addresses.
pub(super) fn name(id: &str) -> Result<String, Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > 200 || !id.bytes().all(fits) {
        return Err(Error::Refused(format!("{id:?} cannot be the id of a container")));
    }
    Ok(format!("bae-{id}"))
}

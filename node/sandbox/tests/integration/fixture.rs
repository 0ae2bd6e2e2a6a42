//! A driver with a deployment of its own, so that each test sees only what it has started.

use sandbox::{
    Command, Docker, Error, Kind, Limits, Network, Output, Progress, Sandboxes, Settings, Spec, SubagentSpec,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tests::docker::{self, IMAGE};
use tests::poll;

pub(crate) struct Fixture {
    pub(crate) sandboxes: Sandboxes,
    deployment: String,
    host: String,
}

/// What tests have that do not say otherwise.
pub(crate) fn limits() -> Limits {
    Limits { memory: 256 << 20, milli_cpus: 2000, pids: 100, max_age: Duration::from_secs(600), network: Network::Off }
}

impl Fixture {
    pub(crate) fn docker() -> Self {
        Self::on(docker::host(), limits(), Duration::from_secs(60))
    }

    pub(crate) fn on(host: String, limits: Limits, call_timeout: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let deployment = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let settings = Settings { deployment: deployment.clone(), limits, call_timeout };
        Self { sandboxes: Sandboxes::Docker(Docker::new(&host, settings).unwrap()), deployment, host }
    }

    /// The same deployment, as another node sees it.
    pub(crate) fn another_node(&self) -> Sandboxes {
        self.with_limits(limits())
    }

    /// The same deployment with other limits.
    pub(crate) fn with_limits(&self, limits: Limits) -> Sandboxes {
        let settings = Settings { deployment: self.deployment.clone(), limits, call_timeout: Duration::from_secs(60) };
        Sandboxes::Docker(Docker::new(&self.host, settings).unwrap())
    }

    /// Removes a container as a person would, behind the driver's back.
    pub(crate) async fn remove_by_hand(&self, id: &str) {
        let client = bollard::Docker::connect_with_host(&self.host).unwrap().negotiate_version().await.unwrap();
        let options = bollard::query_parameters::RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&format!("bae-{id}"), Some(options)).await.unwrap();
    }

    /// Everything that a person sees who asks the runtime what a container is made of.
    pub(crate) async fn description(&self, id: &str) -> String {
        let client = bollard::Docker::connect_with_host(&self.host).unwrap().negotiate_version().await.unwrap();
        let options = None::<bollard::query_parameters::InspectContainerOptions>;
        format!("{:?}", client.inspect_container(&format!("bae-{id}"), options).await.unwrap())
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
        poll::until(poll::DEADLINE, "the subagent ends", async || {
            match self.sandboxes.collect(&spec.container.id, spec.output_cap).await.unwrap() {
                Progress::Ended(ended) => Ok(ended),
                other => Err(other),
            }
        })
        .await
    }

    /// The command lines of the processes in a sandbox but its main process and the `sleep` that belongs to that.
    pub(crate) async fn processes(&self, id: &str) -> Vec<String> {
        // One process only, which does not show itself.
        let script = r#"for p in /proc/[0-9]*; do
            read -r line <$p/stat || continue; pid=${line%% *}; set -- ${line##*) }
            [ $pid != 1 ] && [ $pid != $$ ] && [ "$2" != 1 -o "$4" != 1 ] && [ "$4" != $$ ] && [ "$1" != Z ] || continue
            echo $pid $line
        done 2>/dev/null; true"#;
        self.sh(id, script).await.lines().map(str::to_owned).collect()
    }

    /// Waits until nothing but its main process runs in a sandbox.
    pub(crate) async fn empty(&self, id: &str) {
        poll::until(poll::DEADLINE, "no process is left", async || match self.processes(id).await {
            left if left.is_empty() => Ok(()),
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

pub(crate) fn command(script: &str) -> Command {
    Command { script: script.into(), timeout: Duration::from_secs(60), output_cap: 1 << 20 }
}

//! How long a sandbox takes to start, to run a command and to stop, beside the same with the client library alone, in turns on
//! one daemon: `cargo bench -p sandbox`. Prints the medians and their ratios. It starts a Docker daemon of its own, as the
//! tests do, or uses the one that `BAE_TEST_DOCKER_HOST` names.

use sandbox::{Command, Docker, Limits, Network, Sandboxes, Settings, Spec};
use std::time::{Duration, Instant};

/// How often each is done.
const TIMES: usize = 30;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let host = tokio::task::spawn_blocking(tests::docker::host).await.expect("a daemon");
    let limits = Limits {
        memory: 256 << 20,
        milli_cpus: 1000,
        pids: 100,
        max_age: Duration::from_secs(600),
        network: Network::Off,
    };
    let deployment = format!("bench{}", std::process::id());
    let settings = Settings { deployment, limits, call_timeout: Duration::from_secs(30) };
    let sandboxes = Sandboxes::Docker(Docker::new(&host, settings).expect("a driver"));
    let client = bollard::Docker::connect_with_host(&host).expect("a client");
    let client = client.negotiate_version().await.expect("a version");
    let spec = |id: &str| Spec {
        id: format!("bench-{}-{id}", std::process::id()),
        image: tests::docker::IMAGE.into(),
        session: "ses".into(),
        profile: "pro".into(),
    };
    let kept = spec("kept");
    sandboxes.start(&kept).await.expect("started");
    let command = Command { script: "echo x".into(), timeout: Duration::from_secs(60), output_cap: 1000 };
    let mut times: [Vec<Duration>; 6] = Default::default();
    for n in 0..TIMES {
        let spec = spec(&n.to_string());
        let began = Instant::now();
        sandboxes.start(&spec).await.expect("started");
        times[0].push(began.elapsed());
        bare::start(&client, "bare-run", &mut times[1]).await;
        let began = Instant::now();
        sandboxes.exec(&kept.id, &command).await.expect("run");
        times[2].push(began.elapsed());
        bare::exec(&client, &format!("bae-{}", kept.id), &mut times[3]).await;
        let began = Instant::now();
        sandboxes.stop(&spec.id).await.expect("stopped");
        times[4].push(began.elapsed());
        bare::stop(&client, "bare-run", &mut times[5]).await;
    }
    sandboxes.stop(&kept.id).await.expect("stopped");
    for (what, pair) in ["start", "exec", "stop"].iter().zip(times.chunks_mut(2)) {
        let [ours, bare] = pair else { unreachable!("pairs") };
        let (ours, bare) = (median(ours), median(bare));
        println!("{what}: {ours:?}, bare {bare:?}, {:.2} times", ours.as_secs_f64() / bare.as_secs_f64());
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The same by the client library alone.
mod bare {
    use bollard::Docker;
    use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
    use bollard::models::{ContainerCreateBody, HostConfig};
    use bollard::query_parameters::{
        CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    };
    use futures_util::StreamExt;
    use std::time::{Duration, Instant};

    pub(super) async fn start(client: &Docker, name: &str, times: &mut Vec<Duration>) {
        let began = Instant::now();
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let body = ContainerCreateBody {
            image: Some(tests::docker::IMAGE.into()),
            cmd: Some(vec!["sleep".into(), "600".into()]),
            // What costs most of all the settings, so that the same is compared.
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        client.create_container(Some(options), body).await.expect("the daemon does it");
        client.start_container(name, None::<StartContainerOptions>).await.expect("the daemon does it");
        times.push(began.elapsed());
    }

    pub(super) async fn exec(client: &Docker, name: &str, times: &mut Vec<Duration>) {
        let began = Instant::now();
        let options = CreateExecOptions {
            cmd: Some(vec!["/bin/sh", "-c", "echo x"]),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..CreateExecOptions::default()
        };
        let exec = client.create_exec(name, options).await.expect("the daemon does it").id;
        let StartExecResults::Attached { mut output, .. } =
            client.start_exec(&exec, None::<StartExecOptions>).await.expect("the daemon does it")
        else {
            panic!("detached")
        };
        while output.next().await.is_some() {}
        client.inspect_exec(&exec).await.expect("the daemon does it");
        times.push(began.elapsed());
    }

    pub(super) async fn stop(client: &Docker, name: &str, times: &mut Vec<Duration>) {
        let began = Instant::now();
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(name, Some(options)).await.expect("the daemon does it");
        times.push(began.elapsed());
    }
}

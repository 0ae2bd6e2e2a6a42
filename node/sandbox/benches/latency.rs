//! How long a sandbox takes to start, to run a command and to stop, beside the same with the client library alone, in turns:
//! `cargo bench -p sandbox`. Prints the medians and their ratios, first of a Docker daemon, then of a Kubernetes cluster, which it
//! starts as the tests do, or which `BAE_TEST_DOCKER_HOST` and `BAE_TEST_KUBECONFIG` name.

use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sandbox::{Command, Docker, Kubernetes, Limits, Network, PodSettings, Sandboxes, Settings, Spec};
use std::time::{Duration, Instant};

/// How often each is done.
const TIMES: usize = 30;

/// The client library of a runtime.
enum Bare {
    Docker(bollard::Docker),
    Kubernetes(Api<Pod>),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let host = tokio::task::spawn_blocking(tests::docker::host).await.expect("a daemon");
    let driver = Docker::new(&host, settings()).expect("a driver");
    let client = bollard::Docker::connect_with_host(&host).expect("a client");
    let client = client.negotiate_version().await.expect("a version");
    compare("Docker", &Sandboxes::Docker(driver), &Bare::Docker(client)).await;

    let kubeconfig = tokio::task::spawn_blocking(tests::kubernetes::kubeconfig).await.expect("a cluster");
    let driver = Kubernetes::new(Some(&kubeconfig), settings(), PodSettings::default()).await.expect("a driver");
    let file = Kubeconfig::read_from(&kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
    let pods = Api::default_namespaced(Client::try_from(config).expect("a client"));
    compare("Kubernetes", &Sandboxes::Kubernetes(Box::new(driver)), &Bare::Kubernetes(pods)).await;
}

fn settings() -> Settings {
    let limits = Limits {
        memory: 256 << 20,
        milli_cpus: 1000,
        pids: 100,
        max_age: Duration::from_secs(600),
        network: Network::Off,
    };
    Settings { deployment: format!("bench{}", std::process::id()), limits, call_timeout: Duration::from_secs(30) }
}

async fn compare(runtime: &str, sandboxes: &Sandboxes, bare: &Bare) {
    let spec = |id: &str| Spec {
        id: format!("bench-{}-{id}", std::process::id()),
        image: tests::docker::IMAGE.into(),
        session: "ses".into(),
        profile: "pro".into(),
    };
    let kept = spec("kept");
    sandboxes.start(&kept).await.expect("started");
    let container = format!("bae-{}", kept.id);
    let command = Command { script: "echo x".into(), timeout: Duration::from_secs(60), output_cap: 1000 };
    let mut times: [Vec<Duration>; 6] = Default::default();
    for n in 0..TIMES {
        let spec = spec(&n.to_string());
        let began = Instant::now();
        sandboxes.start(&spec).await.expect("started");
        times[0].push(began.elapsed());
        let began = Instant::now();
        match bare {
            Bare::Docker(client) => bare_docker::start(client, "bare-run").await,
            Bare::Kubernetes(pods) => bare_kubernetes::start(pods, "bare-run").await,
        }
        times[1].push(began.elapsed());
        let began = Instant::now();
        sandboxes.exec(&kept.id, &command).await.expect("run");
        times[2].push(began.elapsed());
        let began = Instant::now();
        match bare {
            Bare::Docker(client) => bare_docker::exec(client, &container).await,
            Bare::Kubernetes(pods) => bare_kubernetes::exec(pods, &container).await,
        }
        times[3].push(began.elapsed());
        let began = Instant::now();
        sandboxes.stop(&spec.id).await.expect("stopped");
        times[4].push(began.elapsed());
        let began = Instant::now();
        match bare {
            Bare::Docker(client) => bare_docker::stop(client, "bare-run").await,
            Bare::Kubernetes(pods) => bare_kubernetes::stop(pods, "bare-run").await,
        }
        times[5].push(began.elapsed());
    }
    sandboxes.stop(&kept.id).await.expect("stopped");
    for (what, pair) in ["start", "exec", "stop"].iter().zip(times.chunks_mut(2)) {
        let [ours, bare] = pair else { unreachable!("pairs") };
        let (ours, bare) = (median(ours), median(bare));
        println!("{runtime}: {what}: {ours:?}, bare {bare:?}, {:.2} times", ours.as_secs_f64() / bare.as_secs_f64());
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The same by Docker's client library alone.
mod bare_docker {
    use bollard::Docker;
    use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
    use bollard::models::{ContainerCreateBody, HostConfig};
    use bollard::query_parameters::{
        CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    };
    use futures_util::StreamExt;

    pub(super) async fn start(client: &Docker, name: &str) {
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
    }

    pub(super) async fn exec(client: &Docker, name: &str) {
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
    }

    pub(super) async fn stop(client: &Docker, name: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(name, Some(options)).await.expect("the daemon does it");
    }
}

/// The same by Kubernetes' client library alone.
mod bare_kubernetes {
    use futures_util::StreamExt;
    use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
    use kube::Api;
    use kube::api::{AttachParams, DeleteParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
    use std::time::Duration;
    use tokio::io::AsyncReadExt;

    pub(super) async fn start(pods: &Api<Pod>, name: &str) {
        let pod = Pod {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "main".into(),
                    image: Some(tests::docker::IMAGE.into()),
                    command: Some(vec!["/bin/sh".into(), "-c".into(), "trap exit TERM; sleep 600 & wait".into()]),
                    ..Container::default()
                }],
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let made = pods.create(&PostParams::default(), &pod).await.expect("the API server does it");
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
        let events = pods
            .watch(&parameters, &made.metadata.resource_version.expect("a version"))
            .await
            .expect("the API server does it");
        let mut events = std::pin::pin!(events);
        while let Some(Ok(event)) = events.next().await {
            let WatchEvent::Modified(pod) = event else { continue };
            if pod.status.and_then(|status| status.phase).is_some_and(|phase| phase == "Running") {
                break;
            }
        }
    }

    pub(super) async fn exec(pods: &Api<Pod>, name: &str) {
        let mut process = pods
            .exec(name, ["/bin/sh", "-c", "echo x"], &AttachParams::default())
            .await
            .expect("the API server does it");
        let status = process.take_status().expect("the API server does it");
        let mut text = String::new();
        process
            .stdout()
            .expect("the API server does it")
            .read_to_string(&mut text)
            .await
            .expect("the API server does it");
        status.await.expect("the API server does it");
    }

    pub(super) async fn stop(pods: &Api<Pod>, name: &str) {
        pods.delete(name, &DeleteParams::default().grace_period(1)).await.expect("the API server does it");
        while pods.get_opt(name).await.expect("the API server does it").is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

//! What only a Kubernetes cluster can do to sandboxes.

use crate::fixture::{Fixture, command, kubernetes, limits, pods};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{EvictParams, ListParams, ObjectMeta, PostParams};
use sandbox::{End, Error, Limits, PodSettings, Progress, Settings, Spec, SubagentSpec};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::docker::IMAGE;
use tests::kubernetes::Cluster;
use tests::poll;

/// How long a call may take where the API server is away.
const CALL: Duration = Duration::from_secs(2);

/// All pods of the deployment, those that are no sandboxes as well.
async fn pods_left(fixture: &Fixture, deployment: &str) -> Vec<String> {
    let pods: Api<Pod> = fixture.api().await;
    let selector = ListParams::default().labels(&format!("bae.deployment={deployment}"));
    pods.list(&selector).await.unwrap().items.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_no_node_takes_is_refused_in_time() {
    let fixture = Fixture::kubernetes();
    let nowhere = PodSettings {
        node_selector: BTreeMap::from([("bae.test/none".to_owned(), "x".to_owned())]),
        start_timeout: Duration::from_secs(3),
        ..pods()
    };
    let node = fixture.with_pods(nowhere);
    let started = Instant::now();
    let error = node.start(&fixture.spec("a")).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("no node can take it")), "{error:?}");
    let subagent = node.launch(&fixture.subagent("b", "true")).await.unwrap_err();
    assert!(matches!(&subagent, Error::Refused(why) if why.contains("no node can take it")), "{subagent:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_fetched_for_ever_is_refused_in_time() {
    let fixture = Fixture::kubernetes();
    // A registry that takes connections and says nothing.
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let image = format!("{}:{}/no/such-image:7", fixture.host_address(), listener.local_addr().unwrap().port());
    let node = fixture.with_pods(PodSettings { start_timeout: Duration::from_secs(4), ..pods() });
    let started = Instant::now();
    let error = node.start(&Spec { image: image.clone(), ..fixture.spec("a") }).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains(&image)), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_evicted_or_deleted_during_a_command_is_gone() {
    let fixture = Fixture::kubernetes();
    let (a, b) = (fixture.start("a").await, fixture.start("b").await);
    let slow = command("echo begun; sleep 100");
    let (a_call, b_call, ()) =
        tokio::join!(fixture.sandboxes.exec(&a, &slow), fixture.sandboxes.exec(&b, &slow), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let pods: Api<Pod> = fixture.api().await;
            pods.evict(&format!("bae-{a}"), &EvictParams::default()).await.unwrap();
            fixture.remove_by_hand(&b).await;
        });
    for call in [a_call, b_call] {
        let error = call.unwrap_err();
        assert!(matches!(&error, Error::Gone(_)), "{error:?}");
    }
    fixture.start("a").await;
    assert_eq!(fixture.sh(&a, "echo works").await, "works\n");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_has_ended_starts_again() {
    let fixture = Fixture::kubernetes();
    let node = fixture.with_limits(Limits { max_age: Duration::from_secs(1), ..limits() });
    let spec = fixture.spec("a");
    node.start(&spec).await.unwrap();
    poll::until(poll::DEADLINE, "it ends", async || match fixture.exec(&spec.id, "true").await {
        Err(Error::Gone(why)) => Ok(why),
        other => Err(other),
    })
    .await;
    let starts = (0..5).map(|_| {
        let (node, spec) = (fixture.another_node(), spec.clone());
        tokio::spawn(async move { node.start(&spec).await })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    assert_eq!(fixture.sh(&spec.id, "echo works").await, "works\n");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_goes_with_its_pod() {
    let fixture = Fixture::kubernetes();
    let secrets: Api<Secret> = fixture.api().await;
    let spec = SubagentSpec { prompt: b"p".to_vec(), ..fixture.subagent("a", "cat; sleep 100") };
    fixture.sandboxes.launch(&spec).await.unwrap();
    let name = format!("bae-{}", spec.container.id);
    assert!(secrets.get_opt(&name).await.unwrap().is_some());
    fixture.remove_by_hand(&spec.container.id).await;
    poll::until(poll::DEADLINE, "the secret is gone", async || match secrets.get_opt(&name).await.unwrap() {
        None => Ok(()),
        Some(secret) => Err(secret.metadata),
    })
    .await;
    let again = fixture.subagent("b", "cat; sleep 100");
    fixture.sandboxes.launch(&again).await.unwrap();
    fixture.sandboxes.stop(&again.container.id).await.unwrap();
    assert!(secrets.get_opt(&format!("bae-{}", again.container.id)).await.unwrap().is_none());
    let large = SubagentSpec { prompt: vec![b'x'; 1 << 20], ..fixture.subagent("c", "cat") };
    let error = fixture.sandboxes.launch(&large).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("1048576 bytes")), "{error:?}");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_for_an_image_leaves_nothing() {
    let fixture = Fixture::kubernetes();
    let nodes = (0..5).map(|n| {
        let node = fixture.another_node();
        let image = if n == 0 { "localhost:1/no/such-image:7" } else { IMAGE };
        tokio::spawn(async move { (n, node.provision(image).await) })
    });
    for node in nodes.collect::<Vec<_>>() {
        let (n, provisioned) = node.await.unwrap();
        assert_eq!(provisioned.is_err(), n == 0, "{provisioned:?}");
    }
    assert_eq!(pods_left(&fixture, fixture.deployment()).await, [""; 0]);
    fixture.end().await;
}

/// The rights that docs/operations.md names, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_with_the_documented_rights() {
    let fixture = Fixture::kubernetes();
    let name = fixture.deployment().to_owned();
    let metadata = || ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let rule = |resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let rules = vec![
        rule("pods", &["get", "list", "watch", "create", "delete"]),
        rule("pods/exec", &["get", "create"]),
        rule("secrets", &["get", "create", "delete"]),
        rule("events", &["list"]),
    ];
    let new = PostParams::default();
    let accounts: Api<ServiceAccount> = fixture.api().await;
    let account =
        accounts.create(&new, &ServiceAccount { metadata: metadata(), ..ServiceAccount::default() }).await.unwrap();
    fixture.api::<Role>().await.create(&new, &Role { metadata: metadata(), rules: Some(rules) }).await.unwrap();
    let binding = RoleBinding {
        metadata: metadata(),
        role_ref: RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: "Role".into(), name: name.clone() },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: name.clone(),
            namespace: account.metadata.namespace,
            ..Subject::default()
        }]),
    };
    fixture.api::<RoleBinding>().await.create(&new, &binding).await.unwrap();
    let token = accounts.create_token_request(&name, &new, &TokenRequest::default()).await.unwrap();
    let node = fixture.with_token(&token.status.unwrap().token);

    node.provision(IMAGE).await.unwrap();
    let spec = fixture.spec("a");
    node.start(&spec).await.unwrap();
    assert_eq!(node.exec(&spec.id, &command("echo works")).await.unwrap().stdout.text, "works\n");
    let task = SubagentSpec { prompt: b"p".to_vec(), ..fixture.subagent("b", "cat") };
    node.launch(&task).await.unwrap();
    let ended = poll::until(poll::DEADLINE, "the subagent ends", async || {
        match node.collect(&task.container.id, 100).await.unwrap() {
            Progress::Ended(ended) => Ok(ended),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(ended.stdout.text, "p");
    assert_eq!(node.list().await.unwrap().len(), 2);
    for id in [&spec.id, &task.container.id] {
        node.stop(id).await.unwrap();
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_cluster_that_is_said() {
    let folder = std::env::temp_dir().join(format!("bae-no-cluster-{}", std::process::id()));
    let settings = || Settings { deployment: "d".into(), limits: limits(), call_timeout: CALL };
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
        users: [{name: u, user: {}}]\n";
    std::fs::write(&folder, config).unwrap();
    let error = kubernetes(&folder, settings(), pods()).ping().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("refused")), "{error:?}");
    std::fs::remove_file(&folder).unwrap();
    let missing = sandbox::Kubernetes::new(Some(Path::new("/nonexistent/kubeconfig")), settings(), pods()).await;
    let error = missing.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("/nonexistent/kubeconfig")), "{error:?}");
}

fn unavailable<T: std::fmt::Debug>(what: &str, started: Instant, result: Result<T, Error>) {
    assert!(matches!(&result, Err(Error::Unavailable(_))), "{what}: {result:?}");
    assert!(started.elapsed() < CALL * 3, "{what}: {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_hangs_is_unavailable_and_nothing_is_doubled() {
    let cluster = tokio::task::block_in_place(Cluster::start);
    let fixture = Fixture::in_cluster(cluster.kubeconfig(), CALL);
    let id = fixture.start("a").await;
    let finished = fixture.subagent("b", "echo done");
    fixture.sandboxes.launch(&finished).await.unwrap();

    cluster.signal("kube-apiserver", "STOP");
    let began = Instant::now();
    let (new, task, slow) = (fixture.spec("new"), fixture.subagent("task", "echo once"), command("sleep 100"));
    let (provision, start, exec, launch, collect, stop, list) = tokio::join!(
        fixture.sandboxes.provision(IMAGE),
        fixture.sandboxes.start(&new),
        fixture.sandboxes.exec(&id, &slow),
        fixture.sandboxes.launch(&task),
        fixture.sandboxes.collect(&finished.container.id, 1000),
        fixture.sandboxes.stop("none"),
        fixture.sandboxes.list(),
    );
    unavailable("provision", began, provision);
    unavailable("start", began, start);
    unavailable("exec", began, exec);
    unavailable("launch", began, launch);
    unavailable("collect", began, collect);
    unavailable("stop", began, stop);
    unavailable("list", began, list);
    cluster.signal("kube-apiserver", "CONT");

    // What was asked may be done now, and is done once.
    let patient = fixture.patient();
    patient.start("new").await;
    let task = patient.run(&patient.subagent("task", "echo once")).await;
    assert_eq!((task.end, task.stdout.text.as_str()), (End::Exited(0, None), "once\n"));
    assert_eq!(patient.ended(&finished).await.stdout.text, "done\n");
    patient.empty(&id).await;
    assert_eq!(patient.sandboxes.list().await.unwrap().len(), 4);
    patient.end().await;
}

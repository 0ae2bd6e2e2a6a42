//! A Docker daemon that hangs, or dies and is started again.

use crate::fixture::{Fixture, command, limits};
use sandbox::{Docker, End, Error, Progress, Settings};
use std::time::{Duration, Instant};
use tests::docker::{Dockerd, IMAGE};
use tests::poll;

/// How long a call of a daemon may take here.
const CALL: Duration = Duration::from_secs(2);

fn fixture(daemon: &Dockerd) -> Fixture {
    Fixture::on(daemon.host(), limits(), CALL)
}

fn unavailable<T: std::fmt::Debug>(what: &str, started: Instant, result: Result<T, Error>) {
    assert!(matches!(&result, Err(Error::Unavailable(_))), "{what}: {result:?}");
    assert!(started.elapsed() < CALL * 2, "{what}: {:?}", started.elapsed());
}

/// Every operation, of which none can succeed.
async fn all_are_unavailable(fixture: &Fixture, sandbox: &str, subagent: &str) {
    let started = Instant::now();
    let (start, launch, slow) = (fixture.spec("new"), fixture.subagent("task", "echo once"), command("sleep 100"));
    let (provision, start, exec, launch, collect, stop, list) = tokio::join!(
        fixture.sandboxes.provision(IMAGE),
        fixture.sandboxes.start(&start),
        fixture.sandboxes.exec(sandbox, &slow),
        fixture.sandboxes.launch(&launch),
        fixture.sandboxes.collect(subagent, 1000),
        fixture.sandboxes.stop("none"),
        fixture.sandboxes.list(),
    );
    unavailable("provision", started, provision);
    unavailable("start", started, start);
    unavailable("exec", started, exec);
    unavailable("launch", started, launch);
    unavailable("collect", started, collect);
    unavailable("stop", started, stop);
    unavailable("list", started, list);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_hangs_is_unavailable_and_nothing_is_doubled() {
    let daemon = Dockerd::start(&[]);
    let fixture = fixture(&daemon);
    let id = fixture.start("a").await;
    let subagent = fixture.subagent("b", "sleep 3; echo done");
    fixture.sandboxes.launch(&subagent).await.unwrap();
    let (node, own) = (fixture.sandboxes.clone(), id.clone());
    let running =
        tokio::spawn(async move { node.exec(&own, &command("sleep 100 & touch /tmp/runs; sleep 100")).await });
    poll::until(poll::DEADLINE, "the command runs", async || {
        let output = fixture.exec(&id, "cat /tmp/runs").await.unwrap();
        if output.exit_code == 0 { Ok(()) } else { Err(output) }
    })
    .await;

    daemon.signal("STOP");
    let began = Instant::now();
    unavailable("the running command", began, running.await.unwrap());
    Box::pin(all_are_unavailable(&fixture, &id, &subagent.container.id)).await;
    daemon.signal("CONT");

    // Nobody waits for those commands any more.
    fixture.empty(&id).await;
    fixture.start("new").await;
    let task = fixture.run(&fixture.subagent("task", "echo once")).await;
    assert_eq!((task.end, task.stdout.text.as_str()), (End::Exited(0, None), "once\n"));
    let ended = fixture.ended(&subagent).await;
    assert_eq!((ended.end, ended.stdout.text.as_str()), (End::Exited(0, None), "done\n"));
    assert_eq!(fixture.sandboxes.list().await.unwrap().len(), 4);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_pause_of_the_daemon_is_waited_for() {
    let daemon = Dockerd::start(&[]);
    let fixture = fixture(&daemon);
    let id = fixture.start("a").await;
    let pause = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        daemon.signal("STOP");
        tokio::time::sleep(Duration::from_secs(1)).await;
        daemon.signal("CONT");
    };
    let slow = "for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.2; done; exit 3";
    let (output, ()) = tokio::join!(fixture.exec(&id, slow), pause);
    let output = output.unwrap();
    assert_eq!((output.stdout.text.as_str(), output.exit_code), ("1\n2\n3\n4\n5\n6\n7\n8\n", 3));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_daemon_died_sandboxes_are_gone_and_start_again() {
    let mut daemon = Dockerd::start(&[]);
    let fixture = fixture(&daemon);
    let id = fixture.start("a").await;
    let subagent = fixture.subagent("b", "echo begun; sleep 100");
    fixture.sandboxes.launch(&subagent).await.unwrap();
    let finished = fixture.subagent("c", "echo finished");
    let result = fixture.run(&finished).await;
    let (node, own) = (fixture.sandboxes.clone(), id.clone());
    let running = tokio::spawn(async move { node.exec(&own, &command("sleep 100")).await });
    tokio::time::sleep(Duration::from_millis(500)).await;

    daemon.kill();
    let began = Instant::now();
    unavailable("the running command", began, running.await.unwrap());
    Box::pin(all_are_unavailable(&fixture, &id, &subagent.container.id)).await;
    daemon.run();

    let error = fixture.exec(&id, "true").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("end")), "{error:?}");
    let ended = fixture.ended(&subagent).await;
    assert!(matches!(&ended.end, End::Died(why) if why.contains("end")), "{ended:?}");
    assert_eq!(fixture.ended(&finished).await, result);
    fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_keeps_its_containers_goes_on_with_them() {
    let mut daemon = Dockerd::start(&["--live-restore"]);
    let fixture = fixture(&daemon);
    let id = fixture.start("a").await;
    fixture.sh(&id, "echo kept >/tmp/file").await;
    let subagent = fixture.subagent("b", "echo begun; sleep 6; cat; exit 4");
    fixture.sandboxes.launch(&subagent).await.unwrap();
    let (node, own) = (fixture.sandboxes.clone(), id.clone());
    let running = tokio::spawn(async move { node.exec(&own, &command("sleep 100")).await });
    tokio::time::sleep(Duration::from_millis(500)).await;

    daemon.kill();
    assert!(running.await.unwrap().is_err());
    daemon.run();

    assert_eq!(fixture.sh(&id, "cat /tmp/file").await, "kept\n");
    assert_eq!(fixture.sandboxes.collect(&subagent.container.id, 1000).await.unwrap(), Progress::Running);
    let ended = fixture.ended(&subagent).await;
    assert_eq!((ended.end, ended.stdout.text.as_str()), (End::Exited(4, None), "begun\n"));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_daemon_that_is_said() {
    let settings = || Settings { deployment: "d".into(), limits: limits(), call_timeout: CALL };
    let error = Docker::new("tcp://127.0.0.1:1", settings()).unwrap().ping().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("refused")), "{error:?}");
    let error = Docker::new("unix:///nonexistent/docker.sock", settings()).unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("/nonexistent/docker.sock")), "{error:?}");
    let refused = Docker::new("nonsense://x", settings()).unwrap_err();
    assert!(matches!(&refused, Error::Refused(why) if why.contains("nonsense")), "{refused:?}");
}

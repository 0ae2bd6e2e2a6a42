//! Sandboxes as such: started, adopted, stopped, listed.

use crate::fixture::{Fixture, limits};
use sandbox::{Error, Found, Kind, Limits, Spec};
use std::time::Duration;
use tests::poll;

pub(super) async fn starting_twice_gives_one(fixture: &Fixture) {
    let spec = fixture.spec("a");
    fixture.sandboxes.start(&spec).await.unwrap();
    fixture.sh(&spec.id, "echo kept >/tmp/file").await;
    fixture.another_node().start(&spec).await.unwrap();
    assert_eq!(fixture.sh(&spec.id, "cat /tmp/file").await, "kept\n");
    assert_eq!(fixture.sandboxes.list().await.unwrap().len(), 1);
}

pub(super) async fn many_starts_at_once_give_one(fixture: &Fixture) {
    let spec = fixture.spec("a");
    let nodes = [fixture.another_node(), fixture.another_node(), fixture.another_node()];
    let starts = (0..50).map(|n| {
        let (node, spec) = (nodes[n % 3].clone(), spec.clone());
        tokio::spawn(async move { node.start(&spec).await })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    assert_eq!(fixture.sandboxes.list().await.unwrap().len(), 1);
    assert_eq!(fixture.sh(&spec.id, "echo works").await, "works\n");
}

pub(super) async fn another_containers_name_is_not_taken(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let other = Spec { session: "ses_2".into(), ..fixture.spec("a") };
    let error = fixture.sandboxes.start(&other).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("another one")), "{error:?}");
    let subagent = fixture.sandboxes.launch(&fixture.subagent("a", "true")).await.unwrap_err();
    assert!(matches!(&subagent, Error::Refused(_)), "{subagent:?}");
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
}

pub(super) async fn stopping_is_final_and_can_be_repeated(fixture: &Fixture) {
    let id = fixture.start("a").await;
    let stops = [fixture.another_node(), fixture.another_node(), fixture.another_node()].map(|node| {
        tokio::spawn({
            let id = id.clone();
            async move { node.stop(&id).await }
        })
    });
    for stop in stops {
        stop.await.unwrap().unwrap();
    }
    assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
    fixture.sandboxes.stop(&id).await.unwrap();
    let error = fixture.exec(&id, "true").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("does not exist")), "{error:?}");
}

pub(super) async fn one_that_was_removed_by_hand_is_gone_and_starts_again(fixture: &Fixture) {
    let id = fixture.start("a").await;
    fixture.remove_by_hand(&id).await;
    let error = fixture.exec(&id, "true").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("does not exist")), "{error:?}");
    fixture.start("a").await;
    assert_eq!(fixture.sh(&id, "echo works").await, "works\n");
}

pub(super) async fn an_unknown_image_is_named(fixture: &Fixture) {
    fixture.sandboxes.provision(tests::docker::IMAGE).await.unwrap();
    let image = "localhost:1/no/such-image:7";
    let error = fixture.sandboxes.provision(image).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains(image)), "{error:?}");
    let spec = Spec { image: image.into(), ..fixture.spec("a") };
    let error = fixture.sandboxes.start(&spec).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains(image)), "{error:?}");
    assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
    let error = fixture.sandboxes.provision("Not An Image").await.unwrap_err();
    assert!(matches!(&error, Error::Refused(_)), "{error:?}");
}

pub(super) async fn a_shell_is_needed(fixture: &Fixture) {
    let spec = Spec { image: tests::docker::BARE_IMAGE.into(), ..fixture.spec("a") };
    let error = fixture.sandboxes.start(&spec).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("/bin/sh")), "{error:?}");
    assert_eq!(fixture.sandboxes.list().await.unwrap(), []);
}

pub(super) async fn a_bad_id_is_refused(fixture: &Fixture) {
    for id in ["", "../../images", "a b", "a?force=true", "ä"] {
        let error = fixture.sandboxes.stop(id).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(_)), "{error:?}");
        let error = fixture.exec(id, "true").await.unwrap_err();
        assert!(matches!(&error, Error::Refused(_)), "{error:?}");
    }
}

pub(super) async fn all_of_the_deployment_are_listed(fixture: &Fixture) {
    let stranger = fixture.stranger();
    stranger.start("x").await;
    let (a, b) = (fixture.start("a").await, fixture.subagent("b", "sleep 100"));
    fixture.sandboxes.launch(&b).await.unwrap();
    let ended = fixture.subagent("c", "true");
    fixture.run(&ended).await;
    let mut listed = fixture.sandboxes.list().await.unwrap();
    listed.sort_by(|one, other| one.id.cmp(&other.id));
    let found = |id: &str, kind, running| Found { id: id.into(), kind, session: "ses_1".into(), running };
    let expected = [
        found(&a, Kind::Sandbox, true),
        found(&b.container.id, Kind::Subagent, true),
        found(&ended.container.id, Kind::Subagent, false),
    ];
    assert_eq!(listed, expected);
    stranger.end().await;
}

pub(super) async fn it_ends_at_its_maximum_age(fixture: &Fixture) {
    let node = fixture.with_limits(Limits { max_age: Duration::from_secs(2), ..limits() });
    let spec = fixture.spec("a");
    node.start(&spec).await.unwrap();
    // A command that is running is ended with it.
    let error = fixture.exec(&spec.id, "sleep 30").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("maximum age")), "{error:?}");
    let error = fixture.exec(&spec.id, "true").await.unwrap_err();
    assert!(matches!(&error, Error::Gone(why) if why.contains("maximum age")), "{error:?}");
    assert!(!fixture.sandboxes.list().await.unwrap()[0].running);
}

pub(super) async fn many_are_started_and_stopped(fixture: &Fixture) {
    for round in 0..4 {
        let tasks = (0..10).map(|n| {
            let (node, spec) = (fixture.another_node(), fixture.spec(&format!("r{round}-{n}")));
            tokio::spawn(async move {
                node.start(&spec).await?;
                node.stop(&spec.id).await
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap().unwrap();
        }
    }
    poll::until(poll::DEADLINE, "none is left", async || match fixture.sandboxes.list().await.unwrap() {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    })
    .await;
}

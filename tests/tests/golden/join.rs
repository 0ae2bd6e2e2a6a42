//! `POST /api/v1/sessions/{id}/join`: the checks in order, first failure wins.

use super::golden;
use serde_json::json;
use tests::fixture::{Fixture, clock};
use tests::transcript::Transcript;

#[tokio::test]
async fn joining() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.admin.key("second", &fixture.profile).await;
    let mut t = Transcript::default();
    let body = json!({"client_version": "2.0.0", "tools": [{"name": "weather"}], "subagent_tools": []});
    let reply =
        t.rest(&fixture.api, "POST", &session.path("/join"), &second.secret, Some(body)).await.expect(201).json();
    assert_eq!(reply["session_id"], session.id);
    assert_ne!(reply["session_key"], session.key);
    let events = t.rest(&fixture.api, "GET", &session.path("/events"), &session.key, None).await.expect(200).json();
    let join = events["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (join["event_type"].as_str(), join["client_key_id"].as_str()),
        (Some("session.join"), Some(second.id.as_str()))
    );
    t.note("the same key may join again, for a key of its own; the older ones stay valid");
    t.rest(&fixture.api, "POST", &session.path("/join"), &second.secret, Some(json!({}))).await.expect(201);
    fixture.api.get(&session.path("/events"), reply["session_key"].as_str().unwrap()).await.expect(200);
    golden("join", t);
}

#[tokio::test]
async fn checks_in_order() {
    let fixture = Fixture::start().await;
    let open = fixture.driver().await;
    let closed = fixture.driver().await;
    closed.delete().await.expect(200);
    let stranger_profile =
        fixture.admin.profile(&json!({"name": "other", "primary_provider": "main", "allowed_tools": []})).await;
    let stranger = fixture.admin.key("stranger", &stranger_profile).await;
    let unknown = "/api/v1/sessions/ses_00000000000000000000000000000000/join";
    let bad_tool = json!({"tools": [{"name": "rm"}]});
    let with_compaction = json!({"compaction": null, "tools": [{"name": "rm"}]});
    let mut t = Transcript::default();

    t.note("1: 401 before all");
    t.rest(&fixture.api, "POST", unknown, "bae_no", Some(with_compaction.clone())).await.problem(401, "unauthorized");
    t.note("2: the compaction key, before the session is looked up");
    let detail = t
        .rest(&fixture.api, "POST", unknown, &stranger.secret, Some(with_compaction))
        .await
        .problem(400, "bad_request");
    assert_eq!(detail, "compaction is a session-level setting fixed at creation and cannot be set on join");
    let with_mode = json!({"compaction": {"mode": "client"}});
    let detail = t
        .rest(&fixture.api, "POST", &open.path("/join"), &fixture.key.secret, Some(with_mode))
        .await
        .problem(400, "bad_request");
    assert_eq!(detail, "compaction is a session-level setting fixed at creation and cannot be set on join");
    t.note("3: 404");
    t.rest(&fixture.api, "POST", unknown, &stranger.secret, Some(bad_tool.clone())).await.problem(404, "not_found");
    t.rest(&fixture.api, "POST", "/api/v1/sessions/nonsense/join", &stranger.secret, Some(json!({})))
        .await
        .problem(404, "not_found");
    t.note("4: closed or error, even to a stranger");
    let detail = t.rest(&fixture.api, "POST", &closed.path("/join"), &stranger.secret, Some(bad_tool.clone())).await;
    assert_eq!(detail.problem(409, "session_closed"), "session is already closed");
    t.note("5: another profile; nothing is logged");
    let before = open.events().await;
    t.rest(&fixture.api, "POST", &open.path("/join"), &stranger.secret, Some(bad_tool.clone()))
        .await
        .problem(403, "profile_mismatch");
    assert_eq!(open.events().await, before);
    t.note("8: a tool that is not allowed");
    t.rest(&fixture.api, "POST", &open.path("/join"), &fixture.key.secret, Some(bad_tool.clone()))
        .await
        .problem(403, "tool_not_allowed");
    t.note("malformed bodies");
    t.rest(&fixture.api, "POST", &open.path("/join"), &fixture.key.secret, Some(json!({"tools": 1})))
        .await
        .problem(400, "bad_request");
    let reserved = json!({"tools": [{"name": "remote_subagent_status"}]});
    t.rest(&fixture.api, "POST", &open.path("/join"), &fixture.key.secret, Some(reserved)).await.expect(422);
    assert_eq!(open.events().await, before);
    golden("join_checks", t);
}

#[tokio::test]
async fn a_lost_provider_or_profile() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    let before = session.events().await;
    let body = json!({"tools": [{"name": "rm"}]});

    t.note("7: the primary provider is gone from the configuration; before the tools");
    fixture.server.kill9();
    fixture.server.write_config("");
    fixture.server.restart().await;
    let reply = t.rest(&fixture.api, "POST", &session.path("/join"), &fixture.key.secret, Some(body.clone())).await;
    reply.problem(422, "primary_provider_unavailable");
    t.note("6: the profile is gone too; before the provider");
    fixture.lose_profile(&fixture.profile.clone()).await;
    let reply = t.rest(&fixture.api, "POST", &session.path("/join"), &fixture.key.secret, Some(body)).await;
    reply.problem(422, "profile_unavailable");

    t.note("the joined session is untouched; each failure is logged as a session of its own");
    assert_eq!(session.events().await, before);
    let list = fixture.admin.get("/admin/v1/sessions?state=error").await.expect(200).json();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{list}");
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    golden("join_unavailable", t);
}

/// A joiner's tools are its own: never merged with another client's.
#[tokio::test]
async fn tools_belong_to_the_acting_client() {
    let fixture = Fixture::start().await;
    let first = fixture.driver_with(json!({"tools": [clock()]})).await;
    let key = fixture.admin.key("second", &fixture.profile).await;
    let second = fixture.api.join(&first.id, &key.secret, &json!({"tools": [{"name": "weather"}]})).await;
    second.register().await;
    first.send("a").await.text();
    let names = |body: &serde_json::Value| -> Vec<String> {
        body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&fixture.provider.last()), ["clock"]);
    second.send("b").await.text();
    assert_eq!(names(&fixture.provider.last()), ["weather"]);
}

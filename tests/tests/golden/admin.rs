//! The admin API (docs/api.md 10).

use super::golden;
use serde_json::{Value, json};
use tests::fixture::{Fixture, Plan};
use tests::provider::Answer;
use tests::server::ADMIN_KEY;
use tests::transcript::Transcript;

#[tokio::test]
async fn profiles() {
    let fixture = Fixture::start().await;
    let api = &fixture.admin.0;
    let mut t = Transcript::default();
    let path = "/admin/v1/profiles";
    let body = json!({"name": "second", "primary_provider": "nobody-yet"});
    let made = t.rest(api, "POST", path, ADMIN_KEY, Some(body)).await.expect(201).json();
    let one = format!("{path}/{}", made["id"].as_str().unwrap());
    let list = t.rest(api, "GET", path, ADMIN_KEY, None).await.expect(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    t.rest(api, "GET", &one, ADMIN_KEY, None).await.expect(200);
    t.note("full replacement");
    let full = json!({
        "name": "renamed", "primary_provider": "main", "fallback_providers": ["a"], "mcp_servers": ["b"], "allowed_tools": ["c"],
        "available_sandboxes": ["d:1"],
    });
    t.rest(api, "PUT", &one, ADMIN_KEY, Some(full.clone())).await.expect(200);
    let bare = json!({"name": "renamed", "primary_provider": "main"});
    let reply = t.rest(api, "PUT", &one, ADMIN_KEY, Some(bare)).await.expect(200).json();
    assert_eq!(reply["allowed_tools"], json!([]), "what is left out is empty, not kept");
    t.note("names are unique among the living");
    let taken = json!({"name": "main", "primary_provider": "x"});
    t.rest(api, "POST", path, ADMIN_KEY, Some(taken.clone())).await.problem(409, "duplicate_name");
    t.rest(api, "PUT", &one, ADMIN_KEY, Some(taken)).await.problem(409, "duplicate_name");
    t.note("malformed (D11)");
    for body in [
        json!({}),
        json!([]),
        json!({"name": " ", "primary_provider": "x"}),
        json!({"name": "x", "primary_provider": ""}),
        json!({"name": 1, "primary_provider": "x"}),
        json!({"name": "x", "primary_provider": "x", "allowed_tools": [1]}),
        json!({"name": "x", "primary_provider": "x", "allowed_tools": "clock"}),
        json!({"name": "x", "primary_provider": "x", "available_sandboxes": [" "]}),
    ] {
        t.rest(api, "POST", path, ADMIN_KEY, Some(body.clone())).await.problem(400, "bad_request");
        t.rest(api, "PUT", &one, ADMIN_KEY, Some(body)).await.problem(400, "bad_request");
    }
    t.note("deleting");
    let in_use = format!("{path}/{}", fixture.profile);
    t.rest(api, "DELETE", &in_use, ADMIN_KEY, None).await.problem(409, "profile_in_use");
    t.rest(api, "DELETE", &one, ADMIN_KEY, None).await.expect(204);
    t.rest(api, "DELETE", &one, ADMIN_KEY, None).await.problem(404, "not_found");
    t.rest(api, "GET", &one, ADMIN_KEY, None).await.problem(404, "not_found");
    t.rest(api, "PUT", &one, ADMIN_KEY, Some(full.clone())).await.problem(404, "not_found");
    t.note("a deleted profile's name can be used again (D11)");
    t.rest(api, "POST", path, ADMIN_KEY, Some(full)).await.expect(201);
    t.rest(api, "GET", &format!("{path}/nonsense"), ADMIN_KEY, None).await.problem(404, "not_found");
    golden("admin_profiles", t);
}

#[tokio::test]
async fn keys() {
    let fixture = Fixture::start().await;
    let api = &fixture.admin.0;
    let mut t = Transcript::default();
    let path = "/admin/v1/keys";
    let body = json!({"name": "laptop", "profile_id": fixture.profile});
    let made = t.rest(api, "POST", path, ADMIN_KEY, Some(body)).await.expect(201).json();
    let secret = made["key"].as_str().unwrap();
    assert_eq!(made["prefix"].as_str().unwrap(), &secret[..8]);
    let list = fixture.admin.get(path).await.expect(200);
    assert!(!list.body.contains("digest") && !list.body.contains(secret), "{}", list.body);
    let find = |list: Value| list["items"].as_array().unwrap().iter().find(|k| k["id"] == made["id"]).cloned().unwrap();
    t.value("in the list, never used", &find(list.json()));
    assert!(find(list.json())["last_used_at"].is_null());
    let session = fixture.api.open(secret, &json!({})).await;
    let used = tests::poll::until(tests::poll::DEADLINE, "last_used_at", async || {
        let entry = find(fixture.admin.get(path).await.expect(200).json());
        if entry["last_used_at"].is_null() { Err(entry) } else { Ok(entry) }
    })
    .await;
    t.value("and used", &used);

    t.note("malformed");
    for body in [
        json!({}),
        json!({"name": "", "profile_id": fixture.profile}),
        json!({"name": "x"}),
        json!({"name": "x", "profile_id": 1}),
        json!({"name": "é".repeat(128), "profile_id": fixture.profile}),
    ] {
        t.rest(api, "POST", path, ADMIN_KEY, Some(body)).await.problem(400, "bad_request");
    }
    for unknown in ["pro_00000000000000000000000000000000", "nonsense", ""] {
        let body = json!({"name": "x", "profile_id": unknown});
        t.rest(api, "POST", path, ADMIN_KEY, Some(body)).await.problem(422, "profile_unavailable");
    }

    t.note("revoking: the key, its session keys and the session that nobody else holds end at once");
    let watcher = session.subscribe(None).await;
    let one = format!("{path}/{}", made["id"].as_str().unwrap());
    t.rest(api, "DELETE", &one, ADMIN_KEY, None).await.expect(204);
    t.rest(&fixture.api, "POST", "/api/v1/sessions", secret, Some(json!({}))).await.problem(401, "unauthorized");
    t.rest(&fixture.api, "GET", &session.path("/events"), &session.key, None).await.problem(401, "unauthorized");
    watcher.finish().await;
    let closed = tests::poll::until(tests::poll::DEADLINE, "the session's close", async || {
        let events = fixture.admin.events(&session.id).await;
        if events.last().unwrap()["event_type"] == "session.close" { Ok(events) } else { Err(events) }
    })
    .await;
    t.value("the log's end, from the admin port", closed.last().unwrap());
    assert_eq!(closed.last().unwrap()["payload"], json!({"reason": "client_key_revoked"}));
    t.rest(api, "DELETE", &one, ADMIN_KEY, None).await.problem(404, "not_found");
    t.rest(api, "DELETE", &format!("{path}/nonsense"), ADMIN_KEY, None).await.problem(404, "not_found");
    golden("admin_keys", t);
}

/// A session that another key still holds goes on when one key is revoked.
#[tokio::test]
async fn revoking_one_of_two() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let key = fixture.admin.key("second", &fixture.profile).await;
    let second = fixture.api.join(&session.id, &key.secret, &json!({})).await;
    second.register().await;
    let stream = second.subscribe(None).await;
    fixture.admin.revoke(&key).await;
    stream.finish().await;
    fixture.api.get(&second.path("/events"), &second.key).await.problem(401, "unauthorized");
    assert_eq!(session.send("still here").await.text(), "ok");
    assert_eq!(fixture.admin.state(&session.id).await, "open");
}

#[tokio::test]
async fn sessions_and_lists() {
    let fixture = Fixture::start().await;
    let api = &fixture.admin.0;
    let closed = fixture.driver_with(json!({"client_version": "1.0.0"})).await;
    closed.delete().await.expect(200);
    let open = fixture.driver().await;
    let mut t = Transcript::default();
    for state in ["open", "closed", "error"] {
        let list =
            t.rest(api, "GET", &format!("/admin/v1/sessions?state={state}"), ADMIN_KEY, None).await.expect(200).json();
        assert_eq!(list["items"].as_array().unwrap().len(), usize::from(state != "error"));
    }
    t.rest(api, "GET", &format!("/admin/v1/sessions/{}/events", closed.id), ADMIN_KEY, None).await.expect(200);
    assert_eq!(fixture.admin.events(&open.id).await, open.events().await);
    t.rest(api, "GET", "/admin/v1/sessions/ses_00000000000000000000000000000000/events", ADMIN_KEY, None)
        .await
        .problem(404, "not_found");
    t.rest(api, "GET", "/admin/v1/sessions?state=half-open", ADMIN_KEY, None).await.problem(400, "bad_request");
    t.note("closing one while its turn runs");
    let running = fixture.driver().await;
    let _held = fixture.provider.hold(Answer::text("too late"));
    let call = running.start_send("go").await;
    running.until_last("provider.request").await;
    let path = format!("/admin/v1/sessions/{}", running.id);
    t.rest(api, "DELETE", &path, ADMIN_KEY, None).await.expect(204);
    call.finish().await;
    let last = fixture.admin.events(&running.id).await.pop().unwrap();
    assert_eq!(last["client_key_id"], fixture.key.id.as_str());
    t.value("the log's end", &last);
    t.rest(api, "DELETE", &path, ADMIN_KEY, None).await.problem(409, "session_closed");
    for unknown in ["ses_00000000000000000000000000000000", "nonsense"] {
        t.rest(api, "DELETE", &format!("/admin/v1/sessions/{unknown}"), ADMIN_KEY, None)
            .await
            .problem(404, "not_found");
    }
    t.note("paging, the same for every list");
    for path in [
        "/admin/v1/profiles",
        "/admin/v1/keys",
        "/admin/v1/sessions",
        &format!("/admin/v1/sessions/{}/events", open.id),
    ] {
        for query in ["limit=0", "limit=-1", "limit=x", "cursor=%20nonsense"] {
            t.rest(api, "GET", &format!("{path}?{query}"), ADMIN_KEY, None).await.problem(400, "bad_request");
        }
        fixture.admin.get(&format!("{path}?limit=1000")).await.expect(200);
    }
    for number in 0..4 {
        fixture.admin.profile(&json!({"name": format!("p{number}"), "primary_provider": "main"})).await;
    }
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = fixture.admin.get(&format!("/admin/v1/profiles?limit=2&cursor={cursor}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = next.to_owned();
    }
    names.sort();
    assert_eq!(names, ["main", "p0", "p1", "p2", "p3"]);
    golden("admin_sessions", t);
}

#[tokio::test]
async fn registries_and_configuration() {
    let secret_lines = "[[mcp.servers]]\nname = \"zeta\"\ntransport = \"http\"\nurl = \"http://127.0.0.1:9/mcp\"\n\
         headers = { Authorization = \"Bearer very-secret\" }\n\
         [[mcp.servers]]\nname = \"alpha\"\ntransport = \"stdio\"\ncommand = \"true\"\nargs = [\"-x\"]\nenv = { TOKEN = \"very-secret\" }\n\
         [[providers.entries]]\nname = \"a-first\"\nprovider = \"openai\"\nmodel = \"gpt\"\nauth_token = \"${VERY_SECRET}\"\n";
    let fixture =
        Plan::default().toml(secret_lines).profile("available_sandboxes", json!(["python:3.12"])).start().await;
    let api = &fixture.admin.0;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let names = |reply: Value| -> Vec<String> {
        reply["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let reply = t.rest(api, "GET", "/admin/v1/mcp-servers", ADMIN_KEY, None).await.expect(200);
    assert_eq!(names(reply.json()), ["alpha", "zeta"]);
    let reply = t.rest(api, "GET", "/admin/v1/providers", ADMIN_KEY, None).await.expect(200);
    assert_eq!(names(reply.json()), ["a-first", "main"]);
    let reply = t.rest(api, "GET", "/admin/v1/config", ADMIN_KEY, None).await.expect(200);
    for secret in ["very-secret", "VERY_SECRET", "token-main"] {
        assert!(!reply.body.contains(secret), "{}", reply.body);
    }
    assert!(reply.body.contains("••••••••"));
    tests::poll::until(tests::poll::DEADLINE, "the image's status", async || {
        let reply = fixture.admin.get("/admin/v1/sandbox-status").await.expect(200).json();
        if reply["items"][0]["images"][0]["status"] == "error" { Ok(()) } else { Err(reply) }
    })
    .await;
    t.rest(api, "GET", "/admin/v1/sandbox-status", ADMIN_KEY, None).await.expect(200);
    golden("admin_registries", t);
}

#[tokio::test]
async fn authentication() {
    let fixture = Fixture::start().await;
    let api = &fixture.admin.0;
    let mut t = Transcript::default();
    let wrong = format!("bae_admin_{}", "0".repeat(48));
    for key in ["", &fixture.key.secret, &wrong] {
        t.rest(api, "GET", "/admin/v1/profiles", key, None).await.problem(401, "unauthorized");
    }
    t.note("before the body is looked at");
    let request = api.request("POST", "/admin/v1/profiles").body("not json");
    t.request(api, "POST /admin/v1/profiles without a key", request).await.problem(401, "unauthorized");
    t.note("unknown paths and methods");
    t.rest(api, "GET", "/admin/v1/nothing", ADMIN_KEY, None).await.problem(404, "not_found");
    t.rest(api, "DELETE", "/admin/v1/profiles", ADMIN_KEY, None).await.problem_of(405);
    t.note("the two ports share nothing");
    t.rest(&fixture.api, "GET", "/admin/v1/profiles", ADMIN_KEY, None).await.problem(404, "not_found");
    t.rest(api, "POST", "/api/v1/sessions", ADMIN_KEY, Some(json!({}))).await.problem(404, "not_found");
    golden("admin_auth", t);
}

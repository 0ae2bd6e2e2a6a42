//! Tests of the admin API through its router: authentication, profiles, keys, pages of lists, problems and the
//! registries.

use super::*;
use crate::config::{Config, Flags};
use coordinator::Db;
use coordinator::accounts::Accounts;
use coordinator::cluster::Cluster;
use coordinator::cluster::Local;
use coordinator::feed::Feeds;
use coordinator::log::Log;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

const KEY: &str = "bae_admin_0123456789abcdef0123456789abcdef0123456789abcdef";
const FILE: &str = r#"
[[providers.entries]]
name = "zeta"
provider = "openai"
base_url = "http://127.0.0.1:9/v/"
model = "m"
auth_token = "hush-token"
[[providers.entries]]
name = "alpha"
provider = "anthropic"
model = "n"
auth_token = ""
[[mcp.servers]]
name = "web"
transport = "http"
url = "https://h/mcp?key=hush-query"
headers = { Authorization = "Bearer hush-header" }
[[mcp.servers]]
name = "files"
transport = "stdio"
command = "run"
args = ["x"]
env = { K = "hush-env" }
[telemetry]
otlp_headers = { token = "hush-otlp" }
"#;

/// The admin port of a node with a database of its own.
struct Port {
    url: String,
    http: reqwest::Client,
    app: Arc<App>,
    dir: PathBuf,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.serving.abort();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Port {
    async fn open(flags: Flags) -> Self {
        let dir = std::env::temp_dir().join(format!("bae-admin-{}", uuid::Uuid::now_v7().simple()));
        let db = Db::open(&dir.join("bae.db")).await.unwrap();
        let environment = BTreeMap::from([("BAE_ADMIN_KEY", KEY.to_owned())]);
        let config = Config::build(&flags, Arc::new(environment), FILE).unwrap();
        let accounts = Accounts::new(db.clone());
        key::prepare(&config, &accounts).await.unwrap();
        let log = Log::new(db.clone(), Arc::new(Feeds::default()));
        let (local, _) = Local::new(1);
        let app = Arc::new(App::new(config, db, log, Cluster::Local(local), None).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = router(app.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { url, http, app, dir, serving }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.url)).bearer_auth(KEY);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        answer(request).await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn problem(&self, method: &str, path: &str, body: Option<Value>) -> (u16, String, String) {
        let (status, body) = self.call(method, path, body).await;
        assert_eq!(body["status"], status, "{body}");
        (status, body["type"].as_str().unwrap().to_owned(), body["detail"].as_str().unwrap().to_owned())
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() })
}

fn profile(name: &str) -> Value {
    json!({
        "name": name, "primary_provider": "main", "fallback_providers": ["b"], "mcp_servers": [], "allowed_tools": ["t"],
        "available_sandboxes": ["z:1", "a:1"],
    })
}

fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap();
    text.len() == 24 && text.ends_with('Z') && text.as_bytes()[19] == b'.'
}

#[tokio::test]
async fn nothing_without_the_admin_key() {
    let port = Port::open(Flags::default()).await;
    let wrong = crate::secret::Kind::Admin.generate().unwrap();
    let url = |path: &str| format!("{}{path}", port.url);
    for path in ["/admin/v1/profiles", "/admin/v1/nothing", "/"] {
        let bare = port.http.get(url(path));
        let (status, body) = answer(bare).await;
        assert_eq!((status, &body["type"]), (401, &json!("unauthorized")), "{path}");
        let (status, body) = answer(port.http.get(url(path)).bearer_auth(wrong.expose_secret())).await;
        assert_eq!((status, &body["detail"]), (401, &json!("invalid admin key")), "{path}");
    }
    // Authentication comes before the body is read.
    let (status, _) = answer(port.http.post(url("/admin/v1/profiles")).body("{")).await;
    assert_eq!(status, 401);
    // A key that was replaced is refused at once.
    let new = crate::secret::Kind::Admin.generate().unwrap();
    port.app.accounts().replace_admin_key(digest(new.expose_secret())).await.unwrap();
    assert_eq!(port.call("GET", "/admin/v1/profiles", None).await.0, 401);
    assert_eq!(answer(port.http.get(url("/admin/v1/profiles")).bearer_auth(new.expose_secret())).await.0, 200);
}

#[tokio::test]
async fn authentication_can_be_switched_off() {
    let port = Port::open(Flags { disable_admin_auth: true, ..Flags::default() }).await;
    assert_eq!(answer(port.http.get(format!("{}/admin/v1/keys", port.url))).await.0, 200);
}

#[tokio::test]
async fn profiles() {
    let port = Port::open(Flags::default()).await;
    let (status, made) = port.call("POST", "/admin/v1/profiles", Some(profile("a"))).await;
    assert_eq!((status, &made["name"], made.as_object().unwrap().len()), (201, &json!("a"), 3));
    assert!(is_time(&made["created_at"]));
    let path = format!("/admin/v1/profiles/{}", made["id"].as_str().unwrap());

    let shown = port.get(&path).await;
    let mut expected = profile("a");
    for (field, value) in
        [("id", &made["id"]), ("created_at", &made["created_at"]), ("updated_at", &made["created_at"])]
    {
        expected[field] = value.clone();
    }
    assert_eq!(shown, expected);
    assert_eq!(port.get("/admin/v1/profiles").await, json!({"items": [shown], "next_cursor": null}));

    let (status, replaced) =
        port.call("PUT", &path, Some(json!({"name": "b", "primary_provider": "p", "more": 1}))).await;
    assert_eq!((status, &replaced["name"], &replaced["allowed_tools"]), (200, &json!("b"), &json!([])));
    assert_eq!(port.call("POST", "/admin/v1/profiles", Some(profile("a"))).await.0, 201);
    let (status, slug, _) = port.problem("PUT", &path, Some(profile("a"))).await;
    assert_eq!((status, slug.as_str()), (409, "duplicate_name"));
    let (status, slug, _) = port.problem("POST", "/admin/v1/profiles", Some(profile("a"))).await;
    assert_eq!((status, slug.as_str()), (409, "duplicate_name"));

    assert_eq!(port.call("DELETE", &path, None).await, (204, Value::Null));
    for method in ["GET", "DELETE"] {
        assert_eq!(port.problem(method, &path, None).await, (404, "not_found".into(), "profile does not exist".into()));
    }
    assert_eq!(port.problem("PUT", &path, Some(profile("c"))).await.0, 404);
    assert_eq!(port.problem("GET", "/admin/v1/profiles/pro_x", None).await.0, 404);
    assert_eq!(port.problem("GET", "/admin/v1/profiles/%ff", None).await.0, 404);
}

#[tokio::test]
async fn bad_bodies_are_refused_with_a_reason() {
    let port = Port::open(Flags::default()).await;
    let with = |field: &str, value: Value| {
        let mut body = profile("x");
        body[field] = value;
        body
    };
    let cases = [
        (json!({"primary_provider": "p"}), "invalid request body: missing field `name`"),
        (json!({"name": "n"}), "invalid request body: missing field `primary_provider`"),
        (with("name", json!("  ")), "name must not be blank"),
        (with("name", json!("a\0")), "name must not hold the character U+0000"),
        (with("primary_provider", json!("")), "primary_provider must not be blank"),
        (with("allowed_tools", json!([1])), "invalid request body: invalid type: integer `1`, expected a string"),
        (with("allowed_tools", json!("t")), "invalid request body: invalid type: string \"t\", expected a sequence"),
        (with("mcp_servers", json!(null)), "invalid request body: invalid type: null, expected a sequence"),
        (with("available_sandboxes", json!([" "])), "an entry of available_sandboxes must not be blank"),
        (json!(["a", "p"]), "invalid request body: invalid type: sequence, expected an object"),
        (json!("a"), "invalid request body: invalid type: string \"a\", expected struct"),
    ];
    for (body, text) in cases {
        let (status, slug, detail) = port.problem("POST", "/admin/v1/profiles", Some(body.clone())).await;
        assert_eq!((status, slug.as_str()), (400, "bad_request"), "{body}");
        assert!(detail.starts_with(text), "{body}: {detail}");
    }
    let post = |content_type: &'static str, body: String| {
        let url = format!("{}/admin/v1/keys", port.url);
        answer(port.http.post(url).bearer_auth(KEY).header("content-type", content_type).body(body))
    };
    assert_eq!(post("text/plain", "{}".into()).await.0, 400);
    assert_eq!(post("application/json", "{".into()).await.0, 400);
    let (status, body) = post("application/json", " ".repeat(body::MAX_BODY + 1)).await;
    assert_eq!((status, &body["type"]), (413, &json!("payload_too_large")));
    assert_eq!(port.get("/admin/v1/profiles").await["items"], json!([]));
}

#[tokio::test]
async fn keys() {
    let port = Port::open(Flags::default()).await;
    let id = port.call("POST", "/admin/v1/profiles", Some(profile("a"))).await.1["id"].clone();
    let (status, made) = port.call("POST", "/admin/v1/keys", Some(json!({"name": "k", "profile_id": id}))).await;
    assert_eq!((status, made.as_object().unwrap().len()), (201, 6));
    let secret = made["key"].as_str().unwrap().to_owned();
    assert!(crate::secret::Kind::Client.matches(&secret));
    assert_eq!(made["prefix"], secret[..8]);
    assert_eq!(made["profile_id"], id);

    let list = port.get("/admin/v1/keys").await;
    let expected = json!({
        "id": made["id"], "name": "k", "prefix": made["prefix"], "profile_id": id, "created_at": made["created_at"],
        "last_used_at": null,
    });
    assert_eq!(list, json!({"items": [expected], "next_cursor": null}));

    let path = format!("/admin/v1/profiles/{}", id.as_str().unwrap());
    let (status, slug, _) = port.problem("DELETE", &path, None).await;
    assert_eq!((status, slug.as_str()), (409, "profile_in_use"));

    let mut headers = axum::http::HeaderMap::new();
    headers.insert("authorization", format!("Bearer {secret}").parse().unwrap());
    port.app.auth.client(&headers).await.unwrap();
    let key = format!("/admin/v1/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(port.call("DELETE", &key, None).await, (204, Value::Null));
    assert_eq!(port.app.auth.client(&headers).await.unwrap_err().status().as_u16(), 401, "stopped at once");
    assert_eq!(port.problem("DELETE", &key, None).await, (404, "not_found".into(), "key does not exist".into()));
    assert_eq!(port.get("/admin/v1/keys").await["items"], json!([]));

    assert_eq!(port.call("DELETE", &path, None).await.0, 204);
    let (status, slug, _) = port.problem("POST", "/admin/v1/keys", Some(json!({"name": "k", "profile_id": id}))).await;
    assert_eq!((status, slug.as_str()), (422, "profile_unavailable"));
    let unknown = port.problem("POST", "/admin/v1/keys", Some(json!({"name": "k", "profile_id": "x"}))).await;
    assert_eq!((unknown.0, unknown.1.as_str()), (422, "profile_unavailable"));
    for body in [json!({"name": "", "profile_id": id}), json!({"name": "k"})] {
        assert_eq!(port.problem("POST", "/admin/v1/keys", Some(body)).await.0, 400);
    }
}

#[tokio::test]
async fn lists_page_and_refuse_bad_queries() {
    let port = Port::open(Flags::default()).await;
    for name in ["a", "b", "c"] {
        port.call("POST", "/admin/v1/profiles", Some(profile(name))).await;
    }
    let first = port.get("/admin/v1/profiles?limit=2").await;
    let names = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&first), ["a", "b"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = port.get(&format!("/admin/v1/profiles?limit=2&cursor={cursor}")).await;
    assert_eq!((names(&second), &second["next_cursor"]), (vec!["c".to_owned()], &Value::Null));

    for query in ["profiles?limit=0", "keys?limit=-1", "sessions?limit=x", "profiles?cursor=x", "sessions?cursor=key_1"]
    {
        let (status, slug, _) = port.problem("GET", &format!("/admin/v1/{query}"), None).await;
        assert_eq!((status, slug.as_str()), (400, "bad_request"), "{query}");
    }
    assert_eq!(port.get("/admin/v1/sessions?state=closed").await, json!({"items": [], "next_cursor": null}));
    for state in ["closing", "", "Open"] {
        let (status, _, detail) = port.problem("GET", &format!("/admin/v1/sessions?state={state}"), None).await;
        assert_eq!((status, detail.as_str()), (400, "invalid state: not one of open, closed, error"));
    }
    let absent = "/admin/v1/sessions/ses_00000000000000000000000000000000/events";
    assert_eq!(port.problem("GET", absent, None).await, (404, "not_found".into(), "session does not exist".into()));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let port = Port::open(Flags::default()).await;
    let (status, slug, _) = port.problem("GET", "/admin/v1/nothing", None).await;
    assert_eq!((status, slug.as_str()), (404, "not_found"));
    let (status, slug, _) = port.problem("PATCH", "/admin/v1/profiles", None).await;
    assert_eq!((status, slug.as_str()), (405, "method_not_allowed"));
}

#[tokio::test]
async fn registries_show_no_secret() {
    let port = Port::open(Flags::default()).await;
    assert_eq!(
        port.get("/admin/v1/mcp-servers").await,
        json!({"items": [{"name": "files", "transport": "stdio"}, {"name": "web", "transport": "http"}]})
    );
    let alpha = json!({
        "name": "alpha", "provider": "anthropic", "model": "n", "base_url": "https://api.anthropic.com"
    });
    let zeta = json!({"name": "zeta", "provider": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v"});
    assert_eq!(port.get("/admin/v1/providers").await, json!({"items": [alpha, zeta]}));

    let config = port.get("/admin/v1/config").await;
    assert!(!config.to_string().contains("hush"), "{config}");
    let mask = "••••••••";
    for entry in config["providers"]["entries"].as_array().unwrap() {
        assert_eq!(entry["auth_token"], mask, "the empty one too");
    }
    assert_eq!(
        config["mcp"]["servers"],
        json!([
            {"name": "files", "transport": "stdio", "command": "run", "args": ["x"], "url": null, "headers": {}},
            {
                "name": "web", "transport": "http", "command": null, "args": [], "url": format!("https://h/mcp?{mask}"),
                "headers": {"Authorization": mask},
            },
        ])
    );
    assert_eq!(
        config["telemetry"],
        json!({
            "enabled": false, "otlp_endpoint": null, "otlp_headers": {"token": mask}, "sample_ratio": 1.0,
            "service_name": "baesrv", "traces": {"enabled": true}, "metrics": {"enabled": true, "disabled": []},
        })
    );
}

#[tokio::test]
async fn without_a_driver_every_image_is_an_error() {
    let port = Port::open(Flags::default()).await;
    let id = port.call("POST", "/admin/v1/profiles", Some(profile("a"))).await.1["id"].clone();
    port.call("POST", "/admin/v1/profiles", Some(json!({"name": "b", "primary_provider": "p"}))).await;
    let image = |name: &str| json!({"name": name, "status": "error", "detail": "no sandbox driver is configured"});
    assert_eq!(
        port.get("/admin/v1/sandbox-status").await,
        json!({"items": [{"profile_id": id, "images": [image("a:1"), image("z:1")]}]})
    );
}

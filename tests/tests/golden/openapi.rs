//! The OpenAPI documents against what really goes over the wire: every REST exchange of the golden transcripts is
//! documented, its bodies fit the schemas, and everything that is documented has been seen.

mod schema;
mod transcript;

use schema::Schemas;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tests::client::{Api, Reply};
use tests::fixture::{Fixture, Plan};
use tests::server::ADMIN_KEY;
use transcript::Exchange;

/// Documented answers that no transcript and no call of this test can hold, and why.
const EXEMPT: &[(&str, &str, &str, &str)] = &[
    ("GET", "/readyz", "503", "the cluster's tests see it: it takes a node that drains or has no database"),
    (
        "POST",
        "/api/v1/sessions/{id}/rpc",
        "200",
        "transcripts hold the frames of these answers, and no line for the status",
    ),
    ("DELETE", "/admin/v1/sandboxes/{id}", "204", "the tests of sandboxes see it: it needs a Docker daemon"),
    ("DELETE", "/admin/v1/subagents/{id}", "204", "the tests of sandboxes see it: it needs a Docker daemon"),
];

/// The document of one port, as it is served.
struct Document {
    document: Value,
    seen: BTreeSet<(String, String, String)>,
}

impl Document {
    async fn fetch(api: &Api) -> Self {
        let reply = api.get("/openapi.json", "").await.expect(200);
        assert_eq!(reply.header("content-type"), "application/json");
        let document = reply.json();
        assert_eq!(document["openapi"], "3.1.0");
        let mut this = Self { document, seen: BTreeSet::new() };
        this.check(&exchange("GET", "/openapi.json", None, &reply)).unwrap();
        this
    }

    /// Every documented operation with its path and method.
    fn operations(&self) -> Vec<(&str, &str, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object()
                    .unwrap()
                    .iter()
                    .map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
            })
            .collect()
    }

    /// The template of a concrete path.
    fn template(&self, path: &str) -> Option<&str> {
        let matches = |template: &str| {
            let (a, b) = (template.split('/'), path.split('/'));
            a.clone().count() == b.clone().count() && a.zip(b).all(|(a, b)| a == b || a == "{id}" && !b.is_empty())
        };
        self.document["paths"].as_object().unwrap().keys().map(String::as_str).find(|template| matches(template))
    }

    /// Fails unless the exchange is documented and its bodies fit.
    fn check(&mut self, exchange: &Exchange) -> Result<(), String> {
        let path = exchange.path.split('?').next().unwrap_or_default();
        // A port does not know the paths of the other one.
        if exchange.status == 404 && exchange.answer["detail"] == "no such path" {
            return Ok(());
        }
        let template = self.template(path).ok_or("the path is not documented")?.to_owned();
        let method = exchange.method.to_ascii_lowercase();
        let item = &self.document["paths"][template.as_str()];
        let Some(operation) = item.get(&method) else {
            return match exchange.status {
                405 => Ok(()),
                // The admin port checks the key first.
                401 if template.starts_with("/admin/") => Ok(()),
                _ => Err("the method is not documented".into()),
            };
        };
        let status = exchange.status.to_string();
        let responses = &operation["responses"];
        // What the description of the default names.
        let any = || responses.get("default").filter(|_| matches!(exchange.status, 413 | 500 | 503));
        let response = responses.get(&status).or_else(any);
        let response = response.ok_or("the status is not documented")?;
        self.fits(&response["content"], &exchange.answer, true).map_err(|why| format!("answer{why}"))?;
        if exchange.status < 300 {
            let sent = exchange.sent.as_ref().unwrap_or(&Value::Null);
            self.fits(&operation["requestBody"]["content"], sent, false).map_err(|why| format!("request{why}"))?;
        }
        self.seen.insert((exchange.method.clone(), template, status));
        Ok(())
    }

    fn fits(&self, content: &Value, body: &Value, closed: bool) -> Result<(), String> {
        let schemas = Schemas { components: &self.document["components"]["schemas"], closed };
        match content.get("application/json") {
            Some(media) => schemas.check(&media["schema"], body),
            None if body.is_null() => Ok(()),
            None => Err(": no body is documented".into()),
        }
    }

    /// Documented answers that nothing has shown.
    fn unseen(&self) -> Vec<String> {
        let mut unseen = Vec::new();
        for (path, method, operation) in self.operations() {
            let method = method.to_ascii_uppercase();
            for status in operation["responses"].as_object().unwrap().keys().filter(|status| *status != "default") {
                let seen = self.seen.contains(&(method.clone(), path.to_owned(), status.clone()));
                let exempt = EXEMPT.iter().any(|(m, p, s, _)| (*m, *p, *s) == (method.as_str(), path, status.as_str()));
                match (seen, exempt) {
                    (false, false) => unseen.push(format!("{method} {path} {status} is documented and never seen")),
                    (true, true) => unseen.push(format!("{method} {path} {status} is exempt and seen")),
                    (true, false) | (false, true) => {}
                }
            }
        }
        unseen
    }
}

fn exchange(method: &str, path: &str, sent: Option<Value>, reply: &Reply) -> Exchange {
    let answer = if reply.body.is_empty() { Value::Null } else { reply.json() };
    Exchange { method: method.into(), path: path.into(), sent, status: reply.status, answer }
}

/// Answers that are in no transcript because they differ from run to run.
async fn call_the_rest(fixture: &Fixture, client: &mut Document, admin: &mut Document) {
    let ready = fixture.api.get("/readyz", "").await.expect(200);
    client.check(&exchange("GET", "/readyz", None, &ready)).unwrap();
    let session = fixture.driver().await;
    session.send("hello").await.result();
    let owner = |id: &str| format!("/admin/v1/sessions/{id}/owner");
    let revoked = format!("/admin/v1/keys/{}", fixture.key.id);
    let absent = owner("ses_00000000000000000000000000000000");
    let mut calls = vec![("GET", "/admin/v1/keys".to_owned(), 200), ("GET", "/admin/v1/nodes".to_owned(), 200)];
    calls.extend([("GET", owner(&session.id), 200), ("GET", absent, 404)]);
    let purge = |id: &str| format!("/admin/v1/sessions/{id}/purge");
    let ended = fixture.driver().await;
    ended.delete().await.expect(200);
    calls.extend([("POST", purge(&session.id), 409), ("POST", purge(&ended.id), 204), ("POST", purge(&ended.id), 404)]);
    for kind in ["sandboxes", "subagents"] {
        let prefix = if kind == "sandboxes" { "sbx" } else { "sba" };
        calls.push(("GET", format!("/admin/v1/{kind}"), 200));
        calls.push(("DELETE", format!("/admin/v1/{kind}/{prefix}_00000000000000000000000000000000"), 404));
    }
    for (method, path, status) in calls {
        let reply = fixture.admin.0.call(method, &path, ADMIN_KEY, None).await.expect(status);
        admin.check(&exchange(method, &path, None, &reply)).unwrap_or_else(|why| panic!("{method} {path}: {why}"));
    }
    // Every operation of the admin port asks for the key.
    let one = format!("/admin/v1/profiles/{}", fixture.profile);
    let (events, owner) = (format!("/admin/v1/sessions/{}/events", session.id), owner(&session.id));
    let methods = [
        ("GET", "/admin/v1/keys"),
        ("POST", "/admin/v1/keys"),
        ("DELETE", &revoked),
        ("GET", &one),
        ("PUT", &one),
        ("DELETE", &one),
        ("GET", "/admin/v1/sessions"),
        ("DELETE", "/admin/v1/sessions/x"),
        ("POST", "/admin/v1/sessions/x/purge"),
        ("GET", &events),
        ("GET", &owner),
        ("GET", "/admin/v1/nodes"),
        ("GET", "/admin/v1/mcp-servers"),
        ("GET", "/admin/v1/providers"),
        ("GET", "/admin/v1/config"),
        ("GET", "/admin/v1/sandbox-status"),
        ("GET", "/admin/v1/sandboxes"),
        ("DELETE", "/admin/v1/sandboxes/x"),
        ("GET", "/admin/v1/subagents"),
        ("DELETE", "/admin/v1/subagents/x"),
    ];
    for (method, path) in methods {
        let reply = fixture.admin.0.call(method, path, "", None).await.expect(401);
        admin.check(&exchange(method, path, None, &reply)).unwrap_or_else(|why| panic!("{method} {path}: {why}"));
    }
}

#[tokio::test]
async fn documents_say_what_goes_over_the_wire() {
    let fixture = Plan::default().profile("available_sandboxes", json!(["python:3.12"])).start().await;
    let mut client = Document::fetch(&fixture.api).await;
    let mut admin = Document::fetch(&fixture.admin.0).await;
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, exchange) in transcript::all() {
        let document = if exchange.path.starts_with("/admin/") { &mut admin } else { &mut client };
        count += 1;
        if let Err(why) = document.check(&exchange) {
            wrong.push(format!("{name}: {} {} {}: {why}", exchange.method, exchange.path, exchange.status));
        }
    }
    assert!(count > 150, "only {count} exchanges were found in the transcripts: does the reader still fit their form?");
    call_the_rest(&fixture, &mut client, &mut admin).await;
    wrong.extend(client.unseen());
    wrong.extend(admin.unseen());
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn documents_are_whole() {
    let fixture = Fixture::start().await;
    for api in [&fixture.api, &fixture.admin.0] {
        let this = Document::fetch(api).await;
        let document = &this.document;
        let mut names = BTreeSet::new();
        for (path, method, operation) in this.operations() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "two operations are called {name}");
            let schemes = document["components"]["securitySchemes"].as_object().unwrap();
            let security = operation.get("security").unwrap_or_else(|| &document["security"]).as_array().unwrap();
            let known = |need: &Value| need.as_object().unwrap().keys().all(|scheme| schemes.contains_key(scheme));
            assert!(security.iter().all(known), "{method} {path}: {security:?}");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{method} {path}");
        }
        Schemas { components: &document["components"]["schemas"], closed: true }.check_references(document);
        api.call("POST", "/openapi.json", "", None).await.problem_of(405);
    }
}

//! A client of the API that hides nothing: statuses, headers, and frames as they came.

mod frames;

pub use frames::{Frames, Outcome};

use crate::poll::within;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body as text.
    pub body: String,
}

impl Reply {
    /// The body parsed.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header, or the empty string.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Fails unless the status is `status`.
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Fails unless this is a problem document of that status, whose type the API does not name.
    pub fn problem_of(&self, status: u16) {
        let body = self.json();
        assert_eq!((self.status, body["status"].as_u64()), (status, Some(status.into())), "{}", self.body);
        for field in ["type", "title", "detail"] {
            assert!(body[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {}", self.body);
        }
    }

    /// Fails unless this is a problem document of that status and type; returns its detail.
    pub fn problem(&self, status: u16, slug: &str) -> String {
        let body = self.json();
        let seen = (self.status, body["type"].as_str(), body["status"].as_u64());
        assert_eq!(seen, (status, Some(slug), Some(status.into())), "{}", self.body);
        body["detail"].as_str().expect("a detail").to_owned()
    }
}

/// Either port of a server.
#[derive(Debug, Clone)]
pub struct Api {
    http: reqwest::Client,
    base: String,
}

impl Api {
    /// Talks to `base`, such as `http://127.0.0.1:8080`.
    pub fn new(http: reqwest::Client, base: String) -> Self {
        Self { http, base }
    }

    /// A request to be filled in.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().expect("an HTTP method");
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// Sends a filled-in request and reads the whole answer.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        let answer = within("an HTTP answer", request.send()).await.expect("an HTTP answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = within("an HTTP body", answer.text()).await.expect("an HTTP body");
        Reply { status, headers, body }
    }

    /// Sends only the head of a POST, which announces `length` bytes of JSON, and reads the whole answer.
    pub async fn announce(&self, path: &str, key: &str, length: usize) -> Reply {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let addr = self.base.trim_start_matches("http://");
        let mut socket = tokio::net::TcpStream::connect(addr).await.expect("a connection");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {addr}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.expect("a head sent");
        let mut answer = String::new();
        within("an answer to the head alone", socket.read_to_string(&mut answer)).await.expect("an answer in UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let line = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.parse::<reqwest::header::HeaderName>().ok()?, value.parse().ok()?))
        };
        Reply { status, headers: head.lines().filter_map(line).collect(), body: body.to_owned() }
    }

    /// A call with a key and, if given, a JSON body.
    pub async fn call(&self, method: &str, path: &str, key: &str, body: Option<&Value>) -> Reply {
        let mut request = self.request(method, path);
        if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        self.send(request).await
    }

    /// GET.
    pub async fn get(&self, path: &str, key: &str) -> Reply {
        self.call("GET", path, key, None).await
    }

    /// POST.
    pub async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.call("POST", path, key, Some(body)).await
    }

    /// Opens a session, which must succeed.
    pub async fn open(&self, key: &str, body: &Value) -> Session {
        self.session(&self.post("/api/v1/sessions", key, body).await.expect(201))
    }

    /// Joins a session, which must succeed.
    pub async fn join(&self, session: &str, key: &str, body: &Value) -> Session {
        self.session(&self.post(&format!("/api/v1/sessions/{session}/join"), key, body).await.expect(201))
    }

    /// The session of an answer to open or join.
    pub fn session(&self, reply: &Reply) -> Session {
        let body = reply.json();
        let text = |name: &str| body[name].as_str().expect("a string").to_owned();
        Session { api: self.clone(), id: text("session_id"), key: text("session_key") }
    }
}

/// One client's view of a session.
#[derive(Debug, Clone)]
pub struct Session {
    api: Api,
    /// `ses_…`
    pub id: String,
    /// `bae_ses_…`
    pub key: String,
}

impl Session {
    /// The view through `api` of the client that was given `key`.
    pub fn new(api: &Api, id: &str, key: &str) -> Self {
        Self { api: api.clone(), id: id.to_owned(), key: key.to_owned() }
    }

    /// `/api/v1/sessions/{id}` and what follows.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/sessions/{}{rest}", self.id)
    }

    /// The same client through another node.
    pub fn on(&self, api: &Api) -> Self {
        Self { api: api.clone(), ..self.clone() }
    }

    /// The port it was opened on.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Posts any body to `/rpc` and returns the open stream; fails unless it is 200 NDJSON.
    pub async fn raw(&self, body: impl Into<reqwest::Body>) -> Frames {
        let request =
            self.api.request("POST", &self.path("/rpc")).header("authorization", format!("Bearer {}", self.key));
        let request = request.header("content-type", "application/json").body(body);
        let answer = within("the head of an /rpc answer", request.send()).await.expect("an /rpc answer");
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
        Frames::new(answer)
    }

    /// Starts a call; the answer streams.
    pub async fn start(&self, method: &str, params: Value) -> Frames {
        self.raw(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()).await
    }

    /// Makes a call and reads its stream to the end.
    pub async fn rpc(&self, method: &str, params: Value) -> Outcome {
        self.start(method, params).await.finish().await
    }

    /// Starts a call while the server may be in trouble: the error is a status and body instead of a stream.
    ///
    /// # Errors
    /// Any answer but 200, or none.
    pub async fn try_start(&self, method: &str, params: Value) -> Result<Frames, String> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = self.api.request("POST", &self.path("/rpc")).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", self.key)).body(body);
        let answer = tokio::time::timeout(crate::poll::DEADLINE, request.send()).await;
        let answer = answer.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 => Ok(Frames::new(answer)),
            status => Err(format!("{status}: {}", answer.text().await.unwrap_or_default())),
        }
    }

    /// The same to its end.
    ///
    /// # Errors
    /// Any answer but 200, or none.
    pub async fn try_rpc(&self, method: &str, params: Value) -> Result<Outcome, String> {
        Ok(self.try_start(method, params).await?.finish().await)
    }

    /// Registers as a driver, which must succeed.
    pub async fn register(&self) {
        assert_eq!(self.rpc("session.registerDriver", json!({})).await.result()["registered"], true);
    }

    /// Starts `sendMessage` with this content.
    pub async fn start_send(&self, content: impl Into<Value>) -> Frames {
        self.start("session.sendMessage", json!({"message": {"role": "user", "content": content.into()}})).await
    }

    /// Starts `sendMessage` with an idempotency key.
    pub async fn start_once(&self, content: &str, key: &str) -> Frames {
        let params = json!({"message": {"content": content}, "idempotency_key": key});
        self.start("session.sendMessage", params).await
    }

    /// Sends this content and reads to the end.
    pub async fn send(&self, content: impl Into<Value>) -> Outcome {
        self.start_send(content).await.finish().await
    }

    /// Sends results: `(tool_use_id, content)` each.
    pub async fn answer(&self, results: &[(&str, &str)]) -> Outcome {
        let block = |(id, text): &(&str, &str)| json!({"type": "tool_result", "tool_use_id": id, "content": text});
        self.send(results.iter().map(block).collect::<Vec<_>>()).await
    }

    /// Subscribes to what comes from now on, or after an event.
    pub async fn subscribe(&self, since: Option<&str>) -> Frames {
        let params = since.map_or_else(|| json!({}), |id| json!({"since_event_id": id}));
        self.start("session.subscribe", params).await
    }

    /// The whole log, read page by page, and [checked](crate::log::check).
    pub async fn events(&self) -> Vec<Value> {
        let mut events = Vec::new();
        let mut query = String::from("?limit=200");
        loop {
            let page = self.api.get(&self.path(&format!("/events{query}")), &self.key).await.expect(200).json();
            events.extend(page["items"].as_array().expect("items").iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => query = format!("?limit=200&cursor={next}"),
                None => {
                    crate::log::check(&events);
                    return events;
                }
            }
        }
    }

    /// The log's event types in order.
    pub async fn types(&self) -> Vec<String> {
        types(&self.events().await)
    }

    /// The contents of the messages that clients have sent, in the log's order.
    pub async fn said(&self) -> Vec<Value> {
        let events = self.events().await;
        of_type(&events, "client.message.send").iter().map(|event| event["payload"]["content"].clone()).collect()
    }

    /// Waits until the log's last event is of type `what`, and returns the log.
    pub async fn until_last(&self, what: &str) -> Vec<Value> {
        self.until(&format!("the log ending in {what}"), |events| {
            events.last().is_some_and(|e| e["event_type"] == what)
        })
        .await
    }

    /// Waits until the log satisfies `done`.
    pub async fn until(&self, what: &str, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        crate::poll::until(crate::poll::DEADLINE, what, async || {
            let events = self.events().await;
            if done(&events) { Ok(events) } else { Err(types(&events)) }
        })
        .await
    }

    /// Closes the session.
    pub async fn delete(&self) -> Reply {
        self.api.call("DELETE", &self.path(""), &self.key, None).await
    }
}

/// The types of some events.
pub fn types(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["event_type"].as_str().unwrap_or("?").to_owned()).collect()
}

/// The events of one type.
pub fn of_type<'a>(events: &'a [Value], what: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event_type"] == what).collect()
}

/// The ids of some events.
pub fn ids(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

//! The admin port's calls that tests use for their set-up.

use crate::client::{Api, Reply};
use crate::server::ADMIN_KEY;
use serde_json::{Value, json};

/// An administrator.
#[derive(Debug, Clone)]
pub struct Admin(pub Api);

/// A client key as it was shown once.
#[derive(Debug, Clone)]
pub struct Key {
    /// `key_…`
    pub id: String,
    /// `bae_…`
    pub secret: String,
}

impl Admin {
    /// GET, authenticated.
    pub async fn get(&self, path: &str) -> Reply {
        self.0.get(path, ADMIN_KEY).await
    }

    /// POST, authenticated.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.0.post(path, ADMIN_KEY, body).await
    }

    /// PUT, authenticated.
    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.0.call("PUT", path, ADMIN_KEY, Some(body)).await
    }

    /// DELETE, authenticated.
    pub async fn delete(&self, path: &str) -> Reply {
        self.0.call("DELETE", path, ADMIN_KEY, None).await
    }

    /// Makes a profile and returns its id.
    pub async fn profile(&self, body: &Value) -> String {
        let reply = self.post("/admin/v1/profiles", body).await.expect(201);
        reply.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Makes a client key.
    pub async fn key(&self, name: &str, profile: &str) -> Key {
        let reply = self.post("/admin/v1/keys", &json!({"name": name, "profile_id": profile})).await.expect(201).json();
        let text = |name: &str| reply[name].as_str().expect("a string").to_owned();
        Key { id: text("id"), secret: text("key") }
    }

    /// Revokes a key.
    pub async fn revoke(&self, key: &Key) {
        self.delete(&format!("/admin/v1/keys/{}", key.id)).await.expect(204);
    }

    /// A session's log as the admin port shows it, whatever its state.
    pub async fn events(&self, session: &str) -> Vec<Value> {
        let path = format!("/admin/v1/sessions/{session}/events?limit=200");
        self.get(&path).await.expect(200).json()["items"].as_array().expect("items").clone()
    }

    /// A session's state.
    pub async fn state(&self, session: &str) -> String {
        let list = self.get("/admin/v1/sessions?limit=200").await.expect(200).json();
        let items = list["items"].as_array().expect("items");
        let found = items.iter().find(|item| item["id"] == session).unwrap_or_else(|| panic!("no {session} in {list}"));
        found["state"].as_str().expect("a state").to_owned()
    }
}

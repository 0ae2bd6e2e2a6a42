//! One message of the model's history: a role and content that passes through verbatim.

use crate::json::Raw;
use serde::{Deserialize, Serialize};

/// Who speaks, as both provider formats name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user, and whoever answers tools for the model.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }

    /// The role of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [Role::User, Role::Assistant].into_iter().find(|role| role.as_str() == name)
    }
}

/// A message as providers see it: no `dispatch`, no `caller`, no `synthetic`.
#[derive(Debug, Clone)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// A JSON string or an array of content blocks.
    pub content: Raw,
}

impl Message {
    /// Appends `{"role":…,"content":…}`.
    pub fn write(&self, text: &mut String) {
        text.push_str(r#"{"role":""#);
        text.push_str(self.role.as_str());
        text.push_str(r#"","content":"#);
        text.push_str(self.content.get());
        text.push('}');
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.role == other.role
            && (std::sync::Arc::ptr_eq(&self.content, &other.content) || self.content.get() == other.content.get())
    }
}

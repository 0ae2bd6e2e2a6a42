//! Tools of MCP servers.

use secrecy::SecretString;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Turns a configured header value into the one that is sent.
pub type Resolve = Arc<dyn Fn(&str) -> Result<SecretString, String> + Send + Sync>;

/// One entry of `[[mcp.servers]]`.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that profiles use.
    pub name: String,
    /// How the server is reached.
    pub transport: Transport,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub enum Transport {
    /// A child process that reads and writes JSON lines.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables beside the inherited ones, passed verbatim.
        env: BTreeMap<String, String>,
    },
    /// Streamable HTTP.
    Http {
        /// The endpoint.
        url: String,
        /// Headers of every request, with `${NAME}` unresolved.
        headers: BTreeMap<String, SecretString>,
    },
    /// The older HTTP+SSE transport.
    Sse {
        /// Where the event stream is.
        url: String,
        /// Headers of every request, with `${NAME}` unresolved.
        headers: BTreeMap<String, SecretString>,
    },
}

impl Transport {
    /// The name in the configuration.
    pub fn kind(&self) -> &'static str {
        match self {
            Transport::Stdio { .. } => "stdio",
            Transport::Http { .. } => "http",
            Transport::Sse { .. } => "sse",
        }
    }
}

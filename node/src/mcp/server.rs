//! The configuration of an MCP server: its name and how it is reached.
//!
//! Header values and the values of a child's environment are secrets, which `Debug` does not show. The `${NAME}` in
//! header values are replaced just before a connection is made.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Turns a configured header value into the one that is sent, by replacing every `${NAME}` in it. Its error names what
/// is wrong (an unset variable, an unterminated `${`) and never holds a value.
pub(crate) type Resolve = Arc<dyn Fn(&str) -> Result<SecretString, String> + Send + Sync>;

/// One entry of `[[mcp.servers]]`.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// The name that profiles use.
    pub(crate) name: String,
    /// How the server is reached.
    pub(crate) transport: Transport,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// A child process that reads and writes JSON lines.
    Stdio {
        /// The program, looked up in the child's `PATH`.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables in addition to the inherited ones, passed as they are.
        env: BTreeMap<String, SecretString>,
    },
    /// Streamable HTTP.
    Http {
        /// The endpoint's URL.
        url: String,
        /// Headers of every request, with `${NAME}` not yet replaced.
        headers: BTreeMap<String, SecretString>,
    },
    /// The older HTTP+SSE transport (protocol version 2024-11-05).
    Sse {
        /// The URL of the event stream.
        url: String,
        /// Headers of every request, with `${NAME}` not yet replaced.
        headers: BTreeMap<String, SecretString>,
    },
}

impl Transport {
    /// The transport's name in the configuration.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Transport::Stdio { .. } => "stdio",
            Transport::Http { .. } => "http",
            Transport::Sse { .. } => "sse",
        }
    }
}

/// The headers as they are sent, marked as sensitive. The error names the wrong header and does not show its value.
pub(super) fn resolve_headers(
    headers: &BTreeMap<String, SecretString>,
    resolve: &Resolve,
) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let header = HeaderName::try_from(name).map_err(|_| format!("'{name}' is not a header name"))?;
        let value = resolve(value.expose_secret()).map_err(|error| format!("header '{name}': {error}"))?;
        let mut value = HeaderValue::try_from(value.expose_secret())
            .map_err(|_| format!("header '{name}' holds characters that a header cannot carry"))?;
        value.set_sensitive(true);
        map.insert(header, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let headers = BTreeMap::from([("Authorization".to_owned(), SecretString::from("Bearer hush"))]);
        let env = BTreeMap::from([("TOKEN".to_owned(), SecretString::from("hush"))]);
        for transport in [
            Transport::Http { url: "http://h/".to_owned(), headers: headers.clone() },
            Transport::Sse { url: "http://h/".to_owned(), headers: headers.clone() },
            Transport::Stdio { command: "c".to_owned(), args: vec![], env },
        ] {
            let text = format!("{:?}", ServerConfig { name: "n".to_owned(), transport });
            assert!(!text.contains("hush"), "{text}");
        }
        let resolve: Resolve = Arc::new(|value| Ok(SecretString::from(value.replace("Bearer", "Basic"))));
        let resolved = resolve_headers(&headers, &resolve).unwrap();
        assert_eq!(resolved["authorization"].to_str().unwrap(), "Basic hush");
        assert!(!format!("{resolved:?}").contains("hush"));
    }

    #[test]
    fn what_cannot_be_resolved_names_the_header_only() {
        let headers = BTreeMap::from([("X-Key".to_owned(), SecretString::from("${KEY}"))]);
        let resolve: Resolve = Arc::new(|_| Err("variable KEY is not set".to_owned()));
        assert_eq!(resolve_headers(&headers, &resolve).unwrap_err(), "header 'X-Key': variable KEY is not set");
        let resolve: Resolve = Arc::new(|_| Ok(SecretString::from("hush\n")));
        let error = resolve_headers(&headers, &resolve).unwrap_err();
        assert!(error.contains("X-Key") && !error.contains("hush"), "{error}");
    }
}

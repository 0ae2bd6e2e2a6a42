//! The spans: one function makes each, and the catalogue below lists them with their attributes.
//!
//! A span's target (`bae::turn`) is what `BAE_OTEL_LOG` filters by; its attribute `bae.span` says what it is. The names
//! of the GenAI conventions stand beside those of the program. Log lines do not show these spans. Where spans are not
//! exported, making one costs a look at a flag.

use super::Naming;
use super::context;
use super::model::{Outcome, Usage};
use engine::ids::{CallId, SandboxId, SessionId, SubagentId};
use engine::request::Request;
use engine::round::ToolUse;
use tracing::{Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The beginning of the targets of all spans of the program.
pub(crate) const TARGETS: &str = "bae::";

/// A kind of span, as the reference shows it.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    /// The target, which `BAE_OTEL_LOG` filters by.
    pub(crate) target: &'static str,
    /// Its name, with what stands in it in braces.
    pub(crate) name: &'static str,
    /// Whom it calls, in the words of OpenTelemetry.
    pub(crate) kind: &'static str,
    /// Its attributes.
    pub(crate) attributes: &'static [&'static str],
    /// What it covers.
    pub(crate) meaning: &'static str,
}

/// Every kind of span.
#[cfg(test)]
pub(crate) const SPANS: &[Definition] = &[
    Definition {
        target: "bae::request",
        name: "{method} {route}",
        kind: "server",
        attributes: &["bae.span", "bae.port", "http.request.method", "http.route", "http.response.status_code"],
        meaning: "a request on either port, until the first byte of its answer; the child of the caller's `traceparent`",
    },
    Definition {
        target: "bae::session",
        name: "session.open",
        kind: "internal",
        attributes: &["bae.span", "gen_ai.conversation.id", "gen_ai.agent.name"],
        meaning: "opening a session, with connecting its MCP servers",
    },
    Definition {
        target: "bae::turn",
        name: "invoke_agent {profile}",
        kind: "internal",
        attributes: &[
            "bae.span",
            "bae.call.id",
            "bae.takeover",
            "bae.outcome",
            "gen_ai.operation.name",
            "gen_ai.agent.name",
            "gen_ai.conversation.id",
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
            "error.type",
        ],
        meaning: "a call, from its begin on this node until its end or pause. Its parent is the request that brought the \
                  call. Where a node carries on the turn of another, `bae.takeover` is true, and a link leads to the span \
                  of the first owner",
    },
    Definition {
        target: "bae::provider",
        name: "chat {model}",
        kind: "client",
        attributes: &[
            "bae.span",
            "bae.provider.entry",
            "bae.provider.attempt",
            "gen_ai.operation.name",
            "gen_ai.provider.name",
            "gen_ai.request.model",
            "gen_ai.request.max_tokens",
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_write.input_tokens",
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.response.finish_reasons",
            "http.response.status_code",
            "server.address",
            "server.port",
            "error.type",
        ],
        meaning: "an attempt at a provider, retries included. Providers get no trace context. \
                  `gen_ai.usage.cache_creation.input_tokens` is the name of v1.41",
    },
    Definition {
        target: "bae::tool",
        name: "execute_tool {tool}",
        kind: "internal",
        attributes: &[
            "bae.span",
            "bae.tool.kind",
            "gen_ai.operation.name",
            "gen_ai.tool.name",
            "gen_ai.tool.call.id",
            "gen_ai.tool.type",
            "error.type",
        ],
        meaning: "a tool call that the server dispatched to an MCP server or a sandbox. Tools of the client have none: the call \
                  pauses and ends",
    },
    Definition {
        target: "bae::mcp",
        name: "tools/call {tool}, tools/list",
        kind: "client",
        attributes: &[
            "bae.span",
            "bae.mcp.server",
            "mcp.method.name",
            "gen_ai.operation.name",
            "gen_ai.tool.name",
            "network.transport",
            "error.type",
        ],
        meaning: "a request to an MCP server, which gets its context as `traceparent`, in `params._meta` and over HTTP as a \
                  header too",
    },
    Definition {
        target: "bae::sandbox",
        name: "sandbox.exec",
        kind: "client",
        attributes: &["bae.span", "bae.sandbox.id", "process.exit.code", "error.type"],
        meaning: "a command in a sandbox, of a turn or of a client",
    },
    Definition {
        target: "bae::subagent",
        name: "invoke_agent {harness}",
        kind: "client",
        attributes: &["bae.span", "bae.subagent.id", "gen_ai.operation.name", "gen_ai.agent.name", "error.type"],
        meaning: "starting a subagent, which then runs by itself",
    },
];

/// A request on a port, and the trace context that came with it.
pub(crate) fn request(port: &'static str, method: &str, route: &str, parent: Option<&str>) -> Span {
    let span = info_span!(
        target: "bae::request",
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        bae.span = "request",
        bae.port = port,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
    );
    if !span.is_disabled() {
        context::under(&span, parent.and_then(context::parse));
    }
    span
}

/// The request was answered with this status.
pub(crate) fn answered(span: &Span, status: u16) {
    span.record("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
}

/// A session is opened.
pub(crate) fn session(session: SessionId, profile: &str) -> Span {
    info_span!(
        target: "bae::session",
        "session",
        otel.name = "session.open",
        bae.span = "session",
        gen_ai.conversation.id = %session,
        gen_ai.agent.name = profile,
    )
}

/// A call and what its spans say of it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) id: CallId,
    pub(crate) session: SessionId,
    /// The profile of the session.
    pub(crate) profile: String,
    /// The stored trace context.
    pub(crate) parent: Option<String>,
    /// Whether its turn was begun by an earlier owner.
    pub(crate) carried_on: bool,
}

/// A call runs.
pub(crate) fn turn(call: &Call) -> Span {
    let span = info_span!(
        target: "bae::turn",
        "turn",
        otel.name = format!("invoke_agent {}", call.profile),
        otel.status_code = Empty,
        bae.span = "turn",
        bae.call.id = %call.id,
        bae.takeover = call.carried_on,
        bae.outcome = Empty,
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = call.profile,
        gen_ai.conversation.id = %call.session,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        "error.type" = Empty,
    );
    if !span.is_disabled() {
        let parent = call.parent.as_deref().and_then(context::parse);
        context::under(&span, parent.clone());
        if call.carried_on {
            context::link_turn(&span, call.id, parent);
        } else {
            context::start_turn(&span, call.id);
        }
    }
    span
}

/// A provider is asked.
pub(crate) fn provider(request: &Request) -> Span {
    let span = info_span!(
        target: "bae::provider",
        "provider",
        otel.name = format!("chat {}", request.model),
        otel.kind = "client",
        otel.status_code = Empty,
        bae.span = "provider",
        bae.provider.entry = request.entry,
        bae.provider.attempt = i64::from(request.attempt),
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = request.wire.as_str(),
        gen_ai.request.model = request.model,
        gen_ai.request.max_tokens = i64::from(request.max_tokens),
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        http.response.status_code = Empty,
        server.address = Empty,
        server.port = Empty,
        "error.type" = Empty,
    );
    if !span.is_disabled()
        && let Ok(url) = request.base_url.parse::<http::Uri>()
    {
        span.record("server.address", url.host());
        span.record("server.port", url.port_u16().map(i64::from));
    }
    span
}

/// The provider has answered, or could not be reached.
pub(crate) fn provider_answered(
    span: &Span,
    status: Option<u16>,
    outcome: Outcome,
    error: Option<&'static str>,
    usage: Usage,
    naming: Naming,
) {
    if span.is_disabled() {
        return;
    }
    span.record("http.response.status_code", status.map(i64::from));
    span.record("gen_ai.usage.input_tokens", usage.input.map(u64::cast_signed));
    span.record("gen_ai.usage.output_tokens", usage.output.map(u64::cast_signed));
    if let Some(reason) = usage.finish_reason {
        let reasons = vec![opentelemetry::StringValue::from(reason)];
        span.set_attribute("gen_ai.response.finish_reasons", opentelemetry::Value::Array(reasons.into()));
    }
    let tokens = |name: &'static str, tokens: Option<u64>| {
        if let Some(tokens) = tokens {
            span.set_attribute(name, tokens.cast_signed());
        }
    };
    tokens("gen_ai.usage.cache_read.input_tokens", usage.cache_read);
    if naming.new_names() {
        tokens("gen_ai.usage.cache_write.input_tokens", usage.cache_write);
    }
    if naming.old_names() {
        tokens("gen_ai.usage.cache_creation.input_tokens", usage.cache_write);
    }
    if outcome != Outcome::Ok {
        failed(span, error.unwrap_or("_OTHER"));
    }
}

/// A tool is called.
pub(crate) fn tool(tool_use: &ToolUse) -> Span {
    info_span!(
        target: "bae::tool",
        "tool",
        otel.name = format!("execute_tool {}", tool_use.name),
        otel.status_code = Empty,
        bae.span = "tool",
        bae.tool.kind = tool_use.dispatch.as_str(),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool_use.name,
        gen_ai.tool.call.id = tool_use.id,
        "gen_ai.tool.type" = "function",
        "error.type" = Empty,
    )
}

/// A tool of an MCP server is called, or without one its tools are listed. `transport` is that of the configuration.
pub(crate) fn mcp(server: &str, transport: &str, tool: Option<&str>) -> Span {
    let method = if tool.is_some() { "tools/call" } else { "tools/list" };
    info_span!(
        target: "bae::mcp",
        "mcp",
        otel.name = tool.map_or_else(|| method.to_owned(), |tool| format!("{method} {tool}")),
        otel.kind = "client",
        otel.status_code = Empty,
        bae.span = "mcp",
        bae.mcp.server = server,
        mcp.method.name = method,
        gen_ai.operation.name = tool.map(|_| "execute_tool"),
        gen_ai.tool.name = tool,
        network.transport = if transport == "stdio" { "pipe" } else { "tcp" },
        "error.type" = Empty,
    )
}

/// A command runs in a sandbox.
pub(crate) fn exec(sandbox: SandboxId) -> Span {
    info_span!(
        target: "bae::sandbox",
        "exec",
        otel.name = "sandbox.exec",
        otel.kind = "client",
        otel.status_code = Empty,
        bae.span = "sandbox",
        bae.sandbox.id = %sandbox,
        process.exit.code = Empty,
        "error.type" = Empty,
    )
}

/// A subagent is started.
pub(crate) fn subagent(id: SubagentId, harness: &str) -> Span {
    info_span!(
        target: "bae::subagent",
        "subagent",
        otel.name = format!("invoke_agent {harness}"),
        otel.kind = "client",
        otel.status_code = Empty,
        bae.span = "subagent",
        bae.subagent.id = %id,
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = harness,
        "error.type" = Empty,
    )
}

/// What the span covers has failed, for a reason of a closed set.
pub(crate) fn failed(span: &Span, reason: &'static str) {
    span.record("error.type", reason);
    span.record("otel.status_code", "ERROR");
}

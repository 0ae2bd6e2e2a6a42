//! The bodies of `POST /sessions` and `POST /sessions/{id}/join`, and the reasons to refuse them (docs/api.md 12).
//!
//! The first check that fails decides. The order is:
//!
//! 1. After authentication the body is read: it must be JSON, then the `compaction` member is checked (a join must have
//!    none), then all other members.
//! 2. The caller checks the session, the profile and its provider.
//! 3. [`Declared::check`] checks reserved names, then the declarations of subagent tools, then `allowed_tools`.
//!
//! docs/api.md does not say where in a join the checks of its section 8.1 belong. At the end they never hide a check
//! that it does list. The content type is checked by the HTTP layer.

use crate::json::{self, Object, Raw};
use crate::tools::{self, ClientTool, Declarations, Forbidden, SandboxTool, objects, subagent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The smallest `size` of automatic compaction, in tokens.
pub const MIN_COMPACTION_SIZE: u64 = 1_000;

/// Why an open or a join is refused. The HTTP layer turns this into a problem document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The body cannot be read, for this reason.
    BadRequest(String),
    /// The declaration of a subagent tool is refused, for this reason.
    InvalidSubagentTools(String),
    /// A tool may not be declared.
    Forbidden(Forbidden),
}

impl Refusal {
    fn bad_request(detail: impl Into<String>) -> Self {
        Self::BadRequest(detail.into())
    }
}

/// When the history of a session is compacted. This is fixed when the session is opened, and stored in the form in
/// which it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", expecting = "an object")]
pub enum Compaction {
    /// The server compacts it after a turn whose usage exceeds `size` tokens.
    Auto {
        /// In tokens, at least [`MIN_COMPACTION_SIZE`].
        size: u64,
    },
    /// It is compacted when a client calls `session.compact`.
    Client {
        /// The instruction for calls that have none of their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
    },
}

impl Default for Compaction {
    fn default() -> Self {
        Compaction::Client { prompt: None }
    }
}

/// The body of an open.
#[derive(Debug, Clone)]
pub struct Open {
    /// What the client says of itself.
    pub declared: Declared,
    /// How history is compacted.
    pub compaction: Compaction,
}

/// What a client declares when it opens or joins a session. It is not known yet whether the tools are allowed; see
/// [`Declared::check`].
#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "an object")]
pub struct Declared {
    /// The client's version.
    pub client_version: Option<String>,
    #[serde(default, deserialize_with = "objects")]
    tools: Vec<ClientTool>,
    #[serde(default, deserialize_with = "objects")]
    sandbox_tools: Vec<SandboxTool>,
    #[serde(default, deserialize_with = "objects")]
    subagent_tools: Vec<subagent::Declaration>,
}

impl Declared {
    /// Makes the checks that do not belong to reading the body, and returns the declarations.
    ///
    /// # Errors
    /// The first check that fails, in the order that the module gives.
    pub fn check(&self, allowed_tools: &[String]) -> Result<Declarations, Refusal> {
        let names = self.tools.iter().map(|tool| tool.name.as_str());
        let names = names.chain(self.sandbox_tools.iter().map(|tool| tool.name.as_str()));
        let names = names.chain(self.subagent_tools.iter().map(|tool| tool.name.as_str()));
        tools::check_reserved(names)?;
        let subagent_tools: Result<Vec<_>, String> =
            self.subagent_tools.iter().enumerate().map(|(i, tool)| tool.check(i)).collect();
        let subagent_tools = subagent_tools.map_err(Refusal::InvalidSubagentTools)?;
        tools::check_allowed(&self.tools, allowed_tools)?;
        Ok(Declarations { tools: self.tools.clone(), sandbox_tools: self.sandbox_tools.clone(), subagent_tools })
    }
}

impl From<Forbidden> for Refusal {
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden(forbidden)
    }
}

/// Reads the body of an open.
///
/// # Errors
/// `BadRequest` with the reason.
pub fn parse_open(body: &[u8]) -> Result<Open, Refusal> {
    let body = json_body(body)?;
    let compaction = Object::parse(&body).and_then(|object| object.get("compaction").map(compaction));
    Ok(Open { compaction: compaction.transpose()?.unwrap_or_default(), declared: declared(&body)? })
}

/// Reads the body of a join.
///
/// # Errors
/// `BadRequest` with the reason.
pub fn parse_join(body: &[u8]) -> Result<Declared, Refusal> {
    let body = json_body(body)?;
    if Object::parse(&body).is_some_and(|object| object.get("compaction").is_some()) {
        return Err(Refusal::bad_request(
            "compaction is a session-level setting fixed at creation and cannot be set on join",
        ));
    }
    declared(&body)
}

fn json_body(body: &[u8]) -> Result<Raw, Refusal> {
    json::read(body).map_err(|error| Refusal::bad_request(format!("Failed to parse the request body as JSON: {error}")))
}

fn declared(body: &RawValue) -> Result<Declared, Refusal> {
    let invalid = |what: &str| Refusal::bad_request(format!("invalid request body: {what}"));
    if body.get().starts_with('[') {
        return Err(invalid("invalid type: sequence, expected an object"));
    }
    let declared: Declared = serde_json::from_str(body.get()).map_err(|error| invalid(&json::reason(&error)))?;
    if declared.client_version.as_ref().is_some_and(|version| version.contains('\0')) {
        return Err(invalid("client_version must not hold the character U+0000"));
    }
    Ok(declared)
}

fn compaction(value: &RawValue) -> Result<Compaction, Refusal> {
    let invalid = |what: &str| Refusal::bad_request(format!("invalid compaction config: {what}"));
    if value.get().starts_with('[') {
        return Err(invalid("invalid type: sequence, expected an object"));
    }
    let compaction = serde_json::from_str::<Option<Compaction>>(value.get());
    match compaction.map_err(|error| invalid(&json::reason(&error)))?.unwrap_or_default() {
        Compaction::Auto { size } if size < MIN_COMPACTION_SIZE => Err(Refusal::bad_request(format!(
            "compaction size must be at least {MIN_COMPACTION_SIZE} tokens, not {size}"
        ))),
        compaction => Ok(compaction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        match result.unwrap_err() {
            Refusal::BadRequest(detail) => detail,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_empty_object_opens_and_joins() {
        let open = parse_open(b" {} ").unwrap();
        assert_eq!(open.compaction, Compaction::Client { prompt: None });
        assert_eq!(open.declared.client_version, None);
        let declarations = parse_join(b"{}").unwrap().check(&[]).unwrap();
        assert!(declarations.each().next().is_none());
    }

    #[test]
    fn compaction_is_read_and_stored() {
        let read = |value: &str| parse_open(format!(r#"{{"compaction":{value}}}"#).as_bytes()).map(|o| o.compaction);
        for (value, expected, stored) in [
            ("null", Compaction::default(), r#"{"mode":"client"}"#),
            (r#"{"mode":"client","prompt":null}"#, Compaction::default(), r#"{"mode":"client"}"#),
            (
                r#"{"mode":"client","prompt":"p","x":[]}"#,
                Compaction::Client { prompt: Some("p".into()) },
                r#"{"mode":"client","prompt":"p"}"#,
            ),
            (r#"{"size":1000,"mode":"auto"}"#, Compaction::Auto { size: 1000 }, r#"{"mode":"auto","size":1000}"#),
        ] {
            let got = read(value).unwrap();
            assert_eq!(got, expected);
            assert_eq!(json::encode(&got).get(), stored);
            assert_eq!(serde_json::from_str::<Compaction>(stored).unwrap(), expected);
        }
        for (value, expected) in [
            (r#"{"mode":"auto"}"#, "invalid compaction config: missing field `size`"),
            (r#"{"size":5000}"#, "invalid compaction config: missing field `mode`"),
            (r#"{"mode":"x"}"#, "invalid compaction config: unknown variant `x`, expected `auto` or `client`"),
            (r#"{"mode":"auto","size":"9"}"#, "invalid compaction config: invalid type: string \"9\", expected u64"),
            (
                r#"{"mode":"auto","size":1000.5}"#,
                "invalid compaction config: invalid type: floating point `1000.5`, expected u64",
            ),
            (
                r#"{"mode":"client","prompt":1}"#,
                "invalid compaction config: invalid type: integer `1`, expected a string",
            ),
            (r#"["auto",{"size":5000}]"#, "invalid compaction config: invalid type: sequence, expected an object"),
            (r#"{"mode":"auto","size":999}"#, "compaction size must be at least 1000 tokens, not 999"),
        ] {
            assert_eq!(detail(read(value)), expected, "{value}");
        }
        let text = "invalid compaction config: invalid type: string \"auto\", expected an object";
        assert_eq!(detail(read("\"auto\"")), text);
    }

    #[test]
    fn malformed_bodies_are_told_apart() {
        for (body, expected) in [
            ("", "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0"),
            ("{\"client_version\":\"a\nb\"}", "Failed to parse the request body as JSON: control character"),
            ("[]", "invalid request body: invalid type: sequence, expected an object"),
            ("5", "invalid request body: invalid type: integer `5`, expected an object"),
            (r#"{"tools":[{"description":"x"}]}"#, "invalid request body: missing field `name`"),
            (r#"{"tools":[{"name":""}]}"#, "invalid request body: a tool's `name` must not be blank"),
            (r#"{"tools":{}}"#, "invalid request body: invalid type: map, expected a sequence"),
            (r#"{"client_version":1}"#, "invalid request body: invalid type: integer `1`, expected a string"),
            (r#"{"sandbox_tools":[{"name":"s"}]}"#, "invalid request body: the input_schema of sandbox tool `s` must"),
            (
                r#"{"subagent_tools":[{"name":"s","image":5}]}"#,
                "invalid request body: invalid type: integer `5`, expected a string",
            ),
        ] {
            let got = detail(parse_open(body.as_bytes()));
            assert!(got.starts_with(expected), "{body}: {got}");
            assert_eq!(detail(parse_join(body.as_bytes())), got);
        }
        assert!(detail(parse_open(b"{\"client_version\":\"\xff\"}")).starts_with("Failed to parse"));
        let both = r#"{"compaction":{"mode":"auto","size":1},"tools":7}"#;
        assert_eq!(detail(parse_open(both.as_bytes())), "compaction size must be at least 1000 tokens, not 1");
    }

    #[test]
    fn a_join_refuses_the_compaction_key_before_all_else() {
        let text = "compaction is a session-level setting fixed at creation and cannot be set on join";
        for body in [r#"{"compaction":null}"#, r#"{"tools":7,"compaction":{}}"#, r#"{"compac\u0074ion":1}"#] {
            assert_eq!(detail(parse_join(body.as_bytes())), text, "{body}");
        }
        assert!(parse_join(br#"{"tools":[],"Compaction":1}"#).is_ok());
    }

    #[test]
    fn what_is_stored_is_one_line() {
        let body = "{\"tools\":[{\"name\":\"t\",\n\"input_schema\":{\r\n\"a\":\"x\\ny\"}}]}";
        let open = parse_open(body.as_bytes()).unwrap();
        let stored = open.declared.check(&["t".into()]).unwrap().store();
        assert_eq!(
            stored,
            r#"{"v":1,"tools":[{"name":"t","input_schema":{"a":"x\ny"}}],"sandbox_tools":[],"subagent_tools":[]}"#
        );
    }

    #[test]
    fn tools_are_checked_in_order() {
        let check = |body: &str| parse_open(body.as_bytes()).unwrap().declared.check(&["a".into()]).unwrap_err();
        let refusal =
            check(r#"{"tools":[{"name":"b"}],"subagent_tools":[{"name":"s"},{"name":"remote_subagent_status"}]}"#);
        assert_eq!(refusal, Refusal::Forbidden(Forbidden::Reserved));
        let refusal = check(r#"{"tools":[{"name":"b"}],"subagent_tools":[{"name":"s"}]}"#);
        assert_eq!(refusal, Refusal::InvalidSubagentTools("subagent tool `s`: give it a non-blank `image`".into()));
        let refusal = check(r#"{"tools":[{"name":"a"},{"name":"b"}]}"#);
        assert_eq!(refusal, Refusal::Forbidden(Forbidden::NotAllowed("b".into())));
    }
}

//! Declarations of tools that launch subagents, and their checks (docs/api.md 8.1).
//!
//! A [`Declaration`] is what a client wrote; a [`SubagentTool`] has passed every check. If a member is missing or its
//! value is not allowed, the answer is `422 invalid_subagent_tools` with a text from this module. A member of the wrong
//! JSON type makes the body malformed, as everywhere.

use super::objects;
use crate::json::Raw;
use crate::subagent::template::{self, Piece};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A declaration as it was sent.
#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "an object")]
pub struct Declaration {
    #[serde(default)]
    pub(crate) name: String,
    description: Option<String>,
    #[serde(default, deserialize_with = "super::schema")]
    input_schema: Option<Raw>,
    #[serde(default)]
    image: String,
    #[serde(default, deserialize_with = "objects")]
    subagents: Vec<HarnessDeclaration>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(expecting = "an object")]
struct HarnessDeclaration {
    #[serde(default)]
    harness: String,
    #[serde(default)]
    command_template: String,
    prompt_via: Option<String>,
    timeout_secs: Option<i64>,
}

/// A tool by which the server launches subagents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubagentTool {
    /// Never blank.
    pub name: String,
    /// For the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// An object, verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Raw>,
    /// The image that its subagents run in; never blank. Each launch checks whether the profile allows it.
    pub image: String,
    /// The agents that it can launch: at least one, each name once.
    #[serde(deserialize_with = "objects")]
    pub subagents: Vec<Harness>,
}

/// A command-line agent that a tool can launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harness {
    /// The name by which the model chooses it; never blank.
    #[serde(rename = "harness")]
    pub name: String,
    /// The shell command, with `{model}` and `{prompt}` to fill in.
    pub command_template: String,
    /// How the prompt is passed to it.
    pub prompt_via: PromptVia,
    /// Its own time limit in seconds, if it has one; never zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u64>,
}

/// How a prompt is passed to a subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptVia {
    /// Unchanged on standard input.
    Stdin,
    /// As a quoted word in the command, in place of `{prompt}`.
    Arg,
}

impl Declaration {
    /// Makes all checks. `index` is the place of the declaration in the client's list, which names a tool without a
    /// name.
    ///
    /// # Errors
    /// A text that names the tool and says what to change.
    pub fn check(&self, index: usize) -> Result<SubagentTool, String> {
        let name = &self.name;
        if name.trim().is_empty() {
            return Err(format!("subagent_tools[{index}]: give the tool a non-blank `name`"));
        }
        if self.image.trim().is_empty() {
            return Err(format!("subagent tool `{name}`: give it a non-blank `image`"));
        }
        if self.subagents.is_empty() {
            return Err(format!("subagent tool `{name}`: list at least one entry in `subagents`"));
        }
        let mut seen = HashSet::new();
        let mut subagents = Vec::with_capacity(self.subagents.len());
        for (i, declared) in self.subagents.iter().enumerate() {
            let harness = declared.check(i).map_err(|what| format!("subagent tool `{name}`: {what}"))?;
            if !seen.insert(&declared.harness) {
                return Err(format!("subagent tool `{name}`: harness `{}` is listed twice; remove one", harness.name));
            }
            subagents.push(harness);
        }
        Ok(SubagentTool {
            name: name.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            image: self.image.clone(),
            subagents,
        })
    }
}

impl HarnessDeclaration {
    fn check(&self, index: usize) -> Result<Harness, String> {
        let name = &self.harness;
        if name.trim().is_empty() {
            return Err(format!("subagents[{index}] needs a non-blank `harness`"));
        }
        let prompt_via = match self.prompt_via.as_deref() {
            None | Some("stdin") => PromptVia::Stdin,
            Some("arg") => PromptVia::Arg,
            Some(_) => return Err(format!("`prompt_via` of harness `{name}` must be \"stdin\" or \"arg\"")),
        };
        check_template(&self.command_template, prompt_via)
            .map_err(|what| format!("`command_template` of harness `{name}` {what}"))?;
        let timeout_secs = match self.timeout_secs.map(u64::try_from) {
            None => None,
            Some(Ok(seconds)) if seconds > 0 => Some(seconds),
            Some(_) => return Err(format!("`timeout_secs` of harness `{name}` must be positive")),
        };
        let command_template = self.command_template.clone();
        Ok(Harness { name: name.clone(), command_template, prompt_via, timeout_secs })
    }
}

fn check_template(text: &str, via: PromptVia) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("must not be blank".into());
    }
    let mut prompts = 0;
    for piece in template::pieces(text) {
        match piece {
            Piece::Text(_) | Piece::Model => {}
            Piece::Prompt => prompts += 1,
            Piece::Unknown(placeholder) => {
                return Err(format!("has `{placeholder}`; the only placeholders are `{{model}}` and `{{prompt}}`"));
            }
            Piece::Expansion(expansion) => {
                return Err(format!("has `{expansion}`; write the placeholder without the `$`"));
            }
        }
    }
    match (via, prompts) {
        (PromptVia::Stdin, 0) | (PromptVia::Arg, 1) => Ok(()),
        (PromptVia::Stdin, _) => {
            Err("must not have `{prompt}`: the prompt arrives on standard input; or set `prompt_via` to \"arg\"".into())
        }
        (PromptVia::Arg, _) => Err("must have `{prompt}` exactly once, because `prompt_via` is \"arg\"".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<SubagentTool, String> {
        serde_json::from_str::<Declaration>(text).unwrap().check(3)
    }

    fn harness(members: &str) -> Result<SubagentTool, String> {
        check(&format!(r#"{{"name":"t","image":"i","subagents":[{{"harness":"h",{members}}}]}}"#))
    }

    #[test]
    fn the_contracts_example_passes() {
        let tool = check(
            r#"{"name":"launch_subagent","description":"d","input_schema":{"type":"object"},"image":"bae-subagents:latest",
            "subagents":[
              {"harness":"claude","command_template":"claude --model {model} --print","prompt_via":"stdin","timeout_secs":600},
              {"harness":"codex","command_template":"codex exec --model {model} {prompt}","prompt_via":"arg","x":1}]}"#,
        )
        .unwrap();
        assert_eq!(tool.subagents[0].timeout_secs, Some(600));
        assert_eq!(tool.subagents[1].prompt_via, PromptVia::Arg);
        assert_eq!(harness(r#""command_template":"c""#).unwrap().subagents[0].prompt_via, PromptVia::Stdin);
    }

    #[test]
    fn each_check_names_the_tool_and_the_change() {
        for (text, why) in [
            (r#"{}"#, "subagent_tools[3]: give the tool a non-blank `name`"),
            (r#"{"name":"t"}"#, "subagent tool `t`: give it a non-blank `image`"),
            (r#"{"name":"t","image":" "}"#, "subagent tool `t`: give it a non-blank `image`"),
            (r#"{"name":"t","image":"i","subagents":[]}"#, "subagent tool `t`: list at least one entry in `subagents`"),
            (
                r#"{"name":"t","image":"i","subagents":[{"harness":""}]}"#,
                "subagent tool `t`: subagents[0] needs a non-blank `harness`",
            ),
            (
                r#"{"name":"t","image":"i","subagents":[{"harness":"h","command_template":"c"},{"harness":"h","command_template":"d"}]}"#,
                "subagent tool `t`: harness `h` is listed twice; remove one",
            ),
        ] {
            assert_eq!(check(text).unwrap_err(), why);
        }
        for (members, why) in [
            (
                r#""command_template":"c","prompt_via":"file""#,
                "`prompt_via` of harness `h` must be \"stdin\" or \"arg\"",
            ),
            (r#""command_template":"c","timeout_secs":0"#, "`timeout_secs` of harness `h` must be positive"),
            (r#""command_template":"c","timeout_secs":-5"#, "`timeout_secs` of harness `h` must be positive"),
            (r#""command_template":"  ""#, "`command_template` of harness `h` must not be blank"),
            (
                r#""command_template":"c {modle}""#,
                "`command_template` of harness `h` has `{modle}`; the only placeholders are `{model}` and `{prompt}`",
            ),
            (
                r#""command_template":"c ${model}""#,
                "`command_template` of harness `h` has `${model}`; write the placeholder without the `$`",
            ),
            (
                r#""command_template":"c {prompt}""#,
                "`command_template` of harness `h` must not have `{prompt}`: the prompt arrives on standard input; or set `prompt_via` to \"arg\"",
            ),
            (
                r#""command_template":"c","prompt_via":"arg""#,
                "`command_template` of harness `h` must have `{prompt}` exactly once, because `prompt_via` is \"arg\"",
            ),
            (
                r#""command_template":"{prompt}{prompt}","prompt_via":"arg""#,
                "`command_template` of harness `h` must have `{prompt}` exactly once, because `prompt_via` is \"arg\"",
            ),
        ] {
            assert_eq!(harness(members).unwrap_err(), format!("subagent tool `t`: {why}"));
        }
    }
}

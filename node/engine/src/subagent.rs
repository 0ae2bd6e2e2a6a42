//! Decisions about remote subagents: what a tool use launches, and the texts that the model gets (docs/api.md 8.2 to
//! 8.6).
//!
//! A tool use that fails a check gets an error result and launches nothing. The texts never contain the prompt.

pub mod template;

use crate::ids::SubagentId;
use crate::json::{self, Object, Raw};
use crate::tools::subagent::{PromptVia, SubagentTool};
use crate::tools::{SUBAGENT_STATUS, offered};
use serde::Serialize;
use serde_json::value::RawValue;
use std::fmt::Write;
pub use template::{Rendered, render};

/// A launch that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The harness's name.
    pub harness: String,
    /// The model that it shall use.
    pub model: String,
    /// The image that it runs in.
    pub image: String,
    /// The command and its standard input.
    pub rendered: Rendered,
    /// The time limit in seconds, if the harness has one.
    pub timeout_secs: Option<u64>,
}

/// What a session allows at the time of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    /// The images that the profile allows.
    pub available_sandboxes: &'a [String],
    /// How many remote subagents of the session run.
    pub running: usize,
    /// How many may run at the same time.
    pub max: usize,
}

/// Decides what a use of a subagent tool launches (docs/api.md 8.2).
///
/// # Errors
/// The text of the error result, if a check fails.
pub fn launch(input: &RawValue, tool: &SubagentTool, room: Room<'_>) -> Result<Launch, String> {
    let refused = |what: std::fmt::Arguments<'_>| Err(format!("subagent error: {what}"));
    let Some(input) = Object::parse(input) else { return refused(format_args!("the input must be an object")) };
    let text = |key: &str| input.str(key).filter(|text| !text.trim().is_empty());
    let asked = text("harness");
    let Some(harness) = tool.subagents.iter().find(|harness| asked.as_deref() == Some(&harness.name)) else {
        return refused(format_args!("`harness` must be one of: {}", harnesses(tool)));
    };
    let Some(model) = text("model") else { return refused(format_args!("`model` must be a non-blank string")) };
    let Some(prompt) = text("prompt") else { return refused(format_args!("`prompt` must be a non-blank string")) };
    // A command line cannot contain NUL; standard input can.
    if model.contains('\0') || (harness.prompt_via == PromptVia::Arg && prompt.contains('\0')) {
        return refused(format_args!("`model` and `prompt` must not contain NUL characters"));
    }
    let image = &tool.image;
    if !room.available_sandboxes.contains(image) {
        return refused(format_args!("image '{image}' is not in the profile's available_sandboxes"));
    }
    if room.running >= room.max {
        return refused(format_args!(
            "{} subagents are already running in this session, which is the limit; wait for one to finish",
            room.running
        ));
    }
    Ok(Launch {
        harness: harness.name.clone(),
        image: image.clone(),
        rendered: render(&harness.command_template, &model, &prompt, harness.prompt_via),
        timeout_secs: harness.timeout_secs,
        model: model.into_owned(),
    })
}

fn harnesses(tool: &SubagentTool) -> String {
    let mut names = String::new();
    for (i, harness) in tool.subagents.iter().enumerate() {
        let _ = write!(names, "{}{}", if i > 0 { ", " } else { "" }, harness.name);
    }
    names
}

/// The text of the result of a successful launch: JSON, for one text block (docs/api.md 8.4).
pub fn started(id: SubagentId, launch: &Launch) -> String {
    #[derive(Serialize)]
    struct Started<'a> {
        subagent_id: SubagentId,
        harness: &'a str,
        model: &'a str,
        status: &'static str,
    }
    let started = Started { subagent_id: id, harness: &launch.harness, model: &launch.model, status: "started" };
    json::encode(&started).get().to_owned()
}

/// The status tool as a request offers it while the session has a remote subagent (docs/api.md 8.6).
pub fn status_tool() -> Raw {
    let schema = json::built(
        r#"{"type":"object","properties":{"subagent_id":{"type":"string","description":"Report only this subagent. Without it, all are reported."}}}"#
            .to_owned(),
    );
    let description = "Report the status and output of the subagents launched in this session. A finished subagent is \
                       reported once, then forgotten.";
    offered(SUBAGENT_STATUS, Some(description), Some(&schema))
}

/// A subagent as the status tool reports it (docs/api.md 8.6).
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its id.
    pub subagent_id: SubagentId,
    /// The command-line agent.
    pub harness: String,
    /// The model it uses.
    pub model: String,
    /// `running`, `completed`, `failed`, `timed_out` or `cancelled`.
    pub status: &'static str,
    /// What it has left, once it has ended.
    #[serde(flatten)]
    pub left: Left,
}

/// What a subagent has left when it ended. All of it is empty while the subagent runs.
#[derive(Clone, Default, Serialize)]
pub struct Left {
    /// The process's exit code, if it ended by itself.
    pub exit_code: Option<i64>,
    /// The part of its standard output that is kept.
    pub stdout: String,
    /// The part of its standard error that is kept.
    pub stderr: String,
    /// Whether it wrote more than is kept.
    pub truncated: bool,
    /// Why it ended, if it did not complete.
    pub reason: Option<String>,
    /// The reason as a sentence.
    pub detail: Option<String>,
}

/// Does not show the output, which belongs to the user.
impl std::fmt::Debug for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Left").field("exit_code", &self.exit_code).finish_non_exhaustive()
    }
}

/// The answer of the status tool: JSON, for one text block. `asked` names the one that is asked for, or none for all of
/// them. The error is the text of an error result.
pub fn status(asked: Option<&str>, tracked: Vec<Report>) -> Result<(String, Vec<Report>), String> {
    #[derive(Serialize)]
    struct Status<'a> {
        subagents: &'a [Report],
    }
    let asked_for = |report: &Report| asked.is_none_or(|id| id == report.subagent_id.to_string());
    let shown: Vec<Report> = tracked.into_iter().filter(asked_for).collect();
    match (shown.is_empty(), asked) {
        (false, _) => Ok((json::encode(&Status { subagents: &shown }).get().to_owned(), shown)),
        (true, Some(id)) => Err(format!(
            "subagent error: unknown subagent_id '{id}': no such subagent is tracked in this session; it may have been \
             reported already"
        )),
        (true, None) => Err("subagent error: unknown subagent_id: no subagent is tracked in this session".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> SubagentTool {
        serde_json::from_str(
            r#"{"name":"launch_subagent","image":"img","subagents":[
                {"harness":"claude","command_template":"claude --model {model}","prompt_via":"stdin","timeout_secs":60},
                {"harness":"codex","command_template":"codex {prompt}","prompt_via":"arg"}]}"#,
        )
        .unwrap()
    }

    fn try_launch(input: &str, images: &[&str], running: usize) -> Result<Launch, String> {
        let images: Vec<String> = images.iter().map(|image| (*image).to_owned()).collect();
        let room = Room { available_sandboxes: &images, running, max: 8 };
        launch(&json::parse(input).unwrap(), &tool(), room)
    }

    #[test]
    fn a_launch_carries_all_that_is_needed() {
        let input = r#"{"harness":"claude","model":"m'","prompt":" do it\u0000\n","extra":1}"#;
        let got = try_launch(input, &["x", "img"], 7).unwrap();
        assert_eq!((got.harness.as_str(), got.model.as_str(), got.image.as_str()), ("claude", "m'", "img"));
        assert_eq!(got.timeout_secs, Some(60));
        assert_eq!(got.rendered.command, r"claude --model 'm'\'''");
        assert_eq!(got.rendered.stdin.as_deref(), Some(" do it\0\n"));
        let id = SubagentId([0; 16]);
        assert_eq!(
            started(id, &got),
            format!(r#"{{"subagent_id":"{id}","harness":"claude","model":"m'","status":"started"}}"#)
        );
        assert!(!format!("{got:?}").contains("do it"));
    }

    #[test]
    fn each_check_says_what_is_wrong() {
        for (input, images, running, why) in [
            ("[]", &["img"][..], 0, "the input must be an object"),
            (r#"{"harness":"gemini"}"#, &["img"], 0, "`harness` must be one of: claude, codex"),
            (r#"{}"#, &["img"], 0, "`harness` must be one of: claude, codex"),
            (r#"{"harness":"claude","model":" ","prompt":"p"}"#, &["img"], 0, "`model` must be a non-blank string"),
            (r#"{"harness":"claude","model":"m","prompt":1}"#, &["img"], 0, "`prompt` must be a non-blank string"),
            (
                r#"{"harness":"codex","model":"m","prompt":"a\u0000"}"#,
                &["img"],
                0,
                "`model` and `prompt` must not contain NUL characters",
            ),
            (
                r#"{"harness":"claude","model":"m","prompt":"p"}"#,
                &["other"],
                9,
                "image 'img' is not in the profile's available_sandboxes",
            ),
            (
                r#"{"harness":"claude","model":"m","prompt":"p"}"#,
                &["img"],
                8,
                "8 subagents are already running in this session, which is the limit; wait for one to finish",
            ),
        ] {
            assert_eq!(try_launch(input, images, running).unwrap_err(), format!("subagent error: {why}"));
        }
    }

    #[test]
    fn a_status_shows_what_is_asked_for() {
        let report = |n: u8| Report {
            subagent_id: SubagentId([n; 16]),
            harness: "claude".into(),
            model: "m".into(),
            status: "running",
            left: Left { stderr: "\u{1}".into(), ..Left::default() },
        };
        let (text, shown) = status(None, vec![report(1), report(2)]).unwrap();
        assert_eq!(shown.len(), 2);
        assert!(text.starts_with(r#"{"subagents":[{"subagent_id":"sba_01"#), "{text}");
        let second = SubagentId([2; 16]).to_string();
        let (text, shown) = status(Some(&second), vec![report(1), report(2)]).unwrap();
        assert_eq!(shown[0].subagent_id.to_string(), second);
        assert_eq!(
            text,
            format!(
                r#"{{"subagents":[{{"subagent_id":"{second}","harness":"claude","model":"m","status":"running","exit_code":null,"stdout":"","stderr":"\u0001","truncated":false,"reason":null,"detail":null}}]}}"#
            )
        );
        for (asked, tracked) in [(Some("sba_x"), vec![report(1)]), (Some("sba_x"), vec![]), (None, vec![])] {
            assert!(status(asked, tracked).unwrap_err().starts_with("subagent error: unknown subagent_id"));
        }
        assert!(!format!("{:?}", report(1)).contains('\u{1}'));
    }

    #[test]
    fn the_status_tool_is_a_tool_like_others() {
        let tool = status_tool();
        let tool = Object::parse(&tool).unwrap();
        assert_eq!(tool.str("name").as_deref(), Some("remote_subagent_status"));
        assert!(tool.get("input_schema").is_some());
    }
}

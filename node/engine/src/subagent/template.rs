//! Command templates: `{model}` and `{prompt}` in a shell command, filled in with POSIX quoting in one pass
//! (docs/api.md 8.3).
//!
//! A placeholder becomes one quoted word of the shell, so a template must not put quotes around it. What is filled in
//! is never searched for placeholders again. Braces that belong to the shell (`${HOME}`, `{a,b}`, `{}`, `{"json":1}`)
//! stay as they are.

use crate::tools::subagent::PromptVia;

/// A piece of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text that stays as it is.
    Text(&'a str),
    /// `{model}`.
    Model,
    /// `{prompt}`.
    Prompt,
    /// A word in braces that is no placeholder.
    Unknown(&'a str),
    /// `${model}` or `${prompt}`: neither a placeholder nor a variable of the shell that would be set.
    Expansion(&'a str),
}

/// Splits a template into its pieces, in order.
pub fn pieces(template: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut text, mut at) = (0, 0);
    while let Some(open) = template[at..].find('{').map(|i| at + i) {
        at = open + 1;
        let Some(close) = template[at..].find(['{', '}']).map(|i| at + i) else { break };
        let word = &template[at..close];
        if template.as_bytes()[close] != b'}' || !is_word(word.trim()) {
            continue;
        }
        let dollar = template[text..open].ends_with('$');
        let (start, piece) = match (word, dollar) {
            ("model" | "prompt", true) => (open - 1, Piece::Expansion(&template[open - 1..=close])),
            (_, true) => continue,
            ("model", false) => (open, Piece::Model),
            ("prompt", false) => (open, Piece::Prompt),
            (_, false) => (open, Piece::Unknown(&template[open..=close])),
        };
        if text < start {
            pieces.push(Piece::Text(&template[text..start]));
        }
        pieces.push(piece);
        (text, at) = (close + 1, close + 1);
    }
    if text < template.len() {
        pieces.push(Piece::Text(&template[text..]));
    }
    pieces
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// The command that starts a subagent, and its standard input.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The command for `sh -c`.
    pub command: String,
    /// The text for standard input. None if the prompt is in the command.
    pub stdin: Option<String>,
}

impl std::fmt::Debug for Rendered {
    /// Shows neither field, because both contain what the model wrote, which must not be logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendered").finish_non_exhaustive()
    }
}

/// Fills in a template that was checked.
pub fn render(template: &str, model: &str, prompt: &str, via: PromptVia) -> Rendered {
    let mut command = String::with_capacity(template.len() + model.len() + 16);
    for piece in pieces(template) {
        match piece {
            Piece::Model => quote(model, &mut command),
            Piece::Prompt => quote(prompt, &mut command),
            Piece::Text(text) | Piece::Unknown(text) | Piece::Expansion(text) => command.push_str(text),
        }
    }
    match via {
        PromptVia::Stdin => Rendered { command, stdin: Some(prompt.to_owned()) },
        PromptVia::Arg => Rendered { command, stdin: None },
    }
}

/// Appends the text as one word of a POSIX shell.
pub fn quote(text: &str, command: &mut String) {
    command.push('\'');
    command.push_str(&text.replace('\'', r"'\''"));
    command.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_told_from_the_shells_braces() {
        use Piece::{Expansion, Model, Prompt, Text, Unknown};
        for (template, expected) in [
            ("", vec![]),
            ("a {model} b", vec![Text("a "), Model, Text(" b")]),
            ("{model}{prompt}", vec![Model, Prompt]),
            ("{{model}}", vec![Text("{"), Model, Text("}")]),
            ("{ model } {x} {0}", vec![Unknown("{ model }"), Text(" "), Unknown("{x}"), Text(" "), Unknown("{0}")]),
            ("${HOME} {a,b} {} {\"m\":1} {", vec![Text("${HOME} {a,b} {} {\"m\":1} {")]),
            ("x ${model}é", vec![Text("x "), Expansion("${model}"), Text("é")]),
            ("{model {prompt}", vec![Text("{model "), Prompt]),
        ] {
            assert_eq!(pieces(template), expected, "{template}");
        }
    }

    #[test]
    fn one_pass_and_no_prompt_on_the_command_line() {
        let got = render("c -m {model} {prompt}", "{prompt}", "{model}'s", PromptVia::Arg);
        assert_eq!(got.command, r"c -m '{prompt}' '{model}'\''s'");
        assert_eq!(got.stdin, None);
        let got = render("c -m {model}", "m", "{model}\n", PromptVia::Stdin);
        assert_eq!((got.command.as_str(), got.stdin.as_deref()), ("c -m 'm'", Some("{model}\n")));
    }

    #[test]
    fn the_shell_gives_back_what_was_quoted() {
        for text in [
            "",
            "plain",
            "it's",
            "'",
            "'\\''",
            "a b\tc\n\n",
            "$(x) `y` $z ${w} \\ \"q\"",
            "; rm *",
            "é {model} 🙂",
            "-n",
        ] {
            let command = render("printf %s {model}", text, "", PromptVia::Stdin).command;
            let output = std::process::Command::new("sh").arg("-c").arg(&command).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}

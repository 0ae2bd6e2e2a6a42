//! Conversations with the demo model.

use super::*;

/// A conversation that is carried on with the model's own answers.
struct Talk {
    messages: Vec<Value>,
    tools: Value,
}

impl Talk {
    fn new() -> Talk {
        let tools = json!([
            {"name": "get_current_time", "input_schema": {"type": "object", "properties": {}}},
            {"name": "ask_user", "input_schema": {
                "type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}},
        ]);
        Talk { messages: Vec::new(), tools }
    }

    /// Sends content and takes the model's answer into the conversation.
    fn send(&mut self, content: Value) -> Value {
        self.messages.push(json!({"role": "user", "content": content}));
        let answer = self.asked();
        assert_eq!(answer.status, 200, "{}", answer.body);
        self.messages.push(json!({"role": "assistant", "content": answer.body["content"]}));
        answer.body
    }

    fn asked(&self) -> Answer {
        answer(&json!({"model": "demo", "max_tokens": 100, "messages": self.messages, "tools": self.tools}))
    }

    fn say(&mut self, text: &str) -> String {
        self.send(json!(text))["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Answers every tool use of the last answer with `text`.
    fn results(&mut self, text: &str) -> Value {
        let last = self.messages.last().unwrap()["content"].as_array().unwrap();
        let uses = last.iter().filter(|block| block["type"] == "tool_use");
        let results =
            uses.map(|block| json!({"type": "tool_result", "tool_use_id": block["id"], "content": text})).collect();
        self.send(Value::Array(results))
    }
}

#[test]
fn it_repeats_and_remembers() {
    let mut talk = Talk::new();
    assert_eq!(talk.say("What did I say first?"), "Nothing yet: this is your first message in this conversation.");
    let mut talk = Talk::new();
    assert_eq!(
        talk.say("The sky is blue."),
        "You said: \"The sky is blue.\". It is the first message of our conversation."
    );
    assert!(talk.say("My name is Ann, by the way.").contains("one message before it: \"The sky is blue.\""));
    assert_eq!(talk.say("What did I say first?"), "The first thing you said was: The sky is blue.");
    assert_eq!(talk.say("What is my name?"), "Your name is Ann; you told me.");
    assert_eq!(talk.say("what did I say before?"), "Before this you said: What is my name?");
    assert_eq!(talk.say("how many messages?"), "You have sent 6 messages, this one included.");
}

#[test]
fn a_tool_is_called_and_its_result_told() {
    let mut talk = Talk::new();
    let body = talk.send(json!("What time is it?"));
    assert_eq!((&body["stop_reason"], &body["content"][1]["name"]), (&json!("tool_use"), &json!("get_current_time")));
    assert_eq!(body["content"][1]["input"], json!({}));
    let body = talk.results("18:26 UTC");
    assert_eq!(
        (&body["stop_reason"], &body["content"][0]["text"]),
        (&json!("end_turn"), &json!("The tool answered: 18:26 UTC"))
    );
    // The turn is over: the next message begins another.
    assert!(talk.say("thank you").starts_with("You said: \"thank you\"."));
}

#[test]
fn rounds_follow_one_another() {
    let mut talk = Talk::new();
    let first = talk.send(json!("use get_current_time twice, then ask me my favourite colour"));
    assert_eq!(first["content"][0]["text"], "Step 1 of 3: I call get_current_time.");
    let second = talk.results("one");
    assert_ne!(first["content"][1]["id"], second["content"][1]["id"]);
    let third = talk.results("two");
    assert_eq!(third["content"][1]["input"], json!({"question": "What is your favourite colour?"}));
    let last = talk.results("blue");
    let told = "The tools answered:\n- get_current_time: one\n- get_current_time: two\n- ask_user: blue";
    assert_eq!((&last["stop_reason"], &last["content"][0]["text"]), (&json!("end_turn"), &json!(told)));
}

#[test]
fn several_tools_can_be_one_round() {
    let mut talk = Talk::new();
    let body = talk.send(json!("use get_current_time and ask_user"));
    let content = body["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert_ne!(content[1]["id"], content[2]["id"]);
}

#[test]
fn words_beside_abandoned_results_begin_a_turn() {
    let mut talk = Talk::new();
    let call = talk.send(json!("what time is it?"));
    let abandoned = json!([
        {"type": "tool_result", "tool_use_id": call["content"][1]["id"], "content": "abandoned", "is_error": true},
        {"type": "text", "text": "never mind"},
    ]);
    assert!(talk.send(abandoned)["content"][0]["text"].as_str().unwrap().starts_with("You said: \"never mind\""));
}

#[test]
fn a_failed_tool_is_told_as_such() {
    let mut talk = Talk::new();
    let call = talk.send(json!("what time is it?"));
    let failed = json!([
        {"type": "tool_result", "tool_use_id": call["content"][1]["id"], "is_error": true,
         "content": [{"type": "text", "text": "no clock"}]},
    ]);
    assert_eq!(talk.send(failed)["content"][0]["text"], "The tool get_current_time failed: no clock");
}

#[test]
fn unknown_tools_are_named_as_such() {
    let mut talk = Talk::new();
    assert_eq!(talk.say("use frobnicate"), "I have no such tool. I was offered: get_current_time, ask_user.");
    assert_eq!(talk.say("which tools do you have?"), "I was offered: get_current_time, ask_user.");
    talk.tools = json!([]);
    assert_eq!(talk.say("which tools do you have?"), "No tools are offered to me here.");
}

#[test]
fn compaction_keeps_what_was_said() {
    let mut talk = Talk::new();
    talk.say("The sky is blue.");
    talk.send(json!("what time is it?"));
    talk.results("noon");
    talk.tools = Value::Null;
    let summary = talk.say("Write a self-contained summary of this conversation so far.");
    assert!(summary.contains("1. \"The sky is blue.\"\n2. \"what time is it?\""), "{summary}");
    assert!(summary.contains("Tools used: get_current_time (1)."), "{summary}");
    assert!(!summary.contains("self-contained"), "{summary}");

    let mut talk = Talk::new();
    talk.messages = vec![
        json!({"role": "user", "content": super::super::memory::PREAMBLE}),
        json!({"role": "assistant", "content": [{"type": "text", "text": summary}]}),
    ];
    assert_eq!(talk.say("what did I say first?"), "The first thing you said was: The sky is blue.");
}

#[test]
fn orders_make_it_slow_or_unavailable() {
    let mut talk = Talk::new();
    talk.messages = vec![json!({"role": "user", "content": "/slow 20 what time is it?"})];
    let slow = talk.asked();
    assert_eq!((slow.delay, slow.status), (Duration::from_secs(20), 200));
    assert_eq!(slow.body["content"][1]["name"], "get_current_time");
    talk.messages = vec![json!({"role": "user", "content": "/fail now"})];
    let failed = talk.asked();
    assert_eq!((failed.status, &failed.body["error"]["type"]), (529, &json!("overloaded_error")));

    // Orders hold for their own turn, and are not part of what was said.
    let mut talk = Talk::new();
    talk.messages = vec![
        json!({"role": "user", "content": "/slow 20 good /fail morning"}),
        json!({"role": "assistant", "content": "…"}),
        json!({"role": "user", "content": "what did I say first?"}),
    ];
    let answer = talk.asked();
    assert_eq!((answer.delay, answer.status), (Duration::ZERO, 200));
    assert_eq!(answer.body["content"][0]["text"], "The first thing you said was: good morning");
}

#[test]
fn the_same_request_gets_the_same_answer() {
    let mut talk = Talk::new();
    talk.messages = vec![json!({"role": "user", "content": "what time is it?"})];
    assert_eq!(talk.asked(), talk.asked());
}

#[test]
fn bad_requests_are_refused() {
    for request in [json!(null), json!({}), json!({"model": "demo", "messages": [{"role": "system", "content": "x"}]})]
    {
        let refused = answer(&request);
        assert_eq!(
            (refused.status, &refused.body["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{request}"
        );
    }
}

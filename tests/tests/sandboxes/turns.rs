//! Turns in which the model runs commands in the sandbox.

use super::{Runtime, driver, over_both, payloads, start, told};
use serde_json::{Value, json};
use tests::client::{of_type, types};
use tests::provider::Answer;

over_both!(a_command_in_a_turn, what_the_model_sees, what_can_go_wrong, several_and_mixed, a_session_that_fails,);

fn run(id: &'static str, command: &str) -> Answer {
    Answer::tools(&[(id, "sh", json!({"command": command}))])
}

/// Events in their order, with each payload; what the model sees.
async fn a_command_in_a_turn(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    let id = start(&session).await;
    fixture.provider.push(run("tu_1", "echo out; printf err >&2; exit 3"));
    let outcome = session.send("run it").await;
    assert_eq!(outcome.text(), "ok");
    assert_eq!(
        outcome.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "sandbox.request",
            "sandbox.response",
            "tool.result",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    let events = outcome.events();
    let payload = |kind: &str| of_type(&events, kind)[0]["payload"].clone();
    let input = json!({"command": "echo out; printf err >&2; exit 3"});
    assert_eq!(
        payload("tool.call"),
        json!({"id": "tu_1", "name": "sh", "input": input, "dispatch": "sandbox", "server_name": null})
    );
    assert_eq!(payload("sandbox.request"), json!({"tool": "sh", "input": input, "command": input["command"]}));
    let result = json!({"stdout": "out\n", "stderr": "err", "exit_code": 3});
    assert_eq!(payload("sandbox.response"), json!({"sandbox_id": id, "ok": false, "result": result}));
    let text = "out\n[stderr]\nerr\n[exit_code: 3]";
    assert_eq!(
        payload("tool.result"),
        json!({
            "tool_use_id": "tu_1", "dispatch": "sandbox", "server_name": null, "is_error": true,
            "content": [{"type": "text", "text": text}],
        })
    );
    assert_eq!(told(&fixture.provider, "tu_1"), (text.to_owned(), true));
    assert!(events.iter().all(|event| event["client_key_id"] == json!(fixture.key.id)));
    let tools = fixture.provider.requests()[0].json()["tools"].clone();
    assert_eq!(tools, json!([super::shell_tool()]));
}

/// How stdout, stderr and the exit code become one text.
async fn what_the_model_sees(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    for (n, (command, text, is_error)) in [
        ("echo out", "out\n", false),
        ("printf out", "out", false),
        ("printf out; printf err >&2", "out\n[stderr]\nerr", false),
        ("echo out; echo err >&2", "out\n[stderr]\nerr\n", false),
        ("echo err >&2", "[stderr]\nerr\n", false),
        ("printf out; exit 1", "out\n[exit_code: 1]", true),
        ("echo err >&2; exit 1", "[stderr]\nerr\n[exit_code: 1]", true),
        ("exit 1", "[exit_code: 1]", true),
        (r"printf '\377\n'", "\u{FFFD}\n", false),
    ]
    .into_iter()
    .enumerate()
    {
        let tool_use: &'static str = Box::leak(format!("tu_{n}").into_boxed_str());
        fixture.provider.push(run(tool_use, command));
        session.send(format!("number {n}")).await.text();
        assert_eq!(told(&fixture.provider, tool_use), (text.to_owned(), is_error), "{command}");
        let events = session.events().await;
        let response = of_type(&events, "sandbox.response")[n]["payload"].clone();
        assert_eq!(response["ok"], !is_error, "{command}: {response}");
    }
    // Nothing written: the result is there, and the turn goes on.
    fixture.provider.push(run("tu_quiet", "true"));
    session.send("quiet").await.text();
    let events = session.events().await;
    let result = of_type(&events, "tool.result").last().unwrap()["payload"].clone();
    assert_eq!((&result["tool_use_id"], &result["is_error"]), (&json!("tu_quiet"), &json!(false)));
}

/// Whatever is wrong is told to the model, and the turn ends well.
async fn what_can_go_wrong(runtime: Runtime) {
    let fixture =
        runtime.plan().env("BAE_SANDBOX_EXEC_TIMEOUT", "2").env("BAE_SANDBOX_OUTPUT_CAP", "100").start().await;
    let session = driver(&fixture).await;
    let answer = async |answer: Answer, tool_use: &str| {
        fixture.provider.push(answer);
        let outcome = session.send(tool_use).await;
        assert_eq!(outcome.text(), "ok");
        let events = outcome.events();
        assert_eq!(of_type(&events, "sandbox.request").len(), 1, "{:?}", types(&events));
        let response = of_type(&events, "sandbox.response")[0]["payload"].clone();
        let (text, is_error) = told(&fixture.provider, tool_use);
        (response, text, is_error, of_type(&events, "sandbox.request")[0]["payload"].clone())
    };
    let none = "no remote sandbox is running for tool 'sh'; call session.startRemoteSandbox first";
    let (response, text, is_error, _) = answer(run("tu_none", "true"), "tu_none").await;
    assert_eq!(response, json!({"sandbox_id": null, "ok": false, "error": none}));
    assert_eq!((text, is_error), (format!("sandbox error: {none}"), true));

    let id = start(&session).await;
    for (tool_use, input) in [("tu_a", json!({})), ("tu_b", json!({"command": 3}))] {
        let (response, text, is_error, request) =
            answer(Answer::tools(&[(tool_use, "sh", input.clone())]), tool_use).await;
        assert_eq!(request, json!({"tool": "sh", "input": input, "command": null}));
        assert_eq!((&response["ok"], &response["sandbox_id"]), (&json!(false), &json!(id)));
        let error = response["error"].as_str().unwrap();
        assert_eq!((text, is_error), (format!("sandbox error: {error}"), true));
    }

    let (response, text, is_error, _) = answer(run("tu_slow", "sleep 100"), "tu_slow").await;
    let error = response["error"].as_str().unwrap();
    assert_eq!(response, json!({"sandbox_id": id, "ok": false, "error": error}));
    assert_eq!((text, is_error), (format!("sandbox error: {error}"), true));
    assert!(error.contains("2 s"), "{error}");

    let (response, text, is_error, _) = answer(run("tu_much", "yes | head -c 5000"), "tu_much").await;
    assert!(response["ok"] == true && !is_error, "{response}");
    assert!(text.starts_with("y\ny\n") && text.contains("4900") && text.len() < 200, "{text}");

    // Removed by hand: the command says so, the log too, and another can be started.
    runtime.remove(&runtime.container(&id).await).await;
    let (response, text, is_error, _) = answer(run("tu_gone", "true"), "tu_gone").await;
    if response["sandbox_id"] == id.as_str() {
        let error = response["error"].as_str().unwrap();
        assert_eq!((text, is_error), (format!("sandbox error: {error}"), true));
    } else {
        // The reconciler was faster.
        assert_eq!(text, format!("sandbox error: {none}"));
    }
    let errors = payloads(&session.events().await, "sandbox.error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!((&errors[0]["phase"], &errors[0]["sandbox_id"]), (&json!("exec"), &json!(id)));
    start(&session).await;
    let (response, text, ..) = answer(run("tu_again", "echo back"), "tu_again").await;
    assert_eq!((&response["ok"], text.as_str()), (&json!(true), "back\n"));
}

/// Several commands of one answer run one after the other; a client's tool beside them pauses the turn.
async fn several_and_mixed(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let body = json!({"tools": [tests::fixture::clock()], "sandbox_tools": [super::shell_tool()]});
    let session = fixture.driver_with(body).await;
    start(&session).await;
    fixture.provider.push(Answer::tools(&[
        ("tu_1", "sh", json!({"command": "echo first >/tmp/file"})),
        ("tu_2", "clock", json!({})),
        ("tu_3", "sh", json!({"command": "cat /tmp/file"})),
    ]));
    let paused = session.send("both").await;
    let message = paused.result()["message"].clone();
    let dispatch: Vec<Value> =
        message["content"].as_array().unwrap().iter().map(|block| block["dispatch"].clone()).collect();
    assert_eq!(dispatch, ["sandbox", "client", "sandbox"]);
    assert_eq!(
        paused.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "tool.call",
            "tool.call",
            "sandbox.request",
            "sandbox.response",
            "tool.result",
            "sandbox.request",
            "sandbox.response",
            "tool.result",
            "server.message.send"
        ]
    );
    assert_eq!(session.answer(&[("tu_2", "noon")]).await.text(), "ok");
    assert_eq!(told(&fixture.provider, "tu_3").0, "first\n");
    assert_eq!(told(&fixture.provider, "tu_2").0, "noon");
    tests::history::assert_all_paired(&fixture.provider);
}

/// Every provider fails: the session is in error, and its sandbox is gone.
async fn a_session_that_fails(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    start(&session).await;
    fixture.provider.push(Answer::status(400));
    session.send("fails").await;
    runtime.until(&session.id, 0, tests::poll::DEADLINE).await;
    assert_eq!(session.types().await.last().unwrap(), "session.error");
    assert_eq!(fixture.admin.state(&session.id).await, "error");
}

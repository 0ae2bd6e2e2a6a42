//! The client against a server whose turns are scripted.

use secrecy::SecretString;

use super::fake::{Connection, Fake, ScriptedTurn};
use super::*;
use crate::chat::backoff::Backoff;

fn blocks(text: &str) -> ScriptedTurn {
    ScriptedTurn::Blocks(json!([{"type": "text", "text": text}]))
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input, "dispatch": "client"})
}

/// A client that has opened a session of the fake server.
async fn driver(fake: &Fake, typed: &[&str]) -> Driver {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let screen = Screen::captured();
    let api = Api::new(&fake.clone().start().await, None, SecretString::from("bae_1".to_owned())).unwrap();
    let (opened, tools) = enter(&api, None, &screen).await.unwrap();
    let session = api.session(&opened).unwrap();
    session.register().await.unwrap();
    let tools = declare_allowed(&session, tools, &opened.profile.allowed_tools, &screen).await.unwrap();
    Driver::new(session, screen, tools, Keyboard::typed(typed))
}

fn fake(turns: impl IntoIterator<Item = ScriptedTurn>) -> Fake {
    let fake = Fake::default();
    fake.with(|state| {
        state.allowed = vec!["get_current_time", "ask_user"];
        state.turns = turns.into_iter().collect();
    });
    fake
}

#[tokio::test]
async fn an_answer_is_shown_once() {
    let fake = fake([blocks("hi")]);
    let mut driver = driver(&fake, &[]).await;
    driver.say("hello").await.unwrap();
    assert_eq!(driver.screen.lines(), ["model> hi"]);
    assert_eq!(fake.asked("session.sendMessage")[0]["message"], json!({"role": "user", "content": "hello"}));
}

#[tokio::test]
async fn a_paused_turn_gets_its_results() {
    let asked = json!([
        call("a", "get_current_time", json!({})),
        call("b", "ask_user", json!({"question": "Your name?"})),
        {"type": "tool_use", "id": "c", "name": "list", "input": {}, "dispatch": "mcp"},
        call("d", "ask_user", json!({"question": "And your age?"})),
    ]);
    let fake = fake([ScriptedTurn::Blocks(asked), blocks("thank you")]);
    let mut driver = driver(&fake, &["Ann"]).await;
    driver.say("ask me").await.unwrap();
    assert_eq!(driver.screen.lines()[..2], ["question> Your name?", "you> Ann"]);
    assert_eq!(driver.screen.lines().last().unwrap(), "model> thank you");
    let results = fake.asked("session.sendMessage")[1]["message"]["content"].clone();
    let answered: Vec<_> = results.as_array().unwrap().iter().map(|result| &result["tool_use_id"]).collect();
    assert_eq!(answered, ["a", "b", "d"]);
    assert_eq!(results[1]["content"], "Ann");
    assert_eq!(results[2]["is_error"], true, "the input had ended");
}

#[tokio::test]
async fn a_cut_call_is_made_again_under_its_key() {
    let fake = fake([blocks("hi")]);
    fake.with(|state| state.connections = [Connection::Cut, Connection::Cut, Connection::Whole].into());
    let mut driver = driver(&fake, &[]).await;
    driver.say("hello").await.unwrap();
    let asked = fake.asked("session.sendMessage");
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|params| params["idempotency_key"] == asked[0]["idempotency_key"]));
    let answers = driver.screen.lines().into_iter().filter(|line| line == "model> hi").count();
    assert_eq!(answers, 1, "{:?}", driver.screen.lines());
    assert!(driver.screen.lines().iter().any(|line| line.contains("Connection lost")));
}

#[tokio::test]
async fn every_message_has_a_key_of_its_own() {
    let fake = fake([blocks("one"), blocks("two")]);
    let mut driver = driver(&fake, &[]).await;
    driver.say("hello").await.unwrap();
    driver.say("hello").await.unwrap();
    let asked = fake.asked("session.sendMessage");
    assert_ne!(asked[0]["idempotency_key"], asked[1]["idempotency_key"]);
    assert_eq!(driver.screen.lines(), ["model> one", "model> two"]);
}

#[tokio::test]
async fn only_allowed_tools_are_declared() {
    let fake = fake([]);
    fake.with(|state| state.allowed = vec!["get_current_time"]);
    let driver = driver(&fake, &[]).await;
    assert_eq!(driver.tools.describe(), "get_current_time");
    let opened = fake.asked("open");
    assert_eq!((opened.len(), &opened[1]["tools"]), (2, &json!([])));
    assert_eq!(fake.asked("session.updateClientTools")[0]["tools"][0]["name"], "get_current_time");
}

#[tokio::test]
async fn a_failed_provider_is_an_error() {
    let fake = fake([ScriptedTurn::ProvidersFail]);
    let mut driver = driver(&fake, &[]).await;
    assert_eq!(driver.say("hello").await.unwrap_err().to_string(), "The provider is unavailable.");
    let told = [
        "  Provider main could not be reached: refused",
        "  No provider answered (1 tried). This session is over; open a new one.",
    ];
    assert_eq!(driver.screen.lines(), told);
}

#[tokio::test]
async fn a_refusal_is_explained() {
    let late =
        "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)";
    let fake = fake([ScriptedTurn::Error(-32000, late)]);
    let mut driver = driver(&fake, &[]).await;
    let error = driver.say("hello").await.unwrap_err().to_string();
    assert_eq!(error, "The turn did not wait for that answer any longer; your next message goes on from here.");
}

#[tokio::test]
async fn a_joined_session_reads_from_its_beginning() {
    let fake =
        fake([ScriptedTurn::Blocks(json!([call("a", "ask_user", json!({"question": "why?"}))])), blocks("I see")]);
    let first = driver(&fake, &[]).await;
    // The first terminal is gone before it answers.
    let lost =
        first.session.request("session.sendMessage", json!({"message": {"content": "ask me"}, "idempotency_key": "k"}));
    lost.await.unwrap();

    let screen = Screen::captured();
    let mut second = Driver { screen: screen.clone(), keyboard: Keyboard::typed(&["because"]), ..first };
    let last = history::read(&second.session, &screen, history::Display::Conversation).await.unwrap();
    assert_eq!(last.unwrap(), "evt_3");
    assert_eq!(screen.lines(), ["you> ask me"]);
    let waiting = screen.with(|transcript| transcript.waiting_calls(&second.tools));
    second.resume(waiting).await.unwrap();
    assert_eq!(screen.lines()[1..], ["question> why?", "you> because", "model> I see"]);
}

#[tokio::test]
async fn an_answer_from_elsewhere_is_not_answered_again() {
    let fake = fake([ScriptedTurn::Blocks(json!([call("a", "ask_user", json!({"question": "why?"}))]))]);
    let mut driver = driver(&fake, &[]).await;
    let (keyboard, _typing) = Keyboard::silent();
    driver.keyboard = keyboard;
    let screen = driver.screen.clone();
    let elsewhere = async {
        screen.until(|transcript| transcript.waits_for().is_some()).await;
        let answer = json!([{"type": "tool_result", "tool_use_id": "a", "content": "because"}]);
        let event = fake.with(|state| state.record("client.message.send", json!({"role": "user", "content": answer})));
        screen.event(&serde_json::from_str(&event.to_string()).unwrap());
    };
    let (ended, ()) = tokio::join!(driver.say("ask me"), elsewhere);
    ended.unwrap();
    assert_eq!(fake.asked("session.sendMessage").len(), 1);
    assert_eq!(screen.lines().last().unwrap(), "  The question was settled without this terminal's answer.");
}

#[tokio::test]
async fn a_watcher_goes_on_where_it_was_cut() {
    let fake = fake([]);
    let driver = driver(&fake, &[]).await;
    fake.with(|state| {
        for text in ["one", "two", "three", "four"] {
            state.record("client.message.send", json!({"role": "user", "content": text}));
        }
        state.record("session.close", json!({"reason": "client_close"}));
    });
    driver.screen.with(|transcript| transcript.set_own_key("key_2222"));
    watch::watch(&driver.session, &driver.screen, Some("evt_1".to_owned()), Backoff::one_minute()).await.unwrap();
    let told: Vec<String> = driver.screen.lines().into_iter().filter(|line| !line.contains("onnect")).collect();
    let expected = [
        "key_…1111> one",
        "key_…1111> two",
        "key_…1111> three",
        "key_…1111> four",
        "  The session is closed: a client closed it.",
    ];
    assert_eq!(told, expected);
    let since: Vec<Value> =
        fake.asked("session.subscribe").into_iter().map(|params| params["since_event_id"].clone()).collect();
    assert_eq!(since, ["evt_1", "evt_3", "evt_5"]);
    assert!(fake.asked("session.subscribe").iter().all(|params| params["include_client_events"] == true));
}

#[test]
fn the_key_comes_from_the_file() {
    use secrecy::ExposeSecret;
    let directory = std::env::temp_dir().join(format!("baesrv-chat-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("client.key");
    assert!(key_from_file(&path).unwrap_err().to_string().contains("BAE_KEY"));
    std::fs::write(&path, "bae_1234\n").unwrap();
    assert_eq!(key_from_file(&path).unwrap().expose_secret(), "bae_1234");
    std::fs::remove_dir_all(&directory).unwrap();
}

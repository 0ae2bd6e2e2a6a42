//! Tests of the older transport, HTTP with server-sent events.

use super::peer::{Answers, Peer};
use super::*;

#[tokio::test]
async fn lists_and_calls() {
    let peer = Peer::start(Answers { extra: vec!["third".to_owned()], ..Answers::default() }).await;
    let (mcp, server) = (mcp(settings()), peer.sse("old"));
    let offered = mcp.tools(session(1), &[&server]).await;
    assert_eq!(names(&offered), [("old", "echo"), ("old", "fail"), ("old", "third")]);
    let answer = ok(&mcp, session(1), &server, "echo", r#"{"a":"é\n"}"#).await;
    assert!(answer["content"][0]["text"].as_str().unwrap().contains(r#""a":"é\n""#), "{answer}");
    assert_eq!(failure(&mcp, session(1), &server, "nothing").await, "server 'old': Unknown tool");
    assert!(peer.headers.lock().unwrap().iter().all(|headers| headers["x-key"] == "k-1"));
    assert_eq!((mcp.live(), Peer::count(&peer.initialized)), (1, 1));
    mcp.shutdown().await;
    eventually(
        "the end of the stream",
        || peer.streams.lock().unwrap().values().all(tokio::sync::mpsc::UnboundedSender::is_closed),
        |ended| *ended,
    )
    .await;
}

#[tokio::test]
async fn the_end_of_the_stream_fails_the_call_and_the_next_reconnects() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.sse("old"));
    let end = async {
        eventually("the call", || Peer::count(&peer.called), |called| *called == 1).await;
        peer.streams.lock().unwrap().clear();
    };
    let (error, ()) = tokio::join!(failure(&mcp, session(1), &server, "hang"), end);
    assert!(error.contains("its event stream ended") && error.contains("may have run"), "{error}");
    text(&mcp, session(1), &server, "echo").await;
    // The client also reconnects if the stream ended between two calls.
    peer.streams.lock().unwrap().clear();
    eventually("the death to be noticed", || mcp.live(), |live| *live == 0).await;
    text(&mcp, session(1), &server, "echo").await;
    assert_eq!((Peer::count(&peer.initialized), Peer::count(&peer.called)), (3, 3));
}

#[tokio::test]
async fn a_call_that_reached_no_session_is_repeated() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.sse("old"));
    text(&mcp, session(1), &server, "echo").await;
    peer.sessions.lock().unwrap().clear();
    text(&mcp, session(1), &server, "echo").await;
    assert_eq!((Peer::count(&peer.initialized), Peer::count(&peer.called)), (2, 2));
}

#[tokio::test]
async fn garbage_and_hangs_time_out() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { call_timeout: Duration::from_millis(300), ..settings() });
    let server = peer.sse("old");
    for tool in ["garbage", "hang"] {
        let error = failure(&mcp, session(1), &server, tool).await;
        assert!(error.contains("no answer within 300ms"), "{error}");
        text(&mcp, session(1), &server, "echo").await;
    }
    assert_eq!(Peer::count(&peer.initialized), 3);
}

#[tokio::test]
async fn messages_go_to_the_origin_only() {
    for endpoint in ["http://localhost:1/messages", "//127.0.0.1:1/messages", "ftp://127.0.0.1/"] {
        let peer = Peer::start(Answers { endpoint: Some(endpoint.to_owned()), ..Answers::default() }).await;
        let error = failure(&mcp(settings()), session(1), &peer.sse("old"), "echo").await;
        assert!(error.contains("not of the same origin"), "{error}");
        assert_eq!(peer.headers.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_ends_the_connection() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { max_message: 64 * 1024, ..settings() });
    let server = peer.sse("old");
    let input = format!(r#"{{"a":"{}"}}"#, "x".repeat(128 * 1024));
    let outcome = mcp.call(session(1), &server, "echo", &raw(&input), None).await;
    assert!(
        matches!(&outcome, CallOutcome::Failed { error } if error.contains("more than 65536 bytes")),
        "{outcome:?}"
    );
    text(&mcp, session(1), &server, "echo").await;
}

#[tokio::test]
async fn something_else_than_a_stream_is_refused() {
    let peer = Peer::start(Answers::default()).await;
    let mut server = peer.sse("old");
    if let Transport::Sse { url, .. } = &mut server.transport {
        *url = url.replace("/sse", "/mcp");
    }
    let error = failure(&mcp(settings()), session(1), &server, "echo").await;
    assert_eq!(error, "server 'old': cannot connect: HTTP 405 Method Not Allowed");
}

//! Tests of the streamable HTTP transport, and of what all transports have in common.

use super::peer::{Answers, Peer};
use super::*;

#[tokio::test]
async fn lists_all_pages_and_calls() {
    let peer = Peer::start(Answers { extra: vec!["third".to_owned()], ..Answers::default() }).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    let offered = mcp.tools(session(1), &[&server]).await;
    assert_eq!(names(&offered), [("files", "echo"), ("files", "fail"), ("files", "third")]);
    assert_eq!(offered[0].description.as_deref(), Some("does echo"));
    assert!(offered[0].input_schema.get().contains("9007199254740993"), "{}", offered[0].input_schema);
    // The form in which the tools are stored with a session keeps the schemas unchanged.
    let stored: Vec<McpTool> = serde_json::from_str(&serde_json::to_string(&offered).unwrap()).unwrap();
    assert_eq!(stored[2].input_schema.get(), offered[2].input_schema.get());

    let trace = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    let outcome = mcp.call(session(1), &server, "echo", &raw(r#"{"n":9007199254740993}"#), Some(trace)).await;
    let CallOutcome::Ok { result, is_error: false } = outcome else { panic!("{outcome:?}") };
    let result: serde_json::Value = serde_json::from_str(result.get()).unwrap();
    let params: serde_json::Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(params["arguments"]["n"], 9_007_199_254_740_993_u64);
    assert_eq!(params["_meta"]["traceparent"], trace);
    assert!(peer.headers.lock().unwrap().iter().all(|headers| headers["x-key"] == "k-1"));
    assert_eq!((mcp.live(), Peer::count(&peer.initialized)), (1, 1));
}

#[tokio::test]
async fn answers_may_be_event_streams() {
    let peer = Peer::start(Answers { stream: true, ..Answers::default() }).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    assert_eq!(mcp.tools(session(1), &[&server]).await.len(), 2);
    text(&mcp, session(1), &server, "echo").await;
    let error = failure(&mcp, session(1), &server, "cut").await;
    assert_eq!(error, "server 'files': no answer: the connection closed; the call may have run");
    text(&mcp, session(1), &server, "echo").await;
    assert_eq!((Peer::count(&peer.initialized), Peer::count(&peer.called)), (2, 3));
}

#[tokio::test]
async fn answers_that_are_errors() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    let outcome = mcp.call(session(1), &server, "fail", &raw("{}"), None).await;
    let CallOutcome::Ok { result, is_error: true } = outcome else { panic!("{outcome:?}") };
    assert_eq!(content_blocks(&result).get(), r#"[{"type":"text","text":"no such row"}]"#);
    assert_eq!(failure(&mcp, session(1), &server, "nothing").await, "server 'files': Unknown tool");
    let outcome = mcp.call(session(1), &server, "echo", &raw("[1]"), None).await;
    assert!(matches!(&outcome, CallOutcome::Failed { error } if error.contains("not a JSON object")), "{outcome:?}");
    // Content of an unknown kind is accepted, the result of another method is not.
    assert_eq!(ok(&mcp, session(1), &server, "odd", "{}").await["content"][0]["type"], "hologram");
    assert_eq!(Peer::count(&peer.initialized), 1, "a refusal ends no connection");
    let error = failure(&mcp, session(1), &server, "other").await;
    assert!(error.contains("not the result of a tool"), "{error}");
}

#[tokio::test]
async fn garbage_and_hangs_fail_and_the_next_call_reconnects() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { call_timeout: Duration::from_millis(300), ..settings() });
    let server = peer.http("files");
    for (tool, says) in [("garbage", "could not parse"), ("hang", "no answer within 300ms")] {
        let error = failure(&mcp, session(1), &server, tool).await;
        assert!(error.contains(says) && error.contains("may have run"), "{error}");
        assert_eq!(mcp.live(), 0);
        text(&mcp, session(1), &server, "echo").await;
    }
    assert_eq!(Peer::count(&peer.initialized), 3);
    assert_eq!(Peer::count(&peer.called), 4, "no call is repeated");
}

#[tokio::test]
async fn a_forgotten_session_is_initialised_again() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    text(&mcp, session(1), &server, "echo").await;
    peer.sessions.lock().unwrap().clear();
    text(&mcp, session(1), &server, "echo").await;
    assert_eq!((Peer::count(&peer.initialized), Peer::count(&peer.called)), (2, 2));
}

#[tokio::test]
async fn a_server_that_never_answers_is_skipped() {
    let silent = Peer::start(Answers { silent_initialize: true, ..Answers::default() }).await;
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { connect_timeout: Duration::from_millis(300), ..settings() });
    let mut unset = peer.http("unset");
    if let Transport::Http { headers, .. } = &mut unset.transport {
        headers.insert("X-Other".to_owned(), SecretString::from("${GONE}"));
    }
    let servers = [&silent.http("silent"), &unset, &peer.http("files")];
    assert_eq!(names(&mcp.tools(session(1), &servers).await), [("files", "echo"), ("files", "fail")]);
    assert_eq!(mcp.live(), 1);
    eventually("the end of the attempt", || Peer::count(&silent.abandoned), |count| *count == 1).await;
    let error = failure(&mcp, session(1), &silent.http("silent"), "echo").await;
    assert_eq!(error, "server 'silent': cannot connect: no answer within 300ms");
    let error = failure(&mcp, session(1), &unset, "echo").await;
    assert_eq!(error, "server 'unset': cannot connect: header 'X-Other': variable GONE is not set");
}

#[tokio::test]
async fn the_first_of_two_tools_of_one_name_counts() {
    let extra = ["more", "more"].map(str::to_owned).to_vec();
    let peer = Peer::start(Answers { extra, ..Answers::default() }).await;
    let other = Peer::start(Answers::default()).await;
    let mcp = mcp(settings());
    let offered = mcp.tools(session(1), &[&other.http("b"), &peer.http("a"), &other.http("b")]).await;
    assert_eq!(names(&offered), [("b", "echo"), ("b", "fail"), ("a", "more")]);
}

#[tokio::test]
async fn too_many_tools_are_cut() {
    let extra = (0..1500).map(|n| format!("t{n}")).collect();
    let peer = Peer::start(Answers { extra, ..Answers::default() }).await;
    assert_eq!(mcp(settings()).tools(session(1), &[&peer.http("files")]).await.len(), 1000);
}

#[tokio::test]
async fn sessions_are_apart_and_close_alone() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    for n in [1, 2, 1, 2] {
        text(&mcp, session(n), &server, "echo").await;
    }
    assert_eq!((mcp.live(), Peer::count(&peer.initialized)), (2, 2));
    mcp.close(session(1)).await;
    assert_eq!((mcp.live(), Peer::count(&peer.deleted)), (1, 1));
    text(&mcp, session(2), &server, "echo").await;
    assert_eq!(Peer::count(&peer.initialized), 2);
    assert_eq!(Peer::count(&peer.listed), 0, "calls do not list tools");
}

#[tokio::test]
async fn the_longest_idle_connection_makes_room() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { max_connections: 2, ..settings() });
    let server = peer.http("files");
    for n in [1, 2, 1, 3] {
        text(&mcp, session(n), &server, "echo").await;
    }
    assert_eq!((mcp.live(), Peer::count(&peer.initialized)), (2, 3));
    text(&mcp, session(1), &server, "echo").await;
    assert_eq!(Peer::count(&peer.initialized), 3, "the one used last stays");
    eventually("the end of the evicted one", || Peer::count(&peer.deleted), |deleted| *deleted == 1).await;

    // A connection that is in use is not closed to make room.
    let called = Peer::count(&peer.called);
    let (one, three) = (raw("{}"), raw("{}"));
    let busy = async {
        tokio::join!(
            mcp.call(session(1), &server, "hang", &one, None),
            mcp.call(session(3), &server, "hang", &three, None)
        )
    };
    let refused = async {
        eventually("both calls", || Peer::count(&peer.called), |count| *count == called + 2).await;
        failure(&mcp, session(4), &server, "echo").await
    };
    tokio::select! {
        outcomes = busy => panic!("{outcomes:?}"),
        error = refused => assert!(error.contains("all 2 MCP connections of this node are in use"), "{error}"),
    }
}

#[tokio::test]
async fn an_idle_connection_closes() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { idle: Duration::from_millis(50), ..settings() });
    let server = peer.http("files");
    text(&mcp, session(1), &server, "echo").await;
    eventually("the idle close", || Peer::count(&peer.deleted), |deleted| *deleted == 1).await;
    assert_eq!(mcp.live(), 0);
    text(&mcp, session(1), &server, "echo").await;
    mcp.shutdown().await;
    assert_eq!((mcp.live(), Peer::count(&peer.deleted)), (0, 2));
    let error = failure(&mcp, session(1), &server, "echo").await;
    assert!(error.contains("shutting down"), "{error}");
}

#[tokio::test]
async fn calls_at_the_same_time_share_a_connection() {
    let peer = Peer::start(Answers::default()).await;
    let (mcp, server) = (mcp(settings()), peer.http("files"));
    let calls = (0..8).map(|_| text(&mcp, session(1), &server, "echo"));
    assert_eq!(join_all(calls).await.len(), 8);
    assert_eq!((mcp.live(), Peer::count(&peer.initialized)), (1, 1));
}

#[tokio::test]
async fn closing_ends_a_running_call() {
    for transport in [Peer::http, Peer::sse] {
        let peer = Peer::start(Answers::default()).await;
        let (mcp, server) = (mcp(settings()), transport(&peer, "files"));
        let close = async {
            eventually("the call", || Peer::count(&peer.called), |called| *called == 1).await;
            mcp.close(session(1)).await;
        };
        let (error, ()) = tokio::join!(failure(&mcp, session(1), &server, "hang"), close);
        assert!(error.contains("the connection closed"), "{error}");
        assert_eq!(mcp.live(), 0);
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_fails() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(Settings { max_message: 64 * 1024, ..settings() });
    let input = format!(r#"{{"a":"{}"}}"#, "x".repeat(128 * 1024));
    let outcome = mcp.call(session(1), &peer.http("files"), "echo", &raw(&input), None).await;
    assert!(matches!(&outcome, CallOutcome::Failed { error } if error.contains("65536 bytes")), "{outcome:?}");
}

#[tokio::test]
async fn redirects_stay_at_the_origin() {
    let peer = Peer::start(Answers::default()).await;
    let mcp = mcp(settings());
    text(&mcp, session(1), &peer.http_at("moved", "/moved"), "echo").await;
    let seen = peer.headers.lock().unwrap().len();
    let error = failure(&mcp, session(1), &peer.http_at("away", "/away"), "echo").await;
    assert!(error.contains("307"), "{error}");
    assert_eq!(peer.headers.lock().unwrap().len(), seen, "nothing is sent to another origin");
}

#[tokio::test]
async fn errors_do_not_show_the_url() {
    let peer = Peer::start(Answers::default()).await;
    let mut server = peer.http("files");
    if let Transport::Http { url, .. } = &mut server.transport {
        *url = "http://127.0.0.1:1/mcp?key=hush".to_owned();
    }
    let error = failure(&mcp(settings()), session(1), &server, "echo").await;
    assert_eq!(error, "server 'files': cannot connect: Connection refused (os error 111)");
}

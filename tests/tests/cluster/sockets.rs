//! F8: a client's socket that is cut, at every point of a turn, on the owner's node and on another.

use serde_json::json;
use tests::checker::Accepted;
use tests::client::{Session, ids, types};
use tests::cluster::{Cluster, Plan};
use tests::fixture::clock;
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Where a turn stands when its client's socket is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The model is asked, and the client has not read a byte.
    BeforeAnAnswer,
    FirstProviderCall,
    ToolCall,
    SecondProviderCall,
    /// All events are out; an automatic compaction holds the terminal frame back.
    BeforeTheTerminalFrame,
    /// It had waited for another's turn, was claimed, and the model is asked.
    OnceClaimed,
}

const POINTS: [Point; 6] = [
    Point::BeforeAnAnswer,
    Point::FirstProviderCall,
    Point::ToolCall,
    Point::SecondProviderCall,
    Point::BeforeTheTerminalFrame,
    Point::OnceClaimed,
];

/// What one turn writes: one tool call, then the answer.
const TURN: [&str; 10] = [
    "client.message.send",
    "provider.request",
    "provider.response",
    "tool.call",
    "mcp.request",
    "mcp.response",
    "tool.result",
    "provider.request",
    "provider.response",
    "server.message.send",
];

/// A call whose client does not read.
struct Unread(TcpStream);

impl Unread {
    async fn send(session: &Session, addr: &str, text: &str) -> Self {
        let params = json!({"message": {"content": text}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": params}).to_string();
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: {addr}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            session.path("/rpc"),
            session.key,
            body.len()
        );
        let mut socket = TcpStream::connect(addr).await.expect("a connection");
        socket.write_all(format!("{head}{body}").as_bytes()).await.expect("a request sent");
        Self(socket)
    }

    /// Resets the connection, as a client's machine that forgot it does.
    fn reset(self) {
        self.0.set_zero_linger().expect("a socket option");
    }
}

/// One turn, cut at that point, through that node. `beside` waits behind it with a call of its own.
async fn cut(cluster: &Cluster, mcp: &Mcp, session: &Session, beside: &Session, node: usize, point: Point) {
    let text = format!("{point:?} on {node}");
    let at = cluster.at(session, node);
    let provider = &cluster.provider;
    let tools = || Answer::tools(&[("tu_1", "ls", json!({}))]);
    let done = || Answer::text("done");
    let release: Box<dyn FnOnce() + Send> = match point {
        Point::BeforeAnAnswer => {
            let mut held = provider.hold(tools());
            provider.push(done());
            let client = Unread::send(&at, &cluster.nodes[node].server.addr(), &text).await;
            held.arrived().await;
            client.reset();
            Box::new(move || held.release())
        }
        Point::FirstProviderCall => {
            let mut held = provider.hold(tools());
            provider.push(done());
            let mut client = at.start_send(text.as_str()).await;
            held.arrived().await;
            assert_eq!(client.next_type().await, "provider.request", "{text}");
            Box::new(move || held.release())
        }
        Point::ToolCall => {
            provider.script([tools(), done()]);
            let mut held = mcp.hold(Outcome::Text("listed".to_owned()));
            let mut client = at.start_send(text.as_str()).await;
            held.arrived().await;
            client.until_type("mcp.request").await;
            Box::new(move || held.release())
        }
        Point::SecondProviderCall => {
            provider.push(tools());
            let mut held = provider.hold(done());
            let mut client = at.start_send(text.as_str()).await;
            held.arrived().await;
            client.until_type("tool.result").await;
            Box::new(move || held.release())
        }
        Point::BeforeTheTerminalFrame => {
            provider.script([tools(), done().usage(5000, 1)]);
            let mut held = provider.hold(Answer::text("a summary"));
            let mut client = at.start_send(text.as_str()).await;
            held.arrived().await;
            client.until_type("session.compaction.started").await;
            Box::new(move || held.release())
        }
        Point::OnceClaimed => {
            let mut first = provider.hold(Answer::text("ok"));
            let mut held = provider.hold(tools());
            provider.push(done());
            let running = beside.start_send(format!("before {text}")).await;
            first.arrived().await;
            let mut client = at.start_send(text.as_str()).await;
            first.release();
            assert_eq!(running.finish().await.text(), "ok", "{text}");
            held.arrived().await;
            assert_eq!(client.next_type().await, "provider.request", "{text}");
            Box::new(move || held.release())
        }
    };
    // Each client is gone with its block.
    let behind = beside.start_send(format!("behind {text}")).await;
    release();
    assert_eq!(behind.finish().await.text(), "ok", "{text}");
}

/// F8: cut at every point, on the owner and on another node: the turn ends normally in the log, once; a caller that
/// waits behind it and watchers on every node notice nothing.
#[tokio::test]
async fn cut_at_every_point() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let cluster = Plan::default().mcp(&mcp).start().await;
    let body = json!({"tools": [clock()], "compaction": {"mode": "auto", "size": 1000}});
    let session = cluster.nodes[0].api().open(&cluster.key.secret, &body).await;
    session.register().await;
    session.send("warm").await.text();
    let owner = cluster.owner(&session, 0).await;
    let other = cluster.other(&[owner]);
    let beside = cluster.second(&session, cluster.other(&[owner, other])).await;
    let mut watchers = Vec::new();
    for node in 0..3 {
        watchers.push(cluster.at(&session, node).subscribe(None).await);
    }
    let before = cluster.log(&session).await.head;
    let (mut accepted, mut texts) = (vec![Accepted::new("warm")], Vec::new());
    for node in [owner, other] {
        for point in POINTS {
            cut(&cluster, &mcp, &session, &beside, node, point).await;
            let text = format!("{point:?} on {node}");
            if point == Point::OnceClaimed {
                accepted.push(Accepted::new(&format!("before {text}")));
            }
            accepted.extend([Accepted::new(&text), Accepted::new(&format!("behind {text}"))]);
            texts.push(text);
        }
    }
    assert_eq!(cluster.owner(&session, other).await, owner, "it stays where it is");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&accepted), []);
    assert_eq!(mcp.calls().len(), texts.len(), "each tool ran once");
    assert_eq!(cluster.provider.left(), 0, "each answer was asked for");
    // The warm one, two that others wait behind, two compactions; each cut turn asks twice, and one waits behind it.
    assert_eq!(cluster.provider.requests().len(), 1 + 2 + 2 + texts.len() * 3, "and nothing was asked twice");
    for text in &texts {
        let first = log.events.iter().position(|event| event.text() == Some(text)).expect("its message");
        let kinds: Vec<&str> = log.events[first..].iter().take(TURN.len()).map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, TURN, "{text}");
        let call = log.calls.iter().find(|call| call.first == log.events[first].number).expect("its call");
        assert!(call.outcome.is_some(), "{text}: {call:?}");
    }
    let live = log.events.iter().filter(|event| event.number > before && !event.from_client);
    let live: Vec<&str> = live.map(|event| event.id.as_str()).collect();
    for mut watcher in watchers {
        let mut seen = Vec::new();
        while seen.len() < live.len() {
            seen.push(watcher.next().await.expect("another event")["params"].clone());
        }
        assert_eq!(ids(&seen), live, "{:?}", types(&seen));
        assert!(watcher.is_silent());
    }
    assert_all_paired(&cluster.provider);
}

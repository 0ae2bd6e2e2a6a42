//! Tests of servers that are child processes.

use super::*;
use std::collections::BTreeMap;

/// A server as a shell script, which answers line by line. Its tool `pids` returns the process ids of the server and of
/// a child process that the server does not end.
const SCRIPT: &str = r#"
sleep 1000 &
left=$!
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
say() { answer "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}"; }
echo 'welcome to the server'
while IFS= read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case "$line" in
    *'"method":"initialize"'*)
      answer '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"method":"tools/list"'*) answer '{"tools":[{"name":"pids","inputSchema":{"type":"object"}}]}' ;;
    *'"name":"pids"'*) say "$$ $left" ;;
    *'"name":"env"'*) say "${GREETING-} ${SECRET-none} ${HOME-none}" ;;
    *'"name":"die"'*) exit 3 ;;
    *'"name":"hang"'*) ;;
    *'"name":"garbage"'*) echo '{"oops"' ;;
    *'"name":"flood"'*) head -c 200000 /dev/zero | tr '\0' x; echo ;;
  esac
done
[ -n "${STAY-}" ] && trap '' TERM && while :; do sleep 1; done
"#;

fn server(env: &[(&str, &str)]) -> ServerConfig {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect();
    let args = vec!["-c".to_owned(), SCRIPT.to_owned()];
    ServerConfig { name: "sh".to_owned(), transport: Transport::Stdio { command: "sh".to_owned(), args, env } }
}

async fn pids(mcp: &Mcp, session: SessionId, server: &ServerConfig) -> Vec<String> {
    text(mcp, session, server, "pids").await.split(' ').map(str::to_owned).collect()
}

/// Those of these processes that run. A zombie does not count.
fn running(pids: &[String]) -> Vec<String> {
    let runs = |pid: &&String| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X']))
    };
    pids.iter().filter(runs).cloned().collect()
}

#[tokio::test]
async fn lists_and_calls_one_process() {
    let (mcp, server) = (mcp(settings()), server(&[]));
    assert_eq!(names(&mcp.tools(session(1), &[&server]).await), [("sh", "pids")]);
    let first = pids(&mcp, session(1), &server).await;
    assert_eq!(pids(&mcp, session(1), &server).await, first);
    assert_ne!(pids(&mcp, session(2), &server).await, first, "another session has a process of its own");
    assert_eq!(mcp.live(), 2);
    mcp.shutdown().await;
}

#[tokio::test]
async fn the_environment_is_what_is_configured() {
    let mcp = mcp(settings());
    // Even if the test's own process has a HOME, the child has none, because the settings do not name it.
    let seen = text(&mcp, session(1), &server(&[("GREETING", "${HI}")]), "env").await;
    assert_eq!(seen, "${HI} none none");
    mcp.shutdown().await;
}

#[tokio::test]
async fn closing_ends_the_whole_group() {
    // The first server ends when its input is closed. The second ignores that, and SIGTERM too.
    for env in [&[][..], &[("STAY", "1")][..]] {
        let mcp = mcp(Settings { close_grace: Duration::from_millis(100), ..settings() });
        let (server, other) = (server(env), session(2));
        let (mine, others) = (pids(&mcp, session(1), &server).await, pids(&mcp, other, &server).await);
        assert_eq!(running(&mine), mine);
        mcp.close(session(1)).await;
        eventually("the end of the group", || running(&mine), Vec::is_empty).await;
        assert_eq!(running(&others), others, "another session's process stays");
        mcp.shutdown().await;
        eventually("the end of the other group", || running(&others), Vec::is_empty).await;
    }
}

#[tokio::test]
async fn a_death_fails_the_call_and_the_next_reconnects() {
    let (mcp, server) = (mcp(settings()), server(&[]));
    let first = pids(&mcp, session(1), &server).await;
    let error = failure(&mcp, session(1), &server, "die").await;
    assert!(error.contains("its process ended (exit status: 3)") && error.contains("may have run"), "{error}");
    assert_ne!(pids(&mcp, session(1), &server).await, first);
    eventually("the end of the old group", || running(&first), Vec::is_empty).await;
    mcp.shutdown().await;
}

#[tokio::test]
async fn after_a_death_between_calls_the_next_reconnects() {
    let (mcp, server) = (mcp(settings()), server(&[]));
    let first = pids(&mcp, session(1), &server).await;
    let killed = tokio::process::Command::new("kill").args(["-9", &first[0]]).status().await.unwrap();
    assert!(killed.success());
    eventually("the death to be seen", || mcp.live(), |live| *live == 0).await;
    assert_ne!(pids(&mcp, session(1), &server).await, first);
    mcp.shutdown().await;
}

#[tokio::test]
async fn hangs_garbage_and_floods_fail_and_the_next_call_reconnects() {
    let mcp = mcp(Settings { call_timeout: Duration::from_millis(500), max_message: 100_000, ..settings() });
    let server = server(&[]);
    for (tool, says) in
        [("hang", "no answer within"), ("garbage", "no answer within"), ("flood", "more than 100000 bytes")]
    {
        let before = pids(&mcp, session(1), &server).await;
        let error = failure(&mcp, session(1), &server, tool).await;
        assert!(error.contains(says), "{tool}: {error}");
        assert_ne!(pids(&mcp, session(1), &server).await, before, "{tool}");
        eventually("the end of the old group", || running(&before), Vec::is_empty).await;
    }
    mcp.shutdown().await;
}

#[tokio::test]
async fn a_server_that_stops_reading_is_given_up() {
    let answer = r#"{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}"#;
    let script = format!(r#"read line; exec 0<&-; echo '{{"jsonrpc":"2.0","id":0,"result":{answer}}}'; sleep 1000"#);
    let mcp = mcp(Settings { close_grace: Duration::from_millis(100), ..settings() });
    let error = failure(&mcp, session(1), &command("sh", &["-c", &script]), "x").await;
    assert_eq!(error, "server 'bad': no answer: its process closed its input; the call may have run");
    assert_eq!(mcp.live(), 0);
    mcp.shutdown().await;
}

fn command(command: &str, args: &[&str]) -> ServerConfig {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let transport = Transport::Stdio { command: command.to_owned(), args, env: BTreeMap::new() };
    ServerConfig { name: "bad".to_owned(), transport }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_skipped() {
    let mcp = mcp(Settings { connect_timeout: Duration::from_secs(2), ..settings() });
    let cases = [
        (command("no-such-program", &[]), "'no-such-program' cannot be started"),
        (command("sh", &["-c", "exit 4"]), "its process ended (exit status: 4)"),
        (command("sh", &["-c", "exec 1>&-; sleep 30"]), "its process closed its output"),
        (
            command("sh", &["-c", "read line; echo '{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}'; sleep 9"]),
            "not an MCP answer",
        ),
    ];
    for (server, says) in cases {
        assert!(mcp.tools(session(1), &[&server]).await.is_empty());
        let error = failure(&mcp, session(1), &server, "x").await;
        assert!(error.starts_with("server 'bad': cannot connect: ") && error.contains(says), "{error}");
        assert_eq!(mcp.live(), 0);
    }
    mcp.shutdown().await;
}

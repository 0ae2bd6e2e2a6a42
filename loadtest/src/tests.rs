//! Tests of whole runs against the server in `fake`.

use std::time::Duration;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::fake;
use crate::report::Report;
use crate::{events, turns};

/// Runs the command line against a fake server whose provider is the run's own.
async fn run(command: &str, refused_turn: Option<usize>, arguments: &[&str]) -> anyhow::Result<Report> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let provider = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let url = fake::start(format!("http://{provider}"), refused_turn).await;
    let fixed = ["loadtest", command, "--url", &url, "--key", fake::KEY, "--provider-addr", &provider];
    match Cli::parse_from(fixed.iter().chain(arguments)).command {
        Command::Turns(options) => turns::measure(&options).await,
        Command::Events(options) => events::measure(&options).await,
        Command::Echo(_) => unreachable!("no test runs it against a server"),
    }
}

fn p50(report: &Report, name: &str) -> f64 {
    report.latencies.iter().find(|row| row.name == name).unwrap().summary.p50_ms
}

#[tokio::test]
async fn the_own_share_is_the_call_less_the_provider() {
    let report = run("turns", None, &["--turns", "5", "--provider-ms", "40", "--curve"]).await.unwrap();
    assert!(report.clean(), "{:?}", report.failures);
    assert_eq!(report.latencies[0].summary.count, 5);
    assert!(p50(&report, "whole call") >= 40.0);
    let parts = p50(&report, "own share") + 40.0;
    assert!(parts <= p50(&report, "whole call") + 1.0, "{parts}");
    assert_eq!((report.curve[0].first_turn, report.curve[0].last_turn), (1, 5));
    // Two markers of a growing conversation: the last request holds all five messages and four answers.
    assert!(report.curve[0].request_bytes > 5 * 65, "{:?}", report.curve);
}

#[tokio::test]
async fn tool_rounds_belong_to_their_turn() {
    let report = run("turns", None, &["--turns", "3", "--rounds", "2"]).await.unwrap();
    assert!(report.clean(), "{:?}", report.failures);
    assert_eq!(report.latencies[0].summary.count, 3);
    let asked = report.figures.iter().find(|figure| figure.name == "provider requests per turn").unwrap();
    assert!((asked.value - 3.0).abs() < 1e-9);
}

#[tokio::test]
async fn failures_are_counted_by_reason() {
    let report = run("turns", Some(2), &["--turns", "4"]).await.unwrap();
    assert_eq!(report.failures, [("error -32603: Internal error".to_owned(), 1)].into());
    assert_eq!(report.latencies[0].summary.count, 3);
    assert!(!report.clean());
}

#[tokio::test]
async fn requests_go_to_each_node_in_turn() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let url = fake::start("http://127.0.0.1:1".to_owned(), None).await;
    let nobody = "http://127.0.0.1:1".to_owned();
    // The first address opens the session, and the request to register a driver goes to the second one.
    let api = crate::client::Api::new(&[url, nobody], fake::KEY, Duration::from_secs(5)).unwrap();
    let refusal = api.open(0).await.err().unwrap().to_string();
    assert!(refusal.contains("refused"), "{refusal}");
}

#[tokio::test]
async fn a_refused_key_ends_the_run() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let url = fake::start("http://127.0.0.1:1".to_owned(), None).await;
    let api = crate::client::Api::new(&[url], "bae_other", Duration::from_secs(5)).unwrap();
    let refusal = api.open(0).await.err().unwrap();
    assert_eq!(refusal.to_string(), "HTTP 401 unauthorized");
}

#[tokio::test]
async fn reads_of_events_are_measured() {
    let report = run("events", None, &["--sessions", "2", "--calls", "10"]).await.unwrap();
    assert!(report.clean(), "{:?}", report.failures);
    assert_eq!(report.latencies[0].summary.count, 20);
}

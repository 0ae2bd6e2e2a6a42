//! The dashboards and alerts of the chart, asked of a real Prometheus that scrapes a cluster under load: each query is
//! understood, uses metrics that the product has, and most have an answer.

use super::documented;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tests::client::Session;
use tests::cluster::Plan;
use tests::mcp::{Kind, Mcp};
use tests::poll::until;
use tests::ports::Port;
use tests::provider::Answer;

/// The range that dashboards get for `$__rate_interval`.
const RANGE: &str = "30s";

/// A Prometheus that asks every second; gone with the test.
struct Prometheus {
    process: Child,
    data: PathBuf,
    url: String,
}

impl Prometheus {
    fn start(targets: &[String]) -> Self {
        let data = std::env::temp_dir().join("bae-tests").join(format!("prometheus-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let targets = json!([{"targets": targets, "labels": {"namespace": "bae"}}]);
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [chart().join("alerts.yaml")],
            "scrape_configs": [{"job_name": "bae-metrics", "static_configs": targets}],
        });
        // JSON is YAML, too.
        std::fs::write(data.join("prometheus.yml"), config.to_string()).unwrap();
        let port = Port::reserve();
        let address = format!("127.0.0.1:{}", port.number);
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", data.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", data.join("data").display()));
        command.arg(format!("--web.listen-address={address}")).stdin(Stdio::null()).stdout(Stdio::null());
        let log = std::fs::File::create(data.join("log")).unwrap();
        let process = command.stderr(log).spawn().expect("prometheus (Debian: apt-get install prometheus)");
        Self { process, data, url: format!("http://{address}/api/v1") }
    }

    /// The series that answer a query, or why it is refused.
    async fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let url = reqwest::Url::parse_with_params(&format!("{}/query", self.url), [("query", query)]).unwrap();
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer["data"]["result"].as_array() {
            Some(series) => Ok(series.clone()),
            None => Err(answer.to_string()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("charts/bae")
}

/// The queries of all panels, with the place of each.
fn panels() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for entry in std::fs::read_dir(chart().join("dashboards")).unwrap() {
        let path = entry.unwrap().path();
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let file = path.file_stem().unwrap().to_string_lossy().into_owned();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let place = format!("{file}: {} ({})", panel["title"], target["legendFormat"]);
                queries.push((place, target["expr"].as_str().expect("a query").to_owned()));
            }
        }
    }
    queries
}

/// The metrics that a query names.
fn metrics(query: &str) -> BTreeSet<String> {
    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    query
        .split(word)
        .filter(|word| word.starts_with("bae_") || word.starts_with("gen_ai_client_"))
        .map(str::to_owned)
        .collect()
}

/// A name without what Prometheus appends for its kind and unit.
fn stem(name: &str) -> &str {
    let mut name = name;
    for suffix in ["_bucket", "_sum", "_count", "_total", "_seconds"] {
        name = name.strip_suffix(suffix).unwrap_or(name);
    }
    name
}

#[tokio::test]
async fn every_query_has_an_answer() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut cluster = Plan::default().mcp(&mcp).start().await;
    let ports: Vec<Port> = cluster.nodes.iter().map(|_| Port::reserve()).collect();
    let address = |port: &Port| format!("127.0.0.1:{}", port.number);
    for (node, port) in cluster.nodes.iter_mut().zip(&ports) {
        node.server.set_env("BAE_METRICS_ADDR", &address(port));
        node.server.kill9();
        node.start().await;
    }
    let prometheus = Prometheus::start(&ports.iter().map(address).collect::<Vec<_>>());
    until(Duration::from_secs(60), "every node is scraped", async || match prometheus.query("up == 1").await {
        Ok(up) if up.len() == 3 => Ok(()),
        other => Err(other),
    })
    .await;

    // Load until rates can be told: turns, tools of a server and of the client, failures, a refused key.
    let session = cluster.driver().await;
    let turn = async |session: &Session| {
        cluster.provider.script([Answer::tools(&[("tu_1", "ls", json!({"path": "/"}))]), Answer::text("ok")]);
        session.send("files?").await.text();
        cluster.provider.push(Answer::tools(&[("tu_2", "clock", json!({}))]));
        session.send("the time?").await;
        session.answer(&[("tu_2", "noon")]).await.text();
    };
    let mut streams = Vec::new();
    for node in 0..cluster.nodes.len() {
        streams.push(cluster.at(&session, node).subscribe(None).await);
    }
    let turns = "sum(rate(bae_turns_completed_total{outcome=\"ok\"}[10s])) > 0";
    let asked = "count(bae_sessions_open)";
    until(Duration::from_secs(60), "a rate of turns", async || {
        turn(&session).await;
        match (prometheus.query(turns).await, prometheus.query(asked).await) {
            (Ok(turns), Ok(asked)) if !turns.is_empty() && !asked.is_empty() => Ok(()),
            other => Err(other),
        }
    })
    .await;
    cluster.provider.push(Answer::status(529));
    session.send("fails").await;
    cluster.nodes[0].api().get("/api/v1/meta/nothing", "").await.problem(404, "not_found");
    until(Duration::from_secs(30), "the failure", async || {
        match prometheus.query("bae_turns_completed_total{outcome=\"failed\"}").await {
            Ok(failed) if !failed.is_empty() => Ok(()),
            other => Err(other),
        }
    })
    .await;
    drop(streams);

    let documented: BTreeSet<String> = documented("| `", 1).iter().map(|name| name.replace('.', "_")).collect();
    let stems: BTreeSet<&str> = documented.iter().map(|name| stem(name)).collect();
    let (mut wrong, mut empty) = (Vec::new(), Vec::new());
    let panels = panels();
    for (place, query) in &panels {
        for metric in metrics(query) {
            if !stems.contains(stem(&metric)) {
                wrong.push(format!("{place}: docs/telemetry.md has no {metric}"));
            }
        }
        let query = query.replace("$__rate_interval", RANGE).replace("$__range", RANGE);
        let query = query.replace("$namespace", ".*").replace("$job", ".*");
        match prometheus.query(&query).await {
            Ok(series) if series.is_empty() => empty.push(place),
            Ok(_) => {}
            Err(why) => wrong.push(format!("{place}: {why}")),
        }
    }
    assert!(panels.len() > 50, "{} queries were found", panels.len());
    // Alerts are read by Prometheus itself, which does not start with rules that it does not understand.
    for metric in metrics(&std::fs::read_to_string(chart().join("alerts.yaml")).unwrap()) {
        if !stems.contains(stem(&metric)) {
            wrong.push(format!("alerts.yaml: docs/telemetry.md has no {metric}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    println!("{} queries, {} without an answer: {empty:#?}", panels.len(), empty.len());
    assert!(
        !empty.iter().any(|place| place.contains("until another node knows")),
        "each node has a stream: {empty:#?}"
    );
    // Nothing runs in a sandbox here, and nothing is as wrong as other panels show it.
    let without = |file: &str| empty.iter().filter(|place| place.starts_with(file)).count();
    let of = |file: &str| panels.iter().filter(|(place, _)| place.starts_with(file)).count();
    for file in ["overview", "cluster", "models"] {
        assert!(without(file) * 3 <= of(file), "{file}: too many queries have no answer: {empty:#?}");
    }
}

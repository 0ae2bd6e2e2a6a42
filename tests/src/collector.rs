//! An OpenTelemetry collector that keeps what it is sent, over gRPC and over HTTP, and can be told to misbehave.

use crate::http1::{Conn, Request, Serving, serve};
use crate::poll;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Response, Status};

/// Attributes by name.
pub type Attributes = BTreeMap<String, Value>;

/// A span as it was sent.
#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    /// `internal`, `server`, `client`.
    pub kind: &'static str,
    pub trace: String,
    pub id: String,
    /// The id of its parent; empty without one.
    pub parent: String,
    pub attributes: Attributes,
    /// The traces and ids of the spans that it is linked to.
    pub links: Vec<(String, String)>,
    pub failed: bool,
    /// The process that sent it.
    pub instance: String,
}

impl Span {
    /// What it says it is: its attribute `bae.span`.
    pub fn what(&self) -> &str {
        self.attributes["bae.span"].as_str().unwrap_or_default()
    }
}

/// How the collector answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// It takes what it is sent.
    Take,
    /// It answers with an error.
    Fail,
    /// It never answers.
    Hang,
}

#[derive(Debug)]
struct State {
    behaviour: Mutex<Behaviour>,
    asked: Mutex<usize>,
    headers: Mutex<Vec<(String, String)>>,
    /// Everything, decoded and printed.
    printed: Mutex<String>,
    spans: Mutex<Vec<Span>>,
    /// What each process sent last, by the process and the name.
    metrics: Mutex<BTreeMap<(String, String), Metric>>,
}

/// The collector; dropping it closes its ports.
#[derive(Debug)]
pub struct Collector {
    state: Arc<State>,
    http: Serving,
    grpc: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    /// Starts one that takes everything.
    pub async fn start() -> Self {
        let state = Arc::new(State {
            behaviour: Mutex::new(Behaviour::Take),
            asked: Mutex::default(),
            headers: Mutex::default(),
            printed: Mutex::default(),
            spans: Mutex::default(),
            metrics: Mutex::default(),
        });
        let shared = state.clone();
        let http =
            serve((Ipv4Addr::LOCALHOST, 0).into(), move |request, conn| over_http(shared.clone(), request, conn)).await;
        let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port for a collector");
        let grpc = incoming.local_addr().expect("the collector's address");
        let service = Grpc(state.clone());
        let serving = Server::builder()
            .add_service(TraceServiceServer::new(service.clone()))
            .add_service(MetricsServiceServer::new(service))
            .serve_with_incoming(incoming);
        let task = tokio::spawn(async move { serving.await.expect("a collector that serves") });
        Self { state, http, grpc, task }
    }

    /// The `[telemetry]` table that sends everything here over gRPC, with more lines.
    pub fn grpc_toml(&self, more: &str) -> String {
        format!("[telemetry]\nenabled = true\notlp_endpoint = \"http://{}\"\n{more}\n", self.grpc)
    }

    /// The same over HTTP.
    pub fn http_toml(&self, more: &str) -> String {
        format!(
            "[telemetry]\nenabled = true\notlp_protocol = \"http/protobuf\"\notlp_endpoint = \"http://{}\"\n{more}\n",
            self.http.addr
        )
    }

    /// From now on it answers so.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        *self.state.asked.lock().unwrap()
    }

    /// The headers of all requests.
    pub fn headers(&self) -> Vec<(String, String)> {
        self.state.headers.lock().unwrap().clone()
    }

    /// Everything that it was sent, as text.
    pub fn printed(&self) -> String {
        self.state.printed.lock().unwrap().clone()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.state.spans.lock().unwrap().clone()
    }

    /// The spans of a trace.
    pub fn trace(&self, trace: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.trace == trace).collect()
    }

    /// Waits until it has such a span.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Span) -> bool) -> Span {
        poll::until(poll::DEADLINE, what, async || {
            let spans = self.spans();
            spans.iter().find(|span| wanted(span)).cloned().ok_or(spans)
        })
        .await
    }

    /// The names of all metrics so far.
    pub fn metrics(&self) -> BTreeSet<String> {
        self.state.metrics.lock().unwrap().keys().map(|(_, name)| name.clone()).collect()
    }

    /// The points of a metric, as each process sent it last: the value, or of a histogram how many values it has.
    pub fn points(&self, name: &str) -> Vec<(Attributes, f64)> {
        let metrics = self.state.metrics.lock().unwrap();
        let named = metrics.iter().filter(|((_, of), _)| of == name);
        named.flat_map(|(_, metric)| points(metric)).collect()
    }
}

fn points(metric: &Metric) -> Vec<(Attributes, f64)> {
    let number = |value: Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsInt(number)) => number as f64,
        Some(number_data_point::Value::AsDouble(number)) => number,
        None => f64::NAN,
    };
    match &metric.data {
        Some(metric::Data::Gauge(gauge)) => {
            gauge.data_points.iter().map(|point| (attributes(&point.attributes), number(point.value))).collect()
        }
        Some(metric::Data::Sum(sum)) => {
            sum.data_points.iter().map(|point| (attributes(&point.attributes), number(point.value))).collect()
        }
        Some(metric::Data::Histogram(histogram)) => {
            let points = histogram.data_points.iter();
            points.map(|point| (attributes(&point.attributes), point.count as f64)).collect()
        }
        _ => Vec::new(),
    }
}

impl State {
    fn came(&self, headers: impl Iterator<Item = (String, String)>, printed: String) -> Behaviour {
        *self.asked.lock().unwrap() += 1;
        self.headers.lock().unwrap().extend(headers);
        self.printed.lock().unwrap().push_str(&printed);
        *self.behaviour.lock().unwrap()
    }

    fn take_spans(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let instance = instance(resource.resource);
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let kind = match span.kind {
                    1 => "internal",
                    2 => "server",
                    3 => "client",
                    _ => "other",
                };
                self.spans.lock().unwrap().push(Span {
                    name: span.name,
                    kind,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    attributes: attributes(&span.attributes),
                    links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
                    failed: span.status.is_some_and(|status| status.code == 2),
                    instance: instance.clone(),
                });
            }
        }
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let mut metrics = self.metrics.lock().unwrap();
        for resource in request.resource_metrics {
            let instance = instance(resource.resource);
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                metrics.insert((instance.clone(), metric.name.clone()), metric);
            }
        }
    }
}

/// The process that a resource is.
fn instance(resource: Option<Resource>) -> String {
    let of = attributes(&resource.map(|resource| resource.attributes).unwrap_or_default());
    of.get("service.instance.id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(list: &[KeyValue]) -> Attributes {
    let value = |of: &KeyValue| match of.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => json!(text),
        Some(any_value::Value::IntValue(number)) => json!(number),
        Some(any_value::Value::DoubleValue(number)) => json!(number),
        Some(any_value::Value::BoolValue(flag)) => json!(flag),
        other => json!(format!("{other:?}")),
    };
    list.iter().map(|of| (of.key.clone(), value(of))).collect()
}

async fn over_http(state: Arc<State>, request: Request, mut conn: Conn) {
    let headers = request.headers.clone().into_iter();
    let body = request.body.as_slice();
    let (behaviour, known) = match request.path.as_str() {
        "/v1/traces" => {
            let decoded = ExportTraceServiceRequest::decode(body).expect("spans in protobuf");
            let behaviour = state.came(headers, format!("{decoded:?}"));
            if behaviour == Behaviour::Take {
                state.take_spans(decoded);
            }
            (behaviour, true)
        }
        "/v1/metrics" => {
            let decoded = ExportMetricsServiceRequest::decode(body).expect("metrics in protobuf");
            let behaviour = state.came(headers, format!("{decoded:?}"));
            if behaviour == Behaviour::Take {
                state.take_metrics(decoded);
            }
            (behaviour, true)
        }
        _ => (Behaviour::Fail, false),
    };
    match behaviour {
        Behaviour::Take => conn.reply(200, &[("content-type", "application/x-protobuf")], b"").await,
        Behaviour::Fail => conn.reply(if known { 503 } else { 404 }, &[], b"no").await,
        Behaviour::Hang => conn.closed().await,
    }
}

#[derive(Debug, Clone)]
struct Grpc(Arc<State>);

impl Grpc {
    async fn came<T: std::fmt::Debug>(&self, request: tonic::Request<T>) -> Result<T, Status> {
        let headers = request.metadata().clone().into_headers();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        let headers: Vec<_> = headers.collect();
        let decoded = request.into_inner();
        match self.0.came(headers.into_iter(), format!("{decoded:?}")) {
            Behaviour::Take => Ok(decoded),
            Behaviour::Fail => Err(Status::unavailable("no")),
            Behaviour::Hang => {
                // Longer than any test waits.
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Err(Status::unavailable("no"))
            }
        }
    }
}

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let request = self.came(request).await?;
        self.0.take_spans(request);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let request = self.came(request).await?;
        self.0.take_metrics(request);
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

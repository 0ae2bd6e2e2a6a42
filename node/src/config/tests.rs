//! Tests of the configuration: the order of its sources, defaults, the registries of the file, what is refused with
//! which message, and that no secret is shown.

use super::*;
use crate::mcp::Transport;
use engine::provider::Wire;
use secrecy::ExposeSecret;

fn built(flags: &[(&'static str, &str)], environment: &[(&str, &str)], file: &str) -> Result<Config, String> {
    let flags = Flags { values: flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(), ..Flags::default() };
    with(&flags, environment, file)
}

fn with(flags: &Flags, environment: &[(&str, &str)], file: &str) -> Result<Config, String> {
    let environment: BTreeMap<String, String> =
        environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Config::build(flags, Arc::new(environment), file).map_err(|usage| usage.to_string())
}

fn refused(environment: &[(&str, &str)], file: &str) -> String {
    let text = built(&[], environment, file).unwrap_err();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn defaults() {
    let config = built(&[], &[], "").unwrap();
    assert_eq!(config.addr.to_string(), "0.0.0.0:8080");
    assert_eq!(config.admin_addr.to_string(), "127.0.0.1:8081");
    assert_eq!(config.database.to_string(), "sqlite:bae.db");
    assert_eq!(config.admin_key_file, Path::new("admin.key"));
    assert!(matches!(config.admin_key, AdminKey::Made));
    assert_eq!(config.admin_auth, AdminAuth::Required);
    assert_eq!((config.log.as_str(), config.log_format), ("info", LogFormat::Text));
    let seconds = [config.shutdown_timeout, config.turn_timeout, config.subagent_timeout, config.mcp_idle];
    assert_eq!(seconds.map(|time| time.as_secs()), [30, 120, 600, 1800]);
    assert_eq!((config.max_turn_iterations, config.max_subagents_per_session, config.max_queued_calls), (8, 8, 1000));
    assert_eq!((config.max_body, config.stream_keepalive, config.forward_client_events), (33_554_432, None, false));
    assert!(config.providers.is_empty() && config.mcp_servers.is_empty() && !config.telemetry.enabled);
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let file =
        "[server]\naddr = \"127.0.0.1:1\"\nturn_timeout = 1\nforward_client_events = true\nstream_keepalive = 0.5";
    let environment = [("BAE_ADDR", "127.0.0.1:2"), ("BAE_TURN_TIMEOUT", "2")];
    let config = built(&[("addr", "127.0.0.1:3")], &environment, file).unwrap();
    assert_eq!((config.addr.port(), config.turn_timeout.as_secs()), (3, 2));
    assert!(config.forward_client_events);
    assert_eq!(config.stream_keepalive, Some(Duration::from_millis(500)));
    assert_eq!(built(&[], &environment, file).unwrap().addr.port(), 2);
    assert_eq!(built(&[], &[("BAE_ADDR", "")], file).unwrap().addr.port(), 1, "an empty variable is not set");
}

#[test]
fn databases() {
    for (url, path) in [
        ("sqlite:a/b.db", "a/b.db"),
        ("sqlite:///a/b.db", "/a/b.db"),
        ("sqlite:/a/b.db", "/a/b.db"),
        ("sqlite://b.db", "b.db"),
    ] {
        assert_eq!(
            built(&[], &[("BAE_DATABASE_URL", url)], "").unwrap().database.to_string(),
            format!("sqlite:{path}")
        );
    }
    let config = built(&[], &[("BAE_DATABASE_URL", "sqlite:/data/b.db")], "").unwrap();
    assert_eq!(config.admin_key_file, Path::new("/data/admin.key"));
    let config = built(&[], &[("BAE_ADMIN_KEY_FILE", "k")], "").unwrap();
    assert_eq!(config.admin_key_file, Path::new("k"));
}

#[test]
fn sandboxes() {
    let sandbox = built(&[], &[], "").unwrap().sandbox;
    assert_eq!(sandbox.driver, SandboxDriver::None);
    assert_eq!((sandbox.exec_timeout.as_secs(), sandbox.output_cap), (120, 1 << 20));
    assert_eq!((sandbox.limits.memory, sandbox.limits.milli_cpus, sandbox.limits.pids), (1 << 30, 1000, 512));
    assert_eq!((sandbox.limits.max_age.as_secs(), sandbox.limits.network), (86_400, ::sandbox::Network::Off));
    let docker = ("BAE_SANDBOX_DRIVER", "docker");
    let host = |host: &str| SandboxDriver::Docker { host: host.to_owned() };
    let set = [docker, ("BAE_SANDBOX_CPU", "0.25"), ("BAE_SANDBOX_NETWORK", "on"), ("BAE_SANDBOX_PIDS", "9")];
    let sandbox = built(&[], &set, "").unwrap().sandbox;
    assert_eq!(sandbox.driver, host("unix:///var/run/docker.sock"));
    assert_eq!((sandbox.limits.milli_cpus, sandbox.limits.pids), (250, 9));
    assert_eq!(sandbox.limits.network, ::sandbox::Network::On);
    let elsewhere = built(&[], &[docker, ("DOCKER_HOST", "tcp://h:2375")], "").unwrap().sandbox;
    assert_eq!(elsewhere.driver, host("tcp://h:2375"));
    let pods = [
        ("BAE_SANDBOX_DRIVER", "kubernetes"),
        ("KUBECONFIG", "/k"),
        ("BAE_SANDBOX_NAMESPACE", "boxes"),
        ("BAE_SANDBOX_RUNTIME_CLASS", "gvisor"),
        ("BAE_SANDBOX_NODE_SELECTOR", "pool=sandboxes, zone=a"),
        ("BAE_SANDBOX_TOLERATIONS", "boxes=only:NoSchedule,spot"),
        ("BAE_SANDBOX_PULL_SECRETS", "registry"),
        ("BAE_SANDBOX_PULL_POLICY", "Always"),
        ("BAE_SANDBOX_START_TIMEOUT", "9"),
    ];
    let SandboxDriver::Kubernetes { kubeconfig, pods } = built(&[], &pods, "").unwrap().sandbox.driver else {
        panic!("another driver")
    };
    assert_eq!(kubeconfig.as_deref(), Some(Path::new("/k")));
    assert_eq!((pods.namespace.as_deref(), pods.runtime_class.as_deref()), (Some("boxes"), Some("gvisor")));
    assert_eq!((pods.node_selector["pool"].as_str(), pods.node_selector["zone"].as_str()), ("sandboxes", "a"));
    let toleration = |key: &str, value: Option<&str>, effect: Option<&str>| ::sandbox::Toleration {
        key: Some(key.to_owned()),
        value: value.map(str::to_owned),
        effect: effect.map(str::to_owned),
    };
    let expected = [toleration("boxes", Some("only"), Some("NoSchedule")), toleration("spot", None, None)];
    assert_eq!(pods.tolerations, expected);
    assert_eq!((pods.pull_secrets.len(), pods.pull_policy), (1, ::sandbox::PullPolicy::Always));
    assert_eq!(pods.start_timeout.as_secs(), 9);
    let kubernetes = ("BAE_SANDBOX_DRIVER", "kubernetes");
    for (variable, value, must) in [
        ("BAE_SANDBOX_TOLERATIONS", "a:Never", "taints, like sandboxes=only:NoSchedule"),
        ("BAE_SANDBOX_LABELS", "a", "names with values, like pool=sandboxes,zone=a"),
        ("BAE_SANDBOX_PULL_POLICY", "never", "Always, IfNotPresent or Never"),
    ] {
        let text = format!("{variable} must be {must}, not \"{value}\"");
        assert_eq!(refused(&[kubernetes, (variable, value)], ""), text);
    }
    let wrong = refused(&[docker, ("DOCKER_HOST", "h:2375")], "");
    assert_eq!(wrong, "DOCKER_HOST must be unix://PATH or tcp://HOST:PORT");
}

#[test]
fn clusters() {
    let database = ("BAE_DATABASE_URL", "postgres://h/bae");
    let config = built(&[], &[database, ("BAE_REDIS_URL", " rediss://h ")], "").unwrap();
    let redis = config.redis.expect("a cluster");
    assert_eq!((redis.ca, redis.prefix.as_str(), redis.lease), (None, "bae:", Duration::from_secs(10)));
    let set = [("BAE_REDIS_CA", "/ca.pem"), ("BAE_REDIS_PREFIX", "p:"), ("BAE_LEASE", "2")];
    let config = built(&[], &[&[database, ("BAE_REDIS_URL", "sentinels://h/bae")], &set[..]].concat(), "").unwrap();
    let redis = config.redis.expect("a cluster");
    assert_eq!((redis.ca, redis.prefix.as_str(), redis.lease), (Some("/ca.pem".into()), "p:", Duration::from_secs(2)));
    assert!(built(&[], &[database, set[0]], "").unwrap().redis.is_none());
}

#[test]
fn wrong_settings() {
    let cases = [
        ("BAE_ADDR", "8080", "BAE_ADDR must be IP:PORT, like 127.0.0.1:8080, not \"8080\""),
        ("BAE_TURN_TIMEOUT", "0", "BAE_TURN_TIMEOUT must be a number of seconds above 0, not \"0\""),
        ("BAE_TURN_TIMEOUT", "soon", "BAE_TURN_TIMEOUT must be a number of seconds above 0, not \"soon\""),
        ("BAE_TURN_TIMEOUT", "NaN", "BAE_TURN_TIMEOUT must be a number of seconds above 0, not \"NaN\""),
        ("BAE_SHUTDOWN_TIMEOUT", "-1", "BAE_SHUTDOWN_TIMEOUT must be a number of seconds, not \"-1\""),
        ("BAE_MAX_TURN_ITERATIONS", "0", "BAE_MAX_TURN_ITERATIONS must be a whole number above 0, not \"0\""),
        ("BAE_MAX_BODY", "1.5", "BAE_MAX_BODY must be a whole number above 0, not \"1.5\""),
        ("BAE_FORWARD_CLIENT_EVENTS", "yes", "BAE_FORWARD_CLIENT_EVENTS must be 1 or 0, not \"yes\""),
        ("BAE_LOG_FORMAT", "xml", "BAE_LOG_FORMAT must be text or json, not \"xml\""),
        ("BAE_LOG", "a=b=c", "BAE_LOG must be a log filter, like info or info,node=debug, not \"a=b=c\""),
        (
            "BAE_DATABASE_URL",
            "bae.db",
            "BAE_DATABASE_URL must be sqlite:PATH, like sqlite:bae.db, or postgres://USER@HOST/NAME",
        ),
        (
            "BAE_REDIS_URL",
            "redis://h",
            "BAE_REDIS_URL makes a cluster, and nodes cannot share a SQLite file; set BAE_DATABASE_URL to Postgres",
        ),
        (
            "BAE_DATABASE_URL",
            "sqlite::memory:",
            "BAE_DATABASE_URL must name a file: sessions have to survive a restart; write sqlite:PATH",
        ),
        (
            "BAE_DATABASE_URL",
            "sqlite:a?mode=ro",
            "BAE_DATABASE_URL must be sqlite:PATH without parameters; drop the ? part",
        ),
        ("BAE_REDIS_URL", "http://h", "BAE_REDIS_URL must be redis://, rediss://, sentinel:// or sentinels://"),
        ("BAE_SANDBOX_MEMORY", "1g", "BAE_SANDBOX_MEMORY must be a number of bytes from 6291456 on, not \"1g\""),
        ("BAE_SANDBOX_CPU", "0", "BAE_SANDBOX_CPU must be a number of cores, like 0.5, not \"0\""),
        ("BAE_SANDBOX_NETWORK", "yes", "BAE_SANDBOX_NETWORK must be on or off, not \"yes\""),
        ("BAE_SANDBOX_DRIVER", "x", "BAE_SANDBOX_DRIVER must be docker, kubernetes or none, not \"x\""),
        (
            "BAE_ADMIN_KEY",
            "hunter2",
            "BAE_ADMIN_KEY must be bae_admin_ and 48 digits of lower-case hex; make one with: echo bae_admin_$(openssl rand \
             -hex 24)",
        ),
        (
            "BAE_ADMIN_ADDR",
            "0.0.0.0:8081",
            "the admin port must not be reachable from elsewhere, and 0.0.0.0:8081 may be; use a loopback address, or set \
             BAE_ADMIN_ALLOW_REMOTE=1 if the network keeps strangers out",
        ),
    ];
    for (variable, value, text) in cases {
        assert_eq!(refused(&[(variable, value)], ""), text);
    }
    assert_eq!(built(&[("log_format", "xml")], &[], "").unwrap_err(), "--log-format must be text or json, not \"xml\"");
    assert_eq!(refused(&[], "[server]\nlog_format = 3"), "[server] log_format must be text or json, not \"3\"");
    assert_eq!(refused(&[], "[server]\nadmin_key = \"x\""), "[server] admin_key: there is no such setting; remove it");
}

#[test]
fn the_admin_port_stays_at_home_unless_told_otherwise() {
    for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1"] {
        assert!(built(&[], &[("BAE_ADMIN_ADDR", local)], "").is_ok(), "{local}");
    }
    let remote = ("BAE_ADMIN_ADDR", "10.0.0.1:8081");
    assert!(built(&[], &[remote], "").is_err());
    assert!(built(&[], &[remote, ("BAE_ADMIN_ALLOW_REMOTE", "0")], "").is_err());
    assert!(built(&[], &[remote, ("BAE_ADMIN_ALLOW_REMOTE", "1")], "").is_ok());
}

#[test]
fn the_admin_key_has_one_source() {
    let key = "bae_admin_0123456789abcdef0123456789abcdef0123456789abcdef";
    let supplied = ("BAE_ADMIN_KEY", key);
    let config = built(&[], &[supplied], "").unwrap();
    assert!(matches!(config.admin_key, AdminKey::Supplied(ref secret) if secret.expose_secret() == key));
    assert!(!format!("{config:?}").contains(key));

    let rotate = Flags { rotate_admin_key: true, ..Flags::default() };
    assert!(matches!(with(&rotate, &[], "").unwrap().admin_key, AdminKey::Rotated));
    assert_eq!(
        with(&rotate, &[supplied], "").unwrap_err(),
        "--rotate-admin-key makes a new key, but BAE_ADMIN_KEY supplies one; change BAE_ADMIN_KEY instead, or unset it"
    );
    let both = Flags { disable_admin_auth: true, ..rotate };
    assert_eq!(
        with(&both, &[], "").unwrap_err(),
        "--rotate-admin-key and --dangerously-disable-admin-auth exclude each other; drop one of them"
    );
}

const FULL: &str = r#"
[[providers.entries]]
name = "main"
provider = "anthropic"
model = "m"
auth_token = "${KEY}"

[[providers.entries]]
name = "other"
provider = "openai"
base_url = "http://127.0.0.1:9/x/"
model = "n"
auth_token = ""
max_tokens = 7
timeout_secs = 1.5
max_retries = 0

[[mcp.servers]]
name = "main"
transport = "stdio"
command = "run"
args = ["a b"]
env = { K = "v" }

[[mcp.servers]]
name = "web"
transport = "http"
url = "https://h/mcp"
headers = { Authorization = "Bearer ${KEY}" }

[[mcp.servers]]
name = "old"
transport = "sse"
url = "http://h/sse"

[telemetry]
enabled = true
otlp_endpoint = "http://collector:4317"
otlp_headers = { x-token = "${KEY}" }
sample_ratio = 0.25
service_name = "me"
[telemetry.traces]
enabled = false
[telemetry.metrics]
disabled = ["bae.tool.latency"]
"#;

#[test]
fn a_whole_file() {
    let config = built(&[], &[("KEY", "hush")], FULL).unwrap();
    let main = config.provider("main").unwrap();
    assert_eq!((main.entry.wire, main.entry.base_url.as_str()), (Wire::Anthropic, "https://api.anthropic.com"));
    assert_eq!((main.entry.max_tokens, main.timeout.as_secs(), main.max_retries), (4096, 600, 2));
    assert_eq!(resolve(main.auth_token.expose_secret(), config.environment.as_ref()).unwrap().expose_secret(), "hush");
    let other = config.provider("other").unwrap();
    assert_eq!((other.entry.wire, other.entry.base_url.as_str()), (Wire::OpenAi, "http://127.0.0.1:9/x"));
    assert_eq!((other.entry.max_tokens, other.timeout.as_millis(), other.max_retries), (7, 1500, 0));
    assert!(config.provider("web").is_none());

    let [stdio, http, sse] = &config.mcp_servers[..] else { panic!("three servers") };
    let Transport::Stdio { command, args, env } = &stdio.transport else { panic!("stdio") };
    assert_eq!((command.as_str(), args[0].as_str(), env["K"].expose_secret()), ("run", "a b", "v"));
    let Transport::Http { url, headers } = &http.transport else { panic!("http") };
    assert_eq!(url, "https://h/mcp");
    assert_eq!(
        resolve(headers["Authorization"].expose_secret(), config.environment.as_ref()).unwrap().expose_secret(),
        "Bearer hush"
    );
    assert_eq!(sse.transport.kind(), "sse");

    let telemetry = &config.telemetry;
    assert_eq!((telemetry.sample_ratio, telemetry.service_name.as_str()), (0.25, "me"));
    assert_eq!((telemetry.enabled, telemetry.traces, telemetry.metrics), (true, false, true));
    assert_eq!(telemetry.disabled_metrics, ["bae.tool.latency"]);
    assert!(!format!("{:?} {:?} {:?}", config.providers, config.mcp_servers, telemetry).contains("${KEY}"));
    assert!(config.has_metrics() && !config.has_traces());
}

#[test]
fn collectors_and_the_scrape_port() {
    for (lines, protocol) in [
        ("otlp_endpoint = \"http://h:4317\"", Protocol::Grpc),
        ("otlp_endpoint = \"https://h\"", Protocol::Grpc),
        ("otlp_endpoint = \"https://h/\"", Protocol::Grpc),
        ("otlp_endpoint = \"http://h:4318\"", Protocol::Http),
        ("otlp_endpoint = \"https://h/otlp\"", Protocol::Http),
        ("otlp_endpoint = \"http://h:4318\"\notlp_protocol = \"grpc\"", Protocol::Grpc),
        ("otlp_endpoint = \"http://h\"\notlp_protocol = \"http/protobuf\"", Protocol::Http),
    ] {
        let config = built(&[], &[], &format!("[telemetry]\n{lines}")).unwrap();
        assert_eq!(config.telemetry.otlp_protocol, protocol, "{lines}");
        assert!(!config.has_metrics() && !config.has_traces(), "not enabled");
    }
    assert!(refused(&[], "[telemetry]\ngenai_semconv = \"v2\"").contains("`v0.1`, `v1.41`, `both`"));
    let port = |value: &str| built(&[], &[("BAE_METRICS_ADDR", value)], "").unwrap().metrics_addr;
    assert_eq!((port("127.0.0.1:9464").map(|addr| addr.port()), port("off")), (Some(9464), None));
    assert!(built(&[("metrics_addr", "127.0.0.1:1")], &[], "").unwrap().has_metrics());
    let text = refused(&[("BAE_METRICS_ADDR", "9464")], "");
    assert_eq!(text, "BAE_METRICS_ADDR must be IP:PORT, like 127.0.0.1:9464, or off, not \"9464\"");
}

#[test]
fn wrong_registries() {
    let provider = |lines: &str| format!("[[providers.entries]]\n{lines}");
    let server = |lines: &str| format!("[[mcp.servers]]\n{lines}");
    let main = "name = \"a\"\nprovider = \"anthropic\"\nmodel = \"m\"\nauth_token = \"t\"\n";
    let cases = [
        (provider("provider = \"openai\""), "[[providers.entries]] number 1: name is missing or blank; give it one"),
        (
            provider(&format!("{main}[[providers.entries]]\nname = \" \"")),
            "[[providers.entries]] number 2: name is missing or blank; give it one",
        ),
        (
            provider(&format!("{main}[[providers.entries]]\n{main}")),
            "[[providers.entries]]: the name \"a\" is used twice; rename one",
        ),
        (
            provider("name = \"a\"\nprovider = \"gemini\""),
            "provider \"a\": unknown provider \"gemini\"; use \"anthropic\" or \"openai\"",
        ),
        (provider("name = \"a\""), "provider \"a\": provider is missing; set it to \"anthropic\" or \"openai\""),
        (
            provider("name = \"a\"\nprovider = \"openai\""),
            "provider \"a\": model is missing; name the model to ask for",
        ),
        (
            provider("name = \"a\"\nprovider = \"openai\"\nmodel = \"m\""),
            "provider \"a\": auth_token is missing; set it, best to an environment variable: auth_token = \"${NAME}\"",
        ),
        (
            provider(&format!("{main}base_url = \"h:9\"")),
            "provider \"a\": base_url must begin with http:// or https:// and a host",
        ),
        (
            provider(&format!("{main}base_url = \"http://u:hush@h\"")),
            "provider \"a\": base_url must not hold a user name or password, for it is shown to administrators and logged; use \
             a header",
        ),
        (provider(&format!("{main}max_tokens = 0")), "provider \"a\": max_tokens must be above 0"),
        (
            provider(&format!("{main}timeout_secs = -1.0")),
            "provider \"a\": timeout_secs must be a number of seconds above 0 and at most 31622400 (366 days)",
        ),
        (server("transport = \"stdio\""), "[[mcp.servers]] number 1: name is missing or blank; give it one"),
        (
            server("name = \"a\"\ntransport = \"pipe\""),
            "MCP server \"a\": unknown transport \"pipe\"; use \"stdio\", \"http\" or \"sse\"",
        ),
        (server("name = \"a\""), "MCP server \"a\": transport is missing; set it to \"stdio\", \"http\" or \"sse\""),
        (
            server("name = \"a\"\ntransport = \"stdio\"\nurl = \"http://h\""),
            "MCP server \"a\": command is missing; transport \"stdio\" needs it",
        ),
        (server("name = \"a\"\ntransport = \"sse\""), "MCP server \"a\": url is missing; transport \"sse\" needs it"),
        (
            server("name = \"a\"\ntransport = \"http\"\nurl = \"h\""),
            "MCP server \"a\": url is not a URL; write http://HOST or https://HOST",
        ),
        (
            server("name = \"a\"\ntransport = \"http\"\nurl = \"http://h\"\nheaders = { \"a b\" = \"hush\" }"),
            "MCP server \"a\": \"a b\" in headers is not a header name",
        ),
        ("[telemetry]\nenabled = true".into(), "[telemetry] otlp_endpoint is missing; set it, or enabled = false"),
        (
            "[telemetry]\notlp_endpoint = \"collector\"".into(),
            "[telemetry] otlp_endpoint is not a URL; write http://HOST or https://HOST",
        ),
        ("[telemetry]\nsample_ratio = 1.5".into(), "[telemetry] sample_ratio must be between 0 and 1, not 1.5"),
        ("[telemetry]\nsample_ratio = nan".into(), "[telemetry] sample_ratio must be between 0 and 1, not NaN"),
        ("[telemetry]\nservice_name = \"\"".into(), "[telemetry] service_name must not be blank"),
    ];
    for (file, text) in cases {
        assert_eq!(refused(&[], &file), text, "{file}");
    }
    let unknown = refused(&[], "[telemetry.metrics]\ndisabled = [\"bae.x\"]");
    assert!(
        unknown.starts_with("[telemetry.metrics] disabled: unknown metric \"bae.x\"; known are bae.sessions.open,")
    );
    // The two name spaces are separate.
    let same = format!("{}\n{}", provider(main), server("name = \"a\"\ntransport = \"stdio\"\ncommand = \"c\""));
    assert!(built(&[], &[], &same).is_ok());
}

#[test]
fn wrong_files() {
    let text = refused(&[], "[server]\naddr = \"x\"\n[[providers.entries]]\nauth_tokn = \"hush\"");
    assert!(
        text.starts_with("configuration file, line 4: unknown field `auth_tokn`, expected one of `name`"),
        "{text}"
    );
    let text = refused(&[], "a = \n");
    assert!(text.starts_with("configuration file, line 1: "), "{text}");
    let text = refused(&[], "[[mcp.servers]]\nname = 3");
    assert!(text.starts_with("configuration file, line 2: invalid type: integer, expected a string"), "{text}");
    // A secret that was written without quotes.
    for secret in ["4711", "4711.5", "0x1267", "[\"4711\"]"] {
        let text = refused(&[], &format!("[[providers.entries]]\nname = \"a\"\nauth_token = {secret}"));
        assert!(text.contains("invalid type: ") && text.contains(", expected "), "{text}");
        assert!(!text.contains("4711"), "{text}");
    }
}

#[test]
fn a_missing_file_counts_as_empty() {
    let flags = Flags {
        values: [("config", concat!(env!("CARGO_MANIFEST_DIR"), "/missing.toml").to_owned())].into(),
        ..Flags::default()
    };
    assert!(Config::load(&flags, Arc::new(BTreeMap::<String, String>::new())).is_ok());
    let folder = std::env::temp_dir().display().to_string();
    let flags = Flags { values: [("config", folder.clone())].into(), ..Flags::default() };
    let text = Config::load(&flags, Arc::new(BTreeMap::<String, String>::new())).unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot read the configuration file {folder}: ")), "{text}");
}

/// A file in which every place that may hold a secret holds `hush`.
fn secrets() -> String {
    let server = "[server]\ndatabase_url = \"postgres://u:hush@h/bae\"\nredis_url = \"redis://u:hush@h\"\n";
    format!("{server}{FULL}").replace("${KEY}", "hush").replace("K = \"v\"", "K = \"hush\"")
}

#[test]
fn secrets_are_in_no_debug_form() {
    let config = built(&[], &[], &secrets()).unwrap();
    assert!(matches!(&config.database, Database::Postgres(url) if url.expose_secret().contains("hush")));
    let text = format!(
        "{config:?} {} {:?} {:?} {:?} {:?}",
        config.database,
        config.redis.as_ref().map(|redis| &redis.url),
        config.providers,
        config.mcp_servers,
        config.telemetry
    );
    assert!(!text.contains("hush"), "{text}");
}

#[test]
fn secrets_are_in_no_error() {
    let wrong = [
        ("postgres://u:hush@h/bae", "mysql://u:hush@h/bae"),
        ("postgres://u:hush@h/bae", "sqlite:hush?key=hush"),
        ("redis://u:hush@h", "http://u:hush@h"),
        ("https://h/mcp", "https://u:hush@h/mcp"),
        ("https://h/mcp", "hush"),
        ("http://collector:4317", "http://u:hush@collector:4317"),
        ("Authorization =", "\"a b\" ="),
        ("x-token =", "\"x token\" ="),
        ("model = \"m\"", "model = \"m\"\nbase_url = \"http://u:hush@h\""),
        ("auth_token = \"hush\"", "auth_token = \"hush"),
        ("auth_token = \"hush\"", "auth_token = [\"hush\"]"),
        ("auth_token = \"hush\"", "auth_token = hush"),
        ("K = \"hush\"", "K = { hush = \"hush\" }"),
    ];
    let secrets = secrets();
    for (right, wrong) in wrong {
        assert!(secrets.contains(right), "{right}");
        let text = refused(&[], &secrets.replace(right, wrong));
        assert!(!text.contains("hush"), "{wrong}: {text}");
    }
    let text = refused(&[("BAE_ADMIN_KEY", "hush")], "");
    assert!(!text.contains("hush"), "{text}");
}

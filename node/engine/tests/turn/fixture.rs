//! The fixture of these tests: a session's log, its row and its stored requests, with a loop that drives a [`Turn`] as
//! the node does. The loop can be stopped after any append; then the turn is folded again from what is stored.

use crate::peers;
use crate::plan::{Call, Plan, Row, Stops};
use crate::read::{Fields, quoted};
use crate::requests;
use crate::script::{By, Fit, Op, Script, What};
use engine::event::{Event, EventNumber, EventType, NewEvent, Payload};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{CallId, EventId, KeyId, SessionId};
use engine::json;
use engine::params::SendMessage;
use engine::request::Request;
use engine::round::ToolUse;
use engine::subagent;
use engine::time::UnixMillis;
use engine::toolbox::Toolbox;
use engine::turn::{Action, Context, Opening, Step, Turn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a pause keeps the gate in these tests.
pub(crate) const PAUSE: std::time::Duration = std::time::Duration::from_secs(120);

#[derive(Default)]
struct Cursor {
    answers: usize,
    summaries: usize,
    mcp: usize,
    launches: usize,
    stores: usize,
}

pub(crate) struct Fixture<'a> {
    pub script: &'a Script,
    pub plan: Plan,
    fresh: &'a (dyn Fn() -> [u8; 16] + Send + Sync),
    pub log: Vec<Event>,
    stored: BTreeMap<EventNumber, String>,
    /// Every stored request, as it is read back.
    loaded: BTreeMap<EventNumber, Arc<Request>>,
    pub row: Row,
    pub calls: Vec<Call>,
    pub appends: usize,
    /// The numbers of the appends after which an MCP call was running.
    pub tool_appends: Vec<usize>,
    /// How many MCP calls had an unknown outcome.
    pub lost: usize,
    /// How many compactions were refused because a pause kept the gate.
    pub in_progress: usize,
    cursor: Cursor,
    op: Op,
    /// The sets of tools that a client may have declared.
    tools: [Toolbox; 4],
}

pub(crate) fn client(n: u8) -> KeyId {
    KeyId([n; 16])
}

/// Runs a whole script and passes the fixture, as it is afterwards, to `look`.
pub(crate) fn run<T>(script: &Script, plan: Plan, look: impl FnOnce(&Fixture<'_>) -> T) -> T {
    let ids = AtomicU64::new(1);
    let fresh = || (u128::from(ids.fetch_add(1, Ordering::Relaxed)) << 64).to_be_bytes();
    let op = Op { by: By::Owner, what: What::Assistant, late: false, tools: 0, primary: true, running: 0 };
    let mut fixture = Fixture {
        script,
        plan,
        fresh: &fresh,
        log: Vec::new(),
        stored: BTreeMap::new(),
        loaded: BTreeMap::new(),
        row: Row::Idle,
        calls: Vec::new(),
        appends: 0,
        tool_appends: Vec::new(),
        lost: 0,
        in_progress: 0,
        cursor: Cursor::default(),
        op,
        tools: [0, 1, 2, 3].map(peers::toolbox),
    };
    let mut turn = Turn::default();
    for op in &script.ops {
        if fixture.row == Row::Error {
            break;
        }
        fixture.op = op.clone();
        fixture.call(&mut turn);
    }
    look(&fixture)
}

impl<'a> Fixture<'a> {
    /// The size in bytes of each stored request, in order.
    pub(crate) fn stored_bytes(&self) -> Vec<usize> {
        self.stored.values().map(String::len).collect()
    }

    /// What the turn's decisions depend on besides the log.
    pub(crate) fn context(&self) -> Context<'a> {
        let mut entries = peers::entries(&self.script.wires).into_iter();
        let primary = entries.next().filter(|_| self.op.primary).ok_or_else(|| "unknown provider \"p0\"".to_owned());
        Context {
            primary,
            fallbacks: entries.collect(),
            tools: self.tools[self.op.tools].clone(),
            available_sandboxes: vec!["img".into()],
            compaction: self.script.compaction.clone(),
            pause_timeout: PAUSE,
            max_rounds: self.script.max_rounds,
            max_subagents: 8,
            running_subagents: self.op.running,
            fresh: self.fresh,
        }
    }

    /// The tool uses of the newest round.
    fn uses(&self) -> Vec<ToolUse> {
        let calls = self.log.iter().rev().skip_while(|e| e.event.kind != EventType::ToolCall);
        let calls = calls.take_while(|e| e.event.kind != EventType::ProviderResponse);
        let calls = calls.filter(|e| e.event.kind == EventType::ToolCall);
        let mut uses: Vec<ToolUse> =
            calls.map(|e| serde_json::from_str(&e.event.payload.text()).unwrap_or_else(|e| panic!("{e}"))).collect();
        uses.reverse();
        uses
    }

    fn message(&self, paused: bool) -> (SendMessage, Option<Fit>) {
        let (role, content, fit) = match &self.op.what {
            What::Plain(i) => ("user", peers::MESSAGES[*i].to_owned(), None),
            What::Assistant => ("assistant", r#""An aside""#.to_owned(), paused.then_some(Fit::WrongRole)),
            What::Answer(_) if !paused && self.op.by == By::Owner => ("user", peers::MESSAGES[2].to_owned(), None),
            What::Answer(_) if !paused => ("user", format!("[{}]", peers::result("tu_none", 0)), None),
            What::Answer(fit) => {
                let uses = self.uses();
                let of = |client: bool| {
                    let uses = uses.iter().enumerate().filter(move |(_, u)| peers::is_client(u) == client);
                    uses.map(|(i, u)| peers::result(&u.id, i + self.appends)).collect::<Vec<_>>()
                };
                let (mut results, copies) = (of(true), of(false));
                match fit {
                    Fit::Right | Fit::WrongRole => {}
                    Fit::Copies => {
                        results.reverse();
                        results.extend(copies);
                        results.insert(0, r#"{"type":"text","text":"and\u0000 \u00e9"}"#.into());
                    }
                    Fit::Missing if results.len() > 1 => drop(results.pop()),
                    Fit::Missing if !copies.is_empty() => results = copies,
                    Fit::Duplicate => results.push(results[0].clone()),
                    Fit::Missing | Fit::Unexpected => results.push(peers::result("tu_none", 0)),
                }
                let role = if *fit == Fit::WrongRole { "assistant" } else { "user" };
                (role, format!("[{}]", results.join(", ")), Some(*fit))
            }
            What::Compact(_) => panic!("a compact is no message"),
        };
        let params = format!(r#"{{"message":{{"role":{}, "content":{content}}}}}"#, quoted(role));
        let message = SendMessage::parse(&json::read(params.as_bytes()).unwrap()).unwrap();
        assert_eq!(message.content.get(), content, "content changed on its way in");
        (message, fit)
    }

    /// Runs one call, from its opening to its end.
    fn call(&mut self, turn: &mut Turn) {
        let owner = if let Row::Paused(owner) = self.row { Some(owner) } else { None };
        let key = match (self.op.by, owner) {
            (By::Owner, owner) => owner.unwrap_or_else(|| client(1)),
            (By::Stranger, Some(owner)) if owner == client(2) => client(3),
            (By::Stranger, _) => client(2),
        };
        let answers = matches!(self.op.what, What::Answer(_));
        let compact = matches!(self.op.what, What::Compact(_));
        let gate = match owner {
            None => GateFound::Free,
            Some(owner) if owner == key && !compact && (answers || !self.op.late) => GateFound::OwnPause,
            Some(_) if self.op.late => GateFound::ExpiredPause,
            Some(_) => {
                self.in_progress += usize::from(compact);
                return;
            }
        };
        let (opening, fit) = match &self.op.what {
            What::Compact(prompt) => (Opening::Compact(prompt.clone()), None),
            _ => {
                let (message, fit) = self.message(owner.is_some());
                (Opening::Message(message), fit.filter(|_| gate == GateFound::OwnPause))
            }
        };
        let refused = turn.open(&self.context(), &opening, key, gate).err();
        let id = CallId((self.calls.len() as u128 + 1).to_be_bytes());
        let primary = self.op.primary;
        let (end, limited, store_failed) = (None, false, false);
        let opened = refused.is_none();
        self.calls.push(Call { id, key, opening, gate, fit, primary, owner, refused, end, limited, store_failed });
        if opened {
            let end = self.drive(turn);
            self.opened().end = Some(end);
        }
    }

    fn opened(&mut self) -> &mut Call {
        self.calls.last_mut().expect("a call is open")
    }

    fn drive(&mut self, turn: &mut Turn) -> End {
        let mut carried_on = false;
        for _ in 0..300 {
            let mut step = turn.next(&self.context());
            if step.store && !self.can_store() {
                *turn = self.fold();
                self.opened().store_failed = true;
                step = turn.store_failed(&self.context());
            }
            assert!(carried_on || !step.events.is_empty(), "nothing to append before {:?}", step.action);
            let appended = !step.events.is_empty();
            self.append(turn, &step);
            if appended && self.stops(&step.action) {
                *turn = self.restart();
                carried_on = true;
                match step.action {
                    Action::End(end) => return end,
                    _ => continue,
                }
            }
            carried_on = false;
            match step.action {
                Action::End(end) => return end,
                action => self.act(turn, action),
            }
        }
        panic!("the call does not end")
    }

    fn can_store(&mut self) -> bool {
        self.cursor.stores += 1;
        self.script.stores.get(self.cursor.stores - 1).copied().unwrap_or(true)
    }

    fn append(&mut self, turn: &mut Turn, step: &Step) {
        let (first, id, key) = (self.next_number(), self.opened().id, self.opened().key);
        let chain = turn.chain().cloned();
        for event in &step.events {
            let number = self.next_number();
            self.log.push(committed(number, Some(id), event.clone()));
            if let Payload::Request(request) = &event.payload {
                self.stored.insert(number, request.store(chain.as_ref()));
                if request.attempt == 0 && !request.compaction {
                    requests::offers(request, peers::offered(self.op.tools));
                }
                let loaded = self.load(number);
                assert_eq!(loaded.payload(), event.payload.text(), "a stored request reads back differently");
                self.loaded.insert(number, Arc::new(loaded));
            }
        }
        turn.committed(first);
        self.row = match &step.action {
            Action::End(End { gate: GateAfter::Free, .. }) => Row::Idle,
            Action::End(End { gate: GateAfter::Paused(_), .. }) => Row::Paused(key),
            Action::End(End { gate: GateAfter::Failed, .. }) => Row::Error,
            _ => Row::Running,
        };
        if !step.events.is_empty() {
            if matches!(step.action, Action::Mcp(_) | Action::Sandbox(..)) {
                self.tool_appends.push(self.appends);
            }
            self.appends += 1;
            self.somebody_else();
        }
    }

    /// Appends events that belong to no call.
    fn somebody_else(&mut self) {
        let kind = match self.appends % 5 {
            1 => EventType::DriverRegister,
            3 => EventType::SubagentCompleted,
            4 => EventType::SandboxRunning,
            _ => return,
        };
        let event = self.stranger(kind, &serde_json::json!({}));
        self.log.push(committed(self.next_number(), None, event));
    }

    /// An event of another client.
    fn stranger(&self, kind: EventType, payload: &serde_json::Value) -> NewEvent {
        let payload = Payload::Json(json::encode(payload));
        NewEvent { id: EventId((self.fresh)()), key: client(9), kind, payload, from_client: false }
    }

    fn stops(&mut self, action: &Action) -> bool {
        let (append, tool) = (self.appends - 1, matches!(action, Action::Mcp(_) | Action::Sandbox(..)));
        let stops = match self.plan.stops {
            Stops::Never => false,
            Stops::Harmless => !tool,
            Stops::Every => true,
            Stops::Bits(bits) => bits >> (append % 64) & 1 == 1,
            Stops::Only(only) => only == append,
        };
        self.lost += usize::from(stops && tool && self.plan.takeovers < 5);
        stops
    }

    /// The number of the event that comes next.
    fn next_number(&self) -> EventNumber {
        EventNumber::START.plus(self.log.len() + 1)
    }

    /// Reads a request back in the way a reader of the log does, from the start of its delta chain on.
    fn load(&self, number: EventNumber) -> Request {
        let root = Request::root(&self.stored[&number]).unwrap().unwrap_or(number);
        let mut before: Option<Request> = None;
        for (_, text) in self.stored.range(root..=number) {
            before = Some(Request::load(text, before.as_ref()).unwrap_or_else(|error| panic!("{error}: {text}")));
        }
        before.expect("the request is stored")
    }

    fn fold(&self) -> Turn {
        let start = if self.plan.newest { requests::start(&self.log) } else { 0 };
        let mut turn = Turn::new(requests::usage(&self.log[..start]));
        for event in &self.log[start..] {
            let mut event = event.clone();
            if matches!(event.event.payload, Payload::Request(_)) {
                event.event.payload = Payload::Request(Arc::clone(&self.loaded[&event.number]));
            }
            turn.apply(&event);
        }
        turn
    }

    /// Lets another owner take the session over.
    fn restart(&mut self) -> Turn {
        let mut turn = self.fold();
        match self.row {
            Row::Idle | Row::Error => {
                turn.settle();
                assert!(!turn.running(), "a settled turn runs");
                assert!(turn.paused().is_none() || self.row == Row::Error, "an idle session's turn is paused");
            }
            Row::Paused(owner) => assert_eq!(turn.paused(), Some(owner)),
            Row::Running => {
                assert!(turn.running(), "the folded turn does not run");
                assert_eq!(turn.acting(), Some(self.opened().key));
                self.op.tools = (self.op.tools + usize::from(self.plan.swap_tools)) % 4;
                turn.recover(&self.context(), self.plan.takeovers);
                self.opened().limited = self.plan.takeovers >= 5;
            }
        }
        turn
    }

    fn act(&mut self, turn: &mut Turn, action: Action) {
        let ctx = self.context();
        match action {
            Action::Continue => {}
            Action::Ask(request) => {
                requests::check(self, &request);
                let cursor = if request.compaction { &mut self.cursor.summaries } else { &mut self.cursor.answers };
                let place = std::mem::replace(cursor, *cursor + 1);
                let script = if request.compaction { &self.script.summaries } else { &self.script.answers };
                let reply = peers::reply(&script[place % script.len()], request.wire, place);
                turn.provider_answered(&ctx, reply);
            }
            Action::Mcp(one) => {
                let asked = self.log.iter().rev().find(|e| e.event.kind == EventType::McpRequest).expect("logged");
                let asked = Fields::payload(asked);
                assert_eq!((asked.str("tool"), asked.raw("input")), (one.name.clone(), one.input.get()));
                let outcome = self.script.mcp.get(self.cursor.mcp).copied().unwrap_or(crate::script::Mcp::Works(0));
                self.cursor.mcp += 1;
                turn.mcp_answered(&ctx, peers::mcp_reply(outcome));
            }
            Action::Sandbox(one, command) => {
                let asked = self.log.iter().rev().find(|e| e.event.kind == EventType::SandboxRequest).expect("logged");
                let asked = Fields::payload(asked);
                let command = command.map_or_else(|| "null".to_owned(), |command| quoted(&command));
                assert_eq!((asked.str("tool"), asked.raw("command")), (one.name, command.as_str()));
                let outcome = self.script.mcp.get(self.cursor.mcp).copied().unwrap_or(crate::script::Mcp::Works(0));
                self.cursor.mcp += 1;
                turn.sandbox_answered(&ctx, peers::sandbox_reply(outcome));
            }
            Action::SubagentStatus(asked) => {
                turn.status_read(&ctx, subagent::status(asked.as_deref(), Vec::new()).map(|(text, _)| text));
            }
            Action::Launch(id, launch) => {
                let starts = self.script.launches.get(self.cursor.launches).copied().unwrap_or(true);
                self.cursor.launches += 1;
                let started = if starts { Ok(()) } else { Err("no \"driver\"".to_owned()) };
                turn.launched(&ctx, id, &launch, started);
            }
            Action::End(_) => panic!("an end is no act"),
        }
    }
}

fn committed(number: EventNumber, call: Option<CallId>, event: NewEvent) -> Event {
    Event { number, session: SessionId([7; 16]), call, created_at: UnixMillis(number.0), event }
}

//! What may happen to a session, as data: calls of three clients, answers of providers, outcomes of tools, failing
//! stores.
//!
//! A script is consumed by what the log asks for, in order, so the same script gives the same log wherever the program
//! that runs it is stopped and started.

use engine::open::Compaction;
use engine::provider::Wire;
use proptest::prelude::*;
use proptest::sample::select;

/// A session's whole outside.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub compaction: Compaction,
    pub max_rounds: u32,
    /// Wire formats of the primary provider and its fallbacks.
    pub wires: Vec<Wire>,
    pub ops: Vec<Op>,
    pub answers: Vec<Answer>,
    pub summaries: Vec<Answer>,
    pub mcp: Vec<Mcp>,
    /// Whether a subagent starts.
    pub launches: Vec<bool>,
    /// Whether a compaction's result can be stored.
    pub stores: Vec<bool>,
    /// Where runs of this script are stopped at random: a bit per append.
    pub stops: u64,
}

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    /// Which client; a tool answer is sent by the pause's owner unless this is `Stranger`.
    pub by: By,
    pub what: What,
    /// Whether a pause's deadline has passed when the call comes.
    pub late: bool,
    /// Which tools the client has declared by then.
    pub tools: usize,
    /// Whether the primary provider resolves.
    pub primary: bool,
    /// Subagents running in the session.
    pub running: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum By {
    /// The owner of the pause, the first client without one.
    Owner,
    /// Somebody else.
    Stranger,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Plain(usize),
    /// A message of role `assistant`.
    Assistant,
    Answer(Fit),
    Compact(Option<String>),
}

/// How an answer fits the pause.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fit {
    Right,
    /// With copies for the server's own uses, in reverse order, and a text.
    Copies,
    Missing,
    Duplicate,
    Unexpected,
    WrongRole,
}

/// What a provider does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Blocks(Vec<Block>, Option<u64>),
    /// Cut by its budget, its last tool use half received.
    Cut(Vec<Block>, Option<u64>),
    /// JSON that is no answer.
    Garbage,
    /// No JSON at all.
    NotJson,
    Fails(Option<u16>),
}

#[derive(Debug, Clone)]
pub(crate) enum Block {
    Text(usize),
    /// A block type the product does not know.
    Other,
    Use {
        tool: &'static str,
        input: usize,
        /// With an id that other rounds use too.
        reused: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Mcp {
    Works(usize),
    SaysError,
    Fails,
}

fn block() -> impl Strategy<Value = Block> {
    let tools = vec!["c1", "c2", "c1", "m1", "m2", "m1", "run", "sub", "sub", "nope"];
    prop_oneof![
        2 => (0..4usize).prop_map(Block::Text),
        1 => Just(Block::Other),
        6 => (select(tools), 0..5usize, prop::bool::weighted(0.1))
            .prop_map(|(tool, input, reused)| Block::Use { tool, input, reused }),
    ]
}

fn text() -> impl Strategy<Value = Vec<Block>> {
    prop_oneof![
        4 => (0..4usize).prop_map(|t| vec![Block::Text(t)]),
        1 => (0..4usize).prop_map(|t| vec![Block::Other, Block::Text(t), Block::Text(0)]),
    ]
}

fn usage() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 2 => (100..900u64).prop_map(Some), 4 => (1_000..4_000u64).prop_map(Some)]
}

fn failure() -> impl Strategy<Value = Answer> {
    prop_oneof![
        select(vec![None, Some(500), Some(401)]).prop_map(Answer::Fails),
        Just(Answer::Garbage),
        Just(Answer::NotJson),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        7 => (text(), usage()).prop_map(|(b, u)| Answer::Blocks(b, u)),
        8 => (prop::collection::vec(block(), 1..5), usage()).prop_map(|(b, u)| Answer::Blocks(b, u)),
        1 => usage().prop_map(|u| Answer::Blocks(vec![], u)),
        1 => (prop::collection::vec(block(), 0..4), usage()).prop_map(|(b, u)| Answer::Cut(b, u)),
        2 => failure(),
    ]
}

fn summary() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => (text(), usage()).prop_map(|(b, u)| Answer::Blocks(b, u)),
        1 => Just(Answer::Blocks(vec![], None)),
        1 => Just(Answer::Blocks(vec![Block::Use { tool: "c1", input: 0, reused: false }], Some(50))),
        1 => text().prop_map(|b| Answer::Cut(b, None)),
        3 => failure(),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let fits = vec![Fit::Missing, Fit::Duplicate, Fit::Unexpected, Fit::WrongRole];
    prop_oneof![
        8 => (0..4usize).prop_map(What::Plain),
        1 => Just(What::Assistant),
        6 => Just(What::Answer(Fit::Right)),
        3 => Just(What::Answer(Fit::Copies)),
        1 => select(fits).prop_map(What::Answer),
        2 => Just(What::Compact(None)),
        1 => Just(What::Compact(Some("Only \"the\" TODOs\n".into()))),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let by = prop_oneof![2 => Just(By::Owner), 1 => Just(By::Stranger)];
    (by, what(), prop::bool::weighted(0.4), 0..4usize, prop::bool::weighted(0.98), select(vec![0, 0, 0, 8]))
        .prop_map(|(by, what, late, tools, primary, running)| Op { by, what, late, tools, primary, running })
}

fn compaction() -> impl Strategy<Value = Compaction> {
    prop_oneof![
        3 => (1_000..2_500u64).prop_map(|size| Compaction::Auto { size }),
        1 => Just(Compaction::Client { prompt: None }),
        1 => Just(Compaction::Client { prompt: Some("Stored prompt".into()) }),
    ]
}

/// Any script.
pub(crate) fn script() -> impl Strategy<Value = Script> {
    let wires = prop::collection::vec(select(vec![Wire::Anthropic, Wire::OpenAi]), 1..4);
    let outside = (
        prop::collection::vec(answer(), 4..24),
        prop::collection::vec(summary(), 1..8),
        prop::collection::vec(
            prop_oneof![3 => (0..4usize).prop_map(Mcp::Works), 1 => Just(Mcp::SaysError), 1 => Just(Mcp::Fails)],
            0..8,
        ),
        prop::collection::vec(prop::bool::weighted(0.7), 0..4),
        prop::collection::vec(prop::bool::weighted(0.7), 0..4),
    );
    (compaction(), 1..6u32, wires, prop::collection::vec(op(), 2..10), outside, any::<u64>()).prop_map(
        |(compaction, max_rounds, wires, ops, (answers, summaries, mcp, launches, stores), stops)| Script {
            compaction,
            max_rounds,
            wires,
            ops,
            answers,
            summaries,
            mcp,
            launches,
            stores,
            stops,
        },
    )
}

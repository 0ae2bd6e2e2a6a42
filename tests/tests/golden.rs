//! Golden transcripts of every endpoint, method and error, and the catalogue that proves that none is missing.

mod admin;
mod auth;
mod catalogue;
mod compact;
mod envelope;
mod join;
mod open;
mod openai;
mod openapi;
mod pause;
mod providers;
mod rest;
mod sandbox;
mod servertools;
mod startup;
mod subagent;
mod subscribe;
mod turn;

use tests::transcript::Transcript;

/// Compares a transcript with its committed snapshot `snapshots/NAME.snap`.
pub(crate) fn golden(name: &str, transcript: Transcript) {
    let text = transcript.finish();
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

//! Tests of the command line: each command is understood, and each mistake is reported in one line.

use super::*;
use clap::CommandFactory;

fn refusal(arguments: &str) -> String {
    match Cli::try_parse_from(arguments.split_whitespace()) {
        Ok(_) => panic!("accepted: {arguments}"),
        Err(error) => usage_line(&error),
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn mistakes_are_one_line() {
    let cases = [
        (
            "baesrv serve --adr 127.0.0.1:1",
            "unexpected argument '--adr' found tip: a similar argument exists: '--addr'; --help shows what can be given",
        ),
        (
            "baesrv admin key create k",
            "the following required arguments were not provided: --profile <ID|NAME>; --help shows what can be given",
        ),
        (
            "baesrv admin session list --state shut",
            "invalid value 'shut' for '--state <STATE>' [possible values: open, closed, error]; --help shows what can be given",
        ),
        ("baesrv sing", "unrecognized subcommand 'sing'; --help shows what can be given"),
    ];
    for (arguments, line) in cases {
        assert_eq!(refusal(arguments), line, "{arguments}");
    }
}

#[test]
fn commands_are_understood() {
    for arguments in [
        "baesrv serve",
        "baesrv version",
        "baesrv ready --url https://h --ca x.pem --timeout 5",
        "baesrv serve --addr 127.0.0.1:0 --rotate-admin-key --config x.toml",
        "baesrv migrate --database-url sqlite:x.db",
        "baesrv dev --data x --addr 127.0.0.1:0 --model m",
        "baesrv admin --json providers",
        "baesrv admin providers --json --url http://h",
        "baesrv admin profile create n --primary-provider p --allowed-tools a,b --allowed-tools c --mcp-servers",
        "baesrv admin profile update pro_01112131415161718191a1b1c1d1e1f1 --fallback-providers",
        "baesrv admin session events ses_01112131415161718191a1b1c1d1e1f1",
        "baesrv admin key revoke key_01112131415161718191a1b1c1d1e1f1",
    ] {
        assert!(Cli::try_parse_from(arguments.split_whitespace()).is_ok(), "{arguments}");
    }
}

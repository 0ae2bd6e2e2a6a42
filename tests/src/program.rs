//! The programs under test, built when they are missing or older than their sources: `cargo test` alone does not build another
//! package's programs, and testing yesterday's server helps nobody.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

/// The path of a program of this workspace, beside the running test executable; for the server, `$BAESRV` instead if set.
pub fn program(name: &str) -> PathBuf {
    if name == "baesrv"
        && let Some(path) = std::env::var_os("BAESRV")
    {
        return path.into();
    }
    static UP_TO_DATE: Once = Once::new();
    let test = std::env::current_exe().expect("the test's own path");
    let own = test.parent().expect("target/PROFILE/deps/TEST or target/PROFILE/PROGRAM");
    let dir = if own.ends_with("deps") { own.parent().expect("target/PROFILE") } else { own }.to_owned();
    UP_TO_DATE.call_once(|| bring_up_to_date(&dir));
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --bins`", path.display());
    path
}

fn bring_up_to_date(dir: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let sources = ["node", "coordinator", "migrations", "Cargo.toml", "Cargo.lock", "tests/src/bin"];
    let newest = sources.iter().filter_map(|part| newest(&workspace.join(part))).max();
    // Cargo leaves a program alone whose sources changed in no way that matters to it; the stamp remembers that it was asked.
    let stamp = dir.join("programs-checked");
    let checked = modified(&stamp).filter(|_| ["baesrv", "mcp_stdio"].iter().all(|name| dir.join(name).exists()));
    if checked >= newest && checked.is_some() {
        return;
    }
    let asked = SystemTime::now();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "node", "--package", "tests", "--bins", "--target-dir"]);
    build.arg(dir.parent().expect("target")).current_dir(workspace);
    match dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => drop(build.args(["--profile", profile])),
    }
    assert!(build.status().expect("cargo starts").success(), "the programs under test do not build");
    let file = std::fs::File::create(&stamp).expect("a stamp beside the programs");
    file.set_modified(asked).expect("a time on the stamp");
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The last change of a file, or of any in a folder.
fn newest(path: &Path) -> Option<SystemTime> {
    let Ok(entries) = std::fs::read_dir(path) else { return modified(path) };
    entries.filter_map(|entry| newest(&entry.ok()?.path())).max()
}

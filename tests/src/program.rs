//! The programs under test, built when they are missing or older than their sources: `cargo test` alone does not build
//! another package's programs, and testing yesterday's server helps nobody.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};
use std::time::SystemTime;

/// The path of a program of this workspace, beside the running test executable; for the server, `$BAESRV` instead if
/// set.
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

/// The server of the version before, which `tests/build-previous` has built or builds now; `$BAESRV_PREVIOUS` instead
/// if set.
pub fn previous() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().expect("the test's own path");
        let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("previous");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build-previous");
        let done = Command::new(script).arg(&target).output().expect("tests/build-previous starts");
        assert!(done.status.success(), "tests/build-previous: {}", String::from_utf8_lossy(&done.stderr));
        target.join("debug").join("baesrv")
    };
    BUILT.get_or_init(|| std::env::var_os("BAESRV_PREVIOUS").map_or_else(build, PathBuf::from)).clone()
}

fn bring_up_to_date(dir: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let sources = ["node", "coordinator", "migrations", "Cargo.toml", "Cargo.lock", "tests/src/bin"];
    let newest = sources.iter().filter_map(|part| newest(&workspace.join(part))).max();
    // Cargo leaves a program alone whose sources changed in no way that matters to it; the stamp remembers that it was
    // asked.
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

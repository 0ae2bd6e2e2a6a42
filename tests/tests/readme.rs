//! `tests/README.md` tells which test covers which failure; each file and test that it names is there.

use std::path::{Path, PathBuf};

/// The source file of a name such as `crashes`, `faults/kill` or `coordinator/cluster/leases`.
fn source(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let file = match (name.strip_prefix("coordinator/"), name.contains('/')) {
        (Some(rest), _) => format!("coordinator/tests/integration/{rest}.rs"),
        (None, true) => format!("tests/tests/{name}.rs"),
        (None, false) => format!("tests/tests/cluster/{name}.rs"),
    };
    workspace.join(file)
}

#[test]
fn every_test_that_the_table_of_failures_names_exists() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, table) = readme.split_once("## Which test covers which failure").expect("the table's heading");
    let (mut names, mut missing) = (0, Vec::new());
    for row in table.lines().filter(|line| line.starts_with("| F") || line.starts_with("| S")) {
        let mut last = "";
        for name in row.split('`').skip(1).step_by(2) {
            let (file, test) = name.split_once("::").map_or((name, None), |(file, test)| (file, Some(test)));
            // `…::test` is in the file named before it.
            let file = if file == "…" { last } else { file };
            last = file;
            names += 1;
            let text = std::fs::read_to_string(source(file));
            let there = text.is_ok_and(|text| test.is_none_or(|test| text.contains(&format!("fn {test}("))));
            if !there {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(names > 50, "only {names} names found in the table");
    assert!(missing.is_empty(), "named in the table, but not there: {missing:?}");
}

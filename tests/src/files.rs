//! Open files of the test's own process, for tests with thousands of streams.

/// Makes sure that so many may be open.
pub fn allow(wanted: u64) {
    let limit = rlimit::increase_nofile_limit(u64::MAX).expect("the limit of open files");
    assert!(limit >= wanted, "this test needs {wanted} open files, and the hard limit is {limit} (`ulimit -Hn`)");
}

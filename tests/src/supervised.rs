//! A server of the tests' own as a child process that does not outlive them.
//!
//! A shell stands between: once its standard input ends, however the tests end, it stops the server and removes the data.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the server has mounted below its data is unmounted first, or it could not be removed.
const SUPERVISE: &str = r#"
data="$1" stop="$2"
shift 2
"$@" >>"$data/log" 2>&1 </dev/null &
server=$!
echo "$server"
read -r word
kill -CONT "$server"
kill -"$stop" "$server"
wait "$server"
[ "$word" != keep ] || exit 0
grep -o " $data/[^ ]*" /proc/mounts | sort -r | while read -r mounted; do umount "$mounted"; done
rm -rf "$data"
"#;

/// A server's process. Dropped, it is stopped and its data is removed.
#[derive(Debug)]
pub(crate) struct Supervised {
    shell: Child,
    word: Option<ChildStdin>,
    pid: u32,
}

/// An empty folder for the data of a server.
pub(crate) fn folder(server: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let data = std::env::temp_dir().join(format!("bae-{server}-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    std::fs::create_dir_all(&data).expect("a folder for the data");
    data
}

/// The command that starts a server which writes its log into the folder and ends at that signal. The server's arguments are
/// to be added.
pub(crate) fn command(data: &Path, stop: &str, server: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", SUPERVISE, "sh"]).arg(data).arg(stop).arg(server);
    shell
}

impl Supervised {
    /// Starts what [`command`] has made.
    pub(crate) fn start(mut shell: Command) -> Self {
        // Whatever kills the tests' process group leaves the shell alone, so that it can end the server.
        shell.process_group(0).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = shell.spawn().expect("a shell");
        let word = shell.stdin.take();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("its output")).read_line(&mut line).expect("the server's process id");
        Self { shell, word, pid: line.trim().parse().expect("a process id") }
    }

    /// Whether the server's process has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.pid)).exists()
    }

    /// Sends its process a signal, such as `STOP`: then it answers nothing, and connections stay open.
    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status().expect("kill");
        assert!(done.success(), "kill -{name} {}", self.pid);
    }

    /// Stops it and keeps the data.
    pub(crate) fn stop(mut self) {
        self.word.as_mut().expect("the shell's input").write_all(b"keep\n").expect("the shell listens");
        self.shell.wait().expect("the shell ends");
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.word.take());
        let _ = self.shell.wait();
    }
}

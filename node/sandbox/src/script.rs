//! The shell scripts that run inside of containers. They are POSIX, because images bring what shell they like. Where a script
//! says that it must not fork, a container that has reached its limit of processes could not run it otherwise.

use std::time::Duration;

/// The exit code of a sandbox whose main process was asked to end by a signal.
pub(crate) const TERMINATED: i64 = 143;
/// The exit code of a shell that does not find a program.
pub(crate) const NOT_FOUND: i64 = 127;

/// The main process of a sandbox: waits for the maximum age, then exits with 0. The shell reaps what it inherits. The time is
/// looked at again after each wait, for a command of the sandbox may kill the `sleep`.
pub(crate) fn keep_alive(max_age: Duration) -> String {
    let script = r#"trap 'exit 143' TERM INT
read -r now _ </proc/uptime; end=$((${now%%.*} + MAX_AGE))
while read -r now _ </proc/uptime; left=$((end - ${now%%.*})); [ "$left" -gt 0 ]; do
  sleep "$left" & wait $!
  [ $? != 127 ] || exit 127
done"#;
    script.replace("MAX_AGE", &max_age.as_secs().max(1).to_string())
}

/// Comes before [`EXEC`] where the command is not an argument: reads a word, and the command, which has `$1` lines. It must
/// not fork.
const READ_SCRIPT: &str = r#"read -r word && IFS= read -r script || exit 1
left=$(($1 - 1))
while [ "$left" -gt 0 ]; do
  IFS= read -r line || exit 1
  script="$script
$line"; left=$((left - 1))
done
set -- "$script" "$word""#;

/// Becomes the command; the end of [`EXEC`].
const BECOME: &str = r#"exec /bin/sh -c "$1" 3<&-"#;

/// Runs the command instead, and says its exit code on standard error, after the word `$2`: a runtime may say it only when
/// nothing is left that holds the outputs open. What the shell itself has to say about the command's end is not shown.
const REPORT: &str = r#"trap : HUP INT QUIT TERM USR1 USR2 ALRM
exec 3<&- 4>&2 2>/dev/null
/bin/sh -c "$1" 2>&4 4>&-; code=$?
echo "$2 $code" >&4
exit $code"#;

/// As [`EXEC`], for a runtime whose requests cannot hold the command: standard input brings it, and a word before it, in `$1`
/// lines. The exit code follows that word on standard error when the command has exited.
pub(crate) fn exec_from_input() -> String {
    let watched = EXEC.strip_suffix(BECOME).unwrap_or(EXEC);
    format!("{READ_SCRIPT}\n{watched}{REPORT}")
}

/// Becomes the command `$1`, with an empty standard input. The script's own standard input is a line to the caller. When it is
/// cut while the command runs (the caller gave up, or is dead) a watcher beside the command ends it. The watcher goes when it gets a
/// line of text: the caller knows by then that the command has exited, and what that left behind is to go on.
///
/// What is ended: every process of the command's session, and every process that descends from one of those. What has left
/// the session and lost its parent as well, as a daemon does, is not found; it ends with the sandbox.
///
/// The command's own process is ended last, so that nothing is left once it has exited. Where no watcher can be made the command
/// is not run, which is said in the way of the runtime.
///
/// The watcher is in the session, but no child of the command, which may wait for all its children. It must not fork. It ignores
/// from its very beginning the signals that the command may send to its whole process group. Where memory is short, the command
/// is killed and not the watcher.
pub(crate) const EXEC: &str = r#"exec 3<&0 </dev/null
trap '' HUP INT QUIT TERM USR1 USR2 PIPE ALRM
( (
  read -r self _ </proc/self/stat
  ! read -r _ || exit 0
  alive() { read -r line <"/proc/$$/stat" || return 1; set -- ${line##*) }; [ "$1" != Z ]; }
  alive || exit 0
  rounds=0
  while [ $rounds -lt 2000 ]; do
    rounds=$((rounds + 1)); members=' '; others=; grown=1
    while [ -n "$grown" ]; do
      grown=
      for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        pid=${line%% *}; set -- ${line##*) }
        [ "$pid" != "$self" ] && [ "$1" != Z ] || continue
        case "$members" in *" $pid "*) continue ;; esac
        if [ "$4" != $$ ]; then
          case "$members" in *" $2 "*) ;; *) continue ;; esac
        fi
        kill -STOP "$pid"; members="$members$pid "; grown=1
        [ "$pid" = $$ ] || others="$others $pid"
      done
    done
    [ -n "$others" ] || break
    kill -KILL $others
  done
  kill -KILL $$
) <&3 3<&- >/dev/null 2>&1 & ) 2>/dev/null || {
  echo 'OCI runtime exec failed: there are as many processes as there may be'
  exit 126
}
trap - HUP INT QUIT TERM USR1 USR2 PIPE ALRM
echo 1000 2>/dev/null >/proc/self/oom_score_adj
exec /bin/sh -c "$1" 3<&-"#;

/// Where a subagent's container keeps what concerns the subagent.
pub(crate) const FOLDER: &str = "/.bae";

/// The main process of a subagent's container. `$1` is the time limit in seconds, `$2` how many bytes of each output are kept.
///
/// Below [`FOLDER`], each node that has tried to start the container has left a folder with the files `command` and `prompt`,
/// and then `ready`; any one will do. The result is in the folder `result`: `stdout`, `stderr`, and at last `end`, which says
/// `exit` and the exit code, `timeout`, or `missing` and a program that the image lacks. A second start does nothing.
///
/// The named pipes are in memory where that is possible: on the container's own layers, a pipe that is opened while another
/// node puts files beside it may not be the same pipe for its two ends.
///
/// When the command's own process has exited, or its time is over, everything else in the container is killed but the two
/// readers of the outputs, which then come to their end. That must not fork. Where memory is short, the command is killed and not
/// what stands around it.
pub(crate) const SUBAGENT: &str = r#"bae=/.bae; result=$bae/result
command -v mkdir >/dev/null || exit 127
mkdir $result || exit 126
for tool in mkfifo head cat sleep; do
  command -v $tool >/dev/null || { echo "missing $tool" >$result/end; exit 0; }
done
for ready in $bae/*/ready; do from=${ready%/ready}; break; done
pipes=$bae; [ ! -w /dev/shm ] || pipes=/dev/shm
mkfifo $pipes/bae.stdout $pipes/bae.stderr
( head -c "$2" >$result/stdout; exec cat >/dev/null ) <$pipes/bae.stdout & out=$!
( head -c "$2" >$result/stderr; exec cat >/dev/null ) <$pipes/bae.stderr & err=$!
finish() {
  kill -STOP -1; rounds=0
  while [ $rounds -lt 200 ]; do
    rounds=$((rounds + 1)); found=
    for stat in /proc/[0-9]*/stat; do
      read -r line <"$stat" || continue
      pid=${line%% *}; set -- ${line##*) }
      [ "$pid" != 1 ] && [ "$1" != Z ] || continue
      case "$pid" in $out | $err) kill -CONT "$pid"; continue ;; esac
      case "$2" in $out | $err) kill -CONT "$pid"; continue ;; esac
      kill -KILL "$pid"; found=1
    done
    [ -n "$found" ] || return 0
  done
}
timed_out=
trap 'timed_out=1; finish' USR1
exec 3>$pipes/bae.stdout 4>$pipes/bae.stderr
( echo 1000 2>/dev/null >/proc/self/oom_score_adj
  exec /bin/sh "$from/command" ) <"$from/prompt" >&3 2>&4 3>&- 4>&- & command=$!
( exec 3>&- 4>&-; sleep "$1"; kill -USR1 1 ) &
exec 3>&- 4>&-
wait $command; code=$?
if [ -n "$timed_out" ]; then end=timeout; else end="exit $code"; finish; fi
wait $out; wait $err
echo "$end" >$result/end"#;

/// Shows the result of a subagent, whose folder [`FOLDER`] is: the line of `end`, which is empty where there is none, and
/// `stdout`; and `stderr` apart. [`WHOLE`] follows both, so that what arrives is known to be all.
pub(crate) const RESULT: &str = r#"cd /.bae/result || exit 1
end=; [ ! -f end ] || read -r end <end
echo "$end"
[ ! -f stdout ] || cat stdout
[ ! -f stderr ] || cat stderr >&2
echo whole; echo whole >&2"#;
pub(crate) const WHOLE: &str = "whole\n";

#[cfg(test)]
mod tests {
    use super::{BECOME, EXEC};

    #[test]
    fn the_watched_part_can_be_told_from_the_rest() {
        assert!(EXEC.ends_with(&format!("\n{BECOME}")));
    }
}

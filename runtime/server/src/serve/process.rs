//! The process of an attempt as the system shows it: alive or not, how large, and its end.

use std::fs;

use lifecycle::batch::WorkerProcess;

/// Names a process so that a later one with the same number is not taken for it.
pub fn identify(pid: u32) -> Option<WorkerProcess> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(WorkerProcess {
        pid,
        started_ticks: started_ticks(&stat)?,
    })
}

/// The start time in a line of `/proc/PID/stat`. The name in it may hold anything, so
/// counting begins behind its closing parenthesis.
fn started_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    // The state is field 3, the start time field 22.
    rest.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether this very process still exists. One that has ended and was not collected does
/// not.
pub fn is_alive(process: WorkerProcess) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", process.pid)) else {
        return false;
    };
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    started_ticks(&stat) == Some(process.started_ticks) && !matches!(state, Some('Z' | 'X'))
}

/// Ends a process and everything it has started.
pub fn kill_group(pid: u32) {
    let Ok(group) = i32::try_from(pid) else {
        return;
    };
    // Group 0 is our own and -1 is everybody's.
    if group <= 1 {
        return;
    }
    // SAFETY: kill takes numbers only; the group is one that this program started.
    unsafe {
        libc::kill(-group, libc::SIGKILL);
    }
}

/// Memory that a process holds and no file backs, in MiB.
pub fn anonymous_mib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("RssShmem:").unwrap_or(0)) >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_process_is_told_from_others_and_killed_with_its_children() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let process = identify(child.id()).expect("it runs");
        assert!(is_alive(process));
        let later = WorkerProcess {
            started_ticks: process.started_ticks + 1,
            ..process
        };
        assert!(!is_alive(later));
        assert!(anonymous_mib(child.id()).is_some());
        // The shell has said which child it started.
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        let grandchild = identify(line.trim().parse().expect("a number")).expect("it runs");
        kill_group(child.id());
        child.wait().expect("it ends");
        assert!(!is_alive(process));
        // The pipe ends when its last holder lets go of it, which is a moment before its end.
        std::io::copy(&mut out, &mut std::io::sink()).expect("the end");
        let since = std::time::Instant::now();
        while is_alive(grandchild) {
            assert!(
                since.elapsed() < std::time::Duration::from_secs(60),
                "it lives"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_name_with_parentheses_misleads_nobody() {
        let stat = "7 (a) S 1 (b)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 9";
        assert_eq!(started_ticks(stat), Some(4242));
    }
}

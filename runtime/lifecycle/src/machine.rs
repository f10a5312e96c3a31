//! What this process may really use: cores and memory, container limits included.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The resources that this process can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Cores, after CPU affinity and the container's quota.
    pub cores: usize,
    /// Memory in bytes: the smaller of what is installed and what the container may
    /// use. `None` when neither can be read.
    pub memory_bytes: Option<u64>,
}

impl Machine {
    /// Looks at the machine that this process runs on.
    pub fn detect() -> Self {
        Machine {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_bytes: memory_bytes(Path::new("/")),
        }
    }
}

/// The memory limit as the files under `root` tell it; `root` is `/` outside tests.
fn memory_bytes(root: &Path) -> Option<u64> {
    let installed = fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| installed_bytes(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    limit_files(root, &groups)
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .chain(installed)
        .min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn installed_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Every file that may hold a memory limit for this process. A limit on a parent group
/// binds too, so each level up to the top is included. An absent limit is the word
/// `max` (version 2) or a number beyond any real memory (version 1).
fn limit_files(root: &Path, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (mount, file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        for level in group.ancestors() {
            files.push(root.join(mount).join(level).join(file));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        assert_eq!(memory_bytes(root.path()), expected);
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  4096 kB\nMemFree: 1 kB\n");

    #[test]
    fn installed_memory_counts_when_nothing_limits_it() {
        check(&[MEMINFO], Some(4096 * 1024));
        check(
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", "max\n"),
            ],
            Some(4096 * 1024),
        );
    }

    #[test]
    fn a_parent_group_limits_its_children() {
        check(
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/pod/box\n"),
                ("sys/fs/cgroup/pod/memory.max", "1000\n"),
                ("sys/fs/cgroup/pod/box/memory.max", "2000\n"),
            ],
            Some(1000),
        );
    }

    #[test]
    fn the_first_version_of_control_groups_is_read() {
        check(
            &[
                MEMINFO,
                ("proc/self/cgroup", "5:cpu:/a\n4:memory,hugetlb:/a\n"),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500\n"),
            ],
            Some(500),
        );
    }

    #[test]
    fn an_unreadable_machine_says_so() {
        check(&[], None);
    }
}

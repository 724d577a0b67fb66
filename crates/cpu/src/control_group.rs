//! The memory that control groups leave this process (Linux; cgroup v1 and v2).
//!
//! A group counts the page cache of every file that it has read as used. Most of that is clean and dropped as soon as
//! something else is allocated, so the room of a group is its limit less what it uses and cannot drop. Each group on the
//! path from ours up to the root of the hierarchy has a limit of its own (a container in a pod, a service in a systemd
//! slice with `MemoryMax`), and the smallest room counts.
//!
//! Sources: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`; `proc(5)` for `mountinfo`.

use std::path::{Path, PathBuf};

/// v1 says "no limit" with the largest number of whole pages; no machine has so much memory.
const NO_LIMIT: u64 = 1 << 60;

/// What the groups allow, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMemory {
    /// The smallest limit on the path.
    pub(crate) limit: u64,
    /// The least that a group on the path can still give.
    pub(crate) available: u64,
}

/// Memory of the groups of this process, in the file system below `root` (`/`, but for tests); `None` where no group has a
/// limit, or the system has no groups.
pub(crate) fn group_memory(root: &Path) -> Option<GroupMemory> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let groups = std::fs::read_to_string(below("/proc/self/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string(below("/proc/self/mountinfo")).unwrap_or_default();
    let mut levels: Vec<GroupMemory> = Vec::new();
    for hierarchy in mounts.lines().filter_map(Hierarchy::of_mount) {
        let top = below(&hierarchy.mount_point);
        let Some(group) = groups.lines().find_map(|line| hierarchy.group_in(line)) else { continue };
        // Where the group is not below what is mounted (a group namespace of another process), the mount is all we see.
        let inside = Path::new(group).strip_prefix(&hierarchy.mounted).map_or(PathBuf::new(), Path::to_path_buf);
        let inside = if inside.components().any(|part| part.as_os_str() == "..") { PathBuf::new() } else { inside };
        levels.extend(inside.ancestors().filter_map(|part| hierarchy.version.memory_of(&top.join(part))));
    }
    levels
        .into_iter()
        .reduce(|a, b| GroupMemory { limit: a.limit.min(b.limit), available: a.available.min(b.available) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted hierarchy that counts memory, or may.
struct Hierarchy {
    version: Version,
    /// The group that is mounted.
    mounted: String,
    mount_point: String,
}

impl Hierarchy {
    /// From a line of `mountinfo`: `36 35 98:0 /mounted /mount/point rw,noatime master:1 - type source super,options`.
    fn of_mount(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup2" => Version::V2,
            "cgroup" if system.nth(1)?.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3).map(unescaped);
        Some(Self { version, mounted: mount.next()?, mount_point: mount.next()? })
    }

    /// The process's group, if this line of `/proc/self/cgroup` is of this hierarchy: `5:cpu,memory:/a/b`, `0::/a/b`.
    fn group_in<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match self.version {
            Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        is_ours.then_some(group)
    }
}

/// `mountinfo` writes a space, tab, newline and backslash as three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte.into());
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

impl Version {
    /// Memory of the group in `folder`; `None` if it has no limit.
    fn memory_of(self, folder: &Path) -> Option<GroupMemory> {
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let counted = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.trim().parse::<u64>().ok()
        };
        let (limits, used, prefix) = match self {
            // Above `memory.high` a group is not ended but slowed down to a crawl.
            Self::V2 => ([number("memory.max"), number("memory.high")], number("memory.current"), ""),
            // Groups above that we do not see count through the second.
            Self::V1 => (
                [number("memory.limit_in_bytes"), counted("hierarchical_memory_limit")],
                number("memory.usage_in_bytes"),
                "total_",
            ),
        };
        let limit = limits.into_iter().flatten().filter(|&limit| limit < NO_LIMIT).min()?;
        let of_files = |name: &str| counted(&format!("{prefix}{name}"));
        // The two lists of file pages have neither shared memory nor locked pages; `file` has both.
        let reclaimable = match (of_files("inactive_file"), of_files("active_file")) {
            (None, None) => {
                let shared = of_files("shmem").unwrap_or(0);
                of_files("file").or_else(|| of_files("cache")).unwrap_or(0).saturating_sub(shared)
            }
            (inactive, active) => inactive.unwrap_or(0).saturating_add(active.unwrap_or(0)),
        };
        let kept = used.unwrap_or(0).saturating_sub(reclaimable);
        Some(GroupMemory { limit, available: limit.saturating_sub(kept) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// A file system of its own below a temporary folder.
    fn system(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("hotmetal-groups-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        root
    }

    fn found(name: &str, files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = system(name, files);
        let memory = group_memory(&root);
        std::fs::remove_dir_all(root).expect("it is removed");
        memory.map(|memory| (memory.limit / GB, memory.available / GB))
    }

    const V2: &str = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn page_cache_of_a_full_group_is_free_memory() {
        let full = |stat| {
            found(
                "full",
                &[
                    ("proc/self/cgroup", "0::/\n"),
                    ("proc/self/mountinfo", V2),
                    ("sys/fs/cgroup/memory.max", "8000000000\n"),
                    ("sys/fs/cgroup/memory.high", "max\n"),
                    ("sys/fs/cgroup/memory.current", "7900000000\n"),
                    ("sys/fs/cgroup/memory.stat", stat),
                ],
            )
        };
        assert_eq!(full("anon 900000000\nfile 7000000000\n"), Some((8, 7)));
        // Shared memory is in `file`, and cannot be dropped.
        assert_eq!(full("file 7000000000\nshmem 2000000000\n"), Some((8, 5)));
        assert_eq!(full("file 7000000000\ninactive_file 1000000000\nactive_file 3000000000\n"), Some((8, 4)));
        assert_eq!(full("anon 7900000000\nfile 0\n"), Some((8, 0)));
    }

    #[test]
    fn the_smallest_room_on_the_path_counts() {
        // A service in a slice: `MemoryMax` of the slice, none of the service's own, and a throttle further up.
        let nested = found(
            "nested",
            &[
                ("proc/self/cgroup", "0::/user.slice/user-1.slice/x.service\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/user.slice/memory.max", "max"),
                ("sys/fs/cgroup/user.slice/memory.high", "9000000000"),
                ("sys/fs/cgroup/user.slice/memory.current", "6000000000"),
                ("sys/fs/cgroup/user.slice/memory.stat", "file 1000000000"),
                ("sys/fs/cgroup/user.slice/user-1.slice/memory.max", "6000000000"),
                ("sys/fs/cgroup/user.slice/user-1.slice/memory.current", "1000000000"),
                ("sys/fs/cgroup/user.slice/user-1.slice/memory.stat", ""),
                ("sys/fs/cgroup/user.slice/user-1.slice/x.service/memory.max", "max"),
            ],
        );
        assert_eq!(nested, Some((6, 4)));
    }

    #[test]
    fn version_one_has_its_own_names() {
        let mount = "40 30 0:35 /docker/abc /sys/fs/cgroup/memory ro shared:9 - cgroup cgroup rw,memory\n\
                     41 30 0:36 /docker/abc /sys/fs/cgroup/cpu ro shared:9 - cgroup cgroup rw,cpu\n";
        let limited = |limit: &str, stat: &str| {
            found(
                "v1",
                &[
                    ("proc/self/cgroup", "11:cpu:/docker/abc\n5:hugetlb,memory:/docker/abc\n0::/docker/abc\n"),
                    ("proc/self/mountinfo", mount),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
                    ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000000\n"),
                    ("sys/fs/cgroup/memory/memory.stat", stat),
                ],
            )
        };
        let files = "cache 2500000000\ntotal_inactive_file 1500000000\ntotal_active_file 500000000\n";
        assert_eq!(limited("4000000000\n", files), Some((4, 3)));
        // The parent's limit, which is not mounted here.
        let parents = format!("hierarchical_memory_limit 2000000000\n{files}");
        assert_eq!(limited("9223372036854771712\n", &parents), Some((2, 1)));
        assert_eq!(limited("9223372036854771712\n", files), None);
    }

    #[test]
    fn a_group_that_is_not_below_the_mount_is_the_mount() {
        for group in ["/../outside", "/elsewhere"] {
            let odd = found(
                "odd",
                &[
                    ("proc/self/cgroup", &format!("0::{group}\n")),
                    ("proc/self/mountinfo", "29 22 0:26 /mine /sys/fs/cg\\040roup rw - cgroup2 none rw\n"),
                    ("sys/fs/cg roup/memory.max", "2000000000"),
                    ("sys/fs/cg roup/memory.current", "1000000000"),
                ],
            );
            assert_eq!(odd, Some((2, 1)), "{group}");
        }
        assert_eq!(found("none", &[("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", V2)]), None);
        assert_eq!(found("nothing", &[("proc/x", "")]), None);
    }
}

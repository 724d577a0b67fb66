//! Nodes of memory: which processors are near which, and who sits where.
//!
//! On a machine with several, a page lies on the node of the thread that touched it first. So the team is spread over the
//! nodes ([`seats`]); items of an op are handed out by ranges, a range for each node ([`crate::pool::Turns`]), when weights
//! are packed as when they are read, so that a thread mostly reads what its own node packed; and the KV cache, which every
//! thread reads, lies on all nodes in turns ([`interleave`]). With one node, all of this does nothing.

use std::path::Path;

/// Where Linux lists them.
const NODES: &str = "/sys/devices/system/node";

/// More than any processor's number: a list from elsewhere must not make us count for ever.
const MAX_NUMBER: usize = 1 << 16;

/// A node of memory that has processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its number in the system.
    pub(crate) number: usize,
    /// Ascending.
    pub(crate) processors: Vec<usize>,
}

/// The nodes of this machine that have processors; none where the system does not say.
pub(crate) fn nodes() -> Vec<Node> {
    if cfg!(all(target_os = "linux", not(miri))) { nodes_in(Path::new(NODES)) } else { vec![] }
}

/// As [`nodes`], from a folder like Linux's.
fn nodes_in(folder: &Path) -> Vec<Node> {
    let read = |path: &Path| std::fs::read_to_string(path).ok().and_then(|text| numbers(&text));
    let online = read(&folder.join("online")).unwrap_or_default();
    let node = |number| {
        let processors = read(&folder.join(format!("node{number}/cpulist")))?;
        (!processors.is_empty()).then_some(Node { number, processors })
    };
    online.into_iter().filter_map(node).collect()
}

/// The numbers of a list such as `0-3,8`, ascending; `None` where it is none.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last > MAX_NUMBER {
            return None;
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Where a worker sits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The processor to keep to; none where there are fewer than workers, which would be stacked up.
    pub(crate) processor: Option<usize>,
    /// The place of its node among those that have workers.
    pub(crate) node: usize,
}

/// The seats of `count` workers on the processors that are `allowed`: by turns on each node, so that every node's memory is
/// used, or in order where there is one node or the workers do not all have a processor.
pub(crate) fn seats(count: usize, allowed: &[usize], nodes: &[Node]) -> Vec<Seat> {
    let mut free: Vec<_> = nodes
        .iter()
        .map(|node| node.processors.iter().filter(|&processor| allowed.contains(processor)).copied())
        .filter(|processors| processors.clone().next().is_some())
        .collect();
    let known: usize = free.iter().map(|processors| processors.clone().count()).sum();
    let nodes = free.len();
    if nodes < 2 || count < nodes || known < count {
        let processor = |index| allowed.get(index).copied().filter(|_| allowed.len() >= count);
        return (0..count).map(|index| Seat { processor: processor(index), node: 0 }).collect();
    }
    let mut seats = Vec::with_capacity(count);
    for node in (0..nodes).cycle() {
        if seats.len() == count {
            break;
        }
        seats.extend(free[node].next().map(|processor| Seat { processor: Some(processor), node }));
    }
    seats
}

/// Spreads pages that nobody has touched yet over all nodes with processors, by turns. Does nothing where there is one; a
/// refusal costs speed only.
pub(crate) fn interleave<T>(memory: &mut [T]) {
    let nodes = nodes();
    if nodes.len() > 1 {
        interleave_over(memory, &nodes);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn interleave_over<T>(memory: &mut [T], nodes: &[Node]) {
    const BITS: usize = libc::c_ulong::BITS as usize;
    // SAFETY: `sysconf` only reads its argument.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    // Whole pages within the memory: the ends may be shared with others.
    let bytes = memory.as_mut_ptr_range();
    let (start, end) = (bytes.start.addr().next_multiple_of(page), bytes.end.addr() / page * page);
    let mut mask = [0; MAX_NUMBER / BITS / 16];
    for node in nodes {
        let Some(word) = mask.get_mut(node.number / BITS) else { return };
        *word |= (1 as libc::c_ulong) << (node.number % BITS);
    }
    if start < end {
        let mode = libc::MPOL_INTERLEAVE as libc::c_ulong;
        let (most, flags) = ((mask.len() * BITS) as libc::c_ulong, 0 as libc::c_ulong);
        // SAFETY: a policy for pages of ours, which changes no contents; the mask is as long as we say.
        unsafe { libc::syscall(libc::SYS_mbind, start, end - start, mode, mask.as_ptr(), most, flags) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn interleave_over<T>(_memory: &mut [T], _nodes: &[Node]) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize, processors: impl IntoIterator<Item = usize>) -> Node {
        Node { number, processors: processors.into_iter().collect() }
    }

    fn places(count: usize, allowed: impl IntoIterator<Item = usize>, nodes: &[Node]) -> Vec<(Option<usize>, usize)> {
        let allowed: Vec<usize> = allowed.into_iter().collect();
        seats(count, &allowed, nodes).into_iter().map(|seat| (seat.processor, seat.node)).collect()
    }

    #[test]
    fn lists_are_read_and_nonsense_is_not() {
        assert_eq!(numbers("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(numbers("5,2-3,3"), Some(vec![2, 3, 5]));
        assert_eq!(numbers("\n"), Some(vec![]));
        for nonsense in ["x", "1-", "-", "0-99999999999", "1-70000", "99999999999999999999"] {
            assert_eq!(numbers(nonsense), None, "{nonsense}");
        }
        assert_eq!(numbers("3-1"), Some(vec![]));
    }

    #[test]
    fn a_folder_like_the_systems_is_read() {
        let folder = std::env::temp_dir().join(format!("hotmetal-nodes-{}", std::process::id()));
        assert_eq!(nodes_in(&folder), []);
        // Node 1 has memory alone, node 3 is not described.
        for (number, list) in [(0, "0-1,4"), (1, ""), (2, "2-3\n")] {
            std::fs::create_dir_all(folder.join(format!("node{number}"))).unwrap();
            std::fs::write(folder.join(format!("node{number}/cpulist")), list).unwrap();
        }
        std::fs::write(folder.join("online"), "0-3\n").unwrap();
        let found = nodes_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [node(0, [0, 1, 4]), node(2, [2, 3])]);
    }

    #[test]
    fn workers_are_spread_over_nodes_where_each_has_a_processor() {
        let two = [node(0, 0..4), node(2, 4..8)];
        let spread = [(Some(0), 0), (Some(4), 1), (Some(1), 0), (Some(5), 1)];
        assert_eq!(places(4, 0..8, &two), spread);
        assert_eq!(places(3, 0..8, &two), spread[..3]);
        // All of them, and nodes of different sizes: who is full is passed over.
        let uneven = [node(0, [0]), node(1, 1..4)];
        assert_eq!(places(4, 0..4, &uneven), [(Some(0), 0), (Some(1), 1), (Some(2), 1), (Some(3), 1)]);
        // What the process may not use does not count, nor does a node that has nothing left.
        assert_eq!(places(2, [1, 2, 3, 5], &two), [(Some(1), 0), (Some(5), 1)]);
        assert_eq!(places(2, 4..8, &two), [(Some(4), 0), (Some(5), 0)]);
    }

    #[test]
    fn one_node_few_workers_or_many_sit_as_without_nodes() {
        let two = [node(0, 0..2), node(1, 2..4)];
        assert_eq!(places(2, 0..4, &[]), [(Some(0), 0), (Some(1), 0)]);
        assert_eq!(places(2, 0..4, &two[..1]), [(Some(0), 0), (Some(1), 0)]);
        assert_eq!(places(1, 0..4, &two), [(Some(0), 0)]);
        assert_eq!(places(5, 0..4, &two), [(None, 0); 5]);
        // Pinning is off.
        assert_eq!(places(2, [], &two), [(None, 0); 2]);
    }

    #[test]
    fn memory_stays_what_it_is() {
        let mut memory = vec![7u8; 100_000];
        interleave(&mut memory);
        interleave_over(&mut memory, &[node(0, [0])]);
        interleave_over(&mut memory[..10], &[node(0, [0])]);
        interleave_over(&mut memory, &[node(MAX_NUMBER * 64, [0])]);
        assert!(memory.iter().all(|&byte| byte == 7));
    }
}

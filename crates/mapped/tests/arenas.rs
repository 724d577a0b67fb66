//! The allocator's arenas as the system sees them. A process of its own, since the setting holds for all of it.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

use std::{fs, sync::Barrier, thread};

/// Arenas beside the first, by the address space that each keeps for itself: 64 MiB, of which most cannot be accessed yet.
fn arenas() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_reserved = |line: &&str| {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next().unwrap(), fields.next().unwrap());
        let ends: Vec<u64> = range.split('-').map(|end| u64::from_str_radix(end, 16).unwrap()).collect();
        access == "---p" && ends[1].is_multiple_of(64 << 20) && (32 << 20..64 << 20).contains(&(ends[1] - ends[0]))
    };
    maps.lines().filter(is_reserved).count()
}

/// Threads that all have memory at once, as those that prepare requests do.
fn allocate_in_threads(count: usize) -> usize {
    let all_have = Barrier::new(count + 1);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let pieces: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 4096]).collect();
                all_have.wait();
                all_have.wait();
                drop(pieces);
            });
        }
        all_have.wait();
        let found = arenas();
        all_have.wait();
        found
    })
}

#[test]
fn many_threads_share_two_arenas() {
    mapped::keep_few_arenas(2);
    // The harness has made a thread or two before.
    let before = arenas();
    let found = allocate_in_threads(16);
    assert!(found <= before.max(1), "{before} arenas before, and then {found}");
}

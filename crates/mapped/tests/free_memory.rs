//! Memory that was freed goes back to the system when it is asked for. A process of its own, since all of it is counted.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn what_is_free_between_pieces_in_use_goes_back() {
    // Pieces too small to be mapped by themselves, and one behind them that stays.
    let mut pieces: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; 16 << 10]).collect();
    let last = pieces.pop();
    let full = resident();
    drop(pieces);
    mapped::give_back_free_memory();
    let left = resident();
    assert!(left + (96 << 20) < full, "{full} bytes, and then {left}");
    drop(last);
}

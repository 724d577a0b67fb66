//! What the backend refuses, by message.

use std::sync::Arc;

use backend::Backend;
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};
use plan::{KvFormat, KvLayout, fuse};
use tensor::WeightFormat;
use testing::tiny::tiny_model;

#[test]
fn a_cache_that_memory_cannot_hold_is_refused_before_it_is_allocated() {
    let (plan, weights) = tiny_model("llama", 1, WeightFormat::F32);
    let plan = Arc::new(fuse((*plan).clone()));
    let backend = CpuBackend::new(CpuOptions::default()).unwrap();
    for num_blocks in [1 << 40, usize::MAX / 2] {
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks };
        let error = backend.load(plan.clone(), weights.clone(), kv).err().unwrap().to_string();
        assert!(
            error.starts_with("device `cpu` cannot hold a KV cache of ") && error.contains("--ctx-size"),
            "{error}"
        );
        let says_what_is_free = error.contains(" MiB: ") && error.contains(" of its memory are free");
        assert!(says_what_is_free || cpu::available_bytes().is_none(), "{error}");
    }
}

#[test]
fn a_large_cache_costs_nothing_until_it_is_used() {
    let (plan, weights) = tiny_model("llama", 1, WeightFormat::F32);
    let plan = Arc::new(fuse((*plan).clone()));
    let backend = CpuBackend::new(CpuOptions::default()).unwrap();
    let per_block = plan.kv_bytes_per_token(KvFormat::F32) * 16;
    let kv = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: (1 << 30) / per_block };
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
    };
    let Some(before) = resident() else { return eprintln_skip("no /proc/self/statm") };
    let _executable = backend.load(plan, weights, kv).unwrap();
    let grown = resident().unwrap().saturating_sub(before);
    assert!(grown < 100 << 20, "a cache of 1 GiB took {grown} bytes at once");
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn eprintln_skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

#[test]
fn options_that_this_machine_cannot_serve_are_named() {
    for threads in [0, 1025] {
        let error = CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap_err();
        assert_eq!(error.to_string(), format!("{threads} threads asked for; between 1 and 1024 are possible"));
    }
    let missing = IsaLevel::ALL.into_iter().find(|&level| Isa::new(level).is_none()).expect("no CPU has all");
    let error = CpuBackend::new(CpuOptions { isa: Some(missing), ..CpuOptions::default() }).unwrap_err();
    assert!(error.to_string().starts_with(&format!("this processor has no {missing}; it has scalar")), "{error}");
}

#[test]
fn the_device_says_what_it_is() {
    let backend = CpuBackend::new(CpuOptions {
        threads: Some(2),
        isa: Some(IsaLevel::Scalar),
        pin: false,
        ..CpuOptions::default()
    })
    .unwrap();
    let device = backend.device();
    assert_eq!(device.name, "cpu");
    assert!(device.description.ends_with(", scalar, 2 threads"), "{}", device.description);
    assert!(device.memory_bytes > 1 << 20);
}

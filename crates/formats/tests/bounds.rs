//! Memory, time and stack stay in proportion to the file, on the worst files we know of.

mod valid;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt::Write,
    time::Duration,
};

use bytes::Bytes;
use formats::{
    Checkpoint,
    gguf::{Array, GgmlType, GgufWriter, Value},
};

/// Counts what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(add: usize, subtract: usize) {
    // A thread that is ending has no counter any more, and no test either.
    let _ = HELD.try_with(|held| {
        held.set((held.get() + add).saturating_sub(subtract));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every method passes its arguments on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old and the new block exist together for a moment.
        count(new_size, 0);
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A family of files: its name, and the files of a given size (in some unit that makes size 1 a few kilobytes).
type Family = (&'static str, fn(usize) -> Vec<(&'static str, Bytes)>);

const FAMILIES: [Family; 14] = [
    ("GGUF, many keys", |size| gguf(|writer| (0..200 * size).for_each(|i| key(writer, &format!("{i:x}"))))),
    ("GGUF, many tensors", |size| {
        gguf(|writer| {
            writer.metadata("general.alignment", Value::U32(1));
            for i in 0..100 * size {
                writer.raw_tensor(&format!("{i:x}"), i8_type(), &[1], Bytes::from_static(b"x"));
            }
        })
    }),
    ("GGUF, tensors with names that differ at the end", |size| {
        gguf(|writer| {
            for i in 0..20 * size {
                let name = format!("blk.0.{}{i:x}", "x".repeat(200));
                writer.raw_tensor(&name, i8_type(), &[1], Bytes::from_static(b"x"));
            }
        })
    }),
    ("GGUF, a vocabulary of empty tokens", |size| {
        gguf(|writer| {
            vocabulary(writer, Array::of_strings((0..500 * size).map(|_| "")));
        })
    }),
    ("GGUF, a vocabulary of long tokens", |size| {
        let token = "t".repeat(500);
        gguf(|writer| {
            vocabulary(writer, Array::of_strings((0..10 * size).map(|_| token.as_str())));
        })
    }),
    ("GGUF, arrays of empty arrays", |size| {
        gguf(|writer| {
            let empty = Array::of_i32(&[]);
            writer.metadata("x", Value::Array(Array::of_arrays((0..400 * size).map(|_| &empty))));
        })
    }),
    ("GGUF, arrays in arrays", |size| {
        gguf(|writer| {
            for i in 0..4 * size {
                let deep = (0..60).fold(Array::of_i32(&[1]), |array, _| Array::of_arrays([&array]));
                writer.metadata(&format!("{i}"), Value::Array(deep));
            }
        })
    }),
    ("GGUF, many experts", |size| gguf(|writer| experts(writer, 100 * size))),
    ("GGUF, many experts and tensors", |size| {
        gguf(|writer| {
            writer.metadata("general.alignment", Value::U32(1));
            for i in 0..50 * size {
                writer.raw_tensor(&format!("{i:x}"), i8_type(), &[1], Bytes::from_static(b"x"));
            }
            experts(writer, 50 * size);
        })
    }),
    ("safetensors, many experts", |size| {
        let len = 100 * size;
        let name = "model.layers.0.mlp.experts.down_proj_bias";
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[{len},1],"data_offsets":[0,{len}]}}}}"#);
        let mut folder = safetensors(header, len);
        folder[0].1 = Bytes::from_static(br#"{"model_type": "gpt_oss"}"#);
        folder
    }),
    ("safetensors, many tensors", |size| {
        let mut header = String::from("{");
        for i in 0..60 * size {
            let comma = if i == 0 { "" } else { "," };
            let end = i + 1;
            write!(header, r#"{comma}"{i:x}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{end}]}}"#).unwrap();
        }
        safetensors(header + "}", 60 * size)
    }),
    ("safetensors, many metadata keys", |size| {
        let entries: Vec<String> = (0..300 * size).map(|i| format!(r#""{i:x}":"""#)).collect();
        safetensors(format!(r#"{{"__metadata__":{{{}}}}}"#, entries.join(",")), 0)
    }),
    ("config.json, many values", |size| {
        let mut folder = valid::folder();
        folder[0].1 = format!(r#"{{"x":[0{}]}}"#, ",0".repeat(300 * size)).into();
        folder
    }),
    ("config.json, many keys", |size| {
        let mut folder = valid::folder();
        let keys: Vec<String> = (0..300 * size).map(|i| format!(r#""{i:x}":0"#)).collect();
        folder[0].1 = format!("{{{}}}", keys.join(",")).into();
        folder
    }),
];

fn gguf(fill: impl FnOnce(&mut GgufWriter)) -> Vec<(&'static str, Bytes)> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    fill(&mut writer);
    vec![("model.gguf", writer.to_bytes())]
}

fn key(writer: &mut GgufWriter, name: &str) {
    writer.metadata(name, Value::U8(1));
}

fn vocabulary(writer: &mut GgufWriter, tokens: Array) {
    writer.metadata("tokenizer.ggml.model", Value::String("gpt2".into()));
    writer.metadata("tokenizer.ggml.tokens", Value::Array(tokens));
}

/// So many experts in one tensor, of one byte each.
fn experts(writer: &mut GgufWriter, count: usize) {
    writer.metadata("llama.expert_count", Value::U32(count as u32));
    writer.raw_tensor("blk.0.ffn_up_exps.weight", i8_type(), &[1, 1, count as u64], vec![0; count].into());
}

fn i8_type() -> GgmlType {
    GgmlType::from_id(24).unwrap()
}

fn safetensors(header: String, data: usize) -> Vec<(&'static str, Bytes)> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + data, 0);
    let mut folder = valid::folder();
    folder[1].1 = file.into();
    folder
}

/// Opens a checkpoint and lists it; an error is as good as a value here.
fn open(files: &[(&'static str, Bytes)]) {
    if let Ok(checkpoint) = Checkpoint::from_bytes(files, &valid::mixtures::ARCHITECTURES) {
        assert_eq!(checkpoint.tensor_infos().count(), checkpoint.tensor_names().len());
    }
}

#[test]
fn memory_is_at_most_four_times_the_file_and_16_mib() {
    for (name, family) in FAMILIES {
        // Up to files that are refused for their size, where a budget is spent to the end.
        for size in [1, 30, 1000, 4000] {
            let files = family(size);
            let file_len: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
            drop(files.clone()); // the first clone of `Bytes` allocates its reference count
            let before = HELD.get();
            PEAK.set(before);
            open(&files);
            let (peak, bound) = (PEAK.get() - before, 4 * file_len + (16 << 20));
            assert!(peak <= bound, "{name}, {file_len} bytes: {peak} bytes held, at most {bound} allowed");
            assert_eq!(HELD.get(), before, "{name}, size {size}: nothing is kept");
        }
    }
}

#[test]
fn twice_the_file_takes_at_most_2_6_times_as_long() {
    const RATIO_MAX: f64 = 2.6;
    for (name, family) in FAMILIES {
        let sizes = [2, 4, 8, 16, 32, 64, 128].map(family);
        // Noise only ever adds time, so the least of some runs is compared, and the mean over the doublings: one step
        // may cost more than the next because a cache or the allocator's threshold lies there. Quadratic time is a
        // ratio of 4 in every step. A ratio above the bound is measured again before it is believed.
        let ratios: Vec<f64> = (0..5).map(|_| mean_ratio(&sizes)).take_while(|&ratio| ratio > RATIO_MAX).collect();
        assert!(ratios.len() < 5, "{name}: {ratios:.2?} times as long for twice the size");
    }
}

fn mean_ratio(sizes: &[Vec<(&'static str, Bytes)>; 7]) -> f64 {
    let [first, .., last] = sizes.each_ref().map(|files| (0..7).map(|_| time(files)).min().unwrap().as_secs_f64());
    (last / first).powf(1.0 / (sizes.len() - 1) as f64)
}

/// The processor time that opening takes: other processes may run in between, but do not count.
#[cfg(unix)]
fn time(files: &[(&'static str, Bytes)]) -> Duration {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid timespec to write to.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(failed, 0, "every Unix has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = now();
    open(files);
    now() - start
}

#[cfg(not(unix))]
fn time(files: &[(&'static str, Bytes)]) -> Duration {
    let start = std::time::Instant::now();
    open(files);
    start.elapsed()
}

#[test]
fn the_deepest_nesting_fits_a_stack_of_2_mib() {
    let deep_json = |depth: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let run = move || {
        for depth in [1, 62, 63, 64, 65, 127, 128, 129, 100_000] {
            let mut folder = valid::folder();
            folder[0].1 = deep_json(depth).into();
            assert_eq!(
                Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).is_ok(),
                depth < 64,
                "JSON, depth {depth}"
            );
            let mut folder = valid::sharded_folder();
            folder[1].1 = format!(r#"{{"metadata":{},"weight_map":{{}}}}"#, deep_json(depth)).into();
            assert_eq!(
                Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).is_ok(),
                depth < 63,
                "index, depth {depth}"
            );
        }
        for depth in [1, 63, 64, 1000] {
            let deep = (1..depth).fold(Array::of_i32(&[1]), |array, _| Array::of_arrays([&array]));
            let files = gguf(|writer| {
                writer.metadata("x", Value::Array(deep));
            });
            assert_eq!(
                Checkpoint::from_bytes(&files, &valid::ARCHITECTURES).is_ok(),
                depth <= 64,
                "GGUF, depth {depth}"
            );
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

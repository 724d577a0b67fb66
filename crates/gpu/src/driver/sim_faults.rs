//! The kernels of `kernels/planted_faults.h`, and those of `kernels/port/metal_sim/planted_faults.h` in Metal's words: each
//! is wrong in one way, and the simulator has to say so.

use super::sim::{SimDialect, SimDriver, SimFaults, ThreadOrder};
use super::{Driver, DriverError};
use crate::launch::{Access, Launch, Region};
use crate::params::{Address, FaultParams};

/// Elements of the result: no multiple of anything.
const LEN: usize = 101;
/// Bytes from `y` to `x`, as the kernel that writes to its input knows.
const X_AT: u64 = 4096;

const BOTH: [ThreadOrder; 2] = [ThreadOrder::Forward, ThreadOrder::Reverse];

/// Runs a planted fault on two groups; its result, or what the simulator said.
fn run(kernel: &'static str, order: ThreadOrder) -> Result<Vec<f32>, String> {
    run_in(SimDialect::Cuda, kernel, order, |launch| launch)
}

/// The same in Metal's words.
fn run_on_metal(kernel: &'static str, order: ThreadOrder) -> Result<Vec<f32>, String> {
    run_in(SimDialect::Metal, kernel, order, |launch| launch)
}

fn run_in(
    dialect: SimDialect,
    kernel: &'static str,
    order: ThreadOrder,
    change: impl FnOnce(Launch) -> Launch,
) -> Result<Vec<f32>, String> {
    let mut driver = SimDriver::new(dialect, order, 1 << 20, SimFaults::default());
    let memory = Region { address: driver.allocate(3 * X_AT).unwrap(), bytes: 3 * X_AT };
    // Memory on both sides is the driver's own, so that only a check of operands can tell.
    let (y, x) = (memory.part(X_AT, LEN as u64 * 4), memory.part(2 * X_AT, LEN as u64 * 4));
    driver.upload(x.address, bytemuck::cast_slice(&[1f32; LEN])).unwrap();
    let params = FaultParams { y: y.address, x: x.address, n: LEN as i32, one: 1 };
    let launch = Launch::new(kernel, [2, 1, 1], &params).with(Access::Write, y).with(Access::Read, x);
    match driver.launch(&change(launch)) {
        Err(DriverError::Failed(message)) => Err(message),
        Err(error) => panic!("{error}"),
        Ok(()) => {
            let mut found = vec![0f32; LEN];
            driver.download(y.address, bytemuck::cast_slice_mut(&mut found)).unwrap();
            Ok(found)
        }
    }
}

#[test]
fn what_a_kernel_may_not_do_is_reported() {
    let cases = [
        ("fault_barrier_by_some", "divergent group barrier: 64 of 128 threads"),
        ("fault_return_before_barrier", "divergent group barrier: 101 of 128 threads"),
        ("fault_sum_by_some", "divergent sum_lanes: 20 of 32 lanes of SIMD group"),
        ("fault_sum_beside_max", "divergent max_lanes: 32 of 32 lanes of SIMD group"),
        ("fault_read_outside", "access of 4 bytes outside every operand"),
        ("fault_write_outside", "access of 4 bytes outside every operand"),
        ("fault_write_just_past", "4 bytes past the end of operand 0"),
        ("fault_write_just_before", "4 bytes before operand 0"),
        ("fault_write_to_input", "write to operand 1, which is only read, at byte 0"),
        ("fault_group_index_outside", "index outside an array at"),
        ("fault_overflow", "32-bit overflow at"),
        ("fault_read_before_wait", "access to operand 1 before wait_for_previous()"),
        ("fault_misaligned", "misaligned access of 4 bytes"),
    ];
    for (kernel, expected) in cases {
        for order in [ThreadOrder::Forward, ThreadOrder::Reverse] {
            let message = run(kernel, order).expect_err(kernel);
            assert!(message.contains(expected), "{kernel}, {order:?}: {message}");
            assert!(message.starts_with(&format!("`{kernel}`, group (")), "{message}");
        }
    }
}

/// Kernels that read past an array through a plain pointer, and what the address sanitizer calls that.
const ONLY_FOR_THE_SANITIZER: [(&str, &str); 2] =
    [("fault_register_pointer_outside", "stack-buffer-overflow"), ("fault_group_pointer_outside", "use-after-poison")];

#[cfg(not(feature = "asan"))]
#[test]
fn what_the_address_sanitizer_is_for_is_seen_by_nothing_else() {
    for (kernel, _) in ONLY_FOR_THE_SANITIZER {
        for order in BOTH {
            run(kernel, order).expect(kernel);
        }
    }
}

/// What the next test runs in a program of its own, since it ends that.
#[cfg(feature = "asan")]
#[test]
#[ignore = "ends the program"]
fn a_register_behind_a_pointer() {
    run(ONLY_FOR_THE_SANITIZER[0].0, ThreadOrder::Forward).expect("nothing else sees it");
}

#[cfg(feature = "asan")]
#[test]
#[ignore = "ends the program"]
fn group_memory_behind_a_pointer() {
    run(ONLY_FOR_THE_SANITIZER[1].0, ThreadOrder::Forward).expect("nothing else sees it");
}

#[cfg(feature = "asan")]
#[test]
fn the_address_sanitizer_sees_what_nothing_else_does() {
    use std::process::Command;

    let tests = ["a_register_behind_a_pointer", "group_memory_behind_a_pointer"];
    for ((kernel, expected), test) in ONLY_FOR_THE_SANITIZER.into_iter().zip(tests) {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--ignored", "--nocapture", &format!("driver::sim_faults::{test}")]);
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{kernel} went on: {said}");
        assert!(said.contains(&format!("ERROR: AddressSanitizer: {expected}")), "{kernel}: {said}");
        assert!(said.contains(&format!("`{kernel}`, group (0, 0, 0), SIMD group ")), "{kernel}: {said}");
        assert!(said.contains("planted_faults.h:"), "{kernel}: {said}");
    }
}

#[test]
fn the_place_of_a_fault_is_named() {
    let message = run("fault_write_just_past", ThreadOrder::Forward).unwrap_err();
    assert!(message.starts_with("`fault_write_just_past`, group (0, 0, 0), SIMD group 0, lane 0: "), "{message}");
    let message = run("fault_group_index_outside", ThreadOrder::Forward).unwrap_err();
    assert!(message.contains("SIMD group 3, lane 31") && message.contains("planted_faults.h:"), "{message}");
}

#[test]
fn races_make_the_thread_orders_disagree() {
    for kernel in ["fault_no_barrier", "fault_groups_race"] {
        let [forward, reverse] = [ThreadOrder::Forward, ThreadOrder::Reverse].map(|order| run(kernel, order).unwrap());
        let bits = |found: &[f32]| found.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_ne!(bits(&forward), bits(&reverse), "{kernel}");
    }
}

#[test]
fn what_was_never_written_is_nan() {
    let found = run("fault_group_memory_unwritten", ThreadOrder::Forward).unwrap();
    assert!(found.iter().all(|x| x.is_nan()));
    let found = run("fault_result_unwritten", ThreadOrder::Forward).unwrap();
    assert!(found[LEN - 1].is_nan() && found[..LEN - 1].iter().all(|&x| x == 1.0));
}

#[test]
fn what_the_step_wrote_is_not_read_before_the_wait() {
    let mut driver = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 1 << 20, SimFaults::default());
    let memory = Region { address: driver.allocate(3 * X_AT).unwrap(), bytes: 3 * X_AT };
    let (y, x) = (memory.part(X_AT, LEN as u64 * 4), memory.part(2 * X_AT, LEN as u64 * 4));
    let launch = |kernel, y: Region, x: Region, access| {
        let params = FaultParams { y: y.address, x: x.address, n: LEN as i32, one: 1 };
        Launch::new(kernel, [1, 1, 1], &params).with(access, y).with(Access::Read, x)
    };
    let copy = launch("fault_copy_before_wait", y, x, Access::Write);
    for access in [Access::Write, Access::Update] {
        driver.upload(x.address, bytemuck::cast_slice(&[1f32; LEN])).unwrap();
        assert_eq!(driver.launch(&copy), Ok(()), "{access:?}");
        // A kernel that writes all of `x`.
        driver.launch(&launch("fault_groups_race", x, y, access)).unwrap();
        let error = driver.launch(&copy).unwrap_err().to_string();
        assert!(error.contains("access to operand 1 before wait_for_previous()"), "{access:?}: {error}");
    }
}

#[test]
fn copies_that_are_not_awaited_are_nan() {
    let found = run("fault_copy_not_awaited", ThreadOrder::Forward).unwrap();
    assert!(found[0].is_nan());
}

#[test]
fn launches_that_do_not_fit_their_kernel_are_refused() {
    let message = run("no_such_kernel", ThreadOrder::Forward).unwrap_err();
    assert_eq!(message, "there is no kernel `no_such_kernel`");
    let launch = Launch::new("fault_overflow", [1, 1, 1], &Address(0));
    let error = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 0, SimFaults::default())
        .launch(&launch)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`fault_overflow` takes 24 bytes of parameters and 128 threads, not 8 and 128");
}

#[test]
fn memory_has_an_end() {
    let mut driver = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 1000, SimFaults::default());
    let first = driver.allocate(600).unwrap();
    assert_eq!(driver.allocate(401), Err(DriverError::OutOfMemory { bytes: 401, free_bytes: Some(400) }));
    driver.free(first);
    assert!(driver.allocate(1000).is_ok());
}

/// Each kernel of `cases` is reported with its message, in either order, and by its name.
fn are_reported_on_metal(cases: &[(&'static str, &str)]) {
    for &(kernel, expected) in cases {
        for order in BOTH {
            let message = run_on_metal(kernel, order).expect_err(kernel);
            assert!(message.contains(expected), "{kernel}, {order:?}: {message}");
            assert!(message.starts_with(&format!("`{kernel}`, group (")), "{message}");
        }
    }
}

#[test]
#[cfg_attr(feature = "asan", ignore = "the compiler reports accesses of Metal's text through another sanitizer")]
fn what_a_kernel_of_metal_may_not_do_is_reported() {
    are_reported_on_metal(&[
        ("fault_barrier_by_some", "divergent group barrier: 64 of 128 threads"),
        ("fault_return_before_barrier", "divergent group barrier: 101 of 128 threads"),
        ("fault_shuffle_by_some", "divergent simd_shuffle_xor: 20 of 32 lanes of SIMD group"),
        ("fault_shuffle_beside_any", "32 of 32 lanes of SIMD group"),
        ("fault_read_outside", "access of 4 bytes outside every operand"),
        ("fault_write_outside", "access of 4 bytes outside every operand"),
        ("fault_write_just_past", "4 bytes past the end of operand 0"),
        ("fault_write_just_before", "4 bytes before operand 0"),
        ("fault_write_to_input", "write to operand 1, which is only read, at byte 0"),
        ("fault_group_index_outside", "index outside an array at"),
        ("fault_group_pointer_outside", "access of 4 bytes at byte 1024 of 1024 of group memory"),
        ("fault_overflow", "32-bit overflow at"),
        ("fault_misaligned", "misaligned access at"),
    ]);
}

#[test]
#[cfg_attr(feature = "asan", ignore = "the compiler reports accesses of Metal's text through another sanitizer")]
fn missing_barriers_of_metal_are_races_in_either_order() {
    are_reported_on_metal(&[
        ("fault_no_barrier", "race in group memory: byte "),
        ("fault_no_barrier_before_write", "race in group memory: byte "),
        ("fault_simd_barrier_too_small", "race in group memory: byte "),
        ("fault_matrix_no_barrier", "race in group memory: byte "),
    ]);
    let [forward, reverse] = BOTH.map(|order| run_on_metal("fault_groups_race", order).unwrap());
    assert_ne!(forward, reverse);
}

/// Element `n` of the square of the matrix whose element n is n % 9.
fn squared(n: usize) -> f32 {
    let of = |row: usize, column: usize| ((row * 8 + column) % 9) as f32;
    (0..8).map(|k| of(n / 8, k) * of(k, n % 8)).sum()
}

#[test]
fn matrices_are_right_whichever_lane_has_which_element() {
    let expected: Vec<_> = (0..64).map(squared).collect();
    for order in BOTH {
        assert_eq!(run_on_metal("fault_matrix_sound", order).unwrap()[..64], expected, "{order:?}");
        // An element that nobody wrote is NaN, in its row and its column.
        let found = run_on_metal("fault_matrix_partly_staged", order).unwrap();
        let is_nan: Vec<_> = found[..64].iter().map(|x| x.is_nan()).collect();
        assert_eq!(is_nan, (0..64).map(|n| n / 8 == 7 || n % 8 == 7).collect::<Vec<_>>(), "{order:?}");
    }
    assert!(run_on_metal("fault_matrix_never_loaded", ThreadOrder::Forward).unwrap()[..64].iter().all(|x| x.is_nan()));
}

#[test]
fn what_may_not_be_done_with_matrices_is_reported() {
    are_reported_on_metal(&[
        ("fault_matrix_load_outside", "of 512 of group memory"),
        ("fault_matrix_load_outside_operand", "access of 4 bytes outside every operand"),
        ("fault_matrix_store_to_input", "write to operand 1, which is only read"),
        ("fault_matrix_by_some", "divergent simdgroup_multiply_accumulate: 16 of 32 lanes"),
        ("fault_matrix_at_each_lane", "simdgroup_load at another place than lane 0"),
    ]);
    // Two elements of each lane are taken as if they were in order: they are in no order, and in another in each launch.
    let in_order: Vec<_> = (0..64).map(|n| n as f32).collect();
    let mut runs: Vec<_> = (0..4).map(|_| run_on_metal("fault_matrix_by_lane", ThreadOrder::Forward)).collect();
    runs.push(run_on_metal("fault_matrix_by_lane", ThreadOrder::Reverse));
    let found: Vec<_> = runs.into_iter().map(|found| found.unwrap()[..64].to_vec()).collect();
    for (index, elements) in found.iter().enumerate() {
        assert_ne!(*elements, in_order);
        assert!(found[..index].iter().all(|other| other != elements), "launch {index} had the order of one before");
        let mut sorted = elements.clone();
        sorted.sort_by(f32::total_cmp);
        assert_eq!(sorted, in_order, "each element has one place");
    }
}

#[test]
fn groups_beyond_the_limits_of_metal_are_refused() {
    let of = |bytes| {
        let change = |launch: Launch| launch.with_groups_of(128, bytes);
        run_in(SimDialect::Metal, "fault_memory_of_the_launch", ThreadOrder::Forward, change)
    };
    assert!(of(1024).is_ok() && of(32 << 10).is_ok());
    for bytes in [(32 << 10) + 16, 1032] {
        let message = of(bytes).unwrap_err();
        assert!(
            message.starts_with("`fault_memory_of_the_launch`: groups of Metal have at most 32768 bytes"),
            "{message}"
        );
    }
    assert!(of(1008).unwrap_err().contains("declares 1024 bytes of group memory or more, not 1008"));
    let change = |launch: Launch| launch.with_groups_of(32, 0);
    let message = run_in(SimDialect::Metal, "fault_matrix_in_32_threads", ThreadOrder::Forward, change).unwrap_err();
    assert!(message.contains("in a group of exactly 32 threads, which Metal's compiler gets wrong"), "{message}");
}

#[test]
fn a_kernel_of_one_dialect_is_not_one_of_the_other() {
    let message = run_on_metal("fault_copy_not_awaited", ThreadOrder::Forward).unwrap_err();
    assert_eq!(message, "there is no kernel `fault_copy_not_awaited`");
    let message = run("fault_matrix_sound", ThreadOrder::Forward).unwrap_err();
    assert_eq!(message, "there is no kernel `fault_matrix_sound`");
}

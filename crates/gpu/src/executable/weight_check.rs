//! Weights in a device's memory are read back, and one that has changed there is named.

use std::sync::Arc;

use backend::{Executable, WeightCheck, WeightFault};
use plan::{KvFormat, KvLayout, fuse, restrict_outputs};
use tensor::WeightFormat;
use testing::tiny::tiny_model;

use super::GpuExecutable;
use crate::driver::sim::{SimDialect, SimDriver, SimFaults, ThreadOrder};
use crate::forced::ForcedVariants;
use crate::target::Target;

fn pass(check: &mut WeightCheck, executable: &mut GpuExecutable) -> Result<(), WeightFault> {
    while !check.read_piece(executable)? {}
    Ok(())
}

#[test]
fn a_weight_that_changes_on_the_device_is_named() {
    for format in [WeightFormat::F16, WeightFormat::Q8_0, WeightFormat::Q4_K] {
        let (textbook, tensors) = tiny_model("qwen2", 1, format);
        let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
        let target = Target::metal(3, 32 << 10, false, ForcedVariants::NONE);
        let driver = SimDriver::new(SimDialect::Metal, ThreadOrder::Forward, 1 << 28, SimFaults::default());
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 8 };
        let mut executable = GpuExecutable::load(
            "sim".to_owned(),
            Box::new(driver),
            target,
            Arc::clone(&plan),
            &tensors,
            kv,
            &mut |_, _| (),
        )
        .unwrap();
        let mut check = WeightCheck::default();
        pass(&mut check, &mut executable).unwrap();
        pass(&mut check, &mut executable).unwrap();
        let stretches = executable.resident_weights();
        assert!(!stretches.is_empty());
        for resident in stretches {
            let (_, weight) = executable.weights.copied().find(|&(index, _)| index == resident.weight).unwrap();
            let region = if resident.layout == "scales" { weight.scales } else { weight.values };
            let at = region.part(resident.bytes - 1, 1).address;
            let mut byte = [0];
            executable.driver.download(at, &mut byte).unwrap();
            executable.driver.upload(at, &[byte[0] ^ 0x40]).unwrap();
            match pass(&mut check, &mut executable) {
                Err(WeightFault::Changed(changed)) => assert_eq!(changed.resident, resident),
                other => panic!("{resident:?}: {other:?}"),
            }
            executable.driver.upload(at, &byte).unwrap();
            pass(&mut check, &mut executable).unwrap();
        }
    }
}

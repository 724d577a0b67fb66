//! The kernels of a step, ready to be encoded, or kept by the device as an indirect command buffer.

use std::ptr::NonNull;

use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDevice, MTLIndirectCommandBuffer,
    MTLIndirectCommandBufferDescriptor, MTLIndirectCommandType, MTLIndirectComputeCommand, MTLSize,
};

use super::device::Context;
use super::{Buffer, DriverError, Object, Pipeline, options};
use crate::check_simd_width;
use crate::launch::Launch;

/// Bytes of parameters that Metal takes with a launch.
const PARAMS_MAX: usize = 4096;
/// Where the parameters of an indirect command may begin.
const PARAMS_ALIGN: usize = 256;

/// The kernels of a step.
pub(super) struct Program {
    pub(super) dispatches: Vec<Dispatch>,
    pub(super) indirect: Option<Indirect>,
}

/// A launch, ready to be encoded.
pub(super) struct Dispatch {
    pipeline: Pipeline,
    params: Vec<u64>,
    groups: MTLSize,
    threads: MTLSize,
    group_bytes: usize,
    /// Whether it waits for those before it.
    waits: bool,
}

/// The same as the device keeps it.
pub(super) struct Indirect {
    pub(super) commands: Object<dyn MTLIndirectCommandBuffer>,
    pub(super) params: Buffer,
}

impl Program {
    /// Appends its kernels to those of `encoder`.
    pub(super) fn encode(&self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>) {
        match &self.indirect {
            None => self.dispatches.iter().for_each(|dispatch| dispatch.encode(encoder)),
            Some(Indirect { commands, .. }) => {
                let all = NSRange::new(0, self.dispatches.len());
                // SAFETY: it has so many commands, and lives as long as the program, which is not dropped before it has run.
                unsafe { encoder.executeCommandsInBuffer_withRange(commands, all) };
            }
        }
    }
}

impl Dispatch {
    /// `launch`, with its kernel, and whether that was made now.
    pub(super) fn new(context: &Context, launch: &Launch, waits: bool) -> Result<(Self, bool), DriverError> {
        let (pipeline, made) = context.pipeline(launch.kernel)?;
        let width = u32::try_from(pipeline.threadExecutionWidth()).unwrap_or(0);
        check_simd_width(launch.kernel, width).map_err(|error| DriverError::Failed(error.to_string()))?;
        // Group memory comes in pieces of 16 bytes.
        let group_bytes = (launch.group_bytes as usize).next_multiple_of(16);
        let most = context.device.maxThreadgroupMemoryLength();
        let fits = launch.threads as usize <= pipeline.maxTotalThreadsPerThreadgroup()
            && pipeline.staticThreadgroupMemoryLength() + group_bytes <= most
            && size_of_val(&launch.params[..]) <= PARAMS_MAX;
        if !fits || launch.cluster > 1 || !launch.maps.is_empty() {
            return Err(DriverError::Failed(format!(
                "kernel `{}` cannot run here: groups of {} threads with {} + {} bytes, of at most {} and {most}",
                launch.kernel,
                launch.threads,
                pipeline.staticThreadgroupMemoryLength(),
                launch.group_bytes,
                pipeline.maxTotalThreadsPerThreadgroup(),
            )));
        }
        let [width, height, depth] = launch.groups.map(|n| n as usize);
        let dispatch = Self {
            pipeline,
            params: launch.params.clone(),
            groups: MTLSize { width, height, depth },
            threads: MTLSize { width: launch.threads as usize, height: 1, depth: 1 },
            group_bytes,
            waits,
        };
        Ok((dispatch, made))
    }

    fn encode(&self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>) {
        if self.waits {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        encoder.setComputePipelineState(&self.pipeline);
        let params: &[u8] = bytemuck::cast_slice(&self.params);
        // SAFETY: the kernel takes one struct, of the size and layout that `params` has (`layout_assertions`), and Metal
        // copies it. Kernels touch only their operands: the simulator checks that.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(params).cast(), params.len(), 0) };
        if self.group_bytes > 0 {
            // SAFETY: index 0 is the one that there is.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(self.group_bytes, 0) };
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(self.groups, self.threads);
    }

    fn params_bytes(&self) -> usize {
        size_of_val(&self.params[..]).next_multiple_of(PARAMS_ALIGN)
    }
}

impl Indirect {
    /// Bytes of the parameters of all.
    pub(super) fn params_bytes(dispatches: &[Dispatch]) -> u64 {
        dispatches.iter().map(|dispatch| dispatch.params_bytes() as u64).sum()
    }

    /// `dispatches` as an indirect command buffer, with `params` for their parameters.
    pub(super) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        params: Buffer,
        dispatches: &[Dispatch],
    ) -> Result<Self, DriverError> {
        let descriptor = MTLIndirectCommandBufferDescriptor::new();
        descriptor.setCommandTypes(MTLIndirectCommandType::ConcurrentDispatch);
        descriptor.setInheritPipelineState(false);
        descriptor.setInheritBuffers(false);
        descriptor.setMaxKernelBufferBindCount(1);
        // SAFETY: one is within any bounds.
        unsafe { descriptor.setMaxKernelThreadgroupMemoryBindCount(1) };
        // SAFETY: a number of launches that a step has.
        let commands = unsafe {
            device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options(
                &descriptor,
                dispatches.len().max(1),
                options(),
            )
        };
        let commands = commands.ok_or_else(|| DriverError::Failed("Metal gives no indirect commands".to_owned()))?;
        let mut at = 0;
        assert!(params.length() as u64 >= Self::params_bytes(dispatches), "room for the parameters of all");
        for (index, dispatch) in dispatches.iter().enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(&dispatch.params);
            // SAFETY: inside the buffer, as just checked, which nothing uses yet.
            unsafe { params.contents().cast::<u8>().add(at).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
            // SAFETY: one of the commands that were made.
            let command = unsafe { commands.indirectComputeCommandAtIndex(index) };
            command.setComputePipelineState(&dispatch.pipeline);
            // SAFETY: inside the buffer, which lives as long as the commands.
            unsafe { command.setKernelBuffer_offset_atIndex(&params, at, 0) };
            if dispatch.group_bytes > 0 {
                // SAFETY: index 0 is the one that there is.
                unsafe { command.setThreadgroupMemoryLength_atIndex(dispatch.group_bytes, 0) };
            }
            if dispatch.waits {
                // Those behind it wait with it, it is taken: commands begin in their order.
                command.setBarrier();
            }
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup(dispatch.groups, dispatch.threads);
            at += dispatch.params_bytes();
        }
        Ok(Self { commands, params })
    }
}

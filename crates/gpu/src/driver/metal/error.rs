//! How work ends, and what Metal says where it fails.

use objc2_foundation::NSError;
use objc2_metal::{MTLCommandBuffer, MTLCommandBufferError, MTLCommandBufferStatus};

use super::{CommandBuffer, DriverError};

/// Waits for a command buffer that was submitted.
pub(super) fn ended(commands: &CommandBuffer) -> Result<(), DriverError> {
    commands.waitUntilCompleted();
    if commands.status() == MTLCommandBufferStatus::Error { Err(command_error(commands)) } else { Ok(()) }
}

/// Why a command buffer failed.
pub(super) fn command_error(commands: &CommandBuffer) -> DriverError {
    let Some(error) = commands.error() else {
        return DriverError::Failed("the GPU failed, and Metal does not say why".to_owned());
    };
    let what = match MTLCommandBufferError(error.code().unsigned_abs()) {
        MTLCommandBufferError::OutOfMemory => "has no room for all that a step uses: use a smaller --ctx-size or model",
        MTLCommandBufferError::Timeout => "took so long that the system stopped it",
        MTLCommandBufferError::PageFault => "touched memory that is not there",
        MTLCommandBufferError::AccessRevoked => "may not be used any more, after earlier errors",
        MTLCommandBufferError::NotPermitted => "may not be used by this program now",
        MTLCommandBufferError::InvalidResource => "was given memory that is no more",
        MTLCommandBufferError::DeviceRemoved => "was removed",
        MTLCommandBufferError::StackOverflow => "has no stack left",
        _ => "failed",
    };
    DriverError::Failed(format!("the GPU {what} ({})", describe(&error)))
}

/// The error's domain, number and words.
pub(super) fn describe(error: &NSError) -> String {
    format!("{} {}: {}", error.domain(), error.code(), error.localizedDescription())
}

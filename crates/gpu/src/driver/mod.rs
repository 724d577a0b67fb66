//! Drivers: what a device can do for the backend, in few calls. Everything above them is shared.

pub(crate) mod cuda;
#[cfg(any(test, feature = "sim", target_os = "macos"))]
mod hazards;
#[cfg(target_os = "macos")]
pub(crate) mod metal;
#[cfg(feature = "sim")]
pub(crate) mod sim;
#[cfg(all(test, feature = "sim"))]
mod sim_faults;

use std::time::Instant;

use backend::Counters;
use bytes::Bytes;

use crate::launch::Launch;
use crate::params::Address;

/// Why a driver could not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DriverError {
    /// The device has no room.
    #[error("no room for {bytes} bytes")]
    OutOfMemory {
        bytes: u64,
        /// What is free, where the system says it. Less than `bytes` need not be: it may lie in pieces.
        free_bytes: Option<u64>,
    },
    /// The device, or its system driver, failed.
    #[error("{0}")]
    Failed(String),
}

/// The launches of a step, ready to run again and again; an index that its driver gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recording(pub(crate) usize);

/// One model's use of a device: its memory, its queue, its recorded steps. All of it goes when the driver is dropped.
///
/// Work is done in the order of the calls. Uploads and launches may return before they are done; downloads and steps
/// wait.
pub(crate) trait Driver: Send {
    /// Memory of `bytes`, aligned to 256.
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Gives back what [`Driver::allocate`] gave.
    fn free(&mut self, address: Address);

    /// Where kernels read `bytes` of the host without a copy, if the device can; the driver keeps them as long as it lives.
    fn in_place(&mut self, _bytes: &Bytes) -> Option<Address> {
        None
    }

    /// Copies to the device. `bytes` may be changed once the call returns.
    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Host memory of `bytes`, to copy from with [`Driver::begin_upload`].
    fn staging(&mut self, bytes: usize) -> Box<dyn HostMemory> {
        Box::new(vec![0; bytes])
    }

    /// Begins to copy to some places on the device. The bytes are left alone until [`Driver::end_upload`] was called as often;
    /// where they are of [`Driver::staging`], the device reads them beside the threads.
    fn begin_upload(&mut self, parts: &[(Address, &[u8])]) -> Result<(), DriverError> {
        parts.iter().try_for_each(|&(to, bytes)| self.upload(to, bytes))
    }

    /// Waits for the oldest upload that was begun, of which there is one.
    fn end_upload(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Copies from the device.
    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Runs one kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError>;

    /// Runs the kernels of some ops, one op after another, and waits. Returns the device's time in nanoseconds at the begin
    /// of each op and at the end of the last.
    fn time(&mut self, ops: &[&[Launch]]) -> Result<Vec<u64>, DriverError> {
        let begun = Instant::now();
        let mut edges = vec![0];
        for launches in ops {
            launches.iter().try_for_each(|launch| self.launch(launch))?;
            edges.push(begun.elapsed().as_nanos() as u64);
        }
        Ok(edges)
    }

    /// The same times within a replay of all of these ops, which no clock interrupts: what each op adds to it. Runs the ops
    /// several times, and waits. `None` from a driver that cannot do it.
    fn time_in_replay(&mut self, _ops: &[&[Launch]]) -> Result<Option<Vec<u64>>, DriverError> {
        Ok(None)
    }

    /// Makes a recording of `launches`, in order.
    fn record(&mut self, launches: &[Launch]) -> Result<Recording, DriverError>;

    /// Forgets all recordings.
    fn forget_recordings(&mut self);

    /// Queues a step: copies `input` to its place on the device, runs `recording`, and copies so many words from the place
    /// of `output`. At most [`STEPS_MAX`] are under way.
    fn enqueue(
        &mut self,
        recording: Recording,
        input: (Address, &[i32]),
        output: (Address, usize),
    ) -> Result<(), DriverError>;

    /// Waits for the oldest step under way, of which there is one. Returns the words of its output.
    fn collect(&mut self) -> Result<&[u32], DriverError>;

    /// Steps under way.
    fn num_under_way(&self) -> usize;

    /// What the device was asked to do.
    fn counters(&self) -> Counters;
}

/// Memory of the host.
pub(crate) trait HostMemory {
    /// All of it.
    fn bytes(&mut self) -> &mut [u8];
}

impl HostMemory for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Steps that are under way at a time.
pub(crate) const STEPS_MAX: usize = 2;

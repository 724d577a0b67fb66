//! One kernel launch as data: which kernel, how many groups, its parameters, and every operand that it may touch.

use bytemuck::Pod;

use crate::params::Address;

/// Threads in a group, of every kernel that [`Launch::with_groups_of`] says nothing of.
pub(crate) const GROUP_THREADS: u32 = 128;
/// SIMD groups in a group.
pub(crate) const GROUP_SIMDS: usize = 4;

/// A piece of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
}

impl Region {
    /// The `bytes` that begin `offset` bytes into this region.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Self {
        debug_assert!(offset + bytes <= self.bytes, "a part lies inside");
        Self { address: Address(self.address.0 + offset), bytes }
    }

    /// Whether all of `other` lies in this region.
    pub(crate) fn contains(self, other: Self) -> bool {
        self.address.0 <= other.address.0 && other.address.0 + other.bytes <= self.address.0 + self.bytes
    }

    /// Whether the two share no byte.
    pub(crate) fn is_apart(self, other: Self) -> bool {
        self.address.0 + self.bytes <= other.address.0 || other.address.0 + other.bytes <= self.address.0
    }
}

/// What a kernel may do with an operand. The simulator holds it to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Access {
    /// Read; nothing in the step writes it, so it may be read before the kernel ahead has ended.
    Constant = 0,
    /// Read.
    Read = 1,
    /// Written, at least what later kernels read of it; what was there is lost.
    Write = 2,
    /// Written in part, or read and written.
    Update = 3,
}

/// An operand of a launch.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(test, feature = "sim", target_os = "macos")),
    expect(dead_code, reason = "the simulator holds kernels to it, and Metal's queue finds what depends on what")
)]
pub(crate) struct Operand {
    pub(crate) region: Region,
    pub(crate) access: Access,
}

/// A number of a tensor that is copied in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    BF16,
    /// As bytes.
    I8,
}

impl Element {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::I8 => 1,
        }
    }
}

/// A tensor in device memory as copies of its tiles see it. What a tile has beyond the tensor comes as zeros.
#[derive(Clone, Debug)]
pub(crate) struct TileMap {
    /// Where the driver writes it in the parameters, in bytes.
    pub(crate) at: usize,
    pub(crate) address: Address,
    pub(crate) element: Element,
    /// In elements, innermost first.
    pub(crate) dims: Vec<u64>,
    /// Bytes from one to the next, of every dimension but the innermost: multiples of 16.
    pub(crate) strides: Vec<u64>,
    /// In elements, innermost first.
    pub(crate) tile: Vec<u32>,
    /// Whether 16-byte pieces of its rows, 128 bytes each, are placed so that eight rows of a column lie in as many banks.
    pub(crate) swizzled: bool,
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The name of the entry point in the kernel text.
    pub(crate) kernel: &'static str,
    /// Groups in x, y and z.
    pub(crate) groups: [u32; 3],
    /// Threads in a group.
    pub(crate) threads: u32,
    /// Bytes of group memory beside what the kernel declares itself: those of a `KERNEL_DYNAMIC`.
    pub(crate) group_bytes: u32,
    /// Whether it may start before the kernel ahead has ended, as all kernels but those that measure that do.
    pub(crate) early_start: bool,
    /// Groups side by side that run at once and reach each other's group memory; 1: on their own.
    pub(crate) cluster: u32,
    /// The parameter struct, in words so that it is aligned.
    pub(crate) params: Vec<u64>,
    /// What of the parameters the driver fills in.
    pub(crate) maps: Vec<TileMap>,
    pub(crate) operands: Vec<Operand>,
}

impl Launch {
    /// A launch of `groups` without operands yet.
    pub(crate) fn new(kernel: &'static str, groups: [usize; 3], params: &impl Pod) -> Self {
        let groups = groups.map(|n| u32::try_from(n).expect("grids are bounded by the sizes of tensors"));
        let params = bytemuck::cast_slice(std::slice::from_ref(params)).to_vec();
        Self {
            kernel,
            groups,
            threads: GROUP_THREADS,
            group_bytes: 0,
            early_start: true,
            cluster: 1,
            params,
            maps: vec![],
            operands: vec![],
        }
    }

    /// Groups of so many threads, with so many bytes of group memory.
    pub(crate) fn with_groups_of(self, threads: u32, group_bytes: u32) -> Self {
        Self { threads, group_bytes, ..self }
    }

    /// Adds an operand, unless it is absent.
    pub(crate) fn with(mut self, access: Access, region: Region) -> Self {
        if region.bytes > 0 {
            self.operands.push(Operand { region, access });
        }
        self
    }
}

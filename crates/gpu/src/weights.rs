//! Weights on the device. Matrices keep their format where kernels have it, laid out for 16-byte loads (`kernels/parts.h`), and
//! become Q8_0 on the way where it is another block format; vectors (norms and biases) are f32.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::thread;

use backend::Copied;
use half::f16;
use plan::{Experts, Op, Plan, WeightId};
use tensor::quant::{fp8, mxfp4, nvfp4, q4_0, q4_k, q5_0, q6_k, q8_0};
use tensor::{Tensor, WeightFormat};

use crate::driver::{Driver, DriverError};
use crate::launch::Region;
use crate::params::Address;

/// Where allocations in the one big one begin: what every load width and bulk copy is happy with.
const ALIGN: u64 = 256;
/// Host bytes that are packed and copied at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that are packed, copied or waiting for either, for each thread.
const BUFFERS_PER_THREAD: usize = 3;

/// Start and length in the allocation of all weights, in bytes.
type Piece = (u64, u64);

/// How weights are stored on a device, and what kernels are named after.
#[expect(non_camel_case_types, reason = "these are the published names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFormat {
    F32,
    F16,
    BF16,
    Q8_0,
    FP8,
    Q4_0,
    /// Q4_0 whose scales are the same for each 128 weights, which files of INT4 in such groups are read as.
    Q4_G128,
    /// Codes of four bits with one scale and one zero point for each 128 weights, as which Q5_0 is stored where all of its
    /// blocks allow it: files of INT4 with zero points in such groups (AWQ, most of GPTQ) are read as Q5_0.
    Q4_Z128,
    MXFP4,
    /// With one scale for a matrix, as files have it.
    NVFP4,
    Q4_K,
    Q6_K,
}

impl DeviceFormat {
    pub(crate) const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::FP8,
        Self::Q4_0,
        Self::Q4_G128,
        Self::Q4_Z128,
        Self::MXFP4,
        Self::NVFP4,
        Self::Q4_K,
        Self::Q6_K,
    ];

    /// What matrices in `format` are stored as.
    pub(crate) fn of(format: WeightFormat) -> Self {
        match format {
            WeightFormat::F32 => Self::F32,
            WeightFormat::F16 => Self::F16,
            WeightFormat::BF16 => Self::BF16,
            WeightFormat::FP8 => Self::FP8,
            WeightFormat::Q4_0 => Self::Q4_0,
            WeightFormat::MXFP4 => Self::MXFP4,
            WeightFormat::NVFP4 => Self::NVFP4,
            WeightFormat::Q4_K => Self::Q4_K,
            WeightFormat::Q6_K => Self::Q6_K,
            _ => Self::Q8_0,
        }
    }

    /// As the file format of the same blocks.
    pub(crate) fn weight_format(self) -> WeightFormat {
        match self {
            Self::F32 => WeightFormat::F32,
            Self::F16 => WeightFormat::F16,
            Self::BF16 => WeightFormat::BF16,
            Self::Q8_0 => WeightFormat::Q8_0,
            Self::FP8 => WeightFormat::FP8,
            Self::Q4_0 | Self::Q4_G128 => WeightFormat::Q4_0,
            Self::Q4_Z128 => WeightFormat::Q5_0,
            Self::MXFP4 => WeightFormat::MXFP4,
            Self::NVFP4 => WeightFormat::NVFP4,
            Self::Q4_K => WeightFormat::Q4_K,
            Self::Q6_K => WeightFormat::Q6_K,
        }
    }

    /// Weights in 16 bytes of values: what a thread loads at once, and so the order in which kernels want activations.
    pub(crate) fn chunk_len(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 8,
            Self::Q8_0 | Self::FP8 => 16,
            Self::Q4_0 | Self::Q4_G128 | Self::Q4_Z128 | Self::MXFP4 | Self::NVFP4 | Self::Q4_K | Self::Q6_K => 32,
        }
    }
}

/// A weight on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceWeight {
    pub(crate) format: DeviceFormat,
    /// Rows of 16-byte chunks; of blocks the codes.
    pub(crate) values: Region,
    /// The scales of blocks, 16 bytes for 256 codes, of Q6_K 84 with the upper bits of codes (`kernels/parts.h`), rows filled
    /// up to 16 bytes; otherwise empty.
    pub(crate) scales: Region,
    /// Output features.
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) row_len: usize,
    /// What all weights are multiplied by besides, of NVFP4; otherwise 1.
    pub(crate) matrix_scale: f32,
}

/// The matrices of all experts of one projection, and their biases: at equal distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceExperts {
    /// That of expert 0.
    pub(crate) first: DeviceWeight,
    /// From the first byte of the first matrix to the last of the last.
    pub(crate) all: Region,
    /// Bytes from expert to expert, of values and of scales.
    pub(crate) stride: u64,
    /// From the first bias to the last; absent without biases.
    pub(crate) biases: Region,
    /// Bytes from bias to bias.
    pub(crate) bias_stride: u64,
    /// What the weights of each matrix are multiplied by besides, f32, of NVFP4.
    pub(crate) matrix_scales: Region,
    pub(crate) count: usize,
}

/// All weights of a plan.
#[derive(Default)]
pub(crate) struct DeviceWeights {
    weights: Vec<DeviceWeight>,
    /// The allocation of those that were copied.
    copied: Region,
    /// By the first of them: [`DeviceExperts::matrix_scales`].
    matrix_scales: HashMap<usize, Region>,
}

/// The stacks of experts that the ops of a plan read; the matrices of heads are such a stack.
pub(crate) fn stacks(plan: &Plan) -> impl Iterator<Item = Experts> + '_ {
    plan.ops.iter().flat_map(|op| match *op {
        Op::ExpertLinear { experts, .. } | Op::HeadLinear { heads: experts, .. } => vec![experts],
        Op::MoeGlu { gate, up, .. } => vec![gate, up],
        Op::MoeDown { down, .. } => vec![down],
        _ => vec![],
    })
}

/// The places of consecutive weights.
fn run(first: WeightId, count: usize) -> std::ops::Range<usize> {
    first.index()..first.index() + count
}

impl DeviceWeights {
    /// Bytes that `tensors` take on a device.
    pub(crate) fn bytes(tensors: &[Tensor]) -> u64 {
        Self::places(tensors.iter().zip(formats(tensors))).1
    }

    /// Bytes of each of `tensors` on a device.
    pub(crate) fn bytes_of_each(tensors: &[Tensor]) -> Vec<u64> {
        let (places, _) = Self::places(tensors.iter().zip(formats(tensors)));
        places.into_iter().map(|((_, values), (_, scales))| values + scales).collect()
    }

    /// Copies `tensors`, in the order of the plan, into one allocation, but for those that the device reads where they are.
    pub(crate) fn upload(
        driver: &mut dyn Driver,
        plan: &Plan,
        tensors: &[Tensor],
        copied: Copied<'_>,
    ) -> Result<Self, DriverError> {
        debug_assert!(plan.weights.len() == tensors.len(), "`check_load` compared them");
        let mut in_place = |tensor| if is_as_on_device(tensor) { driver.in_place(tensor.bytes()) } else { None };
        let mut in_place: Vec<_> = tensors.iter().map(&mut in_place).collect();
        for experts in stacks(plan) {
            for first in [Some(experts.first), experts.bias].into_iter().flatten() {
                let stack = &mut in_place[run(first, experts.count)];
                if !are_adjacent(stack, tensors[first.index()].bytes().len() as u64) {
                    stack.fill(None);
                }
            }
        }
        let formats = formats(tensors);
        let to_copy =
            tensors.iter().zip(formats.iter().copied()).zip(&in_place).filter(|(_, in_place)| in_place.is_none());
        let (places, bytes) = Self::places(to_copy.map(|(tensor, _)| tensor));
        let all = Region { address: driver.allocate(bytes)?, bytes };
        let mut places = places.into_iter();
        let mut weights = Vec::with_capacity(tensors.len());
        for ((tensor, format), in_place) in tensors.iter().zip(formats).zip(&in_place) {
            let (values, scales) = match in_place {
                &Some(address) => (Region { address, bytes: tensor.bytes().len() as u64 }, Region::default()),
                None => {
                    let ((values_at, values), (scales_at, scales)) =
                        places.next().expect("one for each that is copied");
                    let scales = if scales == 0 { Region::default() } else { all.part(scales_at, scales) };
                    (all.part(values_at, values), scales)
                }
            };
            let (rows, row_len) = (tensor.num_rows(), tensor.row_len());
            let matrix_scale = if format == DeviceFormat::NVFP4 { matrix_scale(tensor) } else { 1.0 };
            weights.push(DeviceWeight { format, values, scales, rows, row_len, matrix_scale });
        }
        let to_copy = weights.iter().zip(tensors).zip(&in_place).filter(|(_, in_place)| in_place.is_none());
        fill(driver, to_copy.map(|(weight, _)| weight), copied)?;
        let mut matrix_scales = HashMap::new();
        for experts in stacks(plan) {
            let stack = &weights[run(experts.first, experts.count)];
            if stack[0].format == DeviceFormat::NVFP4 {
                let scales: Vec<f32> = stack.iter().map(|weight| weight.matrix_scale).collect();
                let bytes = size_of_val(&scales[..]) as u64;
                let region = Region { address: driver.allocate(bytes)?, bytes };
                driver.upload(region.address, bytemuck::cast_slice(&scales))?;
                matrix_scales.insert(experts.first.index(), region);
            }
        }
        Ok(Self { weights, copied: all, matrix_scales })
    }

    /// Where values and scales of each of `tensors` lie, start and length, and the bytes of all.
    fn places<'a>(tensors: impl Iterator<Item = (&'a Tensor, DeviceFormat)>) -> (Vec<(Piece, Piece)>, u64) {
        let mut bytes = 0;
        let mut reserve = |len: u64| {
            let start = bytes;
            bytes += len.next_multiple_of(ALIGN);
            start
        };
        let places = tensors
            .map(|(tensor, format)| {
                let rows = tensor.num_rows() as u64;
                let values = rows * row_bytes(format, tensor.row_len()) as u64;
                let scales = rows * scale_row_bytes(format, tensor.row_len()) as u64;
                ((reserve(values), values), (reserve(scales), scales))
            })
            .collect();
        (places, bytes)
    }

    /// Weights of these formats and shapes, one after another in `all`, which nobody has filled.
    #[cfg(test)]
    pub(crate) fn at<'a>(all: Region, weights: impl Iterator<Item = (DeviceFormat, &'a [usize])>) -> Self {
        let mut start = 0;
        let mut reserve = |bytes: usize| {
            let region = if bytes == 0 { Region::default() } else { all.part(start, bytes as u64) };
            start += (bytes as u64).next_multiple_of(ALIGN);
            region
        };
        let weights = weights
            .map(|(format, shape)| {
                let (&row_len, before) = shape.split_last().expect("weights have dimensions");
                let rows = before.iter().product();
                let values = reserve(rows * row_bytes(format, row_len));
                let scales = reserve(rows * scale_row_bytes(format, row_len));
                DeviceWeight { format, values, scales, rows, row_len, matrix_scale: 1.0 }
            })
            .collect();
        Self { weights, copied: all, matrix_scales: HashMap::new() }
    }

    /// The format of the matrices of a stack, where they are loaded: what a model takes is asked before.
    pub(crate) fn stack_format(&self, experts: &Experts) -> Option<DeviceFormat> {
        self.weights.get(experts.first.index()).map(|weight| weight.format)
    }

    /// The matrices of a stack of experts, which are all in one format.
    pub(crate) fn stack(&self, experts: &Experts) -> DeviceExperts {
        let matrices = &self.weights[run(experts.first, experts.count)];
        let (first, last) = (matrices[0], matrices[experts.count - 1]);
        debug_assert!(matrices.iter().all(|matrix| matrix.format == first.format), "`supports` refuses others");
        let stride = |all: &[DeviceWeight]| {
            let next = all.get(1).map_or(all[0].values.address.0, |next| next.values.address.0);
            next - all[0].values.address.0
        };
        let span = |first: &DeviceWeight, last: &DeviceWeight| {
            let end = if last.scales.bytes > 0 { last.scales } else { last.values };
            let address = first.values.address;
            Region { address, bytes: end.address.0 + end.bytes - address.0 }
        };
        let biases = experts.bias.map(|bias| &self.weights[run(bias, experts.count)]);
        DeviceExperts {
            first,
            all: span(&first, &last),
            stride: stride(matrices),
            biases: biases.map_or(Region::default(), |biases| span(&biases[0], &biases[experts.count - 1])),
            bias_stride: biases.map_or(0, stride),
            matrix_scales: self.matrix_scales.get(&experts.first.index()).copied().unwrap_or_default(),
            count: experts.count,
        }
    }

    pub(crate) fn get(&self, weight: WeightId) -> &DeviceWeight {
        &self.weights[weight.index()]
    }

    /// Those that were copied to the device, with their places in the plan; the device reads others where they are.
    pub(crate) fn copied(&self) -> impl Iterator<Item = (usize, &DeviceWeight)> {
        self.weights.iter().enumerate().filter(|(_, weight)| self.copied.contains(weight.values))
    }

    /// The f32 vector `weight`, or an absent operand.
    pub(crate) fn vector(&self, weight: Option<WeightId>) -> Region {
        weight.map_or(Region::default(), |weight| self.get(weight).values)
    }
}

impl DeviceWeight {
    /// Bytes that a kernel reads of all of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.values.bytes + self.scales.bytes
    }

    /// Scales from row to row in f16, of blocks; otherwise 0.
    pub(crate) fn scale_stride(&self) -> usize {
        self.scales.bytes as usize / size_of::<f16>() / self.rows.max(1)
    }

    /// Bytes of values and of scales of a row.
    fn row_bytes(&self) -> [usize; 2] {
        [row_bytes(self.format, self.row_len), scale_row_bytes(self.format, self.row_len)]
    }

    /// Packs one row as it lies on the device, and fills it up with zeros.
    fn pack_row(&self, tensor: &Tensor, row: usize, to: [&mut [u8]; 2]) {
        let bytes = &tensor.bytes()[row * tensor.row_bytes()..(row + 1) * tensor.row_bytes()];
        match self.format {
            DeviceFormat::Q8_0 => {
                let mut blocks = vec![q8_0::Block { scale: f16::ZERO, codes: [0; 32] }; self.row_len / q8_0::BLOCK_LEN];
                tensor.format().to_q8_0(bytes, &mut blocks);
                let codes = |codes| bytemuck::cast::<[i8; 32], [u8; 32]>(codes);
                lay_out(blocks.iter().map(|block| (codes(block.codes), block.scale.to_le_bytes())), to);
            }
            DeviceFormat::FP8 => {
                let blocks = bytemuck::cast_slice::<_, fp8::Block>(bytes).iter();
                lay_out(blocks.map(|block| (block.codes, block.scale.to_le_bytes())), to);
            }
            DeviceFormat::MXFP4 => {
                let blocks = bytemuck::cast_slice::<_, mxfp4::Block>(bytes).iter();
                lay_out(blocks.map(|block| (block.codes, [block.exponent])), to);
            }
            DeviceFormat::NVFP4 => {
                let blocks = bytemuck::cast_slice::<_, nvfp4::Block>(bytes).iter();
                lay_out(blocks.map(|block| (block.codes.as_flattened(), block.scales)), to);
            }
            DeviceFormat::Q4_0 => {
                let blocks = bytemuck::cast_slice::<_, q4_0::Block>(bytes).iter();
                lay_out(blocks.map(|block| (block.codes, block.scale.to_le_bytes())), to);
            }
            DeviceFormat::Q4_G128 => {
                let groups = bytemuck::cast_slice::<_, [q4_0::Block; GROUP_BLOCKS]>(bytes).iter();
                let of_group = |group: &[q4_0::Block; GROUP_BLOCKS]| {
                    let codes: [_; GROUP_BLOCKS] = std::array::from_fn(|i| group[i].codes);
                    (bytemuck::cast::<_, [u8; 16 * GROUP_BLOCKS]>(codes), group[0].scale.to_le_bytes())
                };
                lay_out(groups.map(of_group), to);
            }
            DeviceFormat::Q4_Z128 => {
                let groups = bytemuck::cast_slice::<_, [q5_0::Block; GROUP_BLOCKS]>(bytes).iter();
                lay_out(groups.map(q4_z128_planes), to);
            }
            DeviceFormat::Q4_K => {
                let blocks = bytemuck::cast_slice::<_, q4_k::Block>(bytes).iter();
                let codes = |block: &q4_k::Block| {
                    let (halves, _) = block.codes.as_chunks();
                    let split: [_; q4_k::BLOCK_LEN / 64] = std::array::from_fn(|i| split_halves(&halves[i]));
                    bytemuck::cast::<_, [u8; q4_k::BLOCK_LEN / 2]>(split)
                };
                lay_out(blocks.map(|block| (codes(block), q4_k_scales(block))), to);
            }
            DeviceFormat::Q6_K => lay_out(bytemuck::cast_slice(bytes).iter().map(q6_k_planes), to),
            DeviceFormat::F32 => {
                let mut floats = vec![0f32; self.row_len];
                tensor.row_to_f32(row, &mut floats);
                lay_out([(bytemuck::cast_slice::<_, u8>(&floats), [])].into_iter(), to);
            }
            DeviceFormat::F16 | DeviceFormat::BF16 => lay_out([(bytes, [])].into_iter(), to),
        }
    }
}

/// Whether matrices of so many bytes lie one after another, as a tensor of a whole stack has them: so kernels find the
/// weights of experts.
fn are_adjacent(addresses: &[Option<Address>], bytes: u64) -> bool {
    let known: Option<Vec<_>> = addresses.iter().copied().collect();
    known.is_some_and(|known| known.windows(2).all(|pair| pair[0].0 + bytes == pair[1].0))
}

/// Values and scales of blocks, each one after another, and zeros behind them.
fn lay_out(blocks: impl Iterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>, [values, scales]: [&mut [u8]; 2]) {
    let [mut values_at, mut scales_at] = [0; 2];
    let place = |to: &mut [u8], at: &mut usize, bytes: &[u8]| {
        to[*at..][..bytes.len()].copy_from_slice(bytes);
        *at += bytes.len();
    };
    for (of_values, of_scales) in blocks {
        place(values, &mut values_at, of_values.as_ref());
        place(scales, &mut scales_at, of_scales.as_ref());
    }
    values[values_at..].fill(0);
    scales[scales_at..].fill(0);
}

/// Rows of a weight that are packed, and copied, at once.
#[derive(Clone, Copy)]
struct Rows<'a> {
    weight: &'a DeviceWeight,
    tensor: &'a Tensor,
    first: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    /// All rows of a weight.
    fn all((weight, tensor): (&'a DeviceWeight, &'a Tensor)) -> impl Iterator<Item = Self> {
        let most = (PIECE_BYTES / weight.row_bytes().iter().sum::<usize>().max(1)).max(1);
        let rows = move |first| Self { weight, tensor, first, count: most.min(weight.rows - first) };
        (0..weight.rows).step_by(most).map(rows)
    }

    /// Bytes of values and of scales.
    fn bytes(self) -> [usize; 2] {
        self.weight.row_bytes().map(|bytes| self.count * bytes)
    }

    /// Puts all values into `buffer`, and all scales behind them.
    fn pack(self, buffer: &mut [u8]) {
        let [values, scales] = self.bytes();
        let (values, scales) = buffer[..values + scales].split_at_mut(values);
        let row_bytes = self.weight.row_bytes();
        for index in 0..self.count {
            let [values, scales] = [(&mut *values, row_bytes[0]), (&mut *scales, row_bytes[1])]
                .map(|(all, bytes)| &mut all[index * bytes..(index + 1) * bytes]);
            self.weight.pack_row(self.tensor, self.first + index, [values, scales]);
        }
    }

    /// Begins to copy what [`Rows::pack`] put into `buffer`.
    fn begin_upload(self, driver: &mut dyn Driver, buffer: &[u8]) -> Result<(), DriverError> {
        let [values, scales] = self.bytes();
        let (of_values, of_scales) = buffer[..values + scales].split_at(values);
        let [values_at, scales_at] = self.weight.row_bytes().map(|bytes| (self.first * bytes) as u64);
        let part = |region: Region, at, bytes: &[u8]| region.part(at, bytes.len() as u64).address;
        let values = (part(self.weight.values, values_at, of_values), of_values);
        if of_scales.is_empty() {
            return driver.begin_upload(&[values]);
        }
        driver.begin_upload(&[values, (part(self.weight.scales, scales_at, of_scales), of_scales)])
    }
}

/// Copies weights. All cores pack rows, this thread copies what they have packed, and the device reads that beside them: loading
/// takes as long as one of the three. `copied` is told of each piece that the device has read.
fn fill<'a>(
    driver: &mut dyn Driver,
    weights: impl Iterator<Item = (&'a DeviceWeight, &'a Tensor)>,
    copied: Copied<'_>,
) -> Result<(), DriverError> {
    let all: Vec<_> = weights.flat_map(Rows::all).collect();
    let piece_bytes = |rows: &Rows<'_>| rows.bytes().iter().sum::<usize>();
    let buffer_bytes = all.iter().map(piece_bytes).max().unwrap_or(0);
    if buffer_bytes == 0 {
        return Ok(());
    }
    let (total, mut there) = (all.iter().map(|rows| piece_bytes(rows) as u64).sum(), 0);
    copied(there, total);
    let mut end_upload = |driver: &mut dyn Driver, rows: &Rows<'_>| {
        driver.end_upload()?;
        there += piece_bytes(rows) as u64;
        copied(there, total);
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(all.len());
    let num_buffers = (BUFFERS_PER_THREAD * threads).min(all.len());
    let mut memory = driver.staging(num_buffers * buffer_bytes);
    let (to_pack, empty) = mpsc::channel();
    memory.bytes().chunks_mut(buffer_bytes).for_each(|buffer| to_pack.send(buffer).expect("`empty` is here"));
    let (to_copy, packed) = mpsc::channel();
    let (all, next, empty) = (&all, &AtomicUsize::new(0), &Mutex::new(empty));
    // Being read by the device, the oldest first.
    let mut read = VecDeque::new();
    let done = thread::scope(|scope| {
        for _ in 0..threads {
            let to_copy = to_copy.clone();
            scope.spawn(move || {
                while let Some(&rows) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody is there any more where a copy failed.
                    let Ok(buffer) = empty.lock().unwrap_or_else(PoisonError::into_inner).recv() else { break };
                    rows.pack(buffer);
                    if to_copy.send((rows, buffer)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(to_copy);
        // Dropped where a copy fails, before the threads are waited for.
        let (to_pack, packed) = (to_pack, packed);
        loop {
            let received = match packed.try_recv() {
                Err(TryRecvError::Empty) if !read.is_empty() => {
                    let (rows, buffer) = read.pop_front().expect("there is one");
                    end_upload(driver, &rows)?;
                    // Where it is not wanted any more, the threads have ended.
                    let _ = to_pack.send(buffer);
                    continue;
                }
                Err(TryRecvError::Empty) => packed.recv().ok(),
                received => received.ok(),
            };
            let Some((rows, buffer)) = received else { return Ok(()) };
            rows.begin_upload(driver, buffer)?;
            read.push_back((rows, buffer));
        }
    });
    // Before the memory goes.
    let ended = read.into_iter().try_for_each(|(rows, _)| end_upload(driver, &rows));
    done.and(ended)
}

/// 64 codes, j beside j + 32, as two blocks of 32, each with j beside j + 16.
fn split_halves(codes: &[u8; 32]) -> [u8; 32] {
    let mut split = [0; 32];
    for j in 0..16 {
        let (low, high) = (codes[j], codes[j + 16]);
        split[j] = low & 15 | high << 4;
        split[j + 16] = low >> 4 | high & 0xf0;
    }
    split
}

/// What 256 weights are scaled by, so that kernels find the numbers of each 32 by shifts alone: `ScaleQ4_K` of
/// `kernels/parts.h`.
fn q4_k_scales(block: &q4_k::Block) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&block.scale.to_le_bytes());
    bytes[2..4].copy_from_slice(&block.minimum.to_le_bytes());
    for (i, (scale, minimum)) in block.scales_and_minima().into_iter().enumerate() {
        bytes[4 + i] = scale & 15 | minimum << 4;
        bytes[12 + i / 2] |= (scale >> 4 | minimum >> 4 << 2) << (i % 2 * 4);
    }
    bytes
}

/// Bytes of what 256 weights of Q6_K have beside the lower bits of their codes: `Q6_K_WORDS` of `kernels/parts.h`.
const Q6_K_BYTES: usize = 84;

/// 256 weights: the lower four bits of codes as Q4_0 has them, and the rest of the block as `WeightQ6_K` of `kernels/parts.h`
/// wants it.
fn q6_k_planes(block: &q6_k::Block) -> ([u8; 128], [u8; Q6_K_BYTES]) {
    let (mut low, mut rest) = ([0; 128], [0; Q6_K_BYTES]);
    let halves = block.codes.as_chunks::<64>().0.iter().zip(block.high.as_chunks::<32>().0).enumerate();
    for (half, (codes, high)) in halves {
        for quarter in 0..4 {
            let chunk = half * 4 + quarter;
            let (codes, shift) = (&codes[quarter % 2 * 32..][..32], quarter / 2 * 4);
            for (place, low) in low[chunk * 16..][..16].iter_mut().enumerate() {
                *low = codes[place] >> shift & 15 | (codes[place + 16] >> shift & 15) << 4;
            }
            // The upper two bits of four codes.
            let words = high.as_chunks::<4>().0;
            let upper = |i: usize| (u32::from_le_bytes(words[i]) >> (2 * quarter) & 0x0303_0303) ^ 0x0202_0202;
            for eight in 0..2 {
                // A byte has two codes of the lower half of the chunk and two of the upper, by turns, the first four ahead.
                let first = 2 * eight;
                let bits = upper(first) | upper(first + 4) << 2 | upper(first + 1) << 4 | upper(first + 5) << 6;
                let word = (chunk % 2 * 2 + eight) * 4 + chunk / 2;
                rest[word * 4..][..4].copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
    rest[64..80].copy_from_slice(bytemuck::cast_slice(&block.scales));
    rest[80..82].copy_from_slice(&block.scale.to_le_bytes());
    (low, rest)
}

/// Blocks of Q4_0 or Q5_0 that share a scale in [`DeviceFormat::Q4_G128`] and [`DeviceFormat::Q4_Z128`].
const GROUP_BLOCKS: usize = 4;
/// Bytes whose scales are worth a thread to look at.
const THREAD_BYTES: usize = 4 << 20;

/// What each of `tensors` is stored as. Several matrices that one kernel reads have one format, so that of Q4_0 is the same for all,
/// and that of Q5_0, and NVFP4 is Q8_0 where one matrix has several scales.
fn formats(tensors: &[Tensor]) -> Vec<DeviceFormat> {
    let all =
        |format, holds: fn(&Tensor) -> bool| tensors.iter().filter(|tensor| device_format(tensor) == format).all(holds);
    let is_grouped = all(DeviceFormat::Q4_0, has_groups_of_128);
    let has_matrix_scales = all(DeviceFormat::NVFP4, has_matrix_scale);
    let is_q5_0 = |tensor: &Tensor| tensor.shape().len() > 1 && tensor.format() == WeightFormat::Q5_0;
    let has_zero_points = tensors.iter().filter(|tensor| is_q5_0(tensor)).all(has_zero_points_of_128);
    let format = |tensor| match device_format(tensor) {
        DeviceFormat::Q4_0 if is_grouped => DeviceFormat::Q4_G128,
        _ if has_zero_points && is_q5_0(tensor) => DeviceFormat::Q4_Z128,
        DeviceFormat::NVFP4 if !has_matrix_scales => DeviceFormat::Q8_0,
        format => format,
    };
    tensors.iter().map(format).collect()
}

/// Whether the scales of a matrix in Q4_0 are the same for each 128 weights. Most matrices say no in their first row.
fn has_groups_of_128(tensor: &Tensor) -> bool {
    const GROUP_BYTES: usize = GROUP_BLOCKS * size_of::<q4_0::Block>();
    if !tensor.row_len().is_multiple_of(GROUP_BLOCKS * q4_0::BLOCK_LEN) {
        return false;
    }
    let is_group = |bytes: &[u8]| {
        let blocks = bytemuck::cast_slice::<_, q4_0::Block>(bytes);
        blocks.iter().all(|block| block.scale.to_bits() == blocks[0].scale.to_bits())
    };
    every_piece(tensor, GROUP_BYTES, |bytes| bytes.chunks(GROUP_BYTES).all(is_group))
}

/// Whether a matrix in Q5_0 has the same scale for each 128 weights, and codes of each 128 that differ by 15 at most: then four
/// bits and a zero point are all of them. Most matrices that were quantised as Q5_0 say no in their first row.
fn has_zero_points_of_128(tensor: &Tensor) -> bool {
    const GROUP_BYTES: usize = GROUP_BLOCKS * size_of::<q5_0::Block>();
    if !tensor.row_len().is_multiple_of(GROUP_BLOCKS * q5_0::BLOCK_LEN) {
        return false;
    }
    every_piece(tensor, GROUP_BYTES, |bytes| {
        bytemuck::cast_slice::<_, [q5_0::Block; GROUP_BLOCKS]>(bytes).iter().all(|group| {
            let (least, most) = least_and_most(&group.map(|block| block.codes()));
            most - least <= 15 && group.iter().all(|block| block.scale.to_bits() == group[0].scale.to_bits())
        })
    })
}

/// The least of the codes of a group, and the most.
fn least_and_most(codes: &[[i8; q5_0::BLOCK_LEN]; GROUP_BLOCKS]) -> (i8, i8) {
    codes.as_flattened().iter().fold((i8::MAX, i8::MIN), |(least, most), &code| (least.min(code), most.max(code)))
}

/// The codes of 128 weights in four bits, and their scale and zero point, as `WeightQ4Z128` of `kernels/parts.h` has them. The
/// zero point is what the least code lacks to zero, and none where all codes are above zero.
fn q4_z128_planes(group: &[q5_0::Block; GROUP_BLOCKS]) -> ([u8; 16 * GROUP_BLOCKS], [u8; 4]) {
    let codes = group.map(|block| block.codes());
    let zero = -least_and_most(&codes).0.min(0);
    let in_four_bits = codes.map(|codes| {
        let code = |i: usize| (codes[i] + zero).cast_unsigned();
        std::array::from_fn::<u8, 16, _>(|i| code(i) | code(i + 16) << 4)
    });
    let (scale, zero) = (group[0].scale.to_le_bytes(), f16::from(zero).to_le_bytes());
    (bytemuck::cast(in_four_bits), [scale[0], scale[1], zero[0], zero[1]])
}

/// Whether all blocks of a matrix in NVFP4 have one scale, as those that are read from files do.
fn has_matrix_scale(tensor: &Tensor) -> bool {
    let scale = matrix_scale(tensor).to_bits();
    every_piece(tensor, size_of::<nvfp4::Block>(), |bytes| {
        bytemuck::cast_slice::<_, nvfp4::Block>(bytes).iter().all(|block| block.scale.to_bits() == scale)
    })
}

/// That of the first block.
fn matrix_scale(tensor: &Tensor) -> f32 {
    tensor.as_slice::<nvfp4::Block>().first().map_or(1.0, |block| block.scale)
}

/// Whether `holds` of all blocks of a tensor, `piece_bytes` of which belong together: the first row is looked at first.
fn every_piece(tensor: &Tensor, piece_bytes: usize, holds: impl Fn(&[u8]) -> bool + Sync) -> bool {
    let bytes = tensor.bytes();
    if !holds(&bytes[..tensor.row_bytes().min(bytes.len())]) {
        return false;
    }
    let threads =
        thread::available_parallelism().map_or(1, NonZero::get).min(bytes.len().div_ceil(THREAD_BYTES)).max(1);
    let share = bytes.len().div_ceil(threads).next_multiple_of(piece_bytes).max(piece_bytes);
    thread::scope(|scope| {
        let holds = &holds;
        let parts: Vec<_> = bytes.chunks(share).map(|part| scope.spawn(move || holds(part))).collect();
        parts.into_iter().all(|part| part.join().unwrap_or(false))
    })
}

/// What a tensor is stored as by itself: vectors in f32.
fn device_format(tensor: &Tensor) -> DeviceFormat {
    if tensor.shape().len() == 1 { DeviceFormat::F32 } else { DeviceFormat::of(tensor.format()) }
}

/// Whether a tensor's bytes are those on the device, up to padding: codes and scales of blocks lie apart there.
fn is_kept(tensor: &Tensor) -> bool {
    let format = device_format(tensor);
    scale_row_bytes(format, tensor.row_len()) == 0 && format.weight_format() == tensor.format()
}

/// Whether a matrix lies in the host's memory as it would on the device, so that 16-byte loads of it are aligned.
fn is_as_on_device(tensor: &Tensor) -> bool {
    let is_padded = tensor.row_bytes() != row_bytes(device_format(tensor), tensor.row_len());
    tensor.shape().len() > 1 && is_kept(tensor) && !is_padded && (tensor.bytes().as_ptr() as usize).is_multiple_of(16)
}

/// f16 of the scales of 256 weights.
pub(crate) fn scales_of_256(format: DeviceFormat) -> usize {
    match format {
        DeviceFormat::Q6_K => Q6_K_BYTES / size_of::<f16>(),
        DeviceFormat::MXFP4 | DeviceFormat::Q4_Z128 => 4,
        DeviceFormat::Q4_G128 => 2,
        _ => 8,
    }
}

/// Bytes of the scales of a row, filled up to 16, which copies on the device come in, or 32: `q8_scales`, `q4_g128_scales` and
/// `q6_k_row_words` of `kernels/parts.h`.
pub(crate) fn scale_row_bytes(format: DeviceFormat, row_len: usize) -> usize {
    match format {
        DeviceFormat::F32 | DeviceFormat::F16 | DeviceFormat::BF16 => 0,
        DeviceFormat::Q6_K => (row_len / q6_k::BLOCK_LEN * Q6_K_BYTES).next_multiple_of(16),
        // Of Q4_Z128, four bytes for each 128: the same.
        DeviceFormat::MXFP4 | DeviceFormat::Q4_Z128 => (row_len / mxfp4::BLOCK_LEN).next_multiple_of(16),
        DeviceFormat::Q4_G128 => (row_len / (GROUP_BLOCKS * q4_0::BLOCK_LEN) * size_of::<f16>()).next_multiple_of(32),
        // Of Q4_K, 16 bytes for each block of 256: the same. Of NVFP4, two of one byte in place of one of two.
        DeviceFormat::Q8_0 | DeviceFormat::FP8 | DeviceFormat::Q4_0 | DeviceFormat::NVFP4 | DeviceFormat::Q4_K => {
            (row_len / q8_0::BLOCK_LEN * size_of::<f16>()).next_multiple_of(16)
        }
    }
}

/// Bytes of a row of values.
pub(crate) fn row_bytes(format: DeviceFormat, row_len: usize) -> usize {
    row_chunks(format, row_len) * 16
}

/// 16-byte chunks of a row, the last filled up.
fn row_chunks(format: DeviceFormat, row_len: usize) -> usize {
    row_len.div_ceil(format.chunk_len())
}

#[cfg(test)]
mod tests {
    use testing::Rng;

    use super::*;

    /// Weight by weight, as `WeightQ6_K` of `kernels/parts.h` says it.
    #[test]
    fn planes_of_q6_k_have_every_bit_where_kernels_look() {
        let mut rng = Rng::new(1);
        for _ in 0..20 {
            let mut byte = || rng.next_u64() as u8;
            let block = q6_k::Block {
                codes: std::array::from_fn(|_| byte()),
                high: std::array::from_fn(|_| byte()),
                scales: std::array::from_fn(|_| byte().cast_signed()),
                scale: f16::from_bits(0x1234),
            };
            let (mut low, mut rest) = ([0; 128], [0; Q6_K_BYTES]);
            for (i, code) in block.codes_in_order().into_iter().enumerate() {
                let (chunk, upper, place) = (i / 32, i / 16 % 2, i % 16);
                low[chunk * 16 + place] |= (code & 15) << (upper * 4);
                // The word of this half of the chunk, its byte, and there the lower half of the codes' bytes first, the first
                // four ahead.
                let word = (chunk % 2 * 2 + place / 8) * 4 + chunk / 2;
                let shift = (place % 8 / 4 * 2 + upper) * 2;
                rest[word * 4 + place % 4] |= ((code >> 4) ^ 2) << shift;
            }
            rest[64..80].copy_from_slice(bytemuck::cast_slice(&block.scales));
            rest[80..82].copy_from_slice(&block.scale.to_le_bytes());
            assert_eq!(q6_k_planes(&block), (low, rest));
        }
    }

    /// Weight by weight, as `WeightQ4Z128` of `kernels/parts.h` says it: zero points of 0 to 16, and codes that are all above
    /// zero. Where the codes of a group differ by more, or scales of its blocks differ, no matrix is in this format.
    #[test]
    fn q5_0_with_zero_points_has_four_bits_on_the_device() {
        let mut rng = Rng::new(1);
        let mut blocks = vec![];
        for least in -16..=16 {
            let scale = f16::from_f32(0.01 + rng.normal().abs());
            for _ in 0..GROUP_BLOCKS {
                let most = (least + 15).min(15);
                let codes = std::array::from_fn(|_| rng.pick(&[least.min(15), most, (least + 3).min(most)]));
                blocks.push(q5_0::from_codes(scale, &codes));
            }
        }
        let tensor = |blocks: &[q5_0::Block]| {
            let shape = vec![blocks.len() / GROUP_BLOCKS, GROUP_BLOCKS * q5_0::BLOCK_LEN];
            Tensor::new(WeightFormat::Q5_0, shape, bytemuck::cast_slice(blocks).to_vec().into()).unwrap()
        };
        let expected = tensor(&blocks);
        assert_eq!(formats(std::slice::from_ref(&expected)), [DeviceFormat::Q4_Z128]);
        for (group, expected) in blocks.as_chunks().0.iter().zip(expected.to_f32().as_chunks::<128>().0) {
            let (codes, [scale_low, scale_high, zero_low, zero_high]) = q4_z128_planes(group);
            let scale = f16::from_le_bytes([scale_low, scale_high]).to_f32();
            let zero = f16::from_le_bytes([zero_low, zero_high]).to_f32();
            assert!((0.0..=16.0).contains(&zero), "{zero}");
            for (i, &expected) in expected.iter().enumerate() {
                let code = codes[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
                assert_eq!(scale * (f32::from(code) - zero), expected, "weight {i}, zero point {zero}");
            }
        }
        let mut too_far_apart = blocks.clone();
        too_far_apart[5] = q5_0::from_codes(blocks[5].scale, &std::array::from_fn(|i| if i == 9 { 1 } else { -15 }));
        let mut of_two_scales = blocks.clone();
        of_two_scales[6].scale = f16::ONE;
        for others in [too_far_apart, of_two_scales] {
            assert_eq!(formats(&[tensor(&others), expected.clone()]), [DeviceFormat::Q8_0; 2]);
        }
    }

    /// Weights of many pieces arrive whole, whichever thread packed what, and piece by piece to whoever watches; where a copy
    /// fails, loading ends with that.
    #[cfg(feature = "sim")]
    #[test]
    fn pieces_are_packed_beside_each_other() {
        use crate::driver::sim::{SimDialect, SimDriver, SimFault, SimFaults, ThreadOrder};

        let (rows, row_len) = (3000, 4096);
        let bytes = Tensor::byte_len(WeightFormat::Q8_0, &[rows, row_len]).unwrap();
        let mut rng = Rng::new(2);
        let mut random = vec![0; bytes];
        random.chunks_mut(8).for_each(|eight| eight.copy_from_slice(&rng.next_u64().to_le_bytes()[..eight.len()]));
        let tensor = Tensor::new(WeightFormat::Q8_0, vec![rows, row_len], random.into()).unwrap();
        let faults = SimFaults::default();
        let mut driver = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 1 << 30, faults.clone());
        let mut region = |row_bytes| {
            let bytes = (rows * row_bytes) as u64;
            Region { address: driver.allocate(bytes).unwrap(), bytes }
        };
        let format = DeviceFormat::Q8_0;
        let (values, scales) = (region(row_bytes(format, row_len)), region(scale_row_bytes(format, row_len)));
        let weight = DeviceWeight { format, values, scales, rows, row_len, matrix_scale: 1.0 };
        let pieces = Rows::all((&weight, &tensor)).count();
        assert!(pieces > 5, "{pieces}");
        for calls in [0, 1, 5] {
            faults.set(Some(SimFault::OneCall { after: calls }));
            let failed = fill(&mut driver, [(&weight, &tensor)].into_iter(), &mut |_, _| ());
            assert!(matches!(failed, Err(DriverError::Failed(_))), "{failed:?}");
        }
        let mut told = vec![];
        fill(&mut driver, [(&weight, &tensor)].into_iter(), &mut |there, of| told.push((there, of))).unwrap();
        let total = values.bytes + scales.bytes;
        assert!(told.len() == pieces + 1 && told[0] == (0, total) && told[pieces] == (total, total), "{told:?}");
        assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[1].1 == total), "{told:?}");
        let rows = Rows { weight: &weight, tensor: &tensor, first: 0, count: rows };
        let mut expected = vec![1; rows.bytes().iter().sum()];
        rows.pack(&mut expected);
        let (of_values, of_scales) = expected.split_at(rows.bytes()[0]);
        for (region, expected) in [(values, of_values), (scales, of_scales)] {
            let mut found = vec![0; expected.len()];
            driver.download(region.address, &mut found).unwrap();
            let others = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            assert_eq!(others, 0);
        }
    }
}

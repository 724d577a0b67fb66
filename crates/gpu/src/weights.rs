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
use tensor::Tensor;

use crate::driver::{Driver, DriverError};
use crate::formats::{DeviceFormat, FileRow, formats, row_bytes, scale_row_bytes};
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
            let matrix_scale = format.facts().matrix_scale.map_or(1.0, |of| of(tensor));
            weights.push(DeviceWeight { format, values, scales, rows, row_len, matrix_scale });
        }
        let to_copy = weights.iter().zip(tensors).zip(&in_place).filter(|(_, in_place)| in_place.is_none());
        fill(driver, to_copy.map(|(weight, _)| weight), copied)?;
        let mut matrix_scales = HashMap::new();
        for experts in stacks(plan) {
            let stack = &weights[run(experts.first, experts.count)];
            if stack[0].format.facts().matrix_scale.is_some() {
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
    fn pack_row(&self, tensor: &Tensor, index: usize, to: [&mut [u8]; 2]) {
        (self.format.facts().pack_row)(FileRow { tensor, index }, to);
    }
}

/// Whether matrices of so many bytes lie one after another, as a tensor of a whole stack has them: so kernels find the
/// weights of experts.
fn are_adjacent(addresses: &[Option<Address>], bytes: u64) -> bool {
    let known: Option<Vec<_>> = addresses.iter().copied().collect();
    known.is_some_and(|known| known.windows(2).all(|pair| pair[0].0 + bytes == pair[1].0))
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

/// Whether a tensor's bytes are those on the device, up to padding: codes and scales of blocks lie apart there.
fn is_kept(tensor: &Tensor) -> bool {
    let format = DeviceFormat::of_tensor(tensor);
    scale_row_bytes(format, tensor.row_len()) == 0 && format.weight_format() == tensor.format()
}

/// Whether a matrix lies in the host's memory as it would on the device, so that 16-byte loads of it are aligned.
fn is_as_on_device(tensor: &Tensor) -> bool {
    let is_padded = tensor.row_bytes() != row_bytes(DeviceFormat::of_tensor(tensor), tensor.row_len());
    tensor.shape().len() > 1 && is_kept(tensor) && !is_padded && (tensor.bytes().as_ptr() as usize).is_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use tensor::WeightFormat;
    use testing::Rng;

    use super::*;

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

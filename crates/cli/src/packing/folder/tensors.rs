//! The tensors of a folder of safetensors: each is made and written when its turn comes.

use std::cell::RefCell;
use std::io::{self, Write};
use std::ops::Range;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use formats::{Checkpoint, PackedPart, SafetensorsWriter, TensorInfo};
use indicatif::ProgressBar;
use tensor::quant::Packing;
use tensor::{Tensor, WeightFormat};

use super::choice::{HowPacked, TensorFate};
use crate::packing::convert::{convert, damaged, in_pieces, largest, values, write_and_release};
use crate::packing::loss::Loss;
use crate::packing::scales::Scales;

/// A tensor to be written, with what is needed when its turn comes.
#[derive(Clone)]
pub(super) struct TensorToWrite {
    pub(super) checkpoint: Rc<Checkpoint>,
    pub(super) name: String,
    pub(super) type_name: &'static str,
    /// In the source.
    pub(super) bytes: u64,
    pub(super) progress: ProgressBar,
    pub(super) losses: Rc<RefCell<Vec<Loss>>>,
    /// What was packed with the codes that were written last: it comes right after them.
    pub(super) last_packed: LastPacked,
}

/// The bytes of the scales and the zero points of the matrix that was packed last, with its name.
pub(super) type LastPacked = Rc<RefCell<Option<(String, Vec<u8>, Vec<u8>)>>>;

impl TensorToWrite {
    fn tensor(&self) -> io::Result<Tensor> {
        self.checkpoint.tensor(&self.name).map_err(damaged)
    }

    fn keep(&self, out: &mut dyn Write) -> io::Result<()> {
        write_and_release(self.tensor()?.bytes(), out)?;
        self.progress.inc(self.bytes);
        Ok(())
    }

    fn convert(&self, format: WeightFormat, out: &mut dyn Write) -> io::Result<()> {
        let tensor = self.tensor()?;
        let mut loss = Loss::none(&self.name, self.type_name, format.name());
        convert(&tensor, format, 1.0, &Scales::Plain, out, &mut loss, &mut |_| ())?;
        if tensor.shape().len() > 1 {
            self.losses.borrow_mut().push(loss);
        }
        self.progress.inc(self.bytes);
        Ok(())
    }

    /// Writes one of the tensors of the packed matrix.
    fn part(&self, part: PackedPart, how: &HowPacked, shape: [u64; 2], out: &mut dyn Write) -> io::Result<()> {
        match part {
            PackedPart::Codes => self.codes(how, out),
            PackedPart::Scales => out.write_all(&self.scales_and_zeros(how)?.0),
            PackedPart::Zeros => out.write_all(&self.scales_and_zeros(how)?.1),
            PackedPart::GlobalScale => out.write_all(&self.global(how)?.to_le_bytes()),
            PackedPart::Shape => out.write_all(&shape.map(u64::to_le_bytes).concat()),
        }
    }

    /// Writes the codes, and keeps scales and zero points for [`TensorToWrite::scales_and_zeros`].
    fn codes(&self, how: &HowPacked, out: &mut dyn Write) -> io::Result<()> {
        self.progress.set_message(self.name.clone());
        let mut loss = Loss::none(&self.name, self.type_name, how.layout.name());
        loss.weighted = matches!(how.scales, Scales::Weighted { .. });
        let (scales, zeros) = self.pack(how, out, &mut loss)?;
        self.losses.borrow_mut().push(loss);
        *self.last_packed.borrow_mut() = Some((self.name.clone(), scales, zeros));
        self.progress.inc(self.bytes);
        Ok(())
    }

    /// The bytes of scales and zero points; where the codes of another matrix were written since, they are made again.
    fn scales_and_zeros(&self, how: &HowPacked) -> io::Result<(Vec<u8>, Vec<u8>)> {
        if let Some((_, scales, zeros)) = self.last_packed.borrow().as_ref().filter(|(name, ..)| *name == self.name) {
            return Ok((scales.clone(), zeros.clone()));
        }
        self.pack(how, &mut io::sink(), &mut Loss::none(&self.name, self.type_name, how.layout.name()))
    }

    /// What the scales of the matrix and its siblings are divided by.
    fn global(&self, how: &HowPacked) -> io::Result<f32> {
        if !how.layout.has_global_scale() {
            return Ok(1.0);
        }
        if let Some(found) = how.siblings.global.get() {
            return Ok(found);
        }
        let mut most = 0f32;
        for name in how.siblings.names.iter() {
            let tensor = self.checkpoint.tensor(name).map_err(damaged)?;
            most = most.max(largest(&tensor).map_err(|error| damaged(format!("`{name}`: {error}")))?);
        }
        let found = how.layout.global_scale(most);
        how.siblings.global.set(Some(found));
        Ok(found)
    }

    /// Packs the matrix piece by piece; returns the bytes of all its scales, and of its zero points.
    fn pack(&self, how: &HowPacked, out: &mut dyn Write, loss: &mut Loss) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (layout, global) = (how.layout, self.global(how)?);
        let tensor = self.tensor()?;
        // What it was decoded from, if it was.
        self.checkpoint.weight_bytes().for_each(|bytes| mapped::release(bytes));
        let (row_len, rows) = (tensor.row_len(), tensor.num_rows());
        let (mut scales, mut zeros, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        let pack = |rows: Range<usize>, packing: Packing<'_>| {
            let values = values(&tensor, rows)?;
            let packed = layout.pack(&values, row_len, global, packing).map_err(damaged)?;
            let mut lost = Loss::none("", "", "");
            lost.add(&values, &packed.weights);
            Ok((packed, lost))
        };
        in_pieces(&tensor, &how.scales, layout.rows_together(), pack, &mut |(packed, lost), _| {
            // A matrix that is turned is written when it is whole: its codes are held till then.
            if layout.is_turned() {
                codes.extend_from_slice(&packed.codes)
            } else {
                out.write_all(&packed.codes)?
            }
            scales.extend_from_slice(&packed.scales);
            zeros.extend_from_slice(&packed.zeros);
            loss.merge(&lost);
            Ok(())
        })?;
        out.write_all(&layout.arranged(PackedPart::Codes, codes, rows))?;
        Ok((layout.arranged(PackedPart::Scales, scales, rows), layout.arranged(PackedPart::Zeros, zeros, rows)))
    }
}

/// The tensors that a weight becomes.
pub(super) fn add(
    writer: &mut SafetensorsWriter,
    unit: TensorToWrite,
    info: &TensorInfo,
    becomes: TensorFate,
) -> Result<()> {
    let shape = info.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>()?;
    let name = info.name.clone();
    match becomes {
        TensorFate::Kept => {
            let format = info.format.context("a type that is read")?;
            let len = Tensor::byte_len(format, &shape)? as u64;
            writer.made_tensor(&name, format.name(), &info.shape, len, move |out| unit.keep(out));
        }
        TensorFate::Plain(format) => {
            let len = Tensor::byte_len(format, &shape)? as u64;
            writer.made_tensor(&name, format.name(), &info.shape, len, move |out| unit.convert(format, out));
        }
        TensorFate::Packed(how) => {
            let [rows, cols] = shape[..] else { bail!("`{name}` has {} dimensions, not two", shape.len()) };
            let stem = name.strip_suffix(".weight").unwrap_or(&name);
            for tensor in how.layout.tensors(rows, cols) {
                let (unit, how, part) = (unit.clone(), how.clone(), tensor.part);
                let make = move |out: &mut dyn Write| unit.part(part, &how, [rows as u64, cols as u64], out);
                writer.made_tensor(&format!("{stem}{}", tensor.end), tensor.dtype, &tensor.shape, tensor.bytes, make);
            }
        }
    }
    Ok(())
}

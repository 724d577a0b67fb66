//! A plan on a device: its memory, and a recorded program for each step shape.

#[cfg(all(test, feature = "sim"))]
mod metal_limits;
#[cfg(all(test, feature = "sim"))]
mod weight_check;

use std::ops::Range;
use std::sync::Arc;

use backend::profile::{CostModel, OpInfo, Recorder};
use backend::{
    BackendError, BlockLayout, Choice, Copied, Counters, Executable, Footprint, Observed, Observer, ResidentWeight,
};
use half::f16;
use plan::{KvFormat, KvLayout, Op, Plan, Rope, StepError, StepInput, StepShape};
use tensor::Tensor;

use crate::driver::{Driver, DriverError, Recording, STEPS_MAX};
use crate::glu_bounds::GluBounds;
use crate::kernels::sm90::experts_mma;
use crate::kernels::{attention, choose, gemm_mma, rope_kv_write, sample};
use crate::kv_cache::{KvCache, LayerCache};
use crate::launch::{Launch, Region};
use crate::ops::{self, OpLaunches};
use crate::params::{Address, Chosen};
use crate::profile::{self, Watched};
use crate::site::{ArenaLayout, LoadedPlan};
use crate::step_input::{StepRows, Tiles, max_positions};
use crate::target::Target;
use crate::weights::DeviceWeights;

/// Rows of a step that a grid has room for.
const TOKENS_MAX: usize = 65_535;

pub(crate) struct GpuExecutable {
    device: String,
    driver: Box<dyn Driver>,
    target: Target,
    plan: Arc<Plan>,
    /// The same without its head.
    hidden: Option<Arc<Plan>>,
    weights: DeviceWeights,
    glu_bounds: GluBounds,
    angles: Vec<Region>,
    orders: Vec<Region>,
    head_ids: Region,
    cache: KvCache,
    counters: Region,
    memory: Memory,
    /// The tokens that a step chooses, for the step after it; a place of their own, since the arena may move.
    chosen: Region,
    /// Outputs of the step queued last.
    last_outputs: usize,
    /// Those of the step collected last.
    choices: Vec<Choice>,
    /// By plan and shape, ascending; all placed in `memory`.
    programs: Vec<Program>,
    /// The step input as it is uploaded; kept for its memory.
    words: Vec<i32>,
    /// Logits without the padding between rows, where there is any.
    logits: Vec<f32>,
    /// What the last step ended with.
    end: Epilogue,
    costs: CostModel,
    recording: Option<profile::Recording>,
    /// The queued step that will leave a record, and its program.
    watched: Option<(Watched, usize)>,
}

/// The memory that all programs share, as large as the largest needs.
#[derive(Default)]
struct Memory {
    arena: Region,
    step: Region,
    /// What groups of a launch tell each other. Between launches all its bits are set: nothing has been said.
    messages: Region,
}

impl Memory {
    /// Bits that no message has.
    const NOTHING_SAID: u8 = 0xff;
    /// Bytes of messages that are written at a time.
    const PIECE_BYTES: u64 = 16 << 20;

    fn regions(&self) -> [Region; 3] {
        [self.arena, self.step, self.messages]
    }
}

/// A program: what a step of up to its shape runs.
struct Program {
    kind: ResultKind,
    layout: ArenaLayout,
    ops: Vec<OpLaunches>,
    /// What `ops` are.
    infos: Arc<[OpInfo]>,
    /// Its ops.
    recording: Option<Recording>,
    /// Its ops, and then the choice of a token for each output: the likeliest, or as the step input says.
    choosing: Option<Recording>,
    sampling: Option<Recording>,
}

/// What a program makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ResultKind {
    /// Those of the whole model.
    Logits,
    /// Those of the model without its head.
    Hidden,
}

/// What a program does with the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epilogue {
    /// Nothing: the host reads them.
    None,
    /// It chooses the likeliest token of each output.
    Choose,
    /// It chooses or draws a token of each output, as the step input says.
    Sample,
}

impl Program {
    fn recording_of(&mut self, end: Epilogue) -> &mut Option<Recording> {
        match end {
            Epilogue::None => &mut self.recording,
            Epilogue::Choose => &mut self.choosing,
            Epilogue::Sample => &mut self.sampling,
        }
    }
}

/// Bytes of the tokens that the largest step chooses.
const CHOSEN_BYTES: u64 = (TOKENS_MAX * size_of::<Chosen>()) as u64;

/// An error of the driver as one of the backend: about `what` where memory is short.
pub(crate) fn device_error(device: String, what: &'static str) -> impl Fn(DriverError) -> BackendError {
    move |error| match error {
        DriverError::OutOfMemory { bytes, free_bytes } => {
            BackendError::OutOfMemory { device: device.clone(), what, needed_bytes: bytes, free_bytes }
        }
        DriverError::Failed(reason) => BackendError::Device { device: device.clone(), reason },
    }
}

/// What `plan` takes of a device with a cache of `kv` and steps of up to `largest`.
pub(crate) fn footprint(
    target: Target,
    plan: &Plan,
    tensors: &[Tensor],
    kv: KvLayout,
    largest: StepShape,
) -> Footprint {
    let weights = DeviceWeights::bytes(tensors);
    let Some(kv_cache) = KvCache::bytes(&plan.kv_layers, &kv) else {
        return Footprint { weights, kv_cache: u64::MAX, activations: 0 };
    };
    // Sizes alone are asked for, so nothing has to lie anywhere.
    let nowhere = Region { address: Address::default(), bytes: kv_cache };
    let cache = KvCache::at(nowhere, &plan.kv_layers, kv);
    let loaded = LoadedPlan {
        plan,
        weights: &DeviceWeights::default(),
        angles: &[],
        orders: &[],
        head_ids: nowhere,
        cache: &cache,
        target,
        chosen: Region::default(),
        counters: nowhere,
        glu_bounds: &GluBounds::default(),
    };
    // Steps of one token may want more than those of many: attention is split for them.
    let decode = StepShape { tokens: largest.sequences, ..largest };
    let of_one = StepShape { tokens: 1, sequences: 1, outputs: 1 };
    let layouts = [largest, decode, of_one]
        .map(|shape| {
            let of_rows = |rows| ops::lay_out(&loaded, shape.bucket(), rows);
            [StepRows::of_shape(shape), StepRows::Near, StepRows::Several, StepRows::Expanded].map(of_rows)
        })
        .concat();
    let arena = layouts.iter().map(|layout| layout.bytes).max().unwrap_or(0);
    let step = layouts.iter().map(|layout| layout.step.bytes()).max().unwrap_or(0);
    let angles = plan.ropes.iter().map(|rope| (max_positions(plan, &kv) * rope.dims) as u64 * 4).sum::<u64>();
    let orders = plan.orders.iter().map(|order| size_of_val(&order[..]) as u64).sum::<u64>();
    let orders = orders + size_of_val(&ops::latent::head_ids(plan)[..]) as u64;
    let counters = counters_len(plan, &target) as u64 * 4;
    let messages = layouts.iter().map(|layout| layout.messages).max().unwrap_or(0);
    Footprint { weights, kv_cache, activations: arena + step + messages + angles + orders + counters + CHOSEN_BYTES }
}

impl GpuExecutable {
    pub(crate) fn load(
        device: String,
        mut driver: Box<dyn Driver>,
        target: Target,
        plan: Arc<Plan>,
        tensors: &[Tensor],
        kv: KvLayout,
        copied: Copied<'_>,
    ) -> Result<Self, BackendError> {
        let error = |what| device_error(device.clone(), what);
        let cache_error = error("a KV cache");
        let cache_bytes = KvCache::bytes(&plan.kv_layers, &kv)
            .ok_or_else(|| cache_error(DriverError::OutOfMemory { bytes: u64::MAX, free_bytes: None }))?;
        let weights = DeviceWeights::upload(&mut *driver, &plan, tensors, copied).map_err(error("weights"))?;
        let glu_bounds = ops::glu_bounds::measure(&mut *driver, &target, &plan, &weights, tensors)
            .map_err(error("bounds of gated units"))?;
        let cache = KvCache::allocate(&mut *driver, &plan.kv_layers, kv, cache_bytes).map_err(cache_error)?;
        let angles = plan.ropes.iter().map(|rope| upload_angles(&mut *driver, rope, max_positions(&plan, &kv)));
        let angles = angles.collect::<Result<_, _>>().map_err(error("rotary angles"))?;
        let orders = plan.orders.iter().map(|order| upload_table(&mut *driver, order));
        let orders = orders.collect::<Result<_, _>>().map_err(error("orders of columns"))?;
        let head_ids = upload_table(&mut *driver, &ops::latent::head_ids(&plan)).map_err(error("numbers of heads"))?;
        let counters = allocate_counters(&mut *driver, &plan, &target).map_err(error("counters"))?;
        let chosen = driver.allocate(CHOSEN_BYTES).map_err(error("activations"))?;
        let costs = profile::costs(&plan, &weights, cache.layout.format);
        Ok(Self {
            device,
            driver,
            target,
            hidden: plan::hidden_states(&plan).map(Arc::new),
            plan,
            weights,
            glu_bounds,
            angles,
            orders,
            head_ids,
            cache,
            counters,
            memory: Memory::default(),
            chosen: Region { address: chosen, bytes: CHOSEN_BYTES },
            last_outputs: 0,
            choices: vec![],
            programs: vec![],
            words: vec![],
            logits: vec![],
            end: Epilogue::None,
            costs,
            recording: None,
            watched: None,
        })
    }

    fn plan_of(&self, kind: ResultKind) -> &Plan {
        match (kind, &self.hidden) {
            (ResultKind::Hidden, Some(hidden)) => hidden,
            _ => &self.plan,
        }
    }

    fn loaded(&self, kind: ResultKind) -> LoadedPlan<'_> {
        LoadedPlan {
            plan: self.plan_of(kind),
            weights: &self.weights,
            angles: &self.angles,
            orders: &self.orders,
            head_ids: self.head_ids,
            cache: &self.cache,
            target: self.target,
            counters: self.counters,
            chosen: self.chosen,
            glu_bounds: &self.glu_bounds,
        }
    }

    fn error(&self, what: &'static str) -> impl Fn(DriverError) -> BackendError + use<> {
        device_error(self.device.clone(), what)
    }

    /// Memory for a program of `layout`. Where that is more than there is, all programs go: they know the old
    /// addresses.
    fn reserve(&mut self, layout: &ArenaLayout) -> Result<(), BackendError> {
        let needed = [layout.bytes, layout.step.bytes(), layout.messages];
        let held = [self.memory.arena, self.memory.step, self.memory.messages].map(|region| region.bytes);
        if needed.iter().zip(held).all(|(&needed, held)| needed <= held) {
            return Ok(());
        }
        self.driver.forget_recordings();
        self.programs.clear();
        let Memory { arena, step, messages } = std::mem::take(&mut self.memory);
        for region in [arena, step, messages] {
            if region.bytes > 0 {
                self.driver.free(region.address);
            }
        }
        let error = self.error("activations");
        let mut allocate = |place: usize| {
            let bytes = needed[place].max(held[place]);
            let address = if bytes == 0 { Address::default() } else { self.driver.allocate(bytes).map_err(&error)? };
            Ok::<_, BackendError>(Region { address, bytes })
        };
        self.memory = Memory { arena: allocate(0)?, step: allocate(1)?, messages: allocate(2)? };
        let messages = self.memory.messages;
        let piece = vec![Memory::NOTHING_SAID; messages.bytes.min(Memory::PIECE_BYTES) as usize];
        for start in (0..messages.bytes).step_by(Memory::PIECE_BYTES as usize) {
            let part = messages.part(start, (messages.bytes - start).min(Memory::PIECE_BYTES));
            self.driver.upload(part.address, &piece[..part.bytes as usize]).map_err(&error)?;
        }
        Ok(())
    }

    /// Steps under way that nobody has collected are of no more use.
    fn drain(&mut self) -> Result<(), BackendError> {
        self.watched = None;
        while self.driver.num_under_way() > 0 {
            self.driver.collect().map_err(device_error(self.device.clone(), "a step"))?;
        }
        Ok(())
    }

    /// What chooses tokens behind the ops of `program`.
    fn epilogue(&self, program: &Program, end: Epilogue) -> Vec<Launch> {
        let (arena, step) = (self.memory.arena, self.memory.step);
        let mut launches = vec![];
        if end != Epilogue::None {
            launches.extend(choose::launches(&self.loaded(ResultKind::Logits), &program.layout, arena, step));
        }
        if end == Epilogue::Sample {
            launches.push(sample::launch(&self.loaded(ResultKind::Logits), &program.layout, arena, step));
        }
        launches
    }

    /// The recording of a program, made when it is asked for first.
    fn recording(&mut self, index: usize, end: Epilogue) -> Result<Recording, BackendError> {
        if let Some(recording) = *self.programs[index].recording_of(end) {
            return Ok(recording);
        }
        let program = &self.programs[index];
        let mut launches: Vec<_> = program.ops.iter().flat_map(|op| &op.launches).cloned().collect();
        launches.extend(self.epilogue(program, end));
        let recording = self.driver.record(&launches).map_err(self.error("a program"))?;
        *self.programs[index].recording_of(end) = Some(recording);
        Ok(recording)
    }

    /// Checks `input`, makes its program if there is none, and copies blocks. Returns the program's place. If the
    /// results of all ops are `observed`, the program makes all of them.
    fn begin(
        &mut self,
        kind: ResultKind,
        input: &StepInput,
        outputs_before: usize,
        observed: bool,
    ) -> Result<usize, BackendError> {
        input.check_fed(self.plan.vocab_size, &self.cache.layout, outputs_before)?;
        let shape = input.shape().bucket();
        let near = ops::latent::has_near(&self.loaded(kind));
        let mut index = self.compile_of(kind, shape, StepRows::of_step(input, near))?;
        let step = &self.programs[index].layout.step;
        // Some results of ops are never made where others are expanded.
        if matches!(step.tiles, Tiles::Expanded { .. }) && (observed || !step.has_room(input)) {
            index = self.compile_of(kind, shape, StepRows::Several)?;
        }
        let mut words = std::mem::take(&mut self.words);
        let encoded = self.programs[index].layout.step.encode(input, &mut words);
        self.words = words;
        encoded?;
        for copy in input.block_copies.iter().filter(|copy| copy.from != copy.to) {
            for layer in 0..self.cache.layers.len() {
                let launch = rope_kv_write::block_copy(&self.cache, layer, copy.from, copy.to);
                self.driver.launch(&launch).map_err(device_error(self.device.clone(), "a launch"))?;
            }
        }
        Ok(index)
    }

    /// Hands over the record of a step that was collected at `end_ns`, whose input is still on the device.
    fn leave_record(&mut self, (watched, index): (Watched, usize), end_ns: u64) -> Result<(), BackendError> {
        let program = &self.programs[index];
        let epilogue = self.epilogue(program, self.end);
        let mut ops: Vec<_> = program.ops.iter().map(|op| &op.launches[..]).collect();
        let mut infos = program.infos.clone();
        if !epilogue.is_empty() {
            infos = infos.iter().cloned().chain([profile::choice(&epilogue)]).collect();
            ops.push(&epilogue);
        }
        let Some(recording) = &mut self.recording else { return Ok(()) };
        let driver = &mut *self.driver;
        let left = recording.end(watched, end_ns, infos, || profile::measure(driver, &ops));
        left.map_err(device_error(self.device.clone(), "a step"))
    }

    /// The place of the program of that plan for steps of up to `shape`; makes it if there is none.
    fn compile_of(&mut self, kind: ResultKind, shape: StepShape, rows: StepRows) -> Result<usize, BackendError> {
        if let Ok(place) = self.find(kind, shape, rows) {
            return Ok(place);
        }
        if shape.tokens > TOKENS_MAX {
            let reason = format!("a step of {} tokens is too large: at most {TOKENS_MAX}", shape.tokens);
            return Err(BackendError::Device { device: self.device.clone(), reason });
        }
        let layout = ops::lay_out(&self.loaded(kind), shape, rows);
        self.reserve(&layout)?;
        let ops = ops::lower(&self.loaded(kind), &layout, self.memory.regions(), false);
        let place = self.find(kind, shape, rows).expect_err("not there a moment ago");
        let infos = profile::infos(self.plan_of(kind), &self.weights, &ops).into();
        let program = Program { kind, layout, ops, infos, recording: None, choosing: None, sampling: None };
        self.programs.insert(place, program);
        // In the way that steps were asked for last.
        let end = if kind == ResultKind::Hidden { Epilogue::None } else { self.end };
        self.recording(place, end)?;
        Ok(place)
    }

    /// Runs a step and returns its result, rows of the plan's logits, without padding between them.
    fn run(&mut self, kind: ResultKind, input: &StepInput) -> Result<&[f32], BackendError> {
        self.drain()?;
        self.end = Epilogue::None;
        let begin_ns = self.begin_record().filter(|_| kind == ResultKind::Logits);
        let index = self.begin(kind, input, 0, false)?;
        let recording = self.recording(index, Epilogue::None)?;
        let program = &self.programs[index];
        let result = self.loaded(kind).place(&program.layout, self.memory.arena, self.plan_of(kind).logits);
        let (rows, device) = (input.output_rows.len(), self.device.clone());
        let error = device_error(device, "a step");
        let output = (result.region.address, rows * result.stride);
        self.driver.enqueue(recording, (self.memory.step.address, &self.words), output).map_err(&error)?;
        let watched = self.watch(begin_ns, index, input);
        if result.stride == result.width && watched.is_none() {
            return Ok(bytemuck::cast_slice(self.driver.collect().map_err(&error)?));
        }
        let found: &[f32] = bytemuck::cast_slice(self.driver.collect().map_err(&error)?);
        self.logits.clear();
        self.logits.extend(found.chunks_exact(result.stride).flat_map(|row| &row[..result.width]));
        if let (Some(watched), Some(recording)) = (watched, &self.recording) {
            let end_ns = recording.now_ns();
            self.leave_record(watched, end_ns)?;
        }
        Ok(&self.logits)
    }

    /// When the step that begins now began, if it is to leave a record.
    fn begin_record(&self) -> Option<u64> {
        self.recording.as_ref().and_then(profile::Recording::begin)
    }

    /// What is to be kept of a step that began at `begin_ns` and was just submitted.
    fn watch(&self, begin_ns: Option<u64>, program: usize, input: &StepInput) -> Option<(Watched, usize)> {
        let recording = self.recording.as_ref()?;
        Some((recording.watch(begin_ns?, &self.programs[program].ops, input), program))
    }

    fn find(&self, kind: ResultKind, shape: StepShape, rows: StepRows) -> Result<usize, usize> {
        let key = |program: &Program| (program.kind, program.layout.step.shape, program.layout.step.rows);
        self.programs.binary_search_by_key(&(kind, shape, rows), key)
    }

    fn layer(&self, op: usize) -> Option<LayerCache> {
        match self.plan.ops[op] {
            Op::KvWrite { layer, .. }
            | Op::RopeKvWrite { layer, .. }
            | Op::LatentWrite { layer, .. }
            | Op::LatentRopeWrite { layer, .. } => Some(self.cache.layers[layer]),
            _ => None,
        }
    }

    /// The rows of a value, one after another.
    fn read_value(&mut self, program: usize, value: plan::Value, input: &StepInput) -> Result<Vec<f32>, BackendError> {
        let place = self.loaded(ResultKind::Logits).place(&self.programs[program].layout, self.memory.arena, value);
        let rows = match place.rows {
            plan::Rows::Tokens => input.token_ids.len(),
            plan::Rows::Outputs => input.output_rows.len(),
        };
        let mut padded = vec![0f32; rows * place.stride];
        let bytes = bytemuck::cast_slice_mut(&mut padded);
        self.driver.download(place.region.address, bytes).map_err(self.error("a value"))?;
        Ok(padded.chunks_exact(place.stride).flat_map(|row| &row[..place.width]).copied().collect())
    }

    /// One plane of the cache for the tokens of `input`: (tokens, kv_heads · head_dim).
    fn read_cache(&mut self, layer: LayerCache, plane: Region, input: &StepInput) -> Result<Vec<f32>, BackendError> {
        let KvLayout { format, block_len, .. } = self.cache.layout;
        let (heads, head_dim) = (layer.layer.kv_heads, layer.layer.head_dim);
        let mut bytes = vec![0u8; head_dim * format.bytes()];
        let mut found = Vec::with_capacity(input.token_ids.len() * heads * head_dim);
        for sequence in &input.sequences {
            let table = input.table(sequence);
            for position in sequence.first_position..sequence.kv_len() {
                let block = table[position / block_len] as usize;
                for head in 0..heads {
                    let at = (block * heads + head) * block_len + position % block_len;
                    let from = plane.part((at * bytes.len()) as u64, bytes.len() as u64).address;
                    self.driver.download(from, &mut bytes).map_err(self.error("the cache"))?;
                    match format {
                        KvFormat::F32 => found.extend(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x))),
                        KvFormat::F16 => {
                            found.extend(bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x).to_f32()));
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Executable for GpuExecutable {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        let near = ops::latent::has_near(&self.loaded(ResultKind::Logits));
        StepRows::all_of_shape(shape, near)
            .try_for_each(|rows| self.compile_of(ResultKind::Logits, shape, rows).map(drop))
    }

    fn forget_programs(&mut self) {
        self.driver.forget_recordings();
        self.programs.clear();
    }

    fn can_queue(&self) -> bool {
        true
    }

    fn enqueue(&mut self, input: &StepInput) -> Result<(), BackendError> {
        if self.driver.num_under_way() == STEPS_MAX {
            return Err(StepError(format!("a step more than the {STEPS_MAX} that can be under way")).into());
        }
        self.end = if input.sampling.is_empty() { Epilogue::Choose } else { Epilogue::Sample };
        // Parts of a step are repeated once it has ended: then its input must still be there.
        let is_alone = self.driver.num_under_way() == 0 && input.token_ids.iter().all(|&id| id < plan::FED);
        let begin_ns = self.begin_record().filter(|_| is_alone);
        let index = self.begin(ResultKind::Logits, input, self.last_outputs, false)?;
        let recording = self.recording(index, self.end)?;
        let (outputs, device) = (input.output_rows.len(), self.device.clone());
        let output = (self.chosen.address, outputs * (size_of::<Chosen>() / size_of::<u32>()));
        self.driver
            .enqueue(recording, (self.memory.step.address, &self.words), output)
            .map_err(device_error(device, "a step"))?;
        self.watched = self.watch(begin_ns, index, input);
        self.last_outputs = outputs;
        Ok(())
    }

    fn collect(&mut self) -> Result<&[Choice], BackendError> {
        if self.driver.num_under_way() == 0 {
            return Err(BackendError::NotQueued);
        }
        let watched = self.watched.take();
        let found = self.driver.collect().map_err(device_error(self.device.clone(), "a step"))?;
        self.choices.clear();
        self.choices.extend(bytemuck::cast_slice::<u32, Chosen>(found).iter().map(|chosen| Choice {
            token_id: chosen.token_id as u32,
            fault: u32::try_from(chosen.faulty).ok().map(|id| (id, f32::from_bits(chosen.faulty_bits))),
        }));
        if let (Some(watched), Some(recording)) = (watched, &self.recording) {
            let end_ns = recording.now_ns();
            self.leave_record(watched, end_ns)?;
        }
        Ok(&self.choices)
    }

    fn counters(&self) -> Counters {
        self.driver.counters()
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.run(ResultKind::Logits, input)
    }

    fn hidden_size(&self) -> Option<usize> {
        self.hidden.as_ref().map(|hidden| hidden.value(hidden.logits).width)
    }

    fn replay_hidden(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        if self.hidden.is_none() {
            return Err(BackendError::NoHiddenStates);
        }
        self.run(ResultKind::Hidden, input)
    }

    fn variants(&mut self, shape: StepShape) -> Result<Vec<OpInfo>, BackendError> {
        let index = self.compile_of(ResultKind::Logits, shape.bucket(), StepRows::of_shape(shape))?;
        Ok(self.programs[index].infos.to_vec())
    }

    fn resident_weights(&self) -> Vec<ResidentWeight> {
        let stretches = self.weights.copied().flat_map(|(weight, of_weight)| {
            [("values", of_weight.values), ("scales", of_weight.scales)]
                .map(|(layout, region)| (weight, layout, region))
        });
        let is_there = stretches.filter(|(.., region)| region.bytes > 0);
        is_there
            .map(|(weight, layout, region)| {
                let name = self.plan.weights[weight].name.clone();
                ResidentWeight { weight, name, layout, bytes: region.bytes }
            })
            .collect()
    }

    fn read_weight(
        &mut self,
        resident: &ResidentWeight,
        range: Range<u64>,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        let Some((_, weight)) = self.weights.copied().find(|&(index, _)| index == resident.weight) else {
            return Ok(());
        };
        let region = if resident.layout == "scales" { weight.scales } else { weight.values };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let from = region.part(range.start, range.end - range.start).address;
        self.driver.download(from, &mut bytes).map_err(self.error("weights"))?;
        read(&bytes);
        Ok(())
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        let KvLayout { format, block_len, .. } = self.cache.layout;
        Some(BlockLayout {
            name: format!("gpu {format:?} {block_len} {:?}", self.plan.kv_layers),
            bytes: self.cache.block(0).map(|part| part.bytes as usize).sum(),
        })
    }

    fn read_block(&mut self, block: u32, to: &mut Vec<u8>) -> Result<(), BackendError> {
        for part in self.cache.block(block) {
            let start = to.len();
            to.resize(start + part.bytes as usize, 0);
            self.driver.download(part.address, &mut to[start..]).map_err(self.error("a block of the cache"))?;
        }
        Ok(())
    }

    fn write_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        let mut rest = from;
        for part in self.cache.block(block) {
            let (own, others) = rest.split_at(part.bytes as usize);
            self.driver.upload(part.address, own).map_err(self.error("a block of the cache"))?;
            rest = others;
        }
        Ok(())
    }

    fn record(&mut self, recorder: Recorder) -> Result<(), BackendError> {
        self.recording = Some(profile::Recording::new(recorder, &self.device, self.costs.clone()));
        Ok(())
    }

    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        self.drain()?;
        let index = self.begin(ResultKind::Logits, input, 0, true)?;
        let step = self.memory.step.address;
        self.driver.upload(step, bytemuck::cast_slice(&self.words)).map_err(self.error("a step"))?;
        let mut logits = vec![];
        let ops =
            ops::lower(&self.loaded(ResultKind::Logits), &self.programs[index].layout, self.memory.regions(), true);
        for OpLaunches { op, launches } in ops {
            let done = launches.iter().try_for_each(|launch| self.driver.launch(launch));
            done.map_err(self.error("a launch"))?;
            for value in self.plan.clone().ops[op].outputs() {
                let found = self.read_value(index, value, input)?;
                observer(op, Observed::Value(value), &found);
                if value == self.plan.logits {
                    logits = found;
                }
            }
            if let Some(layer) = self.layer(op) {
                observer(op, Observed::CacheKeys, &self.read_cache(layer, layer.keys, input)?);
                // A latent layer has rows alone.
                if layer.values.bytes > 0 {
                    observer(op, Observed::CacheValues, &self.read_cache(layer, layer.values, input)?);
                }
            }
        }
        self.logits = logits;
        Ok(&self.logits)
    }
}

/// Counters, all zero: one for each group of a row of attention whose positions other groups share, or for each tile of
/// a gemm whose input features they share.
fn allocate_counters(driver: &mut dyn Driver, plan: &Plan, target: &Target) -> Result<Region, DriverError> {
    let zeros = vec![0u32; counters_len(plan, target)];
    let bytes = size_of_val(&zeros[..]) as u64;
    let region = Region { address: driver.allocate(bytes)?, bytes };
    driver.upload(region.address, bytemuck::cast_slice(&zeros))?;
    Ok(region)
}

pub(crate) fn counters_len(plan: &Plan, target: &Target) -> usize {
    let heads = plan.ops.iter().filter_map(|op| match *op {
        Op::Attention { ref attention, .. } => Some(attention.heads),
        Op::MlaAttention { attention, .. } => Some(attention.heads),
        _ => None,
    });
    let of_attention = attention::num_counters(target, heads.max().unwrap_or(0));
    of_attention.max(gemm_mma::num_counters(target)).max(experts_mma::NUM_COUNTERS)
}

/// (positions, dims / 2) of cosine and sine, times the attention factor, computed in f64.
fn upload_angles(driver: &mut dyn Driver, rope: &Rope, positions: usize) -> Result<Region, DriverError> {
    let frequencies = rope.frequencies();
    let angles: Vec<[f32; 2]> = (0..positions)
        .flat_map(|position| {
            frequencies.iter().map(move |frequency| {
                let (cos, sin) = rope.angle(*frequency, position);
                [cos as f32, sin as f32]
            })
        })
        .collect();
    upload_table(driver, &angles)
}

/// A table that steps read.
fn upload_table<T: bytemuck::NoUninit>(driver: &mut dyn Driver, table: &[T]) -> Result<Region, DriverError> {
    let bytes = size_of_val(table) as u64;
    if bytes == 0 {
        return Ok(Region::default());
    }
    let region = Region { address: driver.allocate(bytes)?, bytes };
    driver.upload(region.address, bytemuck::cast_slice(table))?;
    Ok(region)
}

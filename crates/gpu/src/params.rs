//! What kernels are given: one `#[repr(C)]` struct for each struct of the kernel text.
//!
//! The text declares them again, since a kernel should read by itself; [`layout_assertions`] is C++ that fails to compile
//! where the two disagree, and goes into every compilation of the kernels. The build script includes this file too.

use bytemuck::{Pod, Zeroable};

/// An address in device memory; 0 where an operand is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) u64);

/// Room for a tensor map, which the driver writes there ([`crate::launch::TileMap`]).
pub(crate) type TensorMap = [u64; 16];

/// Declares the struct, and its size and offsets under the name that the kernel text has for it.
macro_rules! params {
    ($($(#[$doc:meta])* $text:literal struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*

        /// C++ that compiles only where the kernel text lays its structs out as this file does: those that are `wanted`.
        pub(crate) fn layout_assertions(wanted: fn(&str) -> bool) -> String {
            let mut text = String::new();
            $(
                for name in $text.split(' ').filter(|name| wanted(name)) {
                    text += &assertion(&format!("sizeof({name})"), size_of::<$name>());
                    $(
                        text += &assertion(
                            &format!("FIELD_OFFSET({name}, {})", stringify!($field)),
                            std::mem::offset_of!($name, $field),
                        );
                    )*
                }
            )*
            text
        }
    };
}

fn assertion(what: &str, expected: usize) -> String {
    format!("static_assert({what} == {expected}, \"{what} is {expected} in params.rs\");\n")
}

params! {
    /// `embed.h`
    "EmbedParams" struct EmbedParams {
        table: Address,
        scales: Address,
        ids: Address,
        rows: Address,
        chosen: Address,
        y: Address,
        k: i32,
        stride: i32,
        matrix_scale: f32,
        padding: i32,
    }

    /// `rms_norm.h`
    "RmsNormParams" struct RmsNormParams {
        x: Address,
        gain: Address,
        rows: Address,
        select: Address,
        y: Address,
        width: i32,
        slices: i32,
        x_stride: i32,
        y_stride: i32,
        eps: f32,
        padding: i32,
    }

    /// `linear.h`: one of the weights.
    "LinearSegment" struct LinearSegment {
        weight: Address,
        scales: Address,
        bias: Address,
        up: Address,
        up_scales: Address,
        up_bias: Address,
        y: Address,
        n: i32,
        groups: i32,
        y_stride: i32,
        activation: i32,
        matrix_scale: f32,
        up_matrix_scale: f32,
    }

    /// `linear.h`
    "LinearParams" struct LinearParams {
        segments: [LinearSegment; 3],
        x: Address,
        residual: Address,
        rows: Address,
        gain: Address,
        select: Address,
        k: i32,
        x_stride: i32,
        residual_stride: i32,
        eps: f32,
    }

    /// `linear_stream.h`
    "LinearStreamParams" struct LinearStreamParams {
        segments: [LinearSegment; 3],
        x: Address,
        residual: Address,
        rows: Address,
        gain: Address,
        select: Address,
        angles: Address,
        positions: Address,
        slots: Address,
        q_out: Address,
        keys: Address,
        values: Address,
        k: i32,
        x_stride: i32,
        units: i32,
        stages: i32,
        stage_rows: i32,
        x_at: i32,
        ring_at: i32,
        head_dim: i32,
        kv_heads: i32,
        block_len: i32,
        eps: f32,
        groups: i32,
        first_workers: i32,
        first_units: i32,
        other_x_at: i32,
        other_stage_rows: i32,
        x_row: i32,
        q_stride: i32,
        residual_stride: i32,
        next_is_late: i32,
    }

    /// `experts.h`
    "ExpertSumParams" struct ExpertSumParams {
        parts: Address,
        weights: Address,
        residual: Address,
        rows: Address,
        y: Address,
        vectors: i32,
        slots: i32,
        parts_stride: i32,
        weights_stride: i32,
        residual_stride: i32,
        y_stride: i32,
    }

    /// `experts_stream.h`
    "ExpertStreamParams" struct ExpertStreamParams {
        linear: LinearStreamParams,
        router: RouterParams,
        ids: Address,
        weights: Address,
        matrix_scales: Address,
        up_matrix_scales: Address,
        router_f32: Address,
        router_bf16: Address,
        router_bias: Address,
        logits: Address,
        logit: Address,
        sent_ids: Address,
        old_ids: Address,
        ids_out: Address,
        weights_out: Address,
        slots: i32,
        experts: i32,
        stride: i32,
        bias_stride: i32,
        x_slot: i32,
        parts_at: i32,
        row_slots: i32,
        ids_stride: i32,
        weights_stride: i32,
        padding: i32,
    }

    /// `linear_batch.h`
    "LinearBatchParams" struct LinearBatchParams {
        linear: LinearParams,
        partials: Address,
        squares: Address,
        tiles: i32,
        teams: i32,
        slices: i32,
        slice_steps: i32,
        k_simds: i32,
        scale_stride: i32,
    }

    /// `gemm_mma.h`
    "OperandRowsParams" struct OperandRowsParams {
        x: Address,
        gain: Address,
        rows: Address,
        select: Address,
        row_scales: Address,
        to: OperandPlace,
        k: i32,
        x_stride: i32,
        eps: f32,
        padding: i32,
    }

    /// `gemm_mma.h`
    "GemmMmaParams" struct GemmMmaParams {
        linear: LinearParams,
        operand: Address,
        row_scales: Address,
        partials: Address,
        counters: Address,
        operand_stride: i32,
        scale_stride: i32,
        tiles: i32,
        slices: i32,
        stages: i32,
        padding: i32,
    }

    /// `route.h`: how experts are chosen.
    "RouterParams" struct RouterParams {
        correction: Address,
        experts: i32,
        top_k: i32,
        scores: i32,
        weighing: i32,
        groups: i32,
        chosen_groups: i32,
        sum_of_two: i32,
        shared: i32,
        eps: f32,
        scale: f32,
    }

    /// `route.h`
    "RouteParams" struct RouteParams {
        router: RouterParams,
        logits: Address,
        rows: Address,
        ids: Address,
        weights: Address,
        logits_stride: i32,
        ids_stride: i32,
        weights_stride: i32,
        padding: i32,
    }

    /// `experts_rows.h`
    "RouteRowsParams" struct RouteRowsParams {
        route: RouteParams,
        pairs: Address,
        sources: Address,
        tiles: Address,
        num_tiles: Address,
        tile_rows: i32,
        padding: i32,
    }

    /// `experts_rows.h`
    "ExpertRowsParams" struct ExpertRowsParams {
        linear: LinearStreamParams,
        tiles: Address,
        num_tiles: Address,
        pairs: Address,
        matrix_scales: Address,
        up_matrix_scales: Address,
        stride: i32,
        bias_stride: i32,
        tile_rows: i32,
        tiles_max: i32,
        pairs_max: i32,
        slots: i32,
        x_row: i32,
        x_rows: i32,
        plane: i32,
        scales_at: i32,
        lanes: i32,
        y_stride: i32,
        tile_cost: i32,
        row_cost: i32,
        operand: PairOperand,
        route: RouteRowsParams,
    }

    /// `route.h`
    "RouterLogitsParams<f32> RouterLogitsParams<f16> RouterLogitsParams<bf16>" struct RouterLogitsParams {
        x: Address,
        gain: Address,
        weight: Address,
        bias: Address,
        rows: Address,
        logits: Address,
        k: i32,
        x_stride: i32,
        weight_stride: i32,
        logits_stride: i32,
        eps: f32,
        experts: i32,
    }

    /// `experts.h`: the weights of all experts of one projection.
    "ExpertStack" struct ExpertStack {
        weight: Address,
        scales: Address,
        bias: Address,
        matrix_scales: Address,
        stride: i32,
        bias_stride: i32,
    }

    /// `experts.h`
    "ExpertsParams" struct ExpertsParams {
        stack: ExpertStack,
        up: ExpertStack,
        x: Address,
        ids: Address,
        weights: Address,
        residual: Address,
        rows: Address,
        y: Address,
        n: i32,
        k: i32,
        slots: i32,
        experts: i32,
        x_stride: i32,
        x_slot: i32,
        ids_stride: i32,
        weights_stride: i32,
        residual_stride: i32,
        y_stride: i32,
        activation: i32,
        padding: i32,
    }

    /// `rope_kv_write.h`
    "RopeKvWriteParams<f32> RopeKvWriteParams<f16>" struct RopeKvWriteParams {
        q: Address,
        k: Address,
        v: Address,
        q_gain: Address,
        k_gain: Address,
        angles: Address,
        rows: Address,
        positions: Address,
        slots: Address,
        q_out: Address,
        keys: Address,
        values: Address,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        block_len: i32,
        q_stride: i32,
        kv_stride: i32,
        q_out_stride: i32,
        turned: i32,
        q_eps: f32,
        k_eps: f32,
    }

    /// `rope_kv_write.h`
    "RopeParams" struct RopeParams {
        x: Address,
        angles: Address,
        rows: Address,
        positions: Address,
        y: Address,
        heads: i32,
        head_dim: i32,
        x_stride: i32,
        y_stride: i32,
        turned: i32,
        padding: i32,
    }

    /// `rope_kv_write.h`
    "KvWriteParams<f32> KvWriteParams<f16>" struct KvWriteParams {
        k: Address,
        v: Address,
        rows: Address,
        slots: Address,
        keys: Address,
        values: Address,
        kv_heads: i32,
        head_dim: i32,
        block_len: i32,
        kv_stride: i32,
    }

    /// `rope_kv_write.h`
    "BlockCopyParams" struct BlockCopyParams {
        keys: Address,
        values: Address,
        from: i32,
        to: i32,
        block_halves: i32,
        padding: i32,
    }

    /// `operand.h`
    "OperandPlace" struct OperandPlace {
        rows: Address,
        stride: i32,
        order: i32,
        factor: f32,
        is_bf16: i32,
    }

    /// `operand.h`
    "PairOperand" struct PairOperand {
        rows: Address,
        stride: i32,
        in_turns: i32,
        factor: f32,
        padding: i32,
    }

    /// `weight_norms.h`
    "WeightNormsParams" struct WeightNormsParams {
        weight: Address,
        scales: Address,
        gain: Address,
        y: Address,
        matrix_scales: Address,
        n: i32,
        k: i32,
        groups: i32,
        matrix_scale: f32,
        experts: i32,
        stride: i32,
    }

    /// `attention.h`, and those that follow it
    "AttentionParams<f32> AttentionParams<f16>" struct AttentionParams {
        q: Address,
        keys: Address,
        values: Address,
        num_items: Address,
        items: Address,
        positions: Address,
        table_starts: Address,
        blocks: Address,
        out: Address,
        partials: Address,
        stats: Address,
        counters: Address,
        sinks: Address,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        block_len: i32,
        window: i32,
        max_splits: i32,
        q_stride: i32,
        out_stride: i32,
        scale: f32,
        min_tiles: i32,
        whole_tiles: i32,
        padding: i32,
        operand: OperandPlace,
    }

    /// `sm90/prompt_attention.h`
    "PromptParams" struct PromptParams {
        keys: TensorMap,
        values: TensorMap,
        of: AttentionParams,
        chunk: i32,
        align: i32,
        padding: [i32; 2],
    }

    /// `sm90/expanded_attention.h`
    "HeadWeightsParams" struct HeadWeightsParams {
        weight: Address,
        scales: Address,
        matrix_scales: Address,
        y: Address,
        n: i32,
        k: i32,
        stride: i32,
        features: i32,
        first: i32,
        dim: i32,
    }

    /// `sm90/expanded_attention.h`
    "ExpandLatentParams" struct ExpandLatentParams {
        latents: TensorMap,
        weights: TensorMap,
        cache: Address,
        blocks: Address,
        num_blocks: Address,
        keys: Address,
        values: Address,
        heads: i32,
        block_len: i32,
        chunk: i32,
        groups: i32,
        padding: [i32; 2],
    }

    /// `sm90/expanded_attention.h`
    "ExpandedParams" struct ExpandedParams {
        prompt: PromptParams,
        q_rope: Address,
        q_rope_stride: i32,
        padding: [i32; 13],
    }

    /// `mla_attention.h`
    "MlaParams<f32> MlaParams<f16>" struct MlaParams {
        attention: AttentionParams,
        q_rope: Address,
        parts: Address,
        rope: i32,
        q_rope_stride: i32,
        tile: i32,
        padding: i32,
    }

    /// `mla_attention.h`
    "LatentWriteParams<f32> LatentWriteParams<f16>" struct LatentWriteParams {
        latent: Address,
        rope: Address,
        rows: Address,
        slots: Address,
        cache: Address,
        dim: i32,
        rope_dim: i32,
        latent_stride: i32,
        rope_stride: i32,
    }

    /// `mla_attention.h`
    "LatentRopeWriteParams<f32> LatentRopeWriteParams<f16>" struct LatentRopeWriteParams {
        q: Address,
        kv: Address,
        q_nope_columns: Address,
        q_rope_columns: Address,
        latent_columns: Address,
        rope_columns: Address,
        gain: Address,
        angles: Address,
        rows: Address,
        positions: Address,
        slots: Address,
        q_nope: Address,
        q_rope: Address,
        cache: Address,
        heads: i32,
        nope: i32,
        dim: i32,
        rope_dim: i32,
        q_stride: i32,
        kv_stride: i32,
        q_nope_stride: i32,
        q_rope_stride: i32,
        turned: i32,
        eps: f32,
    }

    /// `head_linear.h`
    "HeadLinearParams" struct HeadLinearParams {
        weight: Address,
        scales: Address,
        bias: Address,
        matrix_scales: Address,
        x: Address,
        columns: Address,
        rows: Address,
        y: Address,
        n: i32,
        k: i32,
        stride: i32,
        bias_stride: i32,
        x_stride: i32,
        y_stride: i32,
        heads: i32,
        groups: i32,
    }

    /// `mla_attention.h`
    "LatentHeadParams" struct LatentHeadParams {
        heads: HeadLinearParams,
        write: LatentRopeWriteParams,
    }

    /// `mla_attention.h`
    "FoldHeadParams" struct FoldHeadParams {
        heads: HeadLinearParams,
        mla: MlaParams,
    }

    /// `sm90/mla_cluster.h`
    "MlaClusterParams" struct MlaClusterParams {
        keys: HeadLinearParams,
        values: HeadLinearParams,
        mla: MlaParams,
        write: LatentRopeWriteParams,
        heads: i32,
        next_is_late: i32,
        padding: [i32; 2],
    }

    /// `attention_f16.h`
    "RopeAttentionParams" struct RopeAttentionParams {
        attention: AttentionParams,
        k: Address,
        v: Address,
        q_gain: Address,
        k_gain: Address,
        angles: Address,
        slots: Address,
        keys: Address,
        values: Address,
        kv_stride: i32,
        next_is_late: i32,
        q_eps: f32,
        k_eps: f32,
    }

    /// `sm90/activations.h`
    "ActivationParams" struct ActivationParams {
        x: Address,
        gain: Address,
        rows: Address,
        select: Address,
        y: Address,
        row_scales: Address,
        k: i32,
        x_stride: i32,
        y_stride: i32,
        eps: f32,
        copies: i32,
        waits: i32,
    }

    /// `sm90/activations.h`: rows that are added up first.
    "SumActivationParams" struct SumActivationParams {
        sum: ExpertSumParams,
        rows: ActivationParams,
    }

    /// `sm90/gemm.h`: one of the weights.
    "GemmSegment" struct GemmSegment {
        weight: TensorMap,
        scale_tiles: TensorMap,
        scales: Address,
        up_scales: Address,
        bias: Address,
        up_bias: Address,
        y: Address,
        n: i32,
        tiles: i32,
        y_stride: i32,
        matrix_scale: f32,
        up_matrix_scale: f32,
        activation: i32,
    }

    /// `sm90/gemm.h`
    "GemmParams" struct GemmParams {
        x: TensorMap,
        segments: [GemmSegment; 3],
        row_scales: Address,
        residual: Address,
        rows: Address,
        operand: OperandPlace,
        k: i32,
        scale_stride: i32,
        residual_stride: i32,
        tiles: i32,
        glu: i32,
        stages: i32,
        height: i32,
        columns: i32,
        factor: f32,
        parts: i32,
        row_tiles: i32,
        padding: [i32; 9],
    }

    /// `sm90/gemm_experts.h`
    "GroupRowsParams" struct GroupRowsParams {
        ids: Address,
        rows: Address,
        pairs: Address,
        sources: Address,
        tiles: Address,
        num_tiles: Address,
        ids_stride: i32,
        slots: i32,
        experts: i32,
        tokens: i32,
    }

    /// `sm90/gemm_experts.h`: whose weights multiply which rows.
    "GemmExperts" struct GemmExperts {
        tiles: Address,
        num_tiles: Address,
        pairs: Address,
        matrix_scales: Address,
        up_matrix_scales: Address,
        stride: i32,
        bias_stride: i32,
        padding: [i32; 4],
    }

    /// `sm90/gemm_experts.h`
    "ExpertGemmParams" struct ExpertGemmParams {
        gemm: GemmParams,
        experts: GemmExperts,
    }

    /// `sm90/experts_mma.h`
    "RouterRowsParams<f32> RouterRowsParams<f16> RouterRowsParams<bf16>" struct RouterRowsParams {
        logits: RouterLogitsParams,
        rows: ActivationParams,
    }

    /// `sm90/experts_mma.h`
    "ExpertMmaParams" struct ExpertMmaParams {
        weight: TensorMap,
        scale_tiles: TensorMap,
        x: Address,
        row_scales: Address,
        bias: Address,
        up_bias: Address,
        matrix_scales: Address,
        up_matrix_scales: Address,
        y: Address,
        tiles: Address,
        num_tiles: Address,
        pairs: Address,
        sources: Address,
        k: i32,
        n: i32,
        slabs: i32,
        x_stride: i32,
        y_stride: i32,
        bias_stride: i32,
        activation: i32,
        stages: i32,
        factor: f32,
        few_pairs: i32,
        operand: PairOperand,
        few_tiles: i32,
        padding: [i32; 9],
    }

    /// `sm90/experts_mma.h`: gated units, and the down projections of the same experts.
    "ExpertPairParams" struct ExpertPairParams {
        units: ExpertMmaParams,
        downs: ExpertMmaParams,
        route: RouteRowsParams,
        counters: Address,
        x_bytes: i32,
        padding: [i32; 11],
    }

    /// `elementwise.h`
    "ElementwiseParams" struct ElementwiseParams {
        a: Address,
        b: Address,
        rows: Address,
        select: Address,
        y: Address,
        width: i32,
        a_stride: i32,
        b_stride: i32,
        y_stride: i32,
        activation: i32,
        terms: i32,
    }

    /// `choose.h`: what is found for an output row.
    "Chosen" struct Chosen {
        token_id: i32,
        faulty: i32,
        faulty_bits: u32,
        padding: i32,
    }

    /// `choose.h`: what is found in a part of a row.
    "ChoosePart" struct ChoosePart {
        value: f32,
        token_id: i32,
        faulty: i32,
        padding: i32,
    }

    /// `choose.h`
    "ChooseParams" struct ChooseParams {
        logits: Address,
        rows: Address,
        parts: Address,
        chosen: Address,
        n: i32,
        stride: i32,
        num_parts: i32,
        padding: i32,
    }

    /// `sample.h`: how the token of an output row is drawn.
    "RowSampling" struct RowSampling {
        temperature: f32,
        min_p_ln: f32,
        top_k: u32,
        top_p: u32,
        pick_low: u32,
        pick_high: u32,
        padding: [i32; 2],
    }

    /// `sample.h`
    "SampleParams" struct SampleParams {
        logits: Address,
        rows: Address,
        sampling: Address,
        chosen: Address,
        n: i32,
        stride: i32,
    }

    /// `roofline.h`
    "RooflineParams" struct RooflineParams {
        from: Address,
        to: Address,
        found: Address,
        counter: Address,
        vectors: i32,
        rounds: i32,
        groups: i32,
        stages: i32,
    }

    /// `planted_faults.h`, of tests.
    "FaultParams" struct FaultParams {
        y: Address,
        x: Address,
        n: i32,
        one: i32,
    }
}

//! What kernels do to the activations that they multiply with stored weights.

/// How activations are rounded before they meet weights of some format: a kernel's choice, which its results are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationRounding {
    /// Not at all: products of f32.
    F32,
    /// Each to f16, times a power of two of its row: by at most 2^-11 of itself, or 2^-38 of the row's largest; weights that
    /// are codes and scales become f16 too.
    F16,
    /// Each to bf16, to nearest: by at most 2^-9 of itself.
    BF16,
    /// Blocks of 32 to signed bytes times the largest magnitude / 127, the scale itself kept in f16 or wider.
    Q8Blocks,
}

// operand: rows as the matrix instructions of sm90/gemm.h and sm90/gemm_narrow.h take them, 16 bits a number, left by the kernel
// whose result they are, so that no other has to read them and make it.
//
// Order     as x, or, for codes that become operands in registers (gemm.h): place 16 s + 8 h + 2 t + i of each 64 has number
//           16 t + 4 s + 2 h + i (bytes), or 32 (t / 2) + 8 (t % 2) + 4 (s / 2) + 16 (s % 2) + h + 2 i (four bits). IN_TURNS, for
//           sm90/experts_mma.h alone: as x, but of each four numbers the second and the third change places.
enum OperandOrder { AS_X, FOR_BYTES, FOR_FOUR_BITS, IN_TURNS };

struct OperandPlace {
  Ptr<u32> rows;      // pairs of f16 or bf16; absent: nobody wants them
  i32 stride, order;  // stride in numbers
  f32 factor;         // a power of two by which numbers are multiplied, so that f16 holds them
  i32 is_bf16;
};

// The word of number `first`, a multiple of 4; the next is so many words further, or follows where the order is that of x.
enum { OPERAND_NEXT = 4 };
FN i32 operand_word(i32 order, i32 first) {
  const i32 n = first % 64, before = first / 64 * 32;
  if (order == AS_X) return first / 2;
  if (order == FOR_BYTES) return before + n / 4 % 4 * 8 + n / 16;
  return before + (n / 4 % 2 * 2 + n / 16 % 2) * 8 + n / 32 * 2 + n / 8 % 2;
}

// Four numbers of a row, the first a multiple of 4.
FN void operand_store(CONST OperandPlace& to, i32 row, i32 first, f32x4 v) {
  const f32 x = v.x * to.factor, y = v.y * to.factor, z = v.z * to.factor, w = v.w * to.factor;
  // Pairs: numbers that follow each other, or every other.
  const bool every_other = to.order == FOR_FOUR_BITS;
  const f32 b = every_other ? z : y, c = every_other ? y : z;
  const i64 at = i64(row) * (to.stride / 2) + operand_word(to.order, first);
  const i32 next = to.order == AS_X ? 1 : i32(OPERAND_NEXT);
  to.rows[at] = to.is_bf16 ? to_bf16x2(x, b) : f32x2_to_f16x2(x, b);
  to.rows[at + next] = to.is_bf16 ? to_bf16x2(c, w) : f32x2_to_f16x2(c, w);
}

// Rows as the operand of sm90/experts_mma.h, in f16, left by the gated units of experts: a row for each pair of a row and a slot.
struct PairOperand {
  Ptr<f16> rows;         // absent: nobody wants them
  i32 stride, in_turns;  // stride in numbers; the order is IN_TURNS, or that of x
  f32 factor;            // as OperandPlace has it
  i32 padding;
};
FN void pair_operand_store(CONST PairOperand& to, i32 pair, i32 n, f32 v) {
  const i32 place = to.in_turns && ((n + 1) & 2) != 0 ? n ^ 3 : n;
  store(to.rows, i64(pair) * to.stride + place, v * to.factor);
}

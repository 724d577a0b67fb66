// attention_cluster_d64, _d128, and rope_attention_cluster_…: the kernels of attention_f16.h, but a cluster of groups folds the splits
// through group memory.
//
// Grid      (splits, rows, groups of heads). CLUSTER_SPLITS neighbouring splits are a cluster.
// Fold      each group takes a share of the heads' features, and folds what all groups of its cluster have of them, in the order of
//           splits. If a row has one cluster, that is the result. If it has several, the group that ends last folds theirs, as it folds
//           splits elsewhere. This takes half of the 3 us that partial results, a counter and reading them again take.
#if __CUDA_ARCH_FEAT_SM90_ALL
enum { CLUSTER_SPLITS = 8 };

template <i32 D> struct FoldedByCluster {
  // What all groups of the cluster have of four features of a head.
  template <class M>
  static PART AttentionState fold(GROUP const M& g, i32 h, i32 v, i32 groups) {
    const u32 at = group_address(&g.of[0].acc[h][v * 4]), stats = group_address(&g.of[0].acc[h][D]);
    AttentionState next[CLUSTER_SPLITS];
    UNROLL for (i32 j = 0; j < CLUSTER_SPLITS; j++) {
      if (j >= groups) continue;
      const f32x4 stat = load_cluster(stats, j);
      next[j].acc = load_cluster(at, j);
      next[j].top = stat.x;
      next[j].sum = stat.y;
    }
    AttentionState all = attention_nothing();
    UNROLL for (i32 j = 0; j < CLUSTER_SPLITS; j++)
      if (j < groups) attention_fold(all, next[j]);
    return all;
  }
  template <class M>
  static PART void finish(CONST AttentionParams<f16>& p, THREAD const AttentionWork& w, i32 split, GROUP M& g, Lane t) {
    enum { VECTORS = D / 4, THREADS = M::SIMDS * SIMD };
    const i32 own = t.simd * SIMD + t.lane, items = w.heads * VECTORS;
    // All clusters of a row but the last are full. In the last one, the groups without work have left.
    const i32 cluster = split / CLUSTER_SPLITS, clusters = (w.splits + CLUSTER_SPLITS - 1) / CLUSTER_SPLITS;
    const i32 rank = split % CLUSTER_SPLITS, groups = mini(w.splits - cluster * CLUSTER_SPLITS, i32(CLUSTER_SPLITS));
    group_barrier();
    // The group's result replaces that of its first SIMD group: only the thread that writes a feature has read it. The maximum and
    // the sum of a head lie behind its features.
    for (i32 item = own; item < items; item += THREADS) {
      const i32 h = item / VECTORS, v = item % VECTORS;
      const AttentionState all = attention_merge(g, h, v * 4);
      GROUP f32 (&to)[D + 4] = g.of[0].acc[h];
      to[v * 4] = all.acc.x; to[v * 4 + 1] = all.acc.y;
      to[v * 4 + 2] = all.acc.z; to[v * 4 + 3] = all.acc.w;
      if (v == 0) { to[D] = all.top; to[D + 1] = all.sum; }
    }
    cluster_barrier();
    const i32 share = (items + groups - 1) / groups, end = mini((rank + 1) * share, items);
    for (i32 item = rank * share + own; item < end; item += THREADS) {
      const i32 h = item / VECTORS, v = item % VECTORS;
      attention_store_part<D>(p, w, t.gy, h, v, cluster, clusters, fold(g, h, v, groups));
    }
    cluster_barrier();  // others have read what this group has
    if (clusters > 1) attention_fold_partials<D>(p, w, clusters, g, t);
  }
};

// The lane as attention_f16.h expects it. Here splits lie along the first axis of the grid, because clusters do.
FN Lane along_splits(Lane t) {
  const i32 split = t.gx;
  t.gx = t.gz;
  t.gz = split;
  return t;
}

template <i32 D, i32 W>
FN void attention_cluster(CONST AttentionParams<f16>& p, GROUP MatrixGroup<D, W>& g, Lane t) {
  attention_matrix<D, W, false, FoldedByCluster<D>>(p, g, along_splits(t));
}
template <i32 D, i32 W>
FN void rope_attention_cluster(CONST RopeAttentionParams& r, GROUP MatrixGroup<D, W>& g, Lane t) {
  rope_attention_matrix<D, W, FoldedByCluster<D>>(r, g, along_splits(t));
}

// Projections that stream leave half of the registers of each quarter of a multiprocessor: room for two SIMD groups with heads of 64 a
// quarter, or for one with heads of 128.
#define ATTENTION_CLUSTER(D, SIMDS, MEMORY, BESIDE)                                                                            \
  KERNEL_BESIDE(attention_cluster_d##D, AttentionParams<f16>, MEMORY, SIMDS * 32, BESIDE, attention_cluster<D, SIMDS>)         \
  KERNEL_BESIDE(rope_attention_cluster_d##D, RopeAttentionParams, MEMORY, SIMDS * 32, BESIDE, rope_attention_cluster<D, SIMDS>)
ATTENTION_CLUSTER(64, 8, attention_d64_wide_memory, 2)
ATTENTION_CLUSTER(128, 4, attention_d128_memory, 1)
#endif

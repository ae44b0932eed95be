-- The single list of what a problem, a configuration and a kernel launch consist of.
--
-- From it schema_h.lua makes the structs in runtime/gdp.h (checked to be fresh by a test), the field
-- tables behind the printers and parsers in C, and the argument struct that every generated kernel is
-- compiled with. Nothing else may repeat these names.
--
-- Field kinds: "int" (int64_t with min and max), "enum" (values in the order of their numbers).

local schema = {}

schema.enums = {
    dtype = {
        prefix = "GDP_DTYPE_",
        doc = "Element types. NONE means: this tensor is absent.",
        values = { "none", "f32", "bf16", "f16", "i32", "i64" },
    },
    target = {
        prefix = "GDP_TARGET_",
        doc = "Where a plan runs. AUTO: the best that this machine offers.",
        values = { "auto", "host", "cuda", "reference" },
    },
}

-- What is to be computed. `class` marks the fields that a kernel is specialised for; the others are
-- sizes known at launch, so two lengths share every compiled kernel.
schema.problem = {
    { name = "batch", kind = "int", min = 0, max = 2 ^ 31 - 1, default = 1,
      doc = "B: rows of the batch; 1 where sequences are packed" },
    { name = "tokens", kind = "int", min = 0, max = 2 ^ 40, default = 0,
      doc = "T: tokens of a batch row, or of all packed sequences together" },
    { name = "sequences", kind = "int", min = 0, max = 2 ^ 31 - 1, default = 0,
      doc = "N: packed sequences; 0: not packed, each batch row is one sequence" },
    { name = "heads", kind = "int", min = 1, max = 65535, default = 1,
      doc = "H: query/key heads" },
    { name = "value_heads", kind = "int", min = 1, max = 65535, default = 1,
      doc = "HV: value heads, a multiple of H" },
    { name = "dim_k", kind = "int", min = 1, max = 256, default = 128, class = true,
      doc = "K: key dimension of a head" },
    { name = "dim_v", kind = "int", min = 1, max = 256, default = 128, class = true,
      doc = "V: value dimension of a head" },
    { name = "num_householder", kind = "int", min = 1, max = 16, default = 1, class = true,
      doc = "n: delta updates of a token" },
    { name = "dtype", kind = "enum", enum = "dtype", accepts = { "f32", "bf16", "f16" }, default = "bf16",
      class = true, doc = "q, k, v, o and their gradients" },
    { name = "gate_dtype", kind = "enum", enum = "dtype", accepts = { "none", "f32", "bf16", "f16" },
      default = "f32", class = true, doc = "g and dg; NONE: no gate" },
    { name = "beta_dtype", kind = "enum", enum = "dtype", accepts = { "f32", "bf16", "f16" }, default = "f32",
      class = true, doc = "beta and dbeta" },
    { name = "index_dtype", kind = "enum", enum = "dtype", accepts = { "i32", "i64" }, default = "i32",
      class = true, doc = "cu_seqlens" },
}

-- How it is computed. A value 0 in a request means: choose.
schema.config = {
    { name = "target", kind = "enum", enum = "target", accepts = { "auto", "host", "cuda", "reference" },
      default = "auto", doc = "where it runs" },
    { name = "arch", kind = "int", min = 0, max = 999, default = 0, source = true,
      doc = "compute capability that CUDA kernels are for, 90 for sm_90" },
    { name = "chunk", kind = "int", min = 0, max = 256, default = 0, source = true,
      doc = "C: tokens of a chunk; a chunk is R = C*n sub-tokens" },
    { name = "segment", kind = "int", min = 0, max = 2 ^ 31 - 1, default = 0,
      doc = "chunks of a segment, the span one task scans; one of all chunks leaves sequences uncut" },
    { name = "block_v", kind = "int", min = 0, max = 256, default = 0, source = true,
      doc = "columns of the state that one task scans" },
    { name = "stages", kind = "int", min = 0, max = 8, default = 0, source = true,
      doc = "chunks that a task holds at once, the one it works on and those on their way (CUDA)" },
    { name = "wave", kind = "int", min = 0, max = 2 ^ 31 - 1, default = 0,
      doc = "segments that backward works on at once; its memory grows with them" },
}

-- Areas of memory whose layout is a target's own. Its space.lua says how many bytes an item, a chunk
-- of one value head, has in each. `terms`: forward makes and reads it, and keeps it where a backward
-- follows; `saved`: forward makes it for backward alone; `wave`: backward holds it for the chunks of
-- a wave.
schema.areas = {
    { name = "gates", life = "terms", doc = "decays and beta of a chunk" },
    { name = "a", life = "terms", doc = "A = (I + L)^-1 diag(beta)" },
    { name = "p", life = "terms", doc = "P" },
    { name = "reach", life = "terms", doc = "log2 of a bound on the norm of the chunk's M" },
    { name = "saved_state", life = "saved", doc = "the state at the chunk's start, kept by forward" },
    { name = "chunk_state", life = "wave", doc = "the same, scanned again by backward" },
    { name = "chunk_u", life = "wave", doc = "U" },
    { name = "chunk_d_state", life = "wave", doc = "state gradient at the chunk's end" },
}

-- The tables that the index kernel makes of cu_seqlens, and the argument of every kernel. `fields`
-- are { C type, name, meaning }.
schema.structs = {
    { name = "gdp_view", doc = "A strided tensor: element strides of batch row, token row and head; the innermost stride is 1.",
      fields = {
        { "void *", "data", "NULL: absent" },
        { "int64_t", "batch", "" }, { "int64_t", "row", "" }, { "int64_t", "head", "" },
    } },
    { name = "gdp_chunk", doc = "A run of at most C tokens of one sequence.",
      fields = {
        { "int64_t", "token", "first token, within the batch row" },
        { "int32_t", "count", "tokens in use" },
        { "int32_t", "batch", "batch row" },
        { "int32_t", "sequence", "its sequence; -1: tokens after the last one, to be zeroed" },
        { "int32_t", "pad", "" },
    } },
    { name = "gdp_segment", doc = "A run of chunks of one sequence; every sequence has at least one, maybe of no chunks.",
      fields = {
        { "int64_t", "chunk", "first chunk" },
        { "int32_t", "count", "chunks" },
        { "int32_t", "sequence", "its sequence; -1: padding after the last one" },
    } },
    { name = "gdp_sequence", doc = "A sequence's run of segments.",
      fields = {
        { "int64_t", "segment", "first segment" },
        { "int64_t", "count", "segments" },
    } },
    { name = "gdp_args", doc = "The argument of every kernel; shapes as in gdp.h, workspace as laid out by the plan.",
      fields = {
        { "gdp_view", "q", "" }, { "gdp_view", "k", "" }, { "gdp_view", "v", "" },
        { "gdp_view", "g", "" }, { "gdp_view", "beta", "" },
        { "gdp_view", "o", "" }, { "gdp_view", "d_o", "" },
        { "gdp_view", "dq", "" }, { "gdp_view", "dk", "" }, { "gdp_view", "dv", "" },
        { "gdp_view", "dg", "" }, { "gdp_view", "dbeta", "" },
        { "const void *", "cu_seqlens", "[N+1], or NULL: each batch row is a sequence" },
        { "const float *", "initial_state", "[N, HV, K, V] or NULL" },
        { "float *", "final_state", "[N, HV, K, V] or NULL" },
        { "const float *", "d_final_state", "[N, HV, K, V] or NULL" },
        { "float *", "d_initial_state", "[N, HV, K, V] or NULL" },
        { "const float *", "incoming_state", "[B or 1, HV, K, V] or NULL: replaces initial_state of the first sequence (of all when dense)" },
        { "const float *", "d_outgoing_state", "[B or 1, HV, K, V] or NULL: replaces d_final_state of the last sequence (of all when dense)" },
        { "gdp_chunk *", "chunks", "[max_chunks]" },
        { "gdp_segment *", "segments", "[max_segments]" },
        { "gdp_sequence *", "sequences", "[N]" },
        { "int64_t *", "counts", "[2]: chunks and segments in use, padding included" },
        { "void *", "gates", "[max_chunks, HV], as are the areas of schema.areas that follow" },
        { "void *", "a", "" }, { "void *", "p", "" }, { "void *", "reach", "" },
        { "void *", "chunk_state", "saved_state [max_chunks, HV] or chunk_state [wave_chunks, HV]; or NULL" },
        { "void *", "chunk_u", "[wave_chunks, HV]" },
        { "void *", "chunk_d_state", "[wave_chunks, HV]" },
        { "float *", "segment_state", "[max_segments, HV, K, V]: state at a segment's start" },
        { "float *", "segment_summary", "[max_segments, HV, K, V+K]: [D | M] of a segment" },
        { "float *", "segment_d_state", "[max_segments, HV, K, V]: state gradient at a segment's end" },
        { "float *", "segment_d_summary", "[max_segments, HV, K, V+K]: [gamma | M^T] of a segment" },
        { "const float *", "gathered", "[W, B or 1, HV, K, V+K]: summaries of all ranks" },
        { "float *", "folded", "[B or 1, HV, K, V] (ranks) or [B or 1, HV, K, V+K] (shard): what a fold ends with" },
        { "int64_t", "batch", "B" }, { "int64_t", "tokens", "T" }, { "int64_t", "sequence_count", "N, or B where dense" },
        { "int64_t", "heads", "H" }, { "int64_t", "value_heads", "HV" },
        { "int64_t", "max_chunks", "" }, { "int64_t", "max_segments", "" },
        { "int64_t", "segment_chunks", "chunks of a segment; 0: uncut" },
        { "int64_t", "wave_first", "first segment of the wave" },
        { "int64_t", "wave_segments", "segments of the wave" },
        { "int64_t", "wave_chunks", "upper bound of their chunks" },
        { "int64_t", "fold_first", "first rank of the fold over ranks, in its own order" },
        { "int64_t", "fold_count", "ranks in the fold" },
        { "int64_t", "fold_sequence", "first sequence that a summary covers: 0, or N-1 where packed and forward" },
        { "int64_t", "fold_sequences", "sequences that a summary covers: B where dense, else 1" },
        { "float", "scale", "" }, { "float", "pad", "" },
    } },
}

-- Every target has these templates, so one plan runs on any. `tasks` are the factors of the number of
-- independent tasks, the last one varying fastest; the plan multiplies them and the templates take a
-- task's number apart in the same order.
schema.kernels = {
    { name = "index", tasks = {}, doc = "cu_seqlens to chunks, segments and sequences" },
    { name = "chunk_terms", tasks = { "chunk", "value_head" }, doc = "G, A and P of a chunk" },
    { name = "summary", tasks = { "segment", "value_head", "column_block" }, doc = "[D | M] of a segment" },
    { name = "compose_segments", tasks = { "sequence", "value_head", "v_block" },
      doc = "states at segment starts" },
    { name = "compose_shard", tasks = { "fold_sequence", "value_head", "column_block" },
      doc = "a shard's summary from its segments'" },
    { name = "compose_ranks", tasks = { "fold_sequence", "value_head", "v_block" },
      doc = "the state that enters a shard, from the ranks' summaries" },
    { name = "forward_scan", tasks = { "segment", "value_head", "v_block" }, doc = "o and states of a segment" },
    { name = "adjoint_summary", tasks = { "segment", "value_head", "column_block" },
      doc = "[gamma | M^T] of a segment" },
    { name = "adjoint_compose_segments", tasks = { "sequence", "value_head", "v_block" },
      doc = "state gradients at segment ends" },
    { name = "adjoint_compose_shard", tasks = { "fold_sequence", "value_head", "column_block" },
      doc = "a shard's adjoint summary" },
    { name = "adjoint_compose_ranks", tasks = { "fold_sequence", "value_head", "v_block" },
      doc = "the state gradient that enters a shard from behind" },
    { name = "state_scan", tasks = { "wave_segment", "value_head", "v_block" },
      doc = "states at chunk starts, and U" },
    { name = "backward_scan", tasks = { "wave_segment", "value_head", "v_block" },
      doc = "state gradients at chunk ends" },
    { name = "chunk_backward", tasks = { "wave_chunk", "head" }, doc = "dq, dk, dv, dg, dbeta of a chunk" },
}

-- The factors above: chunk, segment, wave_chunk, wave_segment: the plan's upper bounds (a task past
-- those in use does nothing); v_block: ceil(V / BV), where BV is block_v unless the template notes
-- another meta.block; column_block: v_block, then ceil(K / BV) blocks of M.
schema.task_factors = { "chunk", "segment", "wave_chunk", "wave_segment", "sequence", "fold_sequence",
    "head", "value_head", "v_block", "column_block" }

return schema

-- Which configurations the host kernels accept, and which one is taken where nothing was measured.

local space = {}

-- More chunks or segments than there are.
local UNCUT = 2 ^ 31 - 1 | 0

local function round_up(a, b) return (a + b - 1) // b * b end

-- Sub-tokens of a chunk. Short chunks waste little on the triangles of A and P, long ones pass over
-- the state and write it less often: on one AVX-512 core, forward and backward together are
-- best from 32 to 64 and flat there, lower for small states.
local function wanted_rows(problem)
    return problem.dim_k * problem.dim_v <= 64 * 64 and 32 or 48
end

function space.defaults(problem, request, _)
    local n = problem.num_householder
    local eights = math.max(1, math.floor(wanted_rows(problem) / n / 8 + 0.5))
    -- 64 columns of a state of K = 128 fit into a first-level cache; equal blocks leave none
    -- nearly empty.
    local v_blocks = (problem.dim_v + 63) // 64
    return {
        chunk = 8 * eights,
        segment = UNCUT,
        block_v = round_up((problem.dim_v + v_blocks - 1) // v_blocks, 16),
        stages = 1,
        wave = UNCUT,
        arch = 0,
    }
end

-- Bytes of a chunk of one value head: float32 throughout, in the letters of the specification.
function space.areas(problem, config)
    local R, state = config.chunk * problem.num_householder, problem.dim_k * problem.dim_v
    return {
        gates = 4 * 3 * R,              -- e^G, e^(G_R - G), beta
        a = 4 * R * R,                  -- [R, R]
        p = 4 * config.chunk * R,       -- [C, R]
        saved_state = 4 * state,        -- [K, V]
        chunk_d_state = 4 * state,      -- [K, V]
    }
end

space.constraints = {
    { name = "chunk",
      check = function(_, config) return config.chunk >= 8 and config.chunk % 8 == 0 end,
      sentence = "chunk must be a multiple of 8 tokens" },
    { name = "rows",
      check = function(problem, config) return config.chunk * problem.num_householder <= 256 end,
      sentence = "chunk * num_householder must not exceed 256 sub-tokens" },
    { name = "block_v",
      check = function(_, config) return config.block_v >= 16 and config.block_v % 16 == 0 end,
      sentence = "block_v must be a multiple of 16 columns" },
}

-- Kernels that differ in a few lines share a template.
space.templates = {
    summary = "forward.ct",
    forward_scan = "forward.ct",
    state_scan = "forward.ct",
    adjoint_summary = "adjoint.ct",
    backward_scan = "adjoint.ct",
    compose_segments = "compose.ct",
    compose_shard = "compose.ct",
    compose_ranks = "compose.ct",
    adjoint_compose_segments = "compose.ct",
    adjoint_compose_shard = "compose.ct",
    adjoint_compose_ranks = "compose.ct",
}

return space

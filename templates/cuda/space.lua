-- Which configurations the CUDA kernels accept, and which one is taken where nothing was measured.

local space = {}

local function round_up(a, b) return (a + b - 1) // b * b end

local function ceil_div(a, b) return (a + b - 1) // b end

-- More chunks or segments than there are.
local UNCUT = 2 ^ 31 - 1 | 0

-- Bytes of shared memory that a block can have, by architecture; the least for those not listed.
local SHARED = { [80] = 163, [87] = 163, [90] = 227, [100] = 227, [103] = 227 }
local function shared_limit(arch) return 1024 * (SHARED[arch] or 99) end

local function element_bytes(problem) return problem.dtype == "f32" and 4 or 2 end

local function rows(problem, chunk) return round_up(chunk * problem.num_householder, 16) end

-- Shared memory of the hungriest scan: tiles of k, v, q, A, P with their padding and two rows of gates.
local function scan_bytes(problem, config)
    local RP, CP = rows(problem, config.chunk), round_up(config.chunk, 16)
    local K, BV = problem.dim_k, config.block_v
    local elements = (RP + CP) * (K + 8) + math.max(RP, CP) * (BV + 8) + (RP + CP) * (RP + 8)
    return config.stages * (elements * element_bytes(problem) + 8 * RP + 128)
end

-- Sub-tokens of a chunk: as many as the registers of the scans and of the gradients hold.
local function wanted_rows(problem)
    local rows = problem.dim_k > 128 and 32 or 64
    return problem.dtype == "f32" and rows // 2 or rows
end

-- The widest block of whole tiles, up to `most` columns, that V is a multiple of.
local function wanted_block(V, most)
    for block = math.min(V, most) // 16 * 16, 16, -16 do
        if V % block == 0 then return block end
    end
    return 16
end

-- Segments of a sequence of `chunks` chunks, where `tasks` blocks scan the uncut ones: cutting fills
-- the chip and costs a pass for the summaries and a step of their composition each.
local function wanted_segments(chunks, tasks, slots)
    local best, least = 1, chunks * ceil_div(tasks, slots)
    for segments = 2, math.min(chunks, 64) do
        local time = 1.5 * ceil_div(tasks * segments, slots) * ceil_div(chunks, segments) + segments
        if time < least then best, least = segments, time end
    end
    return best
end

-- Backward holds states and U of the chunks of a wave, at most this many bytes.
local WAVE_BYTES = 768 * 1024 * 1024

function space.defaults(problem, request, processors)
    local function asked(name, value) return request[name] ~= 0 and request[name] or value end
    local n, limit = problem.num_householder, shared_limit(request.arch)
    local large = problem.dim_k > 192 -- such states leave few registers for addresses
    local config = { arch = request.arch }
    config.block_v = asked("block_v", wanted_block(problem.dim_v, large and 64 or 128))
    config.chunk = asked("chunk", math.max(1, wanted_rows(problem) // n))
    config.stages = asked("stages", large and 2 or 3)
    while request.stages == 0 and config.stages > 2 and scan_bytes(problem, config) > limit do
        config.stages = config.stages - 1
    end
    while request.block_v == 0 and config.block_v > 16 and scan_bytes(problem, config) > limit do
        config.block_v = wanted_block(problem.dim_v, config.block_v - 16)
    end
    while request.chunk == 0 and config.chunk > 1 and scan_bytes(problem, config) > limit do
        config.chunk = config.chunk // 2
    end

    local sequences = math.max(1, problem.sequences > 0 and problem.sequences or problem.batch)
    local length = problem.sequences > 0 and problem.tokens // sequences or problem.tokens
    local chunks = math.max(1, ceil_div(length, config.chunk))
    local v_blocks = math.max(1, ceil_div(problem.dim_v, config.block_v))
    local tasks = sequences * problem.value_heads * v_blocks
    -- Blocks that a multiprocessor runs at once: eight warps fill its registers.
    local slots = processors * math.max(1, 128 // config.block_v)
    local segments = wanted_segments(chunks, tasks, slots)

    local areas = space.areas(problem, config)
    local image = areas.chunk_state + areas.chunk_u + areas.chunk_d_state
    local waves = ceil_div(sequences * problem.value_heads * chunks * image, WAVE_BYTES)
    if segments > 1 then segments = math.min(segments * waves, chunks) end
    config.segment = segments > 1 and ceil_div(chunks, segments) or UNCUT
    config.wave = waves > 1 and ceil_div(sequences * segments, waves) or UNCUT
    return config
end

-- Bytes of a chunk of one value head, in whole tiles; states are transposed.
function space.areas(problem, config)
    local RP, CP = rows(problem, config.chunk), round_up(config.chunk, 16)
    local size, state = element_bytes(problem), problem.dim_k * problem.dim_v
    return {
        gates = 4 * 5 * RP,              -- e^G, e^(G_R - G), beta, and G in log2: whole and fraction
        a = size * RP * RP,              -- [RP, RP]
        p = size * CP * RP,              -- [CP, RP]
        reach = 4,
        chunk_state = size * state,      -- [V, K]
        chunk_u = size * problem.dim_v * RP, -- [V, RP]
        chunk_d_state = size * state,    -- [V, K]
    }
end

space.constraints = {
    { name = "arch",
      check = function(_, config) return config.arch >= 80 end,
      sentence = "CUDA kernels are for compute capability 8.0 and later, arch=80" },
    { name = "dim_k",
      check = function(problem) return problem.dim_k % 16 == 0 end,
      sentence = "dim_k must be a multiple of 16 on CUDA" },
    { name = "dim_v",
      check = function(problem) return problem.dim_v % 16 == 0 end,
      sentence = "dim_v must be a multiple of 16 on CUDA" },
    { name = "block_v",
      check = function(problem, config)
          local block = config.block_v
          return block >= 16 and block <= 128 and block % 16 == 0 and problem.dim_v % block == 0
      end,
      sentence = "block_v must be a multiple of 16, at most 128, that dim_v is a multiple of" },
    { name = "rows",
      check = function(problem, config)
          local RP = rows(problem, config.chunk)
          local wide = problem.dtype == "f32"
          return RP <= (wide and 32 or 64) and (RP == 16 or RP * problem.dim_k <= (wide and 4096 or 8192))
      end,
      sentence = "chunk * num_householder must not exceed 64 sub-tokens, nor 8192 / dim_k (half of both for f32)" },
    { name = "stages",
      check = function(_, config) return config.stages >= 2 end,
      sentence = "stages must be at least 2" },
    { name = "shared",
      check = function(problem, config) return scan_bytes(problem, config) <= shared_limit(config.arch) end,
      sentence = "the tiles of chunk, block_v and stages must fit into the shared memory of a block" },
}

-- Kernels that differ in a few lines share a template.
space.templates = {
    summary = "forward.ct",
    state_scan = "forward.ct",
    forward_scan = "forward.ct",
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

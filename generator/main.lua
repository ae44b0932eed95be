-- What C and the shell call: texts in, texts out. The chunk's arguments are the engine and the
-- schema.
--
--     configure(files, problem, request, processors)  -> the complete configuration, its areas
--     emit(files, kernel, problem, config)            -> source, what the template noted in `meta`
--
-- files: name -> text, "host/forward.ct", "host/space.lua". Problems, requests and configurations
-- are "name=value name=value ..." texts over schema.problem and schema.config; a field left out has
-- its default. A failure is an error whose value is one sentence.
--
-- <target>/space.lua returns
--     defaults(problem, request) -> configuration, of which the unrequested fields are taken
--     constraints = { { name =, check = function(problem, config) -> boolean, sentence = }, ... }
--     templates = { kernel = "file.ct", ... }, optional; a kernel not named has <kernel>.ct
--
-- A template sees: kernel, target, arch, stages; K, V, n, C, R = C*n, BV; dtype, gate_dtype, beta_dtype,
-- index_dtype; ceil_div(a, b), round_up(a, b); and, each returning text for a hole, structs() and
-- decode_task(task). What it puts into the table `meta`, integers by name, is returned beside the
-- source. Sizes known at launch are not visible, so that all lengths share one source.

local engine, schema = ...

local main = {}

-- The fields that a source depends on; the others belong to the launch.
local function is_class(field) return field.class end

local function is_source_field(field) return field.source or field.name == "target" end

local function fail(...) error(string.format(...), 0) end

-- --------------------------------------------------------------------------------- texts of fields

local function field_names(fields)
    local names = {}
    for _, field in ipairs(fields) do names[#names + 1] = field.name end
    return table.concat(names, ", ")
end

local function find_field(fields, name)
    for _, field in ipairs(fields) do
        if field.name == name then return field end
    end
    return nil
end

local function check_value(field, value)
    if field.kind == "enum" then
        for _, accepted in ipairs(field.accepts) do
            if accepted == value then return value end
        end
        fail("%s=%s: must be one of %s", field.name, value, table.concat(field.accepts, ", "))
    end
    local text = tostring(value)
    local number = text:match("^-?%d+$") and math.tointeger(tonumber(text))
    local min, max = math.tointeger(field.min), math.tointeger(field.max)
    if not number or number < min or number > max then
        fail("%s=%s: must be an integer from %d to %d", field.name, text, min, max)
    end
    return number
end

local function parse(fields, what, text)
    local object = {}
    for word in text:gmatch("%S+") do
        local name, value = word:match("^([^=]+)=(.+)$")
        if not name then fail("%s: '%s' is not of the form name=value", what, word) end
        local field = find_field(fields, name)
        if not field then
            fail("%s: unknown field '%s'; known are %s", what, name, field_names(fields))
        end
        if object[name] ~= nil then fail("%s: %s is given twice", what, name) end
        object[name] = check_value(field, value)
    end
    for _, field in ipairs(fields) do
        if object[field.name] == nil then object[field.name] = field.default end
    end
    return object
end

local function print_fields(fields, object, wanted)
    local parts = {}
    for _, field in ipairs(fields) do
        if not wanted or wanted(field) then
            parts[#parts + 1] = field.name .. "=" .. object[field.name]
        end
    end
    return table.concat(parts, " ")
end

-- --------------------------------------------------------------------------------------- the space

local function space_file(target) return target .. "/space.lua" end

local function load_space(files, target)
    if target == "auto" then
        fail("target=auto: the target must be chosen before a configuration")
    end
    local name = space_file(target)
    if not files[name] then fail("target=%s: there are no templates for it (%s)", target, name) end
    local space = engine.load_module(files, name)
    if type(space) ~= "table" or type(space.defaults) ~= "function"
        or type(space.areas) ~= "function" or type(space.constraints) ~= "table" then
        fail("%s: must return a table with defaults, areas and constraints", name)
    end
    return space
end

local function check_constraints(files, space, problem, config)
    local name = space_file(config.target)
    for _, constraint in ipairs(space.constraints) do
        if not engine.call(files, name, constraint.check, problem, config) then
            fail("%s (constraint '%s' of target %s; asked for %s with %s)", constraint.sentence,
                constraint.name, config.target, print_fields(schema.config, config),
                print_fields(schema.problem, problem, is_class))
        end
    end
end

local function print_areas(areas)
    local parts = {}
    for _, area in ipairs(schema.areas) do
        parts[#parts + 1] = ("%s=%d"):format(area.name, areas[area.name] or 0)
    end
    return table.concat(parts, " ")
end

function main.configure(files, problem_text, request_text, processors)
    local problem = parse(schema.problem, "problem", problem_text)
    local request = parse(schema.config, "configuration", request_text)
    local space = load_space(files, request.target)
    local name = space_file(request.target)
    local defaults = engine.call(files, name, space.defaults, problem, request,
        math.tointeger(tonumber(processors)) or 1)
    if type(defaults) ~= "table" then fail("%s: defaults returned a %s", name, type(defaults)) end

    local config = { target = request.target }
    for _, field in ipairs(schema.config) do
        if field.kind == "int" then
            local requested = request[field.name]
            local value = requested ~= 0 and requested or defaults[field.name]
            if value == nil then fail("%s: defaults has no %s", name, field.name) end
            config[field.name] = check_value(field, value)
        end
    end
    check_constraints(files, space, problem, config)
    return print_fields(schema.config, config),
        print_areas(engine.call(files, name, space.areas, problem, config))
end

-- ------------------------------------------------------------------------- what templates can call

local function ceil_div(a, b) return (a + b - 1) // b end

local function round_up(a, b) return ceil_div(a, b) * b end

local function declaration(type, name)
    return type .. (type:sub(-1) == "*" and "" or " ") .. name
end

local function structs()
    local lines = { '#line 1 "schema.lua structs"' }
    local function put(...) lines[#lines + 1] = string.format(...) end
    for _, struct in ipairs(schema.structs) do
        put("/* %s */", struct.doc)
        put("typedef struct %s {", struct.name)
        for _, field in ipairs(struct.fields) do
            local comment = field[3] ~= "" and " /* " .. field[3] .. " */" or ""
            put("    %s;%s", declaration(field[1], field[2]), comment)
        end
        put("} %s;", struct.name)
        put("")
    end
    lines[#lines] = nil
    return table.concat(lines, "\n")
end

-- One declaration that takes the task's number apart, in one line so that line numbers stay right.
local function decode_task(kernel, names, task)
    local args = names.target == "cuda" and "args." or "args->"
    local block = names.meta.block or names.BV
    local v_blocks = ceil_div(names.V, block)
    local counts = {
        chunk = args .. "max_chunks", segment = args .. "max_segments",
        wave_chunk = args .. "wave_chunks", wave_segment = args .. "wave_segments",
        sequence = args .. "sequence_count", fold_sequence = args .. "fold_sequences",
        head = args .. "heads", value_head = args .. "value_heads",
        v_block = v_blocks,
        column_block = v_blocks + ceil_div(names.K, block),
    }
    local parts, rest = {}, task
    for i = #kernel.tasks, 1, -1 do
        local factor = kernel.tasks[i]
        local count = counts[factor] or fail("task factor '%s' has no count", factor)
        if count == 1 then
            parts[#parts + 1] = factor .. " = 0"
        else
            parts[#parts + 1] = factor .. " = " .. rest .. (i > 1 and " % " .. count or "")
            rest = rest .. " / " .. count
        end
    end
    if #parts == 0 then return "(void)" .. task .. ";" end
    return "const int64_t " .. table.concat(parts, ", ") .. ";"
end

local function find_kernel(name)
    local known = {}
    for _, kernel in ipairs(schema.kernels) do
        if kernel.name == name then return kernel end
        known[#known + 1] = kernel.name
    end
    fail("unknown kernel '%s'; known are %s", name, table.concat(known, ", "))
end

local function template_names(kernel, problem, config)
    local names = {
        kernel = kernel.name, target = config.target, meta = {},
        arch = config.arch, stages = config.stages,
        K = problem.dim_k, V = problem.dim_v, n = problem.num_householder,
        C = config.chunk, R = config.chunk * problem.num_householder, BV = config.block_v,
        dtype = problem.dtype, gate_dtype = problem.gate_dtype, beta_dtype = problem.beta_dtype,
        index_dtype = problem.index_dtype,
        ceil_div = ceil_div, round_up = round_up, structs = structs,
    }
    function names.decode_task(task) return decode_task(kernel, names, task) end
    return names
end

-- -------------------------------------------------------------------------------------------- emit

local function print_meta(file, meta)
    local keys = {}
    for key in pairs(meta) do keys[#keys + 1] = tostring(key) end
    table.sort(keys)
    local parts = {}
    for _, key in ipairs(keys) do
        local value = math.tointeger(meta[key])
        if not key:match("^[%a_][%w_]*$") or not value then
            fail("%s: meta.%s must be an integer under a plain name", file, key)
        end
        parts[#parts + 1] = key .. "=" .. value
    end
    return table.concat(parts, " ")
end

function main.emit(files, kernel_name, problem_text, config_text)
    local kernel = find_kernel(kernel_name)
    local problem = parse(schema.problem, "problem", problem_text)
    local config = parse(schema.config, "configuration", config_text)
    local space = load_space(files, config.target)
    for _, name in ipairs { "chunk", "block_v", "stages" } do
        if config[name] == 0 then fail("%s=0: a configuration to emit must be complete", name) end
    end
    check_constraints(files, space, problem, config)

    local target = config.target
    local own_name = space.templates and space.templates[kernel.name]
    local file = target .. "/" .. (own_name or kernel.name .. ".ct")
    if not files[file] then fail("kernel %s: there is no template %s", kernel.name, file) end
    local names = template_names(kernel, problem, config)
    local function find(included) return target .. "/" .. included end
    local text = engine.expand(files, file, find, names)

    local header = "/* Generated by libgdp from %s. Do not edit.\n * kernel=%s\n * %s\n * %s */\n"
    header = header:format(file, kernel.name, print_fields(schema.problem, problem, is_class),
        print_fields(schema.config, config, is_source_field))
    return header .. text, print_meta(file, names.meta)
end

return main

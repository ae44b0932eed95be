-- The generator for people and for golden tests, from the root of the project:
--
--     lua5.4 generator/shell.lua configure "PROBLEM" "REQUEST" [TEMPLATE_DIR]
--     lua5.4 generator/shell.lua emit KERNEL "PROBLEM" "REQUEST" [TEMPLATE_DIR]
--     lua5.4 generator/shell.lua meta KERNEL "PROBLEM" "REQUEST" [TEMPLATE_DIR]
--
-- GDP_PROCESSORS in the environment: the threads or multiprocessors to configure for; 1.
-- PROBLEM and REQUEST: "name=value ..." of schema.lua, defaults for what is left out. The target
-- is needed:
--     lua5.4 generator/shell.lua emit forward_scan "dim_v=64 num_householder=3" "target=host"

local function fail(status, message)
    io.stderr:write("shell.lua: ", message, "\n")
    os.exit(status)
end

local function read_file(path)
    local file = io.open(path, "rb")
    local text = file and file:read("a")
    if file then file:close() end
    return text
end

local folder = arg[0]:match("^(.*)/") or "."

local function load_module(name, ...) return assert(loadfile(folder .. "/" .. name))(...) end

local engine = load_module("engine.lua", load_module("environment.lua"))
local main = load_module("main.lua", engine, load_module("schema.lua"))

local function configure(files, problem, request)
    return main.configure(files, problem, request, os.getenv("GDP_PROCESSORS"))
end

-- Each function: the words it takes before TEMPLATE_DIR, and what it prints.
local commands = {
    configure = { 2, function(files, problem, request)
        return table.concat({ configure(files, problem, request) }, "\n") .. "\n"
    end },
    emit = { 3, function(files, kernel, problem, request)
        return (main.emit(files, kernel, problem, (configure(files, problem, request))))
    end },
    meta = { 3, function(files, kernel, problem, request)
        local config = configure(files, problem, request)
        return select(2, main.emit(files, kernel, problem, config)) .. "\n"
    end },
}

local command = commands[arg[1]]
if not command or #arg < 1 + command[1] or #arg > 2 + command[1] then
    fail(2, "usage: (configure | emit KERNEL | meta KERNEL) PROBLEM REQUEST [TEMPLATE_DIR]")
end
local template_dir = arg[2 + command[1]] or folder .. "/../templates"
local files = setmetatable({}, {
    __index = function(_, name) return read_file(template_dir .. "/" .. name) end,
})

local ok, result = pcall(command[2], files, table.unpack(arg, 2, 1 + command[1]))
if not ok then fail(1, result) end
io.write(result)

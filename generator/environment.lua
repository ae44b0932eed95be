-- What templates and space.lua find of Lua, and the rule for names: reading one that nothing has
-- defined is an error, and so is defining one twice. The result must not differ from run to run, so
-- nothing here shows an address, time or chance, and pairs goes by sorted keys where Lua's own
-- order is random.
--
-- Loading this file also gives strings, ("..."):format(), the functions below instead of Lua's own.

local error, next, type, tostring, getmetatable, setmetatable =
    error, next, type, tostring, getmetatable, setmetatable

local function copy_without(library, left_out)
    local copy = {}
    for name, value in next, library do
        if not left_out[name] then copy[name] = value end
    end
    return copy
end

local function type_of_key(key)
    return type(key) == "number" and 0 or type(key) == "string" and 1 or nil
end

local function sorted_pairs(list)
    if type(list) ~= "table" then error("pairs needs a table, not a " .. type(list), 2) end
    local keys = {}
    for key in next, list do
        if not type_of_key(key) then error("pairs needs keys that are numbers or strings", 2) end
        keys[#keys + 1] = key
    end
    table.sort(keys, function(a, b)
        local type_a, type_b = type_of_key(a), type_of_key(b)
        if type_a ~= type_b then return type_a < type_b end
        return a < b
    end)
    local i = 0
    return function()
        i = i + 1
        if keys[i] ~= nil then return keys[i], list[keys[i]] end
    end
end

-- Addresses differ from run to run, so they must not be printable.
local ADDRESSED = { table = true, ["function"] = true, thread = true, userdata = true }

local function safe_tostring(value)
    if ADDRESSED[type(value)] then error("tostring of a " .. type(value), 2) end
    return tostring(value)
end

local format = string.format

local function safe_format(pattern, ...)
    for i = 1, select("#", ...) do
        local kind = type((select(i, ...)))
        if ADDRESSED[kind] then error("format of a " .. kind, 2) end
    end
    if type(pattern) == "string" and pattern:gsub("%%%%", ""):find("%%[^%a]*p") then
        error("format with %p", 2)
    end
    return format(pattern, ...)
end

-- Without it the position would be missing from the message.
local function positioned_assert(condition, message, ...)
    if not condition then error(message == nil and "assertion failed" or message, 2) end
    return condition, message, ...
end

local function read_only(name, library)
    return setmetatable({}, {
        __index = function(_, key)
            local value = library[key]
            if value == nil then error(("unknown name '%s.%s'"):format(name, tostring(key)), 2) end
            return value
        end,
        __newindex = function() error(("'%s' cannot be changed"):format(name), 2) end,
    })
end

local safe_string = copy_without(string, { dump = true, format = true })
safe_string.format = safe_format
getmetatable("").__index = safe_string -- ("..."):format() is the same function as string.format

local LIBRARY = {
    math = read_only("math", copy_without(math, { random = true, randomseed = true })),
    string = read_only("string", safe_string),
    table = read_only("table", copy_without(table, {})),
    ipairs = ipairs, pairs = sorted_pairs, tostring = safe_tostring, tonumber = tonumber,
    select = select, type = type, assert = positioned_assert, error = error,
}

-- Each argument: names that are known beside LIBRARY.
local function new_environment(...)
    local known = copy_without(LIBRARY, {})
    for i = 1, select("#", ...) do
        for name, value in next, (select(i, ...)) do known[name] = value end
    end
    return setmetatable({}, {
        __index = function(_, name)
            local value = known[name]
            if value == nil then error(("unknown name '%s'"):format(tostring(name)), 2) end
            return value
        end,
        __newindex = function(_, name, value)
            if known[name] ~= nil then
                error(("'%s' is already defined; what changes must be local"):format(
                    tostring(name)), 2)
            end
            known[name] = value
        end,
    })
end

return new_environment

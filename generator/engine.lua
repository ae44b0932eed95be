-- The template engine: text with holes and lines of Lua in, C text out.
--
-- A template is the text that it emits.
--     ${expr}      a hole: a Lua expression whose value is a string or a number. Integral numbers
--                  print as integers, others with %.9g. A value of several lines is indented like
--                  its line.
--     % code       a line of Lua (first non-blank character %): loops, choices, assignments, calls.
--                  Text between such lines is emitted when Lua passes it, so text between
--                  `% function f(a)` and `% end` is a macro, called by `% f(1)`.
--     % include "name.ct"     expands another template of the same target in place.
--
-- Names. Reading a name that nothing has defined is an error. `local` is for the file it stands in.
-- An assignment without `local`, a function's definition included, defines a name for all files of
-- this expansion; it can be made once, so a mistyped or clashing name does not pass. What there is
-- of Lua: environment.lua. Names that begin with two underscores are the engine's.
--
-- Line i of a template becomes line i of a Lua chunk, hence Lua's own positions are template
-- positions. The output carries #line wherever the compiler's count would be wrong; never inside a
-- comment or after a backslash, where it would not be read. A macro call's arguments must not be
-- cut by lines of Lua: C allows no directive there.
--
-- The chunk's argument is what environment.lua returns.

local new_environment = ...

local engine = {}

local load, pcall, error, type = load, pcall, error, type

engine.MAX_OUTPUT = 4 * 1024 * 1024
engine.MAX_DEPTH = 16

-- ------------------------------------------------------------------------------------------ errors

-- "file:line: message" gets the line's text below it.
local function with_line_text(message, sources)
    if type(message) ~= "string" then return "error value is a " .. type(message) end
    local name, line = message:match("^([^:\n]+):(%d+): ")
    if not sources[name] then return message end
    local number = 0
    for text in (sources[name] .. "\n"):gmatch("(.-)\r?\n") do
        number = number + 1
        if number == tonumber(line) then
            return message .. "\n    " .. text:match("^%s*(.-)%s*$"):sub(1, 200)
        end
    end
    return message
end

local function fail(name, line, message)
    error(("%s:%d: %s"):format(name, line, message), 0)
end

-- ---------------------------------------------------------------------------- template to Lua code

-- The position after the string, long bracket or comment that starts at `i` of a line; i + 1 where
-- none does; nil where it does not end in this line.
local function skip_token(text, i)
    local quote = text:match("^[\"']", i)
    if quote then
        while true do
            i = text:find("[\\" .. quote .. "]", i + 1)
            if not i then return nil end
            if text:sub(i, i) == quote then return i + 1 end
            i = i + 1
        end
    end
    local comment = text:match("^%-%-()", i)
    local level = text:match("^%[(=*)%[", comment or i)
    if level then
        local _, last = text:find("]" .. level .. "]", (comment or i) + #level + 2, true)
        return last and last + 1
    end
    return comment and #text + 1 or i + 1
end

-- The position of the brace that closes a hole whose expression starts at `i`.
local function find_hole_end(text, i)
    local depth = 0
    while i and i <= #text do
        local char = text:sub(i, i)
        if char == "{" then depth = depth + 1 end
        if char == "}" then
            if depth == 0 then return i end
            depth = depth - 1
        end
        i = skip_token(text, i)
    end
    return nil
end

-- __line(number, text, hole, text, hole, ...)
local function compile_text(name, number, text)
    local parts, at = { "__line(" .. number }, 1
    while true do
        local start = text:find("${", at, true)
        parts[#parts + 1] = ("%q"):format(text:sub(at, start and start - 1))
        if not start then break end
        local last = find_hole_end(text, start + 2)
        if not last then fail(name, number, "unfinished hole") end
        local expression = text:sub(start + 2, last - 1)
        if expression:match("^%s*$") then fail(name, number, "empty hole") end
        -- On its own first: what is no expression must not become part of another one.
        local ok, message = load("return (" .. expression .. ")", "=hole", "t")
        if not ok then
            message = message:gsub("^hole:%d+: ", "")
            fail(name, number, "in ${" .. expression .. "}: " .. message)
        end
        parts[#parts + 1] = "(" .. expression .. ")"
        at = last + 1
    end
    return table.concat(parts, ",") .. ")"
end

local function compile_code(name, number, code)
    local i = 1
    while i <= #code do
        local opens_long = code:find("^%-?%-?%[=*%[", i)
        local after = skip_token(code, i)
        if not after and opens_long then
            fail(name, number, "a long bracket must end in its line")
        end
        i = after or #code + 1
    end
    return code
end

local function compile(name, text, environment)
    local lines = {}
    if text:sub(-1) ~= "\n" and text ~= "" then text = text .. "\n" end
    for line in text:gmatch("(.-)\r?\n") do
        line = line:gsub("\r", " ") -- Lua would count it as the end of a line
        local code = line:match("^%s*%%(.*)$")
        lines[#lines + 1] = code and compile_code(name, #lines + 1, code)
            or compile_text(name, #lines + 1, line)
    end
    local code = "local __line = ... " .. table.concat(lines, "\n")
    local chunk, message = load(code, "@" .. name, "t", environment)
    if not chunk then error(message, 0) end
    return chunk
end

-- ------------------------------------------------------------------------------------------ output

local function render(value, index)
    if type(value) == "string" then return value end
    if type(value) ~= "number" then
        return nil, ("hole %d is a %s value, not a string or a number"):format(index, type(value))
    end
    local integer = math.tointeger(value)
    if integer then return ("%d"):format(integer) end
    if value ~= value or value == math.huge or value == -math.huge then
        return nil, ("hole %d is not a finite number"):format(index)
    end
    return ("%.9g"):format(value)
end

-- Whether a comment is open after `text`, given whether one was before it.
local function comment_after(text, open)
    local i = 1
    while true do
        if open then
            i = select(2, text:find("*/", i, true))
            if not i then return true end
            i, open = i + 1, false
        end
        i = text:find("[/\"']", i)
        if not i then return false end
        local two = text:sub(i, i + 1)
        if two == "//" then return false end
        if two == "/*" then
            i, open = i + 2, true
        else
            i = two:sub(1, 1) == "/" and i + 1 or skip_token(text, i)
            if not i then return false end
        end
    end
end

local Output = {}
Output.__index = Output

local function new_output()
    return setmetatable({
        lines = {}, size = 0,
        file = nil, line = 0, -- where the compiler believes the next line to come from
        in_comment = false, continued = false,
        conditionals = 0, placed_inside = false, -- #if groups that are open; a #line stands in one
    }, Output)
end

function Output:put_raw(text)
    self.lines[#self.lines + 1] = text
    self.size = self.size + #text + 1
end

-- A #line in a group that the compiler skips is not read, so the count is unknown after the group.
function Output:follow_conditional(text)
    local directive = text:match("^%s*#%s*(%a+)")
    if directive == "if" or directive == "ifdef" or directive == "ifndef" then
        if self.conditionals == 0 then self.placed_inside = false end
        self.conditionals = self.conditionals + 1
    elseif directive == "elif" or directive == "else" or directive == "endif" then
        if self.placed_inside then self.file = nil end
        if directive == "endif" then self.conditionals = math.max(self.conditionals - 1, 0) end
    end
end

function Output:put_line(file, line, text)
    local placed = self.file == file and self.line == line
    if not placed and not self.in_comment and not self.continued and text:find("%S") then
        self:put_raw(('#line %d "%s"'):format(line, file))
        self.file, self.line, self.placed_inside = file, line, true
    end
    self:put_raw(text)
    self.line = self.line + 1
    if not self.in_comment then self:follow_conditional(text) end
    self.continued = text:sub(-1) == "\\"
    if self.in_comment or text:find("/*", 1, true) then
        self.in_comment = comment_after(text, self.in_comment)
    end
end

-- Text of several lines, all from one line of a template; text that begins with #line says itself
-- where it comes from.
function Output:put_lines(file, line, text)
    if text:find("^#line ") then
        self:put_raw((text:gsub("\n$", "")))
        self.file, self.placed_inside = nil, true
        return
    end
    local indent = text:match("^[ \t]*")
    local first = true
    for part in (text .. "\n"):gmatch("(.-)\n") do
        self:put_line(file, line, (first or part == "") and part or indent .. part)
        first = false
    end
end

-- ------------------------------------------------------------------------------------------- calls

-- The text that template `name` expands to. files[name]: a template's text; find(name): the full
-- name of an included one; names: what the templates see besides Lua's library.
function engine.expand(files, name, find, names)
    local output, sources, chunks, depth = new_output(), {}, {}, 0
    local environment

    local function line_emitter(file)
        return function(number, first, ...)
            local text = first
            for i = 1, select("#", ...), 2 do
                local hole, after = select(i, ...)
                local value, problem = render(hole, (i + 1) // 2)
                if not value then error(problem, 2) end
                text = text .. value .. after
            end
            if text:find("\n", 1, true) then
                output:put_lines(file, number, text)
            else
                output:put_line(file, number, text)
            end
            if output.size > engine.MAX_OUTPUT then
                error(("the output exceeds %d bytes"):format(engine.MAX_OUTPUT), 2)
            end
        end
    end

    local function run(file)
        if not chunks[file] then
            sources[file] = files[file]
            chunks[file] = compile(file, sources[file], environment)
        end
        depth = depth + 1
        chunks[file](line_emitter(file))
        depth = depth - 1
    end

    local function include(wanted)
        local file = type(wanted) == "string" and find(wanted)
        if not file or not files[file] then
            error(("unknown template '%s' in include"):format(file or type(wanted)), 2)
        end
        if depth >= engine.MAX_DEPTH then
            error(("include of '%s' is nested more than %d deep"):format(file, engine.MAX_DEPTH), 2)
        end
        run(file)
    end
    environment = new_environment(names, { include = include })

    local ok, message = pcall(run, name)
    if not ok then error(with_line_text(message, sources), 0) end
    return table.concat(output.lines, "\n") .. "\n"
end

-- Runs Lua text in the templates' environment; returns its value.
function engine.load_module(files, name)
    local text = files[name]
    local chunk, message = load(text, "@" .. name, "t", new_environment())
    local ok, value = false, message
    if chunk then ok, value = pcall(chunk) end
    if not ok then error(with_line_text(value, { [name] = text }), 0) end
    return value
end

-- Calls a function of such a module; its errors get their line's text too.
function engine.call(files, name, callee, ...)
    local result = table.pack(pcall(callee, ...))
    if not result[1] then error(with_line_text(result[2], { [name] = files[name] }), 0) end
    return table.unpack(result, 2, result.n)
end

return engine

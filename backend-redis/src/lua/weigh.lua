-- What stands against granting a set now; the rules are lockcore's `rules`.

-- The record of a waiter, and whether its process gives a sign of life.
local function waiter(name)
  local packed = call('GET', base .. '/w:' .. name)
  return packed and select(-1, cmsgpack.unpack(packed))
end

local signs = {}
local function lives(session)
  if signs[session] == nil then signs[session] = call('EXISTS', base .. '/p:' .. session) == 1 end
  return signs[session]
end

-- The line in which a waiter stands for its i-th id: its mode and limit, behind an n if it is nested and obeys no queue.
local function line_of(record, i)
  return (record.nested and 'n' or '') .. mode_of(record.modes[i]).line
end

local function leave_line(s, line, name)
  local key = base .. '/q:' .. line .. ':' .. s.id
  call('ZREM', key, name)
  if call('EXISTS', key) == 0 then
    call('SREM', base .. '/l:' .. s.id, line)
    s.lines[line] = nil
  end
  s.dirty, freed[s.id] = true, true
end

-- Takes a waiter from all its queues.
local function leave(name, record)
  for i, id in ipairs(record.ids) do
    local readable, s = pcall(load, id)
    if readable then leave_line(s, line_of(record, i), name)
    else call('ZREM', base .. '/q:' .. line_of(record, i) .. ':' .. id, name) end
  end
  call('DEL', base .. '/w:' .. name)
end

-- The waiter of the lowest ticket above `after` in the lines that `among` chooses, and that is all there is of it: name,
-- ticket, line.
local function first_in(s, after, among)
  local name, ticket, line
  for candidate in pairs(s.lines) do
    if among(candidate) then
      local key = base .. '/q:' .. candidate .. ':' .. s.id
      local found = call('ZRANGEBYSCORE', key, '(' .. fmt('%d', after), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if found[1] and (not ticket or tonumber(found[2]) < ticket) then
        name, ticket, line = found[1], tonumber(found[2]), candidate
      end
    end
  end
  return name, ticket, line
end

-- Whether an earlier waiter in `line` keeps back a later claim in this mode.
local function keeps_back(line, mode)
  if sub(line, 1, 1) == 'n' then line = sub(line, 2) end
  if mode.kind == 's' then return line ~= 's' end
  if mode.kind == 'k' then return sub(line, 1, 1) ~= 'k' or tonumber(sub(line, 2)) >= mode.limit end
  return true
end

local function use_of(s, except)
  local exclusive, shared, permits = 0, 0, 0
  for _, h in ipairs(s.holders) do
    if h.context ~= except then
      if h.kind == 'x' then exclusive = exclusive + 1
      elseif h.kind == 's' then shared = shared + 1
      else permits = permits + h.permits end
    end
  end
  return exclusive, shared, permits
end

local function units_of(s)
  local exclusive, shared, permits = use_of(s)
  if s.foreign then exclusive = exclusive + 1 end
  return permits > 0 and permits or exclusive + shared
end

local function fits(s, context, mode)
  if s.foreign then return false end
  local exclusive, shared, permits = use_of(s, context)
  if mode.kind == 'x' then return exclusive + shared + permits == 0 end
  if mode.kind == 's' then return exclusive == 0 end
  return exclusive == 0 and permits + mode.permits <= mode.limit
end

local STRENGTH = { s = 0, k = 1, x = 2 }

-- new, keep, change, broken
local function stance_of(s, context, mode)
  for _, h in ipairs(s.holders) do
    if h.context == context then
      if h.broken then return 'broken' end
      local other = h.kind == 'k' and mode.kind == 'k' and h.permits ~= mode.permits
      return (other or STRENGTH[mode.kind] > STRENGTH[h.kind]) and 'change' or 'keep'
    end
  end
  return 'new'
end

local function held_by(s, except)
  local rows = {}
  for _, h in ipairs(s.holders) do
    if h.context ~= except then rows[#rows + 1] = h end
  end
  table.sort(rows, function(a, b) return left(a) > left(b) end)
  local conflict = { 'held', #rows, units_of(s) }
  for i = 1, math.min(#rows, 8) do
    local h = rows[i]
    local mode = mode_of(h.mode)
    conflict[i + 3] = { h.context, h.owner, h.kind, mode.permits, mode.limit, h.fence, math.min(left(h), h.lease) }
  end
  if s.foreign then
    conflict[2] = conflict[2] + 1
    table.insert(conflict, 4, { s.foreign, '', 'x', 0, 0, 0, call('PTTL', s.key) })
  end
  return conflict
end

local function queued_behind(s, ticket, mode)
  local function among(line) return keeps_back(line, mode) end
  while true do
    local name, first, line = first_in(s, 0, among)
    if not name or first >= ticket then return nil end
    local record = waiter(name)
    if record and lives(record.session) then
      local count, below = 0, '(' .. fmt('%d', ticket)
      for candidate in pairs(s.lines) do
        if among(candidate) then count = count + call('ZCOUNT', base .. '/q:' .. candidate .. ':' .. s.id, '-inf', below) end
      end
      return { 'queued', record.context, count }
    end
    if record then leave(name, record) else leave_line(s, line, name) end
  end
end

-- Gives stances and conflicts by position, and whether there is a change, which is never queued for. Who lapsed is
-- removed in passing and `freed`: then the question has to be asked again.
local function weigh(who)
  local stances, conflicts, changes = {}, {}, false
  for i, id in ipairs(who.ids) do
    local s, mode = load(id), mode_of(who.modes[i])
    local stance, conflict = stance_of(s, who.context, mode), nil
    if stance == 'broken' then
      conflict = held_by(s)
    elseif stance ~= 'keep' then
      if s.frozen then conflict = { 'frozen' }
      elseif not fits(s, who.context, mode) then conflict = held_by(s, who.context)
      elseif stance == 'new' and not who.nested and next(s.lines) then conflict = queued_behind(s, who.ticket, mode) end
    end
    stances[i] = stance
    changes = changes or stance == 'change' or stance == 'broken'
    if conflict then
      table.insert(conflict, 1, i - 1)
      conflicts[#conflicts + 1] = conflict
    end
  end
  return stances, conflicts, changes
end

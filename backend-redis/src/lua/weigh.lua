-- Decides what stands against granting a set; the rules are those of lockcore's `rules`.

-- Returns the stored request of a waiter.
local function waiter(name)
  local packed = call('GET', base .. '/c:' .. name)
  return packed and cmsgpack.unpack(packed)
end

-- Whether a heartbeat counts, by the time that is its value: its key outlives that if the clock was set back. An older program
-- writes 1, and its key decides.
local function counts(heartbeat)
  local at = tonumber(heartbeat or nil)
  return at ~= nil and (at == 1 or math.abs(ms - at) <= HEARTBEAT_LASTS)
end

-- Whether a session's heartbeat still counts.
local heartbeats = {}
local function is_alive(session)
  if heartbeats[session] == nil then heartbeats[session] = counts(call('GET', base .. '/p:' .. session)) end
  return heartbeats[session]
end

-- The line in which a waiter is queued for its i-th id: its mode and limit, after an n if it is nested and obeys no queue.
local function line_of(record, i)
  return (record.nested and 'n' or '') .. mode_of(record.modes[i]).line
end

local function queue_of(s, line) return base .. '/t:' .. line .. ':' .. s.id end

local function forget_line(s, line)
  call('SREM', base .. '/n:' .. s.id, line)
  s.lines[line], s.dirty = nil, true
end

local function leave_line(s, line, name)
  call('ZREM', queue_of(s, line), name)
  if call('EXISTS', queue_of(s, line)) == 0 then forget_line(s, line) end
  s.dirty, freed[s.id], budget = true, true, budget - 1
end

-- Removes a waiter from all its queues.
local function leave(name, record)
  for i, id in ipairs(record.ids) do
    local readable, s = pcall(load, id)
    if readable then leave_line(s, line_of(record, i), name)
    else call('ZREM', queue_of({ id = id }, line_of(record, i)), name) end
  end
  call('DEL', base .. '/c:' .. name)
end

-- Returns the first waiter behind the ticket `after` in the lines that `among` selects: its name, ticket and line.
local function first_in(s, after, among)
  local name, ticket, line
  for candidate in pairs(s.lines) do
    if among(candidate) then
      local key = queue_of(s, candidate)
      local found = call('ZRANGEBYSCORE', key, '(' .. fmt('%d', after), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if found[1] and (not ticket or tonumber(found[2]) < ticket) then
        name, ticket, line = found[1], tonumber(found[2]), candidate
      elseif not found[1] and after == 0 then
        forget_line(s, candidate)
      end
    end
  end
  return name, ticket, line
end

-- Whether a claim in this mode must not pass an earlier waiter in `line`: the negation of `rules::passes`.
local function keeps_back(line, mode)
  if sub(line, 1, 1) == 'n' then line = sub(line, 2) end
  if mode.kind == 's' then return line ~= 's' end
  if mode.kind == 'k' then return sub(line, 1, 1) ~= 'k' or tonumber(sub(line, 2)) >= mode.limit end
  return true
end

-- Counts exclusive holders, other holders, and permits in use, all but the holder `except`.
local function use_of(s, except)
  if s.foreign then return 1, 0, 0 end
  if s.exclusive then return s.exclusive == except and 0 or 1, 0, 0 end
  if not except then return 0, s.count, s.permits end
  return 0, s.count - 1, s.permits - except.permits
end

local function units_of(s)
  local exclusive, others, permits = use_of(s)
  return permits > 0 and permits or exclusive + others
end

local function fits(s, own, mode)
  local exclusive, others, permits = use_of(s, own)
  if mode.kind == 'x' then return exclusive + others == 0 end
  if mode.kind == 's' then return exclusive == 0 end
  return exclusive == 0 and permits + mode.permits <= mode.limit
end

local STRENGTH = { s = 0, k = 1, x = 2 }

-- How a request relates to what its context holds: new, keep, change or broken.
local function stance_of(h, mode)
  if not h then return 'new' end
  if h.broken then return 'broken' end
  local other = h.kind == 'k' and mode.kind == 'k' and h.permits ~= mode.permits
  return (other or STRENGTH[mode.kind] > STRENGTH[h.kind]) and 'change' or 'keep'
end

-- The conflict with holders: how many there are, how much is in use, and those with the longest remaining leases.
local function held_by(s, except)
  local exclusive, others = use_of(s, except)
  local conflict = { 'held', exclusive + others, units_of(s) }
  local function show(h)
    local mode = mode_of(h.mode)
    conflict[#conflict + 1] =
      { h.context, h.owner, h.kind, mode.permits, mode.limit, h.fence, math.max(math.min(remaining(h), h.lease), 0) }
  end
  if s.foreign then
    conflict[4] = { s.foreign, '', 'x', 0, 0, 0, call('PTTL', s.key) }
  elseif exclusive > 0 then
    show(s.exclusive)
  elseif others > 0 then
    for _, context in ipairs(call('ZREVRANGE', base .. '/e:' .. s.id, 0, 8)) do
      local h = sharer(s, context)
      if h ~= except and #conflict < 11 then show(h) end
    end
  end
  return conflict
end

-- The conflict with earlier waiters, or nil; removes those whose heartbeat stopped.
local function queued_behind(s, ticket, mode)
  local function among(line) return keeps_back(line, mode) end
  while true do
    local name, first, line = first_in(s, 0, among)
    if not name or first >= ticket then return nil end
    local record = budget > 0 and waiter(name)
    if budget <= 0 then unfinished[s.id] = true end
    -- Once the budget is used up, waiters count as alive.
    if budget <= 0 or record and is_alive(record.session) then
      local count, below = 0, '(' .. fmt('%d', ticket)
      for candidate in pairs(s.lines) do
        if among(candidate) then count = count + call('ZCOUNT', queue_of(s, candidate), '-inf', below) end
      end
      return { 'queued', sub(name, 17), count }
    end
    if record then leave(name, record) else leave_line(s, line, name) end
  end
end

-- Returns stances and conflicts by position, and whether a held mode would change, which is never queued for. Lapsed waiters
-- are removed in passing, which may free ids: then the set has to be weighed again.
local function weigh(request)
  local stances, conflicts, changes = {}, {}, false
  for i, id in ipairs(request.ids) do
    local s, mode = load(id), mode_of(request.modes[i])
    local h = holder(s, request.context)
    local stance, conflict = stance_of(h, mode), nil
    if stance == 'broken' then
      conflict = held_by(s)
    elseif stance ~= 'keep' then
      if s.frozen then conflict = { 'frozen' }
      elseif not fits(s, h, mode) then conflict = held_by(s, h)
      elseif stance == 'new' and not request.nested and next(s.lines) then conflict = queued_behind(s, request.ticket, mode) end
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

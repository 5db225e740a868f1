-- Administration; at the end the requested step is called.

-- How many holders and waiters one script lists: other clients need the server too.
local LIST_LIMIT = 500

local function holder_row(h)
  local mode = mode_of(h.mode)
  return {
    h.context, h.owner, h.kind, mode.permits, mode.limit, match(h.mode, '^k%d+/%d+/(.*)$') or '', h.fence, h.lease,
    math.max(math.min(remaining(h), h.lease), 0), h.broken and 1 or 0,
  }
end

-- Adds the waiters of a line behind a ticket to `rows`, at most `most`; returns how many there were, and the last ticket.
local function list_waiters(s, line, after, most, rows)
  local names = call('ZRANGEBYSCORE', queue_of(s, line), '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #names, 2 do
    local record = waiter(names[i])
    if record and is_alive(record.session) then
      for position, id in ipairs(record.ids) do
        if id == s.id then
          local mode = mode_of(record.modes[position])
          rows[#rows + 1] = { record.context, record.owner, mode.kind, mode.permits, mode.limit, record.since, record.ticket }
          break
        end
      end
    end
  end
  return #names / 2, names[#names]
end

-- Calls a function about one id. Returns false and the reason if the id's keys are not as this library writes them, so that they
-- stop nothing that is about others.
local function try(about, id, argument)
  local done, answer = pcall(about, id, argument)
  if done then return true, answer end
  local reason = type(answer) == 'table' and answer.err or tostring(answer)
  for _, known in ipairs({ 'WRONGTYPE', 'are not all there', 'attempt to' }) do
    if find(reason, known, 1, true) then return false, reason end
  end
  error(answer, 0)
end

local function inspected(id, room)
  local s = load(id)
  local holders, waiters, size = {}, {}, s.count
  for line in pairs(s.lines) do size = size + call('ZCARD', queue_of(s, line)) end
  local listed = size <= room
  if s.exclusive then holders[1] = holder_row(s.exclusive) end
  if s.foreign then holders[1] = { s.foreign, '', 'x', 0, 0, '', 0, -1, call('PTTL', s.key), 0 } end
  if listed then
    if s.count > 0 then
      for _, context in ipairs(call('HKEYS', base .. '/s:' .. s.id)) do
        holders[#holders + 1] = holder_row(sharer(s, context))
      end
    end
    for line in pairs(s.lines) do list_waiters(s, line, '0', LIST_LIMIT, waiters) end
  end
  local breaks = call('LRANGE', base .. '/b:' .. s.id, 0, -1)
  return { s.id, s.frozen and 1 or 0, holders, waiters, breaks, listed and 0 or 1 }, listed and size or 0
end

-- ARGV: op, ids. Returns for each { id, frozen, holders, waiters, breaks, whether there are too many for one script }: then
-- sharers and waiters are left out; or { id, why it cannot be read }. Changes nothing that shows.
function steps.inspect()
  local reply, room = {}, LIST_LIMIT
  local function one(id)
    local row, size = inspected(id, room)
    room = room - size
    return row
  end
  for i = 2, #ARGV do
    local done, row = try(one, ARGV[i])
    reply[#reply + 1] = done and row or { ARGV[i], row }
  end
  return finish(reply)
end

-- ARGV: op, id, cursor. Returns the next cursor and some of the id's sharers.
function steps.sharers()
  local s, rows = load(ARGV[2]), {}
  local found = call('HSCAN', base .. '/s:' .. s.id, ARGV[3], 'COUNT', LIST_LIMIT)
  for i = 1, #found[2], 2 do
    local h = sharer(s, found[2][i])
    if h then rows[#rows + 1] = holder_row(h) end
  end
  return finish({ found[1], rows })
end

-- ARGV: op, id, line, ticket. Returns the line, empty at the end, and the ticket to go on behind, and some waiters.
function steps.waiters()
  local s, lines, rows = load(ARGV[2]), {}, {}
  for line in pairs(s.lines) do
    if line >= ARGV[3] then lines[#lines + 1] = line end
  end
  table.sort(lines)
  local room = LIST_LIMIT
  for _, line in ipairs(lines) do
    local seen, last = list_waiters(s, line, line == ARGV[3] and ARGV[4] or '0', room, rows)
    if seen == room then return finish({ line, last, rows }) end
    room = room - seen
  end
  return finish({ '', '0', rows })
end

-- ARGV: op, cursor, pattern of the namespace's keys. Returns the next cursor, and the ids whose main key or lines are among
-- the scanned keys.
function steps.scan()
  local found, here = call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', 1000), {}
  for _, key in ipairs(found[2]) do
    local from = match(sub(key, #base + 1), '^:()') or match(sub(key, #base + 1), '^/n:()')
    if from then here[#here + 1] = sub(key, #base + from) end
  end
  return { found[1], here }
end

-- Returns the holder under this fence.
local function holder_of(s, fence)
  if s.exclusive then return fmt('%d', s.exclusive.fence) == fence and s.exclusive or nil end
  if s.count == 0 then return nil end
  local all = call('HGETALL', base .. '/s:' .. s.id)
  for i = 1, #all, 2 do
    if sub(all[i + 1], 1, #fence + 1) == fence .. '|' then return sharer(s, all[i]) end
  end
end

-- ARGV: op, id, fence, now or after, by. Returns { 'missing' }, { 'freed' } or { 'within', ms }.
steps['break'] = function()
  allow_when_full()
  local s, fence, at_once = load(ARGV[2]), ARGV[3], ARGV[4] == 'now'
  local function record(context)
    local key = base .. '/b:' .. s.id
    call('RPUSH', key, fence .. '|' .. (at_once and 1 or 0) .. '|' .. ms .. '|' .. #context .. ':' .. context .. ARGV[5])
    call('LTRIM', key, -BREAKS_KEPT, -1)
    call('PEXPIRE', key, BREAKS_LAST)
  end
  if s.foreign and fence == '0' then
    local ends = call('PTTL', s.key)
    if not at_once then return { 'within', ends } end
    record(s.foreign)
    call('DEL', s.key)
    s.main, s.foreign, s.dirty, freed[s.id] = nil, nil, true, true
    return finish({ 'freed' })
  end
  local h = holder_of(s, fence)
  if not h then return finish({ 'missing' }) end
  if at_once or not h.broken then record(h.context) end
  if at_once then
    drop(s, h)
    return finish({ 'freed' })
  end
  h.broken = true
  hold(s, h)
  return finish({ 'within', math.max(math.min(remaining(h), h.lease), 0) })
end

-- ARGV: op, id, 1 or 0. While an id is frozen none of its keys expires.
function steps.freeze()
  local s = load(ARGV[2])
  local lines = base .. '/n:' .. s.id
  if ARGV[3] == '1' then
    call('SADD', lines, 'frozen')
    call('PERSIST', lines)
    s.frozen, s.dirty = true, true
  else
    call('SREM', lines, 'frozen')
    call('PEXPIRE', lines, PLACE_LASTS)
    s.frozen, s.dirty, freed[s.id] = false, true, true
  end
  return finish(1)
end

-- Frees an id and its queues of the context; returns whether that held it.
local function dismissed(id, context)
  local s = load(id)
  local h = holder(s, context)
  if h then drop(s, h) end
  for line in pairs(s.lines) do
    for _, name in ipairs(call('ZRANGE', queue_of(s, line), 0, -1)) do
      if sub(name, 17) == context then
        local record = waiter(name)
        if record then leave(name, record) else leave_line(s, line, name) end
      end
    end
  end
  return h ~= nil
end

-- ARGV: op, context, ids. Frees what the context holds of them and removes it from their queues; returns what it held, why one of
-- them cannot be read, and why one has to be tried again; or nothing in place of a reason.
function steps.dismiss()
  allow_when_full()
  local held, unreadable, again = {}, '', ''
  for i = 3, #ARGV do
    local done, answer = try(dismissed, ARGV[i], ARGV[2])
    if done then
      if answer then held[#held + 1] = ARGV[i] end
    elseif find(answer, 'TRYAGAIN', 1, true) then
      again = answer
    else
      unreadable = answer
    end
  end
  return finish({ held, unreadable, again })
end

return run(steps[op])

-- Granting, and handing over what was freed.

-- The lowest `permits` indexes that the holders do not have, as ranges.
local function lowest_free(s, permits)
  local taken = {}
  for _, h in ipairs(s.holders) do
    for first, last in string.gmatch(match(h.mode, '^k%d+/%d+/(.*)$') or '', '(%d+)%-(%d+)') do
      taken[#taken + 1] = { tonumber(first), tonumber(last) }
    end
  end
  table.sort(taken, function(a, b) return a[1] < b[1] end)
  local ranges, index = {}, 0
  taken[#taken + 1] = { math.huge, math.huge }
  for _, range in ipairs(taken) do
    if permits > 0 and range[1] > index then
      local count = math.min(permits, range[1] - index)
      ranges[#ranges + 1] = index .. '-' .. (index + count - 1)
      permits = permits - count
    end
    index = math.max(index, range[2] + 1)
  end
  return table.concat(ranges, ',')
end

local function hold(s, h)
  s.holders[#s.holders + 1], s.dirty = h, true
  if h.kind ~= 'x' then call('HSET', base .. '/h:' .. s.id, h.context, encode(h)) end
end

-- Grants the set, against which nothing may stand; by position: mode with indexes, fence, units in use. In an offer, what
-- is kept stays as it is until the offer is confirmed.
local function grant(who, stances, lease, offered)
  local fence, granted = nil, {}
  for i, id in ipairs(who.ids) do
    local s, mode = load(id), who.modes[i]
    local own
    for position, h in ipairs(s.holders) do
      if h.context == who.context then own = position break end
    end
    local h = own and s.holders[own]
    if stances[i] == 'keep' then
      if not offered then
        h.at, h.lease, s.dirty = ms, math.max(lease, left(h) - 1), true
        if h.kind ~= 'x' then call('HSET', base .. '/h:' .. id, h.context, encode(h)) end
      end
    else
      fence = fence or number()
      if h then
        -- Fewer permits may leave room for others.
        freed[id] = true
        table.remove(s.holders, own)
        if h.kind ~= 'x' then call('HDEL', base .. '/h:' .. id, h.context) end
        call('HSET', base .. '/r:' .. id, h.context, encode(h))
        s.replaced = true
      end
      if sub(mode, 1, 1) == 'k' then mode = mode .. '/' .. lowest_free(s, mode_of(mode).permits) end
      h = {
        fence = fence, context = who.context, at = ms, lease = lease, broken = false, mode = mode, kind = sub(mode, 1, 1),
        attempt = who.attempt, owner = who.owner, permits = mode_of(mode).permits,
      }
      hold(s, h)
    end
    granted[i] = { h.mode, h.fence, units_of(s) }
  end
  return granted
end

-- Takes what the context got by this attempt, and gives back what that replaced.
local function undo(s, context, attempt)
  for position = #s.holders, 1, -1 do
    local h = s.holders[position]
    if h.context == context and h.attempt == attempt then
      local before = s.replaced and call('HGET', base .. '/r:' .. s.id, context)
      drop(s, position)
      before = before and decode(before, 1)
      if before and left(before) > 0 then
        -- Fewer permits may have let somebody in meanwhile who needs the rest: then they stay as few.
        local mode = fits(s, context, mode_of(before.mode)) and before.mode or h.mode
        if sub(mode, 1, 1) == 'k' then
          local permits = mode_of(mode).permits
          mode = match(mode, '^k%d+/%d+') .. '/' .. lowest_free(s, permits)
        end
        before.mode, before.kind, before.permits = mode, sub(mode, 1, 1), mode_of(mode).permits
        hold(s, before)
      end
    end
  end
end

-- What each session is to be told when the script ends, as fields of `length:bytes`.
local told, to = {}, {}
local function tell(session, ...)
  local fields = told[session]
  if not fields then
    fields = {}
    told[session], to[#to + 1] = fields, session
  end
  for _, field in ipairs({ ... }) do
    field = type(field) == 'number' and fmt('%d', field) or field
    fields[#fields + 1] = #field .. ':' .. field
  end
end

-- How many offers one script makes at most: others want the server too.
local MOST_HANDED, handed = 512, 0

-- Grants a waiter its set, or removes it if it lapsed. False: it has to go on waiting.
local function hand_over(s, name, line, nested)
  local record = waiter(name)
  if not record then
    leave_line(s, line, name)
    return true
  end
  if not lives(record.session) then
    leave(name, record)
    return true
  end
  -- An id of its set that another program spoiled must not keep the releaser from releasing.
  local readable, stances, conflicts = pcall(weigh, record)
  if not readable or #conflicts > 0 then return false end
  local lease = math.min(record.lease, OFFER)
  local granted = grant(record, stances, lease, true)
  leave(name, record)
  handed = handed + 1
  tell(record.session, 'offer', name, us, lease, #granted)
  for _, claim in ipairs(granted) do tell(record.session, claim[1], claim[2], claim[3]) end
  return true
end

-- Which lines are looked at behind a waiter that has to go on waiting: who may pass it.
local function lines_after(kind, stuck, exclusive, permits)
  if kind == 'nested' then return kind end
  if exclusive > 0 or stuck == 'x' then return nil end
  if stuck == 's' then return 's' end
  local limit = math.max(tonumber(sub(stuck, 2)), permits)
  return type(kind) == 'number' and math.max(kind, limit) or limit
end

local function in_lines(kind)
  return function(line)
    local nested = sub(line, 1, 1) == 'n'
    if nested or kind == 'nested' then return nested and kind == 'nested' end
    if kind == 'all' then return true end
    if kind == 's' then return line == 's' end
    return sub(line, 1, 1) == 'k' and tonumber(sub(line, 2)) > kind
  end
end

-- Serves those who wait for what was freed, in the order of their tickets, until nothing more fits. As soon as somebody
-- has to go on waiting only who may pass is looked for, so that a release costs the same with two waiters and with 10 000.
local function serve()
  local cursors, last = {}, nil
  local function open(s, kind, after)
    local name, ticket, line = first_in(s, after, in_lines(kind))
    if name then cursors[#cursors + 1] = { id = s.id, kind = kind, name = name, ticket = ticket, line = line } end
  end
  while true do
    local id = next(freed)
    while id do
      freed[id], last = nil, nil
      for i = #cursors, 1, -1 do
        if cursors[i].id == id then table.remove(cursors, i) end
      end
      local s = load(id)
      if next(s.lines) and not s.frozen and not s.foreign and use_of(s) == 0 then
        if handed < MOST_HANDED then
          open(s, 'nested', 0)
          open(s, 'all', 0)
        else
          local record = waiter((first_in(s, 0, function() return true end)) or '')
          if record then tell(record.session, 'look', id) end
        end
      end
      id = next(freed)
    end
    if #cursors == 0 then return end
    local first = 1
    for i = 2, #cursors do
      if cursors[i].ticket < cursors[first].ticket then first = i end
    end
    local cursor = table.remove(cursors, first)
    local s = load(cursor.id)
    local served = last ~= cursor.ticket and hand_over(s, cursor.name, cursor.line)
    if not served then
      last = cursor.ticket
      local exclusive, _, permits = use_of(s)
      local kind = lines_after(cursor.kind, cursor.line, exclusive, permits)
      if kind then open(s, kind, cursor.ticket) end
    end
  end
end

-- The end of every script: what was freed is served, all is written, everybody is told.
local function finish(reply)
  serve()
  for _, s in ipairs(loaded) do settle(s) end
  -- There is no -0.
  local now = more and -math.max(highest, 1) or highest
  if now ~= before then call('SET', base .. '/f', fmt('%d', now)) end
  for _, session in ipairs(to) do
    call(sub(session, 1, 1) == 's' and 'SPUBLISH' or 'PUBLISH', base .. '/o:' .. session, table.concat(told[session]))
  end
  return reply
end

-- The state of an id: its keys are read once in a script and written back at its end.
local fmt, sub, match, find = string.format, string.sub, string.match, string.find
local base = match(keys[1], '^{[^}]*}')

-- Renewing changes only keys that exist, and proves that it has all of them. Every other step may create keys, and a slot
-- that moves between nodes of a cluster has some here and some there: a command for two keys of which one is missing fails
-- then, on either node.
local renewing = op == 'renew' or op == 'shorten'
local highest
if not renewing then
  local here = redis.pcall('EXISTS', base .. '/f', base .. '/-')
  if type(here) ~= 'number' then
    return find(here.err, 'NOPERM', 1, true) and here or redis.error_reply('TRYAGAIN the slot of ' .. base .. ' moves')
  end
  highest = tonumber(call('GET', base .. '/f') or 0)
  -- Below zero: a program of an older version.
  highest = highest and math.abs(highest)
  if not highest or not (highest < 2 ^ 53) then return redis.error_reply('WRONGTYPE ' .. base .. '/f') end
end
time = time or call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = math.floor(us / 1000)

-- How long a place in a queue is kept, in ms: a waiter repeats its request at least every half minute.
local PLACE_LASTS = 600000

-- Returns the next fence or ticket. It is written at once, before what it is for: if that fails, as on a full server, a number
-- is lost and nothing else.
local function next_number()
  highest = math.max(highest + 1, us)
  local ahead = math.max(math.floor((highest - us) / 1000000), 0)
  call('SET', base .. '/f', fmt('%d', highest), 'EX', FENCE_LASTS + ahead)
  return highest
end

-- What else a main key says: that the id is shared, with permits in use and the last renewal behind, or only that it is frozen.
local SHARED, FROZEN_ONLY = 'lc2~shared|', 'lc2~frozen'

-- Parses a mode in stored form: x (exclusive), s (shared) or k<permits>/<limit> (slots); a held one ends in its permits.
-- Each mode and limit has a line of its own, which is a queue.
local modes = {}
local function mode_of(text)
  local mode = modes[text]
  if not mode then
    local kind, permits, limit = match(text, '^(%a)(%d*)/?(%d*)')
    mode = { kind = kind, permits = tonumber(permits) or 0, limit = tonumber(limit) or 0 }
    mode.line = kind == 'k' and kind .. mode.limit or kind
    modes[text] = mode
  end
  return mode
end

-- A holder in stored form: fence|context|flags|renewed at (ms, by default the fence's time)|lease (ms)|mode|attempt|owner,
-- followed by what its context held before the last change, in the same form. Contexts and owners have a length prefix, and
-- are never formatted: `%s` ends at a NUL.
local function encode(h, flags)
  return fmt('%d|%d:', h.fence, #h.context) .. h.context .. '|' .. (h.broken and BROKEN or '') .. flags
    .. fmt('|%d|%d|', h.at, h.lease) .. h.mode .. '|' .. h.attempt .. fmt('|%d:', #h.owner) .. h.owner .. h.replaced
end

local function decode(text, from)
  local fence, length, behind = match(text, '^(%d+)|(%d+):()', from)
  if not fence then return nil end
  local after = behind + length
  local flags, at, lease, mode, attempt, owner, begins = match(text, '^|(%a*)|(%d*)|(%d+)|([^|]*)|(%x+)|(%d+):()', after)
  if not begins then return nil end
  return {
    fence = tonumber(fence), context = sub(text, behind, after - 1), lease = tonumber(lease),
    at = tonumber(at) or math.floor(fence / 1000), broken = find(flags, BROKEN, 1, true) and true or false,
    waited_for = find(flags, WAITED_FOR, 1, true), frozen = find(flags, FROZEN, 1, true), mode = mode,
    kind = sub(mode, 1, 1), attempt = attempt, owner = sub(text, begins, begins + owner - 1),
    replaced = sub(text, begins + owner), permits = mode_of(mode).permits,
  }
end

-- How much of the lease is left, in ms. One more than asked for: the clock was in the middle of a ms when it was read.
local function remaining(h) return h.at + h.lease + 1 - ms end

-- How many waiters and holders one script removes or serves at most: other clients need the server too.
local STEP_BUDGET = 256

-- The loaded ids by name and in order; ids with more room than before; ids whose queue the budget did not suffice for.
local ids, loaded, freed, unfinished, budget = {}, {}, {}, {}, STEP_BUDGET

-- The keys of a shared id's holders: records by context, contexts by the end of their leases, free permits.
local function sharers(s) return base .. '/s:' .. s.id, base .. '/e:' .. s.id, base .. '/g:' .. s.id end

-- Takes the lowest free permits and returns them as ranges. Free ranges are stored as `first-last` by their first; the last one
-- has no end. Without a key all are free.
local function take_permits(s, permits)
  local _, _, gaps = sharers(s)
  local ranges, wanted = {}, permits
  if s.permits == 0 then call('DEL', gaps) end
  while wanted > 0 do
    local gap = s.permits == 0 and #ranges == 0 and '0-' or call('ZRANGE', gaps, 0, 0)[1]
    local first, last = match(gap, '^(%d+)%-(%d*)$')
    local behind = math.min(first + wanted, (tonumber(last) or math.huge) + 1)
    ranges[#ranges + 1] = fmt('%d-%d', first, behind - 1)
    call('ZREM', gaps, gap)
    if last == '' or behind <= tonumber(last) then call('ZADD', gaps, behind, fmt('%d-', behind) .. last) end
    wanted = wanted - (behind - first)
  end
  s.permits = s.permits + permits
  return table.concat(ranges, ',')
end

-- Takes the permits that a holder had, if all of them are free; returns whether they are.
local function take_these_permits(s, h)
  local _, _, gaps = sharers(s)
  if s.permits == 0 then
    call('DEL', gaps)
    call('ZADD', gaps, 0, '0-')
  end
  local function gap_of(first, last)
    local gap = call('ZREVRANGEBYSCORE', gaps, first, '-inf', 'LIMIT', 0, 1)[1]
    local begins, ends = match(gap or '', '^(%d+)%-(%d*)$')
    if begins and (ends == '' or last <= tonumber(ends)) then return gap, tonumber(begins), ends end
  end
  local ranges = {}
  for first, last in string.gmatch(match(h.mode, '[^/]*$'), '(%d+)%-(%d+)') do
    first, last = tonumber(first), tonumber(last)
    if not gap_of(first, last) then return false end
    ranges[#ranges + 1] = { first, last }
  end
  for _, range in ipairs(ranges) do
    local first, last = range[1], range[2]
    local gap, begins, ends = gap_of(first, last)
    call('ZREM', gaps, gap)
    if begins < first then call('ZADD', gaps, begins, fmt('%d-%d', begins, first - 1)) end
    if ends == '' or last < tonumber(ends) then call('ZADD', gaps, last + 1, fmt('%d-', last + 1) .. ends) end
  end
  s.permits = s.permits + h.permits
  return true
end

local function return_permits(s, h)
  local _, _, gaps = sharers(s)
  s.permits = s.permits - h.permits
  if s.permits == 0 then return call('DEL', gaps) end
  for first, last in string.gmatch(match(h.mode, '^k%d+/%d+/(.*)$'), '(%d+)%-(%d+)') do
    local before = call('ZREVRANGEBYSCORE', gaps, '(' .. first, '-inf', 'LIMIT', 0, 1)[1]
    local start, stop = match(before or '', '^(%d+)%-(%d+)$')
    if start and stop + 1 == tonumber(first) then
      call('ZREM', gaps, before)
      first = start
    end
    local behind = fmt('%d', last + 1)
    local after = call('ZRANGEBYSCORE', gaps, behind, behind)[1]
    if after then
      call('ZREM', gaps, after)
      last = match(after, '%-(%d*)$')
    end
    call('ZADD', gaps, first, first .. '-' .. last)
  end
end

-- Records `h` as what its context holds.
local function hold(s, h)
  s.dirty = true
  if h.kind == 'x' then
    s.exclusive = h
    return
  end
  local records, ends = sharers(s)
  -- Left behind where another program removed the main key.
  if s.count == 0 then call('DEL', records, ends) end
  call('HSET', records, h.context, encode(h, ''))
  s.count = s.count + call('ZADD', ends, h.at + h.lease + 1, h.context)
  s.latest, s.known[h.context] = math.max(s.latest, h.at), h
end

local function drop(s, h)
  s.dirty, freed[s.id] = true, true
  if h.kind == 'x' then
    s.exclusive = nil
    return
  end
  local records, ends = sharers(s)
  call('HDEL', records, h.context)
  s.count = s.count - call('ZREM', ends, h.context)
  s.known[h.context] = false
  if h.kind == 'k' then return_permits(s, h) end
end

-- Returns what a context that shares the id holds, also if its lease has ended.
local function sharer(s, context)
  local h = s.known[context]
  if h == nil then
    local text = s.count > 0 and call('HGET', base .. '/s:' .. s.id, context)
    h = text and decode(text, 1) or false
    if text and not h then error(redis.error_reply('WRONGTYPE ' .. base .. '/s:' .. s.id)) end
    s.known[context] = h
  end
  return h or nil
end

-- Returns what the context holds.
local function holder(s, context)
  local h = s.exclusive
  if not h then
    h = sharer(s, context)
  elseif h.context ~= context then
    return nil
  end
  if not h or remaining(h) > 0 then return h end
  if not renewing then drop(s, h) end
  return nil
end

-- Removes sharers whose leases have ended: all at once where none is left.
local function prune(s)
  local records, ends, gaps = sharers(s)
  local over = call('ZRANGEBYSCORE', ends, '-inf', ms, 'LIMIT', 0, math.max(budget, 1))
  if #over == 0 then return end
  s.dirty, freed[s.id] = true, true
  local last = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')
  if tonumber(last[2]) <= ms then
    call('UNLINK', records, ends, gaps)
    s.count, s.permits, s.known = 0, 0, {}
    return
  end
  for _, context in ipairs(over) do drop(s, sharer(s, context)) end
  budget = budget - #over
  if budget <= 0 then unfinished[s.id] = true end
end

-- Reads the count of sharers. The main key proves that their keys exist: one that is missing has not arrived yet in a moving
-- slot, or was removed by another program, and the id is not free.
local function load_sharers(s, permits, latest)
  local records, ends, gaps = sharers(s)
  s.permits, s.latest = tonumber(permits), tonumber(latest)
  local here = redis.pcall('EXISTS', records, ends, s.permits > 0 and gaps or ends)
  s.count = here == 3 and call('ZCARD', ends)
  if not s.count or s.count ~= call('HLEN', records) then
    error(redis.error_reply('TRYAGAIN the holders of ' .. s.key .. ' are not all there'))
  end
  if s.latest > ms then
    -- The clock was set back: these leases count from now.
    s.latest = ms
    for _, context in ipairs(call('HKEYS', records)) do
      local h = sharer(s, context)
      if h.at > ms then
        h.at = ms
        hold(s, h)
      end
    end
  end
  if not renewing then prune(s) end
end

local function load(id)
  local s = ids[id]
  if s then return s end
  s = { id = id, key = base .. ':' .. id, lines = {}, known = {}, count = 0, permits = 0, latest = 0 }
  local value = redis.pcall('GET', s.key)
  if type(value) == 'table' then
    error(find(value.err, 'WRONGTYPE', 1, true) and redis.error_reply('WRONGTYPE ' .. s.key) or value)
  end
  s.main = value
  if not renewing then
    for _, line in ipairs(call('SMEMBERS', base .. '/n:' .. id)) do
      if line == 'frozen' then s.frozen = true else s.lines[line] = true end
    end
  end
  if value then
    local permits, latest, flags = match(value, '^' .. SHARED .. '(%d+)|(%d+)|(%a?)$')
    if permits then
      if renewing then s.frozen = flags == FROZEN end
      load_sharers(s, permits, latest)
    elseif value ~= FROZEN_ONLY then
      s.exclusive = sub(value, 1, #HOLDER) == HOLDER and decode(value, #HOLDER + 1) or nil
      if not s.exclusive then s.foreign = value end
    end
  end
  local h = s.exclusive
  if h and renewing then s.waited_for, s.frozen = h.waited_for, h.frozen end
  if h and h.at > ms then h.at, s.dirty = ms, true end
  if h and remaining(h) <= 0 and not renewing then drop(s, h) end
  -- Only now: an id that could not be read must not be taken for free.
  ids[id], loaded[#loaded + 1] = s, s
  return s
end

-- Writes the main key, which other clients see, and the end of the sharers' keys: later than its own, so that it never
-- announces keys that are gone.
local function settle(s)
  if not s.dirty then return end
  local h, waited_for = s.exclusive, s.waited_for or next(s.lines) ~= nil
  if s.foreign then
    -- A foreign client's key is left as it is.
  elseif h then
    local value = HOLDER .. encode(h, (waited_for and WAITED_FOR or '') .. (s.frozen and FROZEN or ''))
    if s.frozen then call('SET', s.key, value)
    else call('SET', s.key, value, 'PX', remaining(h) + (waited_for and GRACE or 0)) end
  elseif s.count > 0 then
    local records, ends, gaps = sharers(s)
    local value = SHARED .. fmt('%d|%d|', s.permits, s.latest) .. (s.frozen and FROZEN or '')
    local lives = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2] - ms + GRACE
    if s.frozen then call('SET', s.key, value) else call('SET', s.key, value, 'PX', lives) end
    for _, key in ipairs({ records, ends, s.permits > 0 and gaps or nil }) do
      if s.frozen then call('PERSIST', key) else call('PEXPIRE', key, lives + 1000) end
    end
  elseif s.frozen then
    call('SET', s.key, FROZEN_ONLY)
  elseif s.main then
    call('DEL', s.key)
  end
end

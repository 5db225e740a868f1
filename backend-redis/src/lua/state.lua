-- What the keys of an id say, read once in a script and written back at its end.
local fmt, sub, match, find = string.format, string.sub, string.match, string.find
local base = match(keys[1], '^{[^}]*}')

-- Renewing changes only keys that exist, and proves that it has all of them. Every other step may make keys, and a slot
-- that moves has them half here and half there: a command for two keys of which one is missing fails there, on either side.
local keeping = op == 'e' or op == 'renew'
local highest
if not keeping then
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

-- How long a place in a line is remembered, in ms: a waiter asks again at least every half minute.
local PLACE = 600000

-- The next fence or ticket. It is written at once: before what it is for, it does no harm if that fails, as on a full server.
local function number()
  highest = math.max(highest + 1, us)
  local ahead = math.max(math.floor((highest - us) / 1000000), 0)
  call('SET', base .. '/f', fmt('%d', highest), 'EX', REMEMBERED + ahead)
  return highest
end

-- A mode as it is written: x, s, k<permits>/<limit>, with the permits' indexes behind where it is held.
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

-- A holder: fence|context|flags|renewed at (ms, by default the fence's time)|lease (ms)|mode|attempt|owner, and behind that
-- what its context held before the last change, in the same form. Contexts and owners have their length before them, and
-- are never formatted: `%s` ends at a NUL. Flags: b broken; in a main key q has waiters, f frozen.
local function encode(h, flags)
  return fmt('%d|%d:', h.fence, #h.context) .. h.context .. '|' .. (h.broken and 'b' or '') .. flags
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
    at = tonumber(at) or math.floor(fence / 1000), broken = find(flags, 'b', 1, true) and true or false,
    waited = find(flags, 'q', 1, true), frozen = find(flags, 'f', 1, true), mode = mode, kind = sub(mode, 1, 1), attempt = attempt, owner = sub(text, begins, begins + owner - 1),
    replaced = sub(text, begins + owner), permits = mode_of(mode).permits,
  }
end

-- One ms more than asked for: the clock's ms are not whole when they are taken.
local function left(h) return h.at + h.lease + 1 - ms end

-- What was loaded; of which ids something was freed; which could not be served to the end; how many waiters and holders this
-- script may still remove or serve, since others want the server too.
local ids, loaded, freed, unfinished, budget = {}, {}, {}, {}, 256

-- The keys of the holders of a shared id: records by context, contexts by when their leases end, free permits.
local function sharers(s) return base .. '/s:' .. s.id, base .. '/e:' .. s.id, base .. '/g:' .. s.id end

-- The lowest free permits, which are now taken, as ranges. Free ranges are kept as `first-last` by their first; the last one
-- has no end. No key: all are free.
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

local function give_back(s, h)
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

-- Has the context of `h` hold this, and nothing else.
local function hold(s, h)
  s.dirty = true
  if h.kind == 'x' then
    s.exclusive = h
    return
  end
  local records, ends = sharers(s)
  -- What a main key left that another program removed.
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
  if h.kind == 'k' then give_back(s, h) end
end

-- What is stored of a context that shares the id, also if its lease has ended.
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

-- What the context holds.
local function holder(s, context)
  local h = s.exclusive
  if not h then
    h = sharer(s, context)
  elseif h.context ~= context then
    return nil
  end
  if not h or left(h) > 0 then return h end
  if not keeping then drop(s, h) end
  return nil
end

-- Removes holders whose leases have ended: all at once where no other is left.
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

-- Reads who shares the id. The main key proves that the others are there: where one is missing it has not arrived yet, or
-- another program removed it, and the id is not free.
local function load_sharers(s, permits, latest)
  local records, ends, gaps = sharers(s)
  s.permits, s.latest = tonumber(permits), tonumber(latest)
  local here = redis.pcall('EXISTS', records, ends, s.permits > 0 and gaps or ends)
  s.count = here == 3 and call('ZCARD', ends)
  if not s.count or s.count ~= call('HLEN', records) then
    error(redis.error_reply('TRYAGAIN the holders of ' .. s.key .. ' are not all there'))
  end
  if s.latest > ms then
    -- From the future: the clock was set back. Their leases count from now.
    s.latest = ms
    for _, context in ipairs(call('HKEYS', records)) do
      local h = sharer(s, context)
      if h.at > ms then
        h.at = ms
        hold(s, h)
      end
    end
  end
  if not keeping then prune(s) end
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
  if not keeping then
    for _, line in ipairs(call('SMEMBERS', base .. '/n:' .. id)) do
      if line == 'frozen' then s.frozen = true else s.lines[line] = true end
    end
  end
  if value then
    local permits, latest, flags = match(value, '^lc2~shared|(%d+)|(%d+)|(f?)$')
    if permits then
      if keeping then s.frozen = flags == 'f' end
      load_sharers(s, permits, latest)
    elseif value ~= 'lc2~frozen' then
      s.exclusive = sub(value, 1, 4) == 'lc2|' and decode(value, 5) or nil
      if not s.exclusive then s.foreign = value end
    end
  end
  local h = s.exclusive
  if h and keeping then s.waited, s.frozen = h.waited, h.frozen end
  if h and h.at > ms then h.at, s.dirty = ms, true end
  if h and left(h) <= 0 and not keeping then drop(s, h) end
  -- Only now: what could not be read must not be taken for free.
  ids[id], loaded[#loaded + 1] = s, s
  return s
end

-- Writes the main key, which is what all other clients see, and how long the keys of its holders live: longer than it, so
-- that it never says of any that is gone that it is there.
local function settle(s)
  if not s.dirty then return end
  local h, waited = s.exclusive, s.waited or next(s.lines) ~= nil
  if s.foreign then
    -- Theirs: it is left as it is.
  elseif h then
    local value = 'lc2|' .. encode(h, (waited and 'q' or '') .. (s.frozen and 'f' or ''))
    if s.frozen then call('SET', s.key, value)
    else call('SET', s.key, value, 'PX', left(h) + (waited and GRACE or 0)) end
  elseif s.count > 0 then
    local records, ends, gaps = sharers(s)
    local value = fmt('lc2~shared|%d|%d|', s.permits, s.latest) .. (s.frozen and 'f' or '')
    local lives = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2] - ms + GRACE
    if s.frozen then call('SET', s.key, value) else call('SET', s.key, value, 'PX', lives) end
    for _, key in ipairs({ records, ends, s.permits > 0 and gaps or nil }) do
      if s.frozen then call('PERSIST', key) else call('PEXPIRE', key, lives + 1000) end
    end
  elseif s.frozen then
    call('SET', s.key, 'lc2~frozen')
  elseif s.main then
    call('DEL', s.key)
  end
end

-- What the keys of an id say, read once in a script and written back at its end.
local fmt, sub, match, find = string.format, string.sub, string.match, string.find
local base = match(keys[1], '^{[^}]*}')
local time = call('TIME')
us = time[1] * 1000000 + time[2]
local ms = math.floor(us / 1000)

-- The highest fence or ticket so far, below zero in its key while there may be more than main keys; what it was.
local before = tonumber(call('GET', base .. '/f') or 0)
-- Nor with a number at which Lua cannot add 1 any more, from 2^53 on; it is in microseconds, and so far off.
if not before or not (math.abs(before) < 9e15) then return redis.error_reply('WRONGTYPE ' .. base .. '/f') end
local highest, more = math.abs(before), before < 0
-- The next one.
local function number()
  highest = math.max(highest + 1, us)
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

-- A holder: fence|context|flags|renewed at (ms, by default the fence's time)|lease (ms)|mode|attempt|owner. Flags: b broken;
-- in a main key, if not only its holder has to do with it, q if that is waiters who want it alone, else o.
local function encode(h)
  local flags = (h.broken and 'b' or '') .. (h.shown or '')
  return fmt('%d|%d:%s|%s|%d|%d|%s|%s|%s', h.fence, #h.context, h.context, flags, h.at, h.lease, h.mode, h.attempt, h.owner)
end

local function decode(text, from)
  local fence, length, behind = match(text, '^(%d+)|(%d+):()', from)
  if not fence then return nil end
  local after = behind + length
  local flags, at, lease, mode, attempt, owner = match(text, '^|(%a*)|(%d*)|(%d+)|([^|]*)|(%x+)|(.*)$', after)
  if not at then return nil end
  return {
    fence = tonumber(fence), context = sub(text, behind, after - 1), lease = tonumber(lease),
    at = tonumber(at) or math.floor(fence / 1000),
    broken = find(flags, 'b', 1, true) and true or false, mode = mode, kind = sub(mode, 1, 1), attempt = attempt,
    owner = owner, permits = mode_of(mode).permits,
  }
end

-- One ms more than asked for: the clock's ms are not whole when they are taken.
local function left(h) return h.at + h.lease + 1 - ms end

local ids, loaded, freed = {}, {}, {}

local function drop(s, position)
  local h = table.remove(s.holders, position)
  if h.kind ~= 'x' then call('HDEL', base .. '/h:' .. s.id, h.context) end
  if s.replaced then call('HDEL', base .. '/r:' .. s.id, h.context) end
  s.dirty, freed[s.id] = true, true
  return h
end

local function load(id)
  local s = ids[id]
  if s then return s end
  s = { id = id, key = base .. ':' .. id, holders = {}, lines = {} }
  local value = call('GET', s.key)
  s.main = value
  if value then
    if sub(value, 1, 4) == 'lc1|' then
      s.holders[1] = decode(value, 5)
    end
    if not s.holders[1] and sub(value, 1, 4) ~= 'lc1~' then s.foreign = value end
  end
  s.indexed = tonumber(call('ZSCORE', base .. '/i', id))
  if s.indexed then
    local what = s.indexed % 16
    if what % 2 >= 1 then
      local shared = call('HGETALL', base .. '/h:' .. id)
      for i = 2, #shared, 2 do s.holders[#s.holders + 1] = decode(shared[i], 1) end
    end
    for _, line in ipairs(call('SMEMBERS', base .. '/l:' .. id)) do s.lines[line] = true end
    s.frozen = what % 4 >= 2 and call('SISMEMBER', base .. '/z', id) == 1
    s.replaced = what % 8 >= 4
  end
  for position = #s.holders, 1, -1 do
    local h = s.holders[position]
    if h.at > ms then
      -- From the future: the clock was set back. It counts from now.
      h.at, s.dirty = ms, true
      if h.kind ~= 'x' then call('HSET', base .. '/h:' .. id, h.context, encode(h)) end
    elseif left(h) <= 0 then
      drop(s, position)
    end
  end
  -- Only now: what could not be read must not be taken for free.
  ids[id], loaded[#loaded + 1] = s, s
  return s
end

-- The score of an id that has more than a main key: when it was touched last (s) by 16, and which keys it has beside its
-- lines: 1 shared and slot holders, 2 frozen, 4 what was replaced.
local function touched(what) return math.floor(us / 1000000) * 16 + what end

-- Writes the main key, which is what everybody else's clients see, and whether there is more than it.
local function settle(s)
  if not s.dirty then return end
  local exclusive, longest, others = nil, 0, false
  for _, h in ipairs(s.holders) do
    if h.kind == 'x' then exclusive = h else others = true end
    longest = math.max(longest, left(h))
  end
  if s.replaced then s.replaced = call('EXISTS', base .. '/r:' .. s.id) == 1 end
  local complex = others or s.frozen or s.replaced or next(s.lines) ~= nil
  if s.foreign then
    -- Theirs: it is left as it is.
  elseif exclusive then
    local line = next(s.lines)
    local alone = line == 'x' and not next(s.lines, line) and not (others or s.frozen or s.replaced)
    exclusive.shown = complex and (alone and 'q' or 'o')
    call('SET', s.key, 'lc1|' .. encode(exclusive), 'PX', left(exclusive) + (complex and GRACE or 0))
  elseif s.frozen then
    call('SET', s.key, 'lc1~frozen')
  elseif others then
    call('SET', s.key, 'lc1~shared', 'PX', longest + GRACE)
  elseif s.main then
    call('DEL', s.key)
  end
  if others then call('PEXPIRE', base .. '/h:' .. s.id, longest + GRACE) end
  if s.replaced then call('PEXPIRE', base .. '/r:' .. s.id, longest + GRACE) end
  if complex then
    local what = (others and 1 or 0) + (s.frozen and 2 or 0) + (s.replaced and 4 or 0)
    -- When it was touched last need not be exact.
    if not s.indexed or s.indexed % 16 ~= what or touched(0) - s.indexed > 160 then
      call('ZADD', base .. '/i', touched(what), s.id)
    end
    more = true
  elseif s.indexed then
    call('ZREM', base .. '/i', s.id)
    more = call('EXISTS', base .. '/i', base .. '/m') > 0
  end
end

-- The usual cases of the usual steps, before anything else is even defined: exclusive ids that have a main key and nothing
-- else, or none at all. Each argument costs the server a tenth of a microsecond, each call some three: so there are few.
local op, keys, call = ARGV[1], KEYS, redis.call
local n = #keys
-- How much longer than the lease a main key lives that more than its holder has to do with, in ms: no other client takes
-- the id before those who wait for it do.
local GRACE = 5000
-- How long the highest fence is remembered after the last grant, in s. After that the clock is far above it.
local REMEMBERED = 86400
local time
if op == 'a' then
  -- KEYS: the fence, the mark of the attempt, main keys, the keys of their lines.
  -- ARGV: op, what follows the fence in the value, ms to live, perhaps options.
  if call('EXISTS', unpack(keys, 2)) == 0 then
    time = call('TIME')
    -- In microseconds, as text: computing with it costs more than each of the calls.
    local micros = time[2]
    local text = time[1] .. (#micros == 6 and micros or string.sub('00000' .. micros, -6))
    -- The fence first: it does no harm if it grows for nothing.
    local old = call('SET', keys[1], text, 'GET', 'EX', REMEMBERED)
    if not old or #old == #text and old < text then
      local value = 'lc2|' .. text .. ARGV[2]
      for i = 3, n / 2 + 1 do call('SET', keys[i], value, 'PX', ARGV[3]) end
      return text
    end
    -- Ahead of the clock: without an end, until the next grant says by how much it is.
    call('SET', keys[1], old)
  end
elseif op == 'r' then
  -- KEYS: main keys. ARGV: op, how their values begin if nobody else has to do with them, lease.
  local head = ARGV[2]
  local value = call('GET', keys[1])
  local usual = value and string.sub(value, 1, #head) == head
  if usual and n > 1 then
    for _, other in ipairs(call('MGET', unpack(keys))) do
      if other ~= value then usual = false break end
    end
  end
  if usual then
    call('DEL', unpack(keys))
    return 0
  end
elseif op == 'e' then
  -- The same: extend. Others may wait for it (flag q): then the key outlives the lease by GRACE.
  local head = ARGV[2]
  local read = call('MGET', unpack(keys))
  local value, shown, grace = read[1], '', 1
  if value and string.sub(value, 1, #head) ~= head then
    head, shown, grace = string.sub(head, 1, -2), 'q|', GRACE + 1
    if string.sub(value, 1, #head + 2) ~= head .. shown then value = nil end
  end
  if value then
    local at, lease, rest = string.match(value, '^(%d*)|(%d+)|(.*)$', #head + #shown + 1)
    for i = 2, n do
      if read[i] ~= value then lease = nil break end
    end
    time = call('TIME')
    local ms = math.floor(time[1] * 1000 + time[2] / 1000)
    at = tonumber(at) or math.floor(string.match(value, '^lc2|(%d+)') / 1000)
    -- A key that outlives its lease holds nothing any more, and a longer lease is not cut short.
    if lease and at <= ms and at + lease + 1 > ms and at + lease <= ms + ARGV[3] then
      value = head .. shown .. string.format('%d', ms) .. '|' .. ARGV[3] .. '|' .. rest
      local px = string.format('%d', ARGV[3] + grace)
      -- A full server takes SET only from a script that has written: what is held is to be kept there too.
      call('PERSIST', keys[1])
      for i = 1, n do call('SET', keys[i], value, 'PX', px) end
      return 0
    end
  end
end

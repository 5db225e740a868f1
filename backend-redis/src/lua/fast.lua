-- The usual cases of the usual steps, before anything else is even defined: exclusive ids that nobody else has to do with.
-- Each argument costs the server a tenth of a microsecond, each call some three: so there are few.
local op, keys, n, call = ARGV[1], KEYS, #KEYS, redis.call
if op == 'a' then
  -- KEYS: the fence, main keys. ARGV: op, what follows the fence in the value, ms to live, perhaps options.
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local text = string.format('%d', us)
  if n == 2 then
    -- The fence first: it does no harm if it grows for nothing. Below zero it says that more than main keys matter.
    local old = call('SET', keys[1], text, 'GET')
    local high = tonumber(old or 0)
    if high and high >= 0 and high < us then
      if call('SET', keys[2], 'lc1|' .. text .. ARGV[2], 'NX', 'PX', ARGV[3]) then return us end
    else
      call('SET', keys[1], old)
    end
  end
  local read = call('MGET', unpack(keys))
  local high, free = tonumber(read[1] or 0), true
  for i = 2, n do
    if read[i] then free = false break end
  end
  local more = high and high < 0
  if free and more then
    -- Somewhere in this namespace somebody waits or shares, or something was withdrawn: is it about these?
    local base = string.match(keys[1], '^{[^}]*}')
    if call('EXISTS', base .. '/i', base .. '/m') == 0 then
      more = false
    else
      local ids = {}
      for i = 2, n do ids[i - 1] = string.sub(keys[i], #base + 2) end
      for _, score in ipairs(call('ZMSCORE', base .. '/i', unpack(ids))) do
        if score then free = false break end
      end
      local length, from, attempt
      length, from = string.match(ARGV[2], '^|(%d+):()')
      attempt = string.match(ARGV[2], '^|||%d+|x|(%x+)|', from + length)
      free = free and call('EXISTS', base .. '/x:' .. attempt .. string.sub(ARGV[2], from, from + length - 1)) == 0
    end
  end
  if free and high then
    local fence = math.max(math.abs(high) + 1, us)
    local value = ARGV[2]
    if fence ~= us then
      -- Then it does not say since when.
      local length, from = string.match(value, '^|(%d+):()')
      from = from + length + 1
      value = string.sub(value, 1, from) .. string.format('%d', us / 1000) .. string.sub(value, from + 1)
    end
    value = 'lc1|' .. string.format('%d', fence) .. value
    for i = 2, n do
      -- MGET shows what is not a string as nothing.
      if not call('SET', keys[i], value, 'NX', 'PX', ARGV[3]) then
        for done = 2, i - 1 do call('DEL', keys[done]) end
        return redis.error_reply('WRONGTYPE ' .. keys[i])
      end
    end
    call('SET', keys[1], string.format('%d', more and -fence or fence))
    return fence
  end
elseif op == 'r' then
  -- KEYS: main keys. ARGV: op, how their values begin if nobody else has to do with them, lease.
  local head = ARGV[2]
  if n == 1 then
    local value = call('GET', keys[1])
    if value and string.sub(value, 1, #head) == head then
      call('DEL', keys[1])
      return 0
    end
  else
    local read = call('MGET', unpack(keys))
    local value = read[1]
    local usual = value and string.sub(value, 1, #head) == head
    for i = 2, n do
      if read[i] ~= value then usual = false break end
    end
    if usual then
      call('DEL', unpack(keys))
      return 0
    end
  end
elseif op == 'e' then
  -- The same: extend. Others may wait for it (flag q): then the key outlives the lease by GRACE.
  local head = ARGV[2]
  local read = call('MGET', unpack(keys))
  local value, shown, grace = read[1], '', 1
  if value and string.sub(value, 1, #head) ~= head then
    head, shown, grace = string.sub(head, 1, -2), 'q|', 5001
    if string.sub(value, 1, #head + 2) ~= head .. shown then value = nil end
  end
  if value then
    local at, lease, rest = string.match(value, '^(%d*)|(%d+)|(.*)$', #head + #shown + 1)
    for i = 2, n do
      if read[i] ~= value then lease = nil break end
    end
    local time = call('TIME')
    local ms = math.floor(time[1] * 1000 + time[2] / 1000)
    at = tonumber(at) or math.floor(string.match(value, '^lc1|(%d+)') / 1000)
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

-- The usual cases of the usual steps, before anything else is even defined: exclusive ids that nobody else has to do with.
-- Each argument costs the server a tenth of a microsecond, each call some three: so there are few.
local op, keys, n, call = ARGV[1], KEYS, #KEYS, redis.call
local text, us, read, high
if op == 'a' then
  -- KEYS: the fence, main keys. ARGV: op, what follows the fence in the value, ms to live, perhaps options.
  local time = call('TIME')
  -- In microseconds, as it is written: reckoning with it costs more than each of the calls.
  local micros = time[2]
  text = time[1] .. (#micros == 6 and micros or string.sub('00000' .. micros, -6))
  -- Whoever would wait most likely has to.
  if not ARGV[4] then
    -- The fence first: it does no harm if it grows for nothing. Below zero it says that more than main keys matter, and is
    -- longer by its sign.
    local old = call('SET', keys[1], text, 'GET')
    if not old or #old == #text and old < text then
      local value = 'lc1|' .. text .. ARGV[2]
      if n == 2 then
        if call('SET', keys[2], value, 'NX', 'PX', ARGV[3]) then return text end
      -- It sees keys of every kind: nothing is overwritten.
      elseif call('EXISTS', unpack(keys, 2)) == 0 then
        for i = 2, n do call('SET', keys[i], value, 'PX', ARGV[3]) end
        return text
      end
    else
      call('SET', keys[1], old)
    end
  end
  us = tonumber(text)
  read = call('MGET', unpack(keys))
  high = tonumber(read[1] or 0)
  -- No number, or one at which Lua cannot add 1 any more: it is refused further on.
  if high and not (math.abs(high) < 9e15) then high = nil end
  local free = true
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
    fence = string.format('%d', fence)
    value = 'lc1|' .. fence .. value
    for i = 2, n do
      -- MGET shows what is not a string as nothing.
      if not call('SET', keys[i], value, 'NX', 'PX', ARGV[3]) then
        for done = 2, i - 1 do call('DEL', keys[done]) end
        return redis.error_reply('WRONGTYPE ' .. keys[i])
      end
    end
    call('SET', keys[1], more and '-' .. fence or fence)
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
    -- Others wait for it, or waited, who all want it alone (flag q). If the first wants nothing else, it is the first's: what
    -- `serve` would do for a fifth of its price, since under contention every release comes here.
    if value and string.sub(value, 1, #head - 1) == string.sub(head, 1, -2) then
      local at, lease = string.match(value, '^q|(%d*)|(%d+)|x|', #head)
      local time = call('TIME')
      local micros = time[2]
      text = time[1] .. (#micros == 6 and micros or string.sub('00000' .. micros, -6))
      local ms = math.floor(text / 1000)
      at = tonumber(at) or math.floor(string.match(value, '^lc1|(%d+)') / 1000)
      -- A lease that ended is told as lost.
      if lease and at <= ms and at + lease + 1 > ms then
        local base = string.match(keys[1], '^{[^}]*}')
        local id = string.sub(keys[1], #base + 2)
        local queue = base .. '/q:x:' .. id
        -- First what a full server does too.
        local first = call('ZPOPMIN', queue)
        local name = first[1]
        if not name then
          call('DEL', keys[1], base .. '/l:' .. id)
          call('ZREM', base .. '/i', id)
          return 0
        end
        local packed = call('GETDEL', base .. '/w:' .. name)
        if packed then
          local _, sign, publish, channel, lives, value, before, between = cmsgpack.unpack_limit(packed, 7)
          if sign and call('EXISTS', sign) == 1 then
            -- It stays below zero, and whoever takes an id next looks whether it has to.
            local high = '-' .. text
            local old = call('SET', base .. '/f', high, 'GET')
            if not old or #old == #high and old < high then
              call('SET', keys[1], 'lc1|' .. text .. value, 'PX', lives)
              call(publish, channel, before .. text .. between .. text .. '1:1')
              return 0
            end
            call('SET', base .. '/f', old)
          end
          call('SET', base .. '/w:' .. name, packed, 'PX', 86400000)
        end
        call('ZADD', queue, first[2], name)
      end
    end
  else
    read = call('MGET', unpack(keys))
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
  -- The same: extend. Others may have to do with it (flag q or o): then the key outlives the lease by GRACE.
  local head = ARGV[2]
  read = call('MGET', unpack(keys))
  local value, shown, grace = read[1], '', 1
  if value and string.sub(value, 1, #head) ~= head then
    head, grace = string.sub(head, 1, -2), 5001
    shown = string.match(value, '^[qo]|', #head + 1)
    if not shown or string.sub(value, 1, #head) ~= head then value = nil end
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

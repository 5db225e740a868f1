-- The usual cases of the usual steps, before anything else is even defined: exclusive ids that nobody else has to do with.
local op, keys, n = ARGV[1], KEYS, #KEYS
if op == 'acquire' and ARGV[2] == '' then
  -- KEYS: fence, complex, mark, main keys. ARGV: op, modes, context, what follows the time in the value, ms to live, options.
  local call = redis.call
  local read = call('MGET', unpack(keys))
  local free = not read[3]
  for i = 4, n do
    if read[i] then free = false break end
  end
  if free and read[2] then
    -- Somewhere in this namespace somebody waits or shares: is it one of these?
    local base, ids = string.match(keys[1], '^{[^}]*}'), {}
    for i = 4, n do ids[i - 3] = string.sub(keys[i], #base + 2) end
    for _, score in ipairs(call('ZMSCORE', base .. '/i', unpack(ids))) do
      if score then free = false break end
    end
  end
  if free then
    local time = call('TIME')
    local us = time[1] * 1000000 + time[2]
    local fence = (read[1] or 0) + 1
    if fence < us then fence = us end
    fence = string.format('%.0f', fence)
    local context, px = ARGV[3], ARGV[5]
    local value = 'lc1|' .. fence .. '|' .. #context .. ':' .. context .. '|' .. math.floor(us / 1000) .. ARGV[4]
    for i = 4, n do
      -- MGET shows what is not a string as nothing.
      if not call('SET', keys[i], value, 'NX', 'PX', px) then
        for done = 4, i - 1 do call('DEL', keys[done]) end
        return redis.error_reply('WRONGTYPE ' .. keys[i])
      end
    end
    call('SET', keys[1], fence)
    return fence
  end
elseif op == 'release' and ARGV[2] ~= '' then
  -- KEYS: main keys. ARGV: op, how their values begin if all have one fence, context, fences.
  local call, head = redis.call, ARGV[2]
  local read = call('MGET', unpack(keys))
  local value = read[1]
  local usual = value and string.sub(value, 1, #head) == head and string.find(value, '^%d+|%d+||', #head + 1)
  for i = 2, n do
    if read[i] ~= value then usual = false break end
  end
  if usual then
    call('DEL', unpack(keys))
    return 0
  end
elseif op == 'renew' and ARGV[2] ~= '' then
  -- The same, and the lease and the ms to live.
  local call, head = redis.call, ARGV[2]
  local read = call('MGET', unpack(keys))
  local value = read[1]
  if value and string.sub(value, 1, #head) == head then
    local since, lease, rest = string.match(value, '^(%d+)|(%d+)|(|.*)$', #head + 1)
    for i = 2, n do
      if read[i] ~= value then since = nil break end
    end
    if since then
      local time = call('TIME')
      local ms = time[1] * 1000 + math.floor(time[2] / 1000)
      if since + lease <= ms + ARGV[5] then
        local new = head .. ms .. '|' .. ARGV[5] .. '|' .. rest
        for i = 1, n do call('SET', keys[i], new, 'PX', ARGV[6]) end
        return 0
      end
    end
  end
end

-- The usual cases of the usual steps, before anything else is even defined: exclusive ids that nobody else has to do with.
-- Each argument costs the server a tenth of a microsecond, each call some three: so there are few.
local op, keys, n, call = ARGV[1], KEYS, #KEYS, redis.call
if op == 'a' then
  -- KEYS: the fence, main keys. ARGV: op, what follows the fence in the value, ms to live, perhaps options.
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local text = string.format('%d', us)
  -- Whoever would wait most likely has to.
  local waits = ARGV[4] and string.sub(ARGV[4], 1, 2) == 'q '
  if n == 2 and not waits then
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
  if n == 2 and high and read[2] and waits then
    -- To wait for one id that somebody holds alone and that at most others wait for who want it alone: what `take_place`
    -- would do, for a third of its price.
    local base, format, ms = string.match(keys[1], '^{[^}]*}'), string.format, math.floor(us / 1000)
    local value, id, session = read[2], string.sub(keys[2], #base + 2), string.sub(ARGV[4], 3)
    local held, length, from = string.match(value, '^lc1|(%d+)|(%d+):()')
    local flags, at, lease, owner
    if held then flags, at, lease, owner = string.match(value, '^|(q?)|(%d*)|(%d+)|x|%x+|(.*)$', from + length) end
    if flags then
      local holder, ends = string.sub(value, from, from + length - 1), from + length
      at = tonumber(at) or math.floor(held / 1000)
      local left = at + lease + 1 - ms
      local own, begins = string.match(ARGV[2], '^|(%d+):()')
      local context = string.sub(ARGV[2], begins, begins + own - 1)
      local wanted, attempt, label = string.match(ARGV[2], '^|||(%d+)|x|(%x+)|(.*)$', begins + own)
      local name = attempt .. context
      if holder ~= context and at <= ms and left > 0
        and call('EXISTS', base .. '/w:' .. name, base .. '/x:' .. name) == 0 then
        local ticket = math.max(math.abs(high) + 1, us)
        local record = {
          ids = { id }, modes = { 'x' }, context = context, attempt = attempt, owner = label, lease = tonumber(wanted),
          session = session, nested = false, ticket = ticket, since = ms,
        }
        call('ZADD', base .. '/q:x:' .. id, format('%d', ticket), name)
        call('SET', base .. '/w:' .. name, cmsgpack.pack(record), 'PX', 86400000)
        call('SET', base .. '/p:' .. session, '1', 'PX', 3000)
        if flags == '' then
          call('SADD', base .. '/l:' .. id, 'x')
          call('ZADD', base .. '/i', math.floor(us / 1000000) * 16, id)
          call('SET', keys[2], string.sub(value, 1, ends) .. 'q' .. string.sub(value, ends + 1), 'PX', left + 5000)
        end
        call('SET', keys[1], format('-%d', ticket))
        return {
          'queued', us, left,
          { 0, 'held', 1, 1, { holder, owner, 'x', 0, 0, tonumber(held), math.min(left, tonumber(lease)) } },
        }
      end
    end
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
    -- Others wait for it who all want it alone (flag q). If the first wants nothing else, it is the first's: what `serve`
    -- would do for a fifth of its price, since under contention every release comes here.
    local shown = string.sub(head, 1, -2) .. 'q|'
    if value and string.sub(value, 1, #shown) == shown then
      local time = call('TIME')
      local us = time[1] * 1000000 + time[2]
      local ms = math.floor(us / 1000)
      local at, lease = string.match(value, '^(%d*)|(%d+)|x|', #shown + 1)
      at = tonumber(at) or math.floor(string.match(value, '^lc1|(%d+)') / 1000)
      local base, format = string.match(keys[1], '^{[^}]*}'), string.format
      local id = string.sub(keys[1], #base + 2)
      local queue = base .. '/q:x:' .. id
      -- A lease that ended is told as lost.
      local first = lease and at <= ms and at + lease + 1 > ms and call('ZRANGE', queue, 0, 1) or {}
      local name, others = first[1], first[2]
      -- First what a full server does too.
      local packed = name and call('GETDEL', base .. '/w:' .. name)
      local waiter = packed and cmsgpack.unpack(packed)
      if waiter then
        local text = format('%d', us)
        local high = #waiter.ids == 1 and call('EXISTS', base .. '/p:' .. waiter.session) == 1
          and tonumber(call('SET', base .. '/f', '-' .. text, 'GET') or 0)
        if high then
          -- It stays below zero, and whoever takes an id next looks whether it has to.
          local fence, offer = text, math.min(waiter.lease, 2000)
          if math.abs(high) >= us then
            fence = format('%d', math.abs(high) + 1)
            call('SET', base .. '/f', '-' .. fence)
          end
          call('ZREM', queue, name)
          call('SET', keys[1], format('lc1|%s|%d:%s|%s|%d|%d|x|%s|%s', fence, #waiter.context, waiter.context,
            others and 'q' or '', ms, offer, waiter.attempt, waiter.owner), 'PX', offer + 1 + (others and 5000 or 0))
          if not others then
            call('DEL', base .. '/l:' .. id)
            call('ZREM', base .. '/i', id)
          end
          local lasts = format('%d', offer)
          call(string.sub(waiter.session, 1, 1) == 's' and 'SPUBLISH' or 'PUBLISH', base .. '/o:' .. waiter.session,
            format('5:offer%d:%s%d:%s%d:%s1:11:x%d:%s1:1', #name, name, #text, text, #lasts, lasts, #fence, fence))
          return 0
        end
        call('SET', base .. '/w:' .. name, packed, 'PX', 86400000)
      end
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
  -- The same: extend. Others may have to do with it (flag q or o): then the key outlives the lease by GRACE.
  local head = ARGV[2]
  local read = call('MGET', unpack(keys))
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

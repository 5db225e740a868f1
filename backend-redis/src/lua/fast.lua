-- The usual case of acquire, release and renew: exclusive ids with one fence, of which there is a main key and nothing else,
-- or nothing at all. Without it the server needs three times as long for an acquire and a release of 1 or 10 ids, four times as
-- long for a renewal. It stands before everything else because the definitions below cost as much as twenty commands. A call
-- that it does not recognise goes on to the general steps unchanged.
local op, keys, call = ARGV[1], KEYS, redis.call
local n = #keys
-- Flags of a holder in a main key.
local BROKEN, WAITED_FOR, FROZEN = 'b', 'q', 'f'
-- How much longer than its lease a main key lives that waiters or several holders depend on, in ms: no foreign client takes
-- the id before they do.
local GRACE = 5000
-- How long the highest fence is kept after the last grant, in s. By then the clock is far above it.
local FENCE_LASTS = 86400
local time
if op == 'acquire' and not ARGV[5] then
  -- KEYS: the fence, the tombstone of the attempt, main keys, the keys of their lines.
  -- ARGV: op, what follows the fence in the value, ms to live, options and session if any.
  if call('EXISTS', unpack(keys, 2)) == 0 then
    time = call('TIME')
    -- In microseconds, as text: arithmetic on it costs more than each of the commands.
    local micros = time[2]
    local fence = time[1] .. (#micros == 6 and micros or string.sub('00000' .. micros, -6))
    -- The fence first: it does no harm if it grows for nothing.
    local highest = call('SET', keys[1], fence, 'GET', 'EX', FENCE_LASTS)
    if not highest or #highest == #fence and highest < fence then
      local value, ttl = HOLDER .. fence .. ARGV[2], ARGV[3]
      for i = 3, n / 2 + 1 do call('SET', keys[i], value, 'PX', ttl) end
      return fence
    end
    -- Ahead of the clock: without an end, until the next grant computes it.
    call('SET', keys[1], highest)
  end
elseif op == 'release' and not ARGV[4] then
  -- KEYS: main keys. ARGV: op, how their values begin if they have no flag, lease.
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
elseif op == 'renew' and not ARGV[4] then
  -- The same arguments. A key that is waited for outlives its lease by GRACE.
  local head = ARGV[2]
  local values = call('MGET', unpack(keys))
  local value, flags, extra = values[1], '', 1
  if value and string.sub(value, 1, #head) ~= head then
    head, flags, extra = string.sub(head, 1, -2), WAITED_FOR .. '|', GRACE + 1
    if string.sub(value, 1, #head + 2) ~= head .. flags then value = nil end
  end
  if value then
    local at, lease, rest = string.match(value, '^(%d*)|(%d+)|(.*)$', #head + #flags + 1)
    for i = 2, n do
      if values[i] ~= value then lease = nil break end
    end
    time = call('TIME')
    local ms = math.floor(time[1] * 1000 + time[2] / 1000)
    at = tonumber(at) or math.floor(string.match(value, '^(%d+)', #HOLDER + 1) / 1000)
    -- A key that outlives its lease holds nothing any more, and a longer lease is not cut short.
    if lease and at <= ms and at + lease + 1 > ms and at + lease <= ms + ARGV[3] then
      value = head .. flags .. string.format('%d', ms) .. '|' .. ARGV[3] .. '|' .. rest
      local ttl = string.format('%d', ARGV[3] + extra)
      -- A full server accepts SET only from a script that has written: leases are to be renewed there too.
      call('PERSIST', keys[1])
      for i = 1, n do call('SET', keys[i], value, 'PX', ttl) end
      return 0
    end
  end
end

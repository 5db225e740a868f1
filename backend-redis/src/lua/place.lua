-- A place in a line: how it is written, and how it is taken in the usual case.

-- An offer lasts as long as this unless it is confirmed, in ms. Whoever waits is forgotten a day after it last asked.
local OFFER, DAY = 2000, 86400000
-- How much longer than the lease a main key lives that more than its holder has to do with, in ms: nobody else's client
-- takes the id before whoever waits for it does.
local GRACE = 5000

-- Writes a waiter down, who is called `name`: the record comes last. Before it, for whoever waits for one id alone, what
-- `fast.lua` hands over with: the sign of life, the command and channel by which the offer is told, how long the key then
-- lives, its value behind the fence, the message before the time and between that and the fence; else only `false`.
local function write_place(base, name, record)
  local offer, session, packed = math.min(record.lease, OFFER), record.session, nil
  if #record.ids == 1 and record.modes[1] == 'x' and not record.nested then
    local lasts = string.format('%d', offer)
    packed = cmsgpack.pack(
      base .. '/p:' .. session, string.sub(session, 1, 1) == 's' and 'SPUBLISH' or 'PUBLISH', base .. '/o:' .. session,
      string.format('%d', offer + 1 + GRACE),
      string.format('|%d:%s|q||%s|x|%s|%s', #record.context, record.context, lasts, record.attempt, record.owner),
      string.format('5:offer%d:%s16:', #name, name), string.format('%d:%s1:11:x16:', #lasts, lasts), record)
  else
    packed = cmsgpack.pack(false, record)
  end
  call('SET', base .. '/w:' .. name, packed, 'PX', DAY)
end

-- One id that somebody holds alone, and that at most others wait for who want it alone: what `take_place` would do, for a
-- third of its price.
if op == 'a' and n == 2 and high and read[2] and ARGV[4] and string.sub(ARGV[4], 1, 2) == 'q ' then
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
      call('ZADD', base .. '/q:x:' .. id, format('%d', ticket), name)
      write_place(base, name, {
        ids = { id }, modes = { 'x' }, context = context, attempt = attempt, owner = label, lease = tonumber(wanted),
        session = session, nested = false, ticket = ticket, since = ms,
      })
      call('SET', base .. '/p:' .. session, '1', 'PX', 3000)
      if flags == '' then
        call('SADD', base .. '/l:' .. id, 'x')
        call('ZADD', base .. '/i', math.floor(us / 1000000) * 16, id)
        call('SET', keys[2], string.sub(value, 1, ends) .. 'q' .. string.sub(value, ends + 1), 'PX', left + GRACE)
      end
      call('SET', keys[1], format('-%d', ticket))
      return {
        'queued', us, left,
        { 0, 'held', 1, 1, { holder, owner, 'x', 0, 0, tonumber(held), math.min(left, tonumber(lease)) } },
      }
    end
  end
end

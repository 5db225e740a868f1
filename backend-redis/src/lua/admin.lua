-- Administration, and the end: the step that was asked for.

local function holder_row(h)
  local _, _, ranges = match(h.mode, '^k(%d+)/(%d+)/(.*)$')
  local mode = mode_of(h.mode)
  return {
    h.context, h.owner, h.kind, mode.permits, mode.limit, ranges or '', h.fence, h.lease, math.min(left(h), h.lease),
    h.broken and 1 or 0,
  }
end

-- ARGV: op, ids. For each: { id, frozen, holders, waiters, breaks }. Changes nothing that shows.
function steps.inspect()
  local reply = {}
  for i = 2, #ARGV do
    local s = load(ARGV[i])
    local holders, waiters = {}, {}
    for _, h in ipairs(s.holders) do holders[#holders + 1] = holder_row(h) end
    if s.foreign then
      holders[#holders + 1] = { s.foreign, '', 'x', 0, 0, '', 0, -1, call('PTTL', s.key), 0 }
    end
    for line in pairs(s.lines) do
      for _, name in ipairs(call('ZRANGE', base .. '/q:' .. line .. ':' .. s.id, 0, -1)) do
        local record = waiter(name)
        if record and lives(record.session) then
          for position, id in ipairs(record.ids) do
            if id == s.id then
              local mode = mode_of(record.modes[position])
              waiters[#waiters + 1] = { record.context, record.owner, mode.kind, mode.permits, mode.limit, record.since, record.ticket }
            end
          end
        end
      end
    end
    reply[#reply + 1] = { s.id, s.frozen and 1 or 0, holders, waiters, call('LRANGE', base .. '/b:' .. s.id, 0, -1) }
  end
  return finish(reply)
end

-- ARGV: op, cursor, pattern of the main keys. Gives the next cursor, the ids among the keys, and at the beginning those
-- with more than a main key.
function steps.scan()
  local found = call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', 1000)
  local here = {}
  for _, key in ipairs(found[2]) do here[#here + 1] = sub(key, #base + 2) end
  if ARGV[2] == '0' then
    for _, id in ipairs(call('ZRANGE', base .. '/i', 0, -1)) do here[#here + 1] = id end
  end
  return { found[1], here }
end

-- ARGV: op, id, fence, now or after, by. Gives { 'missing' }, { 'freed' } or { 'within', ms }.
steps['break'] = function()
  though_full()
  local s, fence, at_once = load(ARGV[2]), ARGV[3], ARGV[4] == 'now'
  local function record(context)
    local key = base .. '/b:' .. s.id
    call('RPUSH', key, fence .. '|' .. (at_once and 1 or 0) .. '|' .. ms .. '|' .. #context .. ':' .. context .. ARGV[5])
    call('LTRIM', key, -16, -1)
    call('PEXPIRE', key, 7 * DAY)
  end
  if s.foreign and fence == '0' then
    local ends = call('PTTL', s.key)
    if not at_once then return { 'within', ends } end
    record(s.foreign)
    call('DEL', s.key)
    s.main, s.foreign, s.dirty, freed[s.id] = nil, nil, true, true
    return finish({ 'freed' })
  end
  for position, h in ipairs(s.holders) do
    if fmt('%d', h.fence) == fence then
      if at_once or not h.broken then record(h.context) end
      if at_once then
        drop(s, position)
        return finish({ 'freed' })
      end
      h.broken, s.dirty = true, true
      if h.kind ~= 'x' then call('HSET', base .. '/h:' .. s.id, h.context, encode(h)) end
      return finish({ 'within', math.min(left(h), h.lease) })
    end
  end
  return finish({ 'missing' })
end

-- ARGV: op, id, 1 or 0.
function steps.freeze()
  local s = load(ARGV[2])
  if ARGV[3] == '1' then
    call('SADD', base .. '/z', s.id)
    s.frozen, s.dirty = true, true
  else
    call('SREM', base .. '/z', s.id)
    s.frozen, s.dirty, freed[s.id] = false, true, true
  end
  return finish(1)
end

-- ARGV: op, context, ids. Frees what the context holds of them and takes it from their queues; gives what it held.
function steps.dismiss()
  though_full()
  local reply = {}
  for i = 3, #ARGV do
    local s = load(ARGV[i])
    for position = #s.holders, 1, -1 do
      if s.holders[position].context == ARGV[2] then
        drop(s, position)
        reply[#reply + 1] = s.id
      end
    end
    for line in pairs(s.lines) do
      for _, name in ipairs(call('ZRANGE', base .. '/q:' .. line .. ':' .. s.id, 0, -1)) do
        if sub(name, 17) == ARGV[2] then
          local record = waiter(name)
          if record then leave(name, record) else leave_line(s, line, name) end
        end
      end
    end
  end
  return finish(reply)
end

steps.e = steps.renew
return steps[op]()

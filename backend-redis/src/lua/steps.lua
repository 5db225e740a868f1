-- The steps: acquire, withdraw, release, renew, look. Each reads everything before it writes anything that matters.

-- The ids that the main keys from `first` on are for.
local function ids_from(first)
  local found = {}
  for i = first, n do found[#found + 1] = sub(keys[i], #base + 2) end
  return found
end

local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[#found + 1] = word end
  return found
end

-- Behind every ticket.
local LAST = 9007199254740991

-- Who asks: ARGV: op, what follows the fence in the value, ms to live, options and session, modes.
local function applicant()
  local length, from = match(ARGV[2], '^|(%d+):()')
  local context = sub(ARGV[2], from, from + length - 1)
  local lease, attempt, owner = match(ARGV[2], '^|||(%d+)|x|(%x+)|(.*)$', from + length)
  local options, session = match(ARGV[4] or ' ', '^(%a*) (.*)$')
  local who = {
    ids = ids_from(2), modes = words(ARGV[5] or ''), context = context, attempt = attempt, owner = owner,
    lease = tonumber(lease), session = session, nested = find(options, 'n', 1, true) and true or false,
    queue = find(options, 'q', 1, true), ticket = LAST, name = attempt .. context,
  }
  if #who.modes == 0 then
    for i = 1, #who.ids do who.modes[i] = 'x' end
  end
  return who
end

local function first_end(who)
  local first = -1
  for _, id in ipairs(who.ids) do
    local s = load(id)
    for _, h in ipairs(s.holders) do
      if first < 0 or left(h) < first then first = left(h) end
    end
    -- Nobody tells when a foreign client is done: it is looked after more often.
    if s.foreign and (first < 0 or first > 50) then first = 50 end
  end
  return first
end

-- Says that the process of this session lives; whether it was known to.
local function beat(session)
  signs[session] = true
  return call('SET', base .. '/p:' .. session, '1', 'PX', 3000, 'GET') and 1 or 0
end

local function take_place(who, record)
  if record then
    record.session, record.lease = who.session, who.lease
  else
    record = {
      ids = who.ids, modes = who.modes, context = who.context, attempt = who.attempt, owner = who.owner, lease = who.lease,
      session = who.session, nested = who.nested, ticket = number(), since = ms,
    }
    for i, id in ipairs(who.ids) do
      local s, line = load(id), line_of(record, i)
      call('ZADD', base .. '/q:' .. line .. ':' .. id, fmt('%d', record.ticket), who.name)
      if not s.lines[line] then
        call('SADD', base .. '/l:' .. id, line)
        s.lines[line] = true
      end
      s.dirty = true
    end
  end
  write_place(base, who.name, record)
  beat(who.session)
end

-- What fell idle in this namespace is tidied up bit by bit by whoever works in it, now and then.
local function tidy()
  if us % 16 > 0 then return end
  local idle = call('ZRANGEBYSCORE', base .. '/i', '-inf', touched(0) - 960, 'LIMIT', 0, 2)
  for _, id in ipairs(idle) do
    -- One that another program spoiled must not keep everybody else from their work.
    local readable, s = pcall(load, id)
    if readable then
      for line in pairs(s.lines) do
        if call('EXISTS', base .. '/q:' .. line .. ':' .. id) == 0 then
          call('SREM', base .. '/l:' .. id, line)
          s.lines[line] = nil
        end
      end
      s.dirty, freed[id] = true, true
    else
      call('ZADD', base .. '/i', touched(7), id)
    end
  end
end

-- A full server refuses what takes memory, unless the script has written before. Whatever frees, or keeps what is held, is to
-- work there too.
local function though_full() call('DEL', base .. '/-') end

-- The frequent steps are called as soon as they are defined: each definition takes the server a tenth of a microsecond.

-- Gives { 'granted', .. }, { 'refused', .. }, { 'queued', now, first end, .. } or { 'withdrawn' }.
local function acquire()
  local who = applicant()
  if call('EXISTS', base .. '/x:' .. who.name) == 1 then return { 'withdrawn' } end
  if who.queue then signs[who.session] = true end
  for _, id in ipairs(who.ids) do load(id) end
  local place = waiter(who.name)
  if place then who.ticket = place.ticket end
  local stances, conflicts, changes
  repeat
    -- What lapsed leases left goes to those who waited for it, before it is our turn.
    serve()
    stances, conflicts, changes = weigh(who)
  until next(freed) == nil
  tidy()
  if #conflicts == 0 then
    local granted = grant(who, stances, who.lease, false)
    place = place and waiter(who.name)
    if place then leave(who.name, place) end
    table.insert(granted, 1, 'granted')
    return finish(granted)
  end
  -- A stronger mode never waits: two who share an id and both want it alone would wait for ever.
  if not who.queue or changes then
    table.insert(conflicts, 1, 'refused')
    return finish(conflicts)
  end
  take_place(who, place and waiter(who.name))
  local reply = { 'queued', us, first_end(who) }
  for _, conflict in ipairs(conflicts) do reply[#reply + 1] = conflict end
  return finish(reply)
end

if op == 'a' or op == 'acquire' then return acquire() end

-- Why something is not held under this fence: the store remembers breaks only, so that the rest goes by time.
local function why_missing(id, fence, lease)
  for _, record in ipairs(call('LRANGE', base .. '/b:' .. id, 0, -1)) do
    if sub(record, 1, #fence + 1) == fence .. '|' then return 'broken' end
  end
  return us - tonumber(fence) < lease * 1000 and 'vanished' or 'expired'
end

-- Finds what a grant names; calls `found` with the position, and lists what it does not hold by position and reason.
local function each_of_grant(found)
  local one, length, from = match(ARGV[2], '^lc1|(%d+)|(%d+):()')
  local context, fences, lost = sub(ARGV[2], from, from + length - 1), words(ARGV[4] or one), {}
  for i, id in ipairs(ids_from(1)) do
    local s, fence, held = load(id), fences[#fences == 1 and 1 or i], nil
    for position, h in ipairs(s.holders) do
      if h.context == context and fmt('%d', h.fence) == fence then held = position break end
    end
    local reason
    if held then reason = found(s, held) else reason = why_missing(id, fence, tonumber(ARGV[3])) end
    if reason then lost[#lost + 1] = { i - 1, reason } end
  end
  return lost
end

-- ARGV: op, how values of the (first) fence begin, lease, fences if there are several. Gives what was lost.
local function release()
  though_full()
  return finish(each_of_grant(function(s, position) drop(s, position) end))
end

if op == 'r' or op == 'release' then return release() end

local steps = {}

-- The last argument is how long the mark of the attempt is kept, in ms; 0 keeps what was granted, -1 leaves no mark. Gives { 'left' } or what
-- is held as { 'granted', .. }.
function steps.withdraw()
  local who, mark = applicant(), tonumber(ARGV[6])
  though_full()
  local place = waiter(who.name)
  if place then leave(who.name, place) end
  local all, any = true, false
  for i, id in ipairs(who.ids) do
    local s = load(id)
    all = all and stance_of(s, who.context, mode_of(who.modes[i])) == 'keep'
    for _, h in ipairs(s.holders) do
      any = any or h.context == who.context and h.attempt == who.attempt
    end
  end
  if mark == 0 and all and any then
    local stances = {}
    for i in ipairs(who.ids) do stances[i] = 'keep' end
    local granted = grant(who, stances, who.lease, false)
    table.insert(granted, 1, 'granted')
    return finish(granted)
  end
  for _, id in ipairs(who.ids) do undo(load(id), who.context, who.attempt) end
  if mark > 0 then
    call('SET', base .. '/x:' .. who.name, '1', 'PX', mark)
    call('SET', base .. '/m', '1', 'PX', math.max(mark, call('PTTL', base .. '/m')))
    more = true
  end
  return finish({ 'left' })
end

-- The same.
function steps.renew()
  local lease = tonumber(ARGV[3])
  though_full()
  return finish(each_of_grant(function(s, position)
    local h = s.holders[position]
    if h.broken then return 'broken' end
    h.at, h.lease, s.dirty = ms, math.max(lease, left(h) - 1), true
    if h.kind ~= 'x' then call('HSET', base .. '/h:' .. s.id, h.context, encode(h)) end
  end))
end

-- ARGV: op, session, ids. A sign of life; whoever waits for one of the ids and need not is served. Gives whether the sign
-- was there before, the time, and for each id when the first lease in the way ends: in ms, -1 never, -2 nobody waits.
function steps.look()
  though_full()
  local reply = { beat(ARGV[2]), us }
  for i = 3, #ARGV do
    local s = load(ARGV[i])
    if next(s.lines) then freed[s.id] = true end
  end
  serve()
  for i = 3, #ARGV do
    local s = load(ARGV[i])
    reply[i] = next(s.lines) and first_end({ ids = { s.id } }) or -2
  end
  tidy()
  return finish(reply)
end

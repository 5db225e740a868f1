-- The steps: acquire, withdraw, release, renew, look. Each reads everything before it writes anything that matters.

-- The ids of the main keys from `first` to `last`.
local function ids_of(first, last)
  local found = {}
  for i = first, last do found[#found + 1] = sub(keys[i], #base + 2) end
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
  local lease, attempt, begins = match(ARGV[2], '^|||(%d+)|x|(%x+)|%d+:()', from + length)
  local options, session = match(ARGV[4] or ' ', '^(%a*) (.*)$')
  local who = {
    ids = ids_of(3, n / 2 + 1), modes = words(ARGV[5] or ''), context = context, attempt = attempt,
    owner = sub(ARGV[2], begins), lease = tonumber(lease), session = session,
    nested = find(options, 'n', 1, true) and true or false, queue = find(options, 'q', 1, true), ticket = LAST,
    name = attempt .. context,
  }
  if #who.modes == 0 then
    for i = 1, #who.ids do who.modes[i] = 'x' end
  end
  return who
end

-- How often a foreign client's key is looked at, at least, in ms: its release notifies no waiter.
local FOREIGN = 250

local function first_end(who)
  local first = -1
  local function ends(after)
    if first < 0 or after < first then first = math.max(after, 0) end
  end
  for _, id in ipairs(who.ids) do
    local s = load(id)
    if unfinished[id] then ends(0) end
    if s.exclusive then ends(left(s.exclusive)) end
    if s.count > 0 then ends(call('ZRANGE', base .. '/e:' .. id, 0, 0, 'WITHSCORES')[2] - ms) end
    if s.foreign then
      local lives = call('PTTL', s.key)
      ends(lives < 0 and FOREIGN or math.min(lives + 1, FOREIGN))
    end
  end
  return first
end

-- Says that the process of this session lives; whether it was known to.
local function beat(session)
  signs[session] = true
  return call('SET', base .. '/p:' .. session, '1', 'PX', 3000, 'GET') and 1 or 0
end

-- Takes or keeps a place: the record comes last, as an entry of a line without one is ignored.
local function take_place(who, record)
  record = record or {
    ids = who.ids, modes = who.modes, context = who.context, attempt = who.attempt, owner = who.owner,
    nested = who.nested, ticket = number(), since = ms,
  }
  record.session, record.lease = who.session, who.lease
  for i, id in ipairs(who.ids) do
    local s, line = load(id), line_of(record, i)
    local queue, lines = queue_of(s, line), base .. '/n:' .. id
    call('ZADD', queue, fmt('%d', record.ticket), who.name)
    call('PEXPIRE', queue, PLACE)
    if not s.lines[line] then
      call('SADD', lines, line)
      s.lines[line], s.dirty = true, true
    end
    if not s.frozen then call('PEXPIRE', lines, PLACE) end
  end
  call('SET', base .. '/c:' .. who.name, cmsgpack.pack(record), 'PX', PLACE)
  beat(who.session)
end

-- A full server refuses what takes memory, unless the script has written before. Whatever frees, or keeps what is held, is to
-- work there too.
local function though_full() call('GETEX', keys[1]) end

-- The frequent steps are called as soon as they are defined: each definition takes the server a tenth of a microsecond.

-- Gives { 'granted', .. }, { 'refused', .. }, { 'queued', now, first end, .. } or { 'withdrawn' }.
local function acquire()
  local who = applicant()
  if call('EXISTS', keys[2]) == 1 then return { 'withdrawn' } end
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

-- What failed as an error of its own code. Redis 6.2 would hide the code in a text about the script.
local function run(step)
  local done, reply = pcall(step)
  if done then return reply end
  local text = type(reply) == 'table' and reply.err or reply
  return redis.error_reply(match(text, '^%u+ .*') or match(text, ': %-(%u+ .*)$') or 'ERR ' .. text)
end

if op == 'a' or op == 'acquire' then return run(acquire) end

-- Why something is not held under this fence: the store remembers breaks only, so that the rest goes by time.
local function why_missing(id, fence, lease)
  -- Renewing reads only what it has all of: a slot that moves may have lost this by now.
  local broken = redis.pcall('LRANGE', base .. '/b:' .. id, 0, -1)
  for _, record in ipairs(broken) do
    if sub(record, 1, #fence + 1) == fence .. '|' then return 'broken' end
  end
  return us - tonumber(fence) < lease * 1000 and 'vanished' or 'expired'
end

-- Finds what a grant names; calls `found` with it once all is read, and lists what it does not hold by position and reason.
local function each_of_grant(found)
  local one, length, from = match(ARGV[2], '^lc2|(%d+)|(%d+):()')
  local context, fences, lost = sub(ARGV[2], from, from + length - 1), words(ARGV[4] or one), {}
  local wanted = ids_of(1, n)
  for _, id in ipairs(wanted) do load(id) end
  for i, id in ipairs(wanted) do
    local s, fence = load(id), fences[#fences == 1 and 1 or i]
    local h, reason = holder(s, context), nil
    if h and fmt('%d', h.fence) == fence then reason = found(s, h)
    else reason = why_missing(id, fence, tonumber(ARGV[3])) end
    if reason then lost[#lost + 1] = { i - 1, reason } end
  end
  return lost
end

-- ARGV: op, how values of the (first) fence begin, lease, fences if there are several. Gives what was lost.
local function release()
  though_full()
  return finish(each_of_grant(drop))
end

if op == 'r' or op == 'release' then return run(release) end

local steps = {}

-- The same. What has ended meanwhile is left to others: it would be handed over, and that is not to be done while the slot
-- moves.
function steps.renew()
  local lease = tonumber(ARGV[3])
  though_full()
  local lost = each_of_grant(function(s, h)
    if h.broken then return 'broken' end
    h.at, h.lease = ms, math.max(lease, left(h) - 1)
    hold(s, h)
  end)
  for _, s in ipairs(loaded) do settle(s) end
  return lost
end

-- The last argument is how long the mark of the attempt is kept, in ms; 0 keeps what was granted, -1 leaves no mark. Gives { 'left' } or what
-- is held as { 'granted', .. }.
function steps.withdraw()
  local who, mark = applicant(), tonumber(ARGV[6])
  though_full()
  local place = waiter(who.name)
  if place then leave(who.name, place) end
  local all, any, stances = true, false, {}
  for i, id in ipairs(who.ids) do
    local h = holder(load(id), who.context)
    stances[i] = stance_of(h, mode_of(who.modes[i]))
    all, any = all and stances[i] == 'keep', any or h and h.attempt == who.attempt
  end
  if mark == 0 and all and any then
    local granted = grant(who, stances, who.lease, false)
    table.insert(granted, 1, 'granted')
    return finish(granted)
  end
  for _, id in ipairs(who.ids) do undo(load(id), who.context, who.attempt) end
  if mark > 0 then call('SET', keys[2], '1', 'PX', mark) end
  return finish({ 'left' })
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
  return finish(reply)
end

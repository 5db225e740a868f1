-- The steps: acquire, release, renew, withdraw, heartbeat. Each reads everything before it writes anything that matters.

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

-- Higher than every ticket.
local LAST_TICKET = 9007199254740991

-- Reads a request. ARGV: op, what follows the fence in the value, ms to live, options and session, modes.
local function read_request()
  local length, from = match(ARGV[2], '^|(%d+):()')
  local context = sub(ARGV[2], from, from + length - 1)
  local lease, attempt, begins = match(ARGV[2], '^|||(%d+)|x|(%x+)|%d+:()', from + length)
  local options, session = match(ARGV[4] or ' ', '^(%a*) (.*)$')
  local request = {
    ids = ids_of(3, n / 2 + 1), modes = words(ARGV[5] or ''), context = context, attempt = attempt,
    owner = sub(ARGV[2], begins), lease = tonumber(lease), session = session,
    nested = find(options, 'n', 1, true) and true or false, queue = find(options, 'q', 1, true), ticket = LAST_TICKET,
    name = attempt .. context,
  }
  if #request.modes == 0 then
    for i = 1, #request.ids do request.modes[i] = 'x' end
  end
  return request
end

-- How often a foreign client's key is polled at least, in ms: its release notifies no waiter.
local FOREIGN_POLL = 250

-- Returns after how many ms the first lease in the way ends; -1 never.
local function first_end(request)
  local first = -1
  local function ends(after)
    if first < 0 or after < first then first = math.max(after, 0) end
  end
  for _, id in ipairs(request.ids) do
    local s = load(id)
    if unfinished[id] then ends(0) end
    if s.exclusive then ends(remaining(s.exclusive)) end
    if s.count > 0 then ends(call('ZRANGE', base .. '/e:' .. id, 0, 0, 'WITHSCORES')[2] - ms) end
    if s.foreign then
      local lives = call('PTTL', s.key)
      ends(lives < 0 and FOREIGN_POLL or math.min(lives + 1, FOREIGN_POLL))
    end
  end
  return first
end

-- Writes the session's heartbeat; returns whether the last one still counted.
local function heartbeat(session)
  heartbeats[session] = true
  return counts(call('SET', base .. '/p:' .. session, fmt('%d', ms), 'PX', HEARTBEAT_LASTS, 'GET')) and 1 or 0
end

-- Adds a waiter to its queues, or renews its places. The record comes last: an entry of a queue without one is ignored.
local function enqueue(request, record)
  record = record or {
    ids = request.ids, modes = request.modes, context = request.context, attempt = request.attempt, owner = request.owner,
    nested = request.nested, ticket = next_number(), since = ms,
  }
  record.session, record.lease = request.session, request.lease
  for i, id in ipairs(request.ids) do
    local s, line = load(id), line_of(record, i)
    local queue, lines = queue_of(s, line), base .. '/n:' .. id
    call('ZADD', queue, fmt('%d', record.ticket), request.name)
    call('PEXPIRE', queue, PLACE_LASTS)
    if not s.lines[line] then
      call('SADD', lines, line)
      s.lines[line], s.dirty = true, true
    end
    if not s.frozen then call('PEXPIRE', lines, PLACE_LASTS) end
  end
  call('SET', base .. '/c:' .. request.name, cmsgpack.pack(record), 'PX', PLACE_LASTS)
  heartbeat(request.session)
end

-- A full server refuses commands that take memory, unless the script has written before. Steps that free or renew locks are to
-- work there too.
local function allow_when_full() call('GETEX', keys[1]) end

-- Frequent steps run as soon as they are defined: each definition takes the server a quarter of a microsecond.

-- Returns { 'granted', .. }, { 'refused', .. }, { 'queued', now, first end, .. } or { 'withdrawn' }.
local function acquire()
  local request = read_request()
  if call('EXISTS', keys[2]) == 1 then return { 'withdrawn' } end
  if request.queue then heartbeats[request.session] = true end
  for _, id in ipairs(request.ids) do load(id) end
  local place = waiter(request.name)
  if place then request.ticket = place.ticket end
  local stances, conflicts, changes
  repeat
    -- Ids whose leases ended go to earlier waiters first.
    serve()
    stances, conflicts, changes = weigh(request)
  until next(freed) == nil
  if #conflicts == 0 then
    local granted = grant(request, stances, request.lease, false)
    place = place and waiter(request.name)
    if place then leave(request.name, place) end
    table.insert(granted, 1, 'granted')
    return finish(granted)
  end
  -- A stronger mode never waits: two sharers that both want the id exclusively would wait for ever.
  if not request.queue or changes then
    table.insert(conflicts, 1, 'refused')
    return finish(conflicts)
  end
  enqueue(request, place and waiter(request.name))
  local reply = { 'queued', us, first_end(request) }
  for _, conflict in ipairs(conflicts) do reply[#reply + 1] = conflict end
  return finish(reply)
end

-- Calls a step and returns its failure as an error with its own code, which Redis 6.2 would hide in a text about the script.
local function run(step)
  local done, reply = pcall(step)
  if done then return reply end
  local text = type(reply) == 'table' and reply.err or reply
  return redis.error_reply(match(text, '^%u+ .*') or match(text, ': %-(%u+ .*)$') or 'ERR ' .. text)
end

if op == 'acquire' then return run(acquire) end

-- Why an id is not held under this fence. The store records breaks only; the rest follows from the time.
local function why_missing(id, fence, lease)
  -- In a slot that moves this key may be gone by now.
  local broken = redis.pcall('LRANGE', base .. '/b:' .. id, 0, -1)
  for _, record in ipairs(broken) do
    if sub(record, 1, #fence + 1) == fence .. '|' then return 'broken' end
  end
  return us - tonumber(fence) < lease * 1000 and 'vanished' or 'expired'
end

-- Calls `found` with each lock of a grant once all are read; lists those that are not held, by position and reason.
local function each_of_grant(found)
  local one, length, from = match(ARGV[2], '^(%d+)|(%d+):()', #HOLDER + 1)
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

-- ARGV: op, how values of the (first) fence begin, lease, fences if there are several. Returns what was lost.
local function release()
  allow_when_full()
  return finish(each_of_grant(drop))
end

if op == 'release' then return run(release) end

local steps = {}

-- The same. Ended leases are left to other steps: they would be handed over, which must not happen while a slot moves.
local function renew(lasts)
  local lease = tonumber(ARGV[3])
  allow_when_full()
  local lost = each_of_grant(function(s, h)
    if h.broken then return 'broken' end
    h.at, h.lease = ms, lasts(lease, remaining(h) - 1)
    hold(s, h)
  end)
  for _, s in ipairs(loaded) do settle(s) end
  return lost
end

function steps.renew() return renew(math.max) end

function steps.shorten() return renew(function(lease) return lease end) end

-- The last argument is how long the tombstone of the attempt is kept, in ms; 0 keeps what was granted, -1 leaves no tombstone.
-- Returns { 'left' } or what is held as { 'granted', .. }.
function steps.withdraw()
  local request, tombstone = read_request(), tonumber(ARGV[6])
  allow_when_full()
  local place = waiter(request.name)
  if place then leave(request.name, place) end
  local all, any, stances = true, false, {}
  for i, id in ipairs(request.ids) do
    local h = holder(load(id), request.context)
    stances[i] = stance_of(h, mode_of(request.modes[i]))
    all, any = all and stances[i] == 'keep', any or h and h.attempt == request.attempt
  end
  if tombstone == 0 and all and any then
    local granted = grant(request, stances, request.lease, false)
    table.insert(granted, 1, 'granted')
    return finish(granted)
  end
  for _, id in ipairs(request.ids) do undo(load(id), request.context, request.attempt) end
  if tombstone > 0 then call('SET', keys[2], '1', 'PX', tombstone) end
  return finish({ 'left' })
end

-- ARGV: op, session, ids. Renews the heartbeat, polls the ids, and serves their waiters. Returns whether the last heartbeat
-- still counted, the time, and for each id when the first lease in the way ends: in ms, -1 never, -2 without waiters.
function steps.heartbeat()
  allow_when_full()
  local reply = { heartbeat(ARGV[2]), us }
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

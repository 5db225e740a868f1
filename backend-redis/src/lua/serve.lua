-- Grants sets, and hands freed ids over to their waiters. A hand-over and a notification stand here only.

-- Grants the set, which must have no conflict. Returns by position: mode with permits, fence, units in use. In an offer, locks
-- that the context holds already stay unchanged until the offer is confirmed, unless they end before it.
local function grant(request, stances, lease, offered)
  local fence, granted = nil, {}
  for i, id in ipairs(request.ids) do
    local s, mode = load(id), request.modes[i]
    local h = holder(s, request.context)
    if stances[i] == 'keep' then
      if not offered or remaining(h) <= lease then
        h.at, h.lease = ms, math.max(lease, remaining(h) - 1)
        hold(s, h)
      end
    else
      fence = fence or next_number()
      local replaced = ''
      if h then
        h.replaced = ''
        replaced = encode(h, '')
        -- Fewer permits may leave room for others.
        drop(s, h)
      end
      if sub(mode, 1, 1) == 'k' then mode = mode .. '/' .. take_permits(s, mode_of(mode).permits) end
      h = {
        fence = fence, context = request.context, at = ms, lease = lease, broken = false, mode = mode, kind = sub(mode, 1, 1),
        attempt = request.attempt, owner = request.owner, replaced = replaced, permits = mode_of(mode).permits,
      }
      hold(s, h)
    end
    granted[i] = { h.mode, h.fence, units_of(s) }
  end
  return granted
end

-- Takes back what the context got by this attempt, and restores what that replaced.
local function undo(s, context, attempt)
  local h = holder(s, context)
  if not h or h.attempt ~= attempt then return end
  drop(s, h)
  local before = decode(h.replaced, 1)
  if not before or remaining(before) <= 0 then return end
  -- Where there were fewer permits for a while, others may have some of them by now, or need the rest: then it is lost.
  local mode = mode_of(before.mode)
  if not fits(s, nil, mode) then return end
  before.kind, before.permits = mode.kind, mode.permits
  if mode.kind == 'k' and not take_these_permits(s, before) then return end
  hold(s, before)
end

-- Messages to sessions, which are published when the script ends, as fields of `length:bytes`.
local messages, recipients = {}, {}
local function notify(session, ...)
  local fields = messages[session]
  if not fields then
    fields = {}
    messages[session], recipients[#recipients + 1] = fields, session
  end
  for _, field in ipairs({ ... }) do
    field = type(field) == 'number' and fmt('%d', field) or field
    fields[#fields + 1] = #field .. ':' .. field
  end
end

-- Offers a waiter its set, or removes a waiter whose heartbeat stopped. Returns false if it has to go on waiting.
local function hand_over(s, name, line)
  local record = waiter(name)
  if not record then
    leave_line(s, line, name)
    return true
  end
  if not is_alive(record.session) then
    leave(name, record)
    return true
  end
  -- A key of its set that another program overwrote must not fail the release.
  local readable, stances, conflicts = pcall(weigh, record)
  if not readable or #conflicts > 0 then return false end
  local lease = math.min(record.lease, OFFER)
  local granted = grant(record, stances, lease, true)
  leave(name, record)
  notify(record.session, 'offer', name, us, lease, #granted)
  for _, claim in ipairs(granted) do notify(record.session, claim[1], claim[2], claim[3]) end
  return true
end

-- Which lines are still searched behind a waiter that has to go on waiting: those whose waiters may pass it.
local function lines_after(kind, stuck, exclusive, permits)
  if kind == 'nested' then return kind end
  if exclusive > 0 or stuck == 'x' then return nil end
  if stuck == 's' then return 's' end
  local limit = math.max(tonumber(sub(stuck, 2)), permits)
  return type(kind) == 'number' and math.max(kind, limit) or limit
end

local function in_lines(kind)
  return function(line)
    local nested = sub(line, 1, 1) == 'n'
    if nested or kind == 'nested' then return nested and kind == 'nested' end
    if kind == 'all' then return true end
    if kind == 's' then return line == 's' end
    return sub(line, 1, 1) == 'k' and tonumber(sub(line, 2)) > kind
  end
end

-- Serves the waiters of freed ids in the order of their tickets until nothing more fits. Behind a waiter that has to go on
-- waiting only lines that may pass it are searched, so that a release costs the same with two waiters and with 10 000. Once
-- the budget is used up, the first waiter is notified to poll, which continues here.
local function serve()
  local cursors, last = {}, nil
  local function open(s, kind, after)
    local name, ticket, line = first_in(s, after, in_lines(kind))
    if name then cursors[#cursors + 1] = { id = s.id, kind = kind, name = name, ticket = ticket, line = line } end
  end
  while true do
    local id = next(freed)
    while id do
      freed[id], last = nil, nil
      for i = #cursors, 1, -1 do
        if cursors[i].id == id then table.remove(cursors, i) end
      end
      local s = load(id)
      if next(s.lines) and not s.frozen and use_of(s) == 0 then
        if budget > 0 then
          open(s, 'nested', 0)
          open(s, 'all', 0)
        else
          local record = waiter((first_in(s, 0, function() return true end)) or '')
          if record then notify(record.session, 'poll', id) end
          unfinished[id] = true
        end
      end
      id = next(freed)
    end
    if #cursors == 0 then return end
    local first = 1
    for i = 2, #cursors do
      if cursors[i].ticket < cursors[first].ticket then first = i end
    end
    local cursor = table.remove(cursors, first)
    local s = load(cursor.id)
    local served = last ~= cursor.ticket and hand_over(s, cursor.name, cursor.line)
    if not served then
      last = cursor.ticket
      local exclusive, _, permits = use_of(s)
      local kind = lines_after(cursor.kind, cursor.line, exclusive, permits)
      if kind then open(s, kind, cursor.ticket) end
    end
  end
end

-- Ends every script: serves the waiters of freed ids, writes all that changed, publishes messages.
local function finish(reply)
  serve()
  for _, s in ipairs(loaded) do settle(s) end
  for _, session in ipairs(recipients) do
    call(sub(session, 1, 1) == 's' and 'SPUBLISH' or 'PUBLISH', base .. '/o:' .. session, table.concat(messages[session]))
  end
  return reply
end

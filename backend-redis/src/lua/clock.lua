-- For tests: TIME is ahead of the server's by AHEAD and by the namespace's key `+`, in microseconds. What a client that is ahead
-- writes expires later by as much, as it does when the server's clock is set back then.
local redis = (function(server)
  local function call(name, ...)
    local words = { ... }
    if name == 'TIME' then
      local time = server.call('TIME')
      local set = server.pcall('GET', string.match(KEYS[1], '^{[^}]*}') .. '/+')
      local us = time[1] * 1000000 + time[2] + AHEAD + (tonumber(set) or 0)
      return { string.format('%d', math.floor(us / 1000000)), string.format('%d', us % 1000000) }
    end
    local lives = name == 'PEXPIRE' and 2 or words[3] == 'PX' and 4
    if lives then words[lives] = words[lives] + AHEAD / 1000 end
    return server.call(name, unpack(words))
  end
  return setmetatable({ call = call }, { __index = server })
end)(redis)

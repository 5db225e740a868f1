-- For tests: sets the clock of a namespace forward, as far as locks go. What expires does so that much earlier, as it does when a
-- server's clock is set; but heartbeats go on: no process got older.
-- KEYS: the clock. ARGV: microseconds, the pattern of the namespace's keys.
redis.call('INCRBY', KEYS[1], ARGV[1])
local heartbeats = string.match(KEYS[1], '^{[^}]*}') .. '/p:'
for _, key in ipairs(redis.call('KEYS', ARGV[2])) do
  local lives, by = redis.call('PTTL', key), math.floor(ARGV[1] / 1000)
  if string.sub(key, 1, #heartbeats) == heartbeats then
    redis.call('SET', key, string.format('%d', redis.call('GET', key) + by), 'KEEPTTL')
  elseif lives >= 0 then
    redis.call('PEXPIRE', key, lives - by)
  end
end

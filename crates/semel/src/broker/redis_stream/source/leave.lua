-- Moves this consumer's entries to a placeholder consumer, idle for so long that any consumer may claim them, and
-- deletes this consumer. KEYS: stream. ARGV: group, consumer, placeholder, idle time in ms. Returns how many were
-- trimmed.
local trimmed = 0
repeat
  local some = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 100, ARGV[2])
  for _, entry in ipairs(some) do
    local given = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry[1], 'IDLE', ARGV[4], 'JUSTID')
    if #given == 0 then
      trimmed = trimmed + 1
      redis.call('XACK', KEYS[1], ARGV[1], entry[1])
    end
  end
until #some == 0
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return trimmed

-- Gives this consumer's entries to nobody, so old that everybody claims them, and forgets the consumer.
-- KEYS: stream. ARGV: group, consumer, nobody, age in milliseconds. Returns how many were trimmed away.
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

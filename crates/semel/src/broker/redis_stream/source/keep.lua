-- Extends leases: resets the idle time of entries that are still this consumer's, so that no other claims them. Does
-- not change their delivery count. KEYS: stream. ARGV: group, consumer, ids. Returns two lists: ids that another has
-- claimed or acked, and ids that were trimmed. Redis forgets a trimmed id when any consumer claims it.
local others, trimmed = {}, {}
for n = 3, #ARGV do
  local ours = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[n], ARGV[n], 1, ARGV[2])
  if #ours == 0 then
    if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[n], ARGV[n], 1) == 0
      and #redis.call('XRANGE', KEYS[1], ARGV[n], ARGV[n]) == 0 then
      trimmed[#trimmed + 1] = ARGV[n]
    else
      others[#others + 1] = ARGV[n]
    end
  elseif #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[n], 'JUSTID') == 0 then
    trimmed[#trimmed + 1] = ARGV[n]
  end
end
return {others, trimmed}

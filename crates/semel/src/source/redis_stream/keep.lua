-- Makes entries young that are still this consumer's, so that nobody claims them. Their deliveries are not counted.
-- KEYS: stream. ARGV: group, consumer, ids. Returns two lists: ids that are others', or that others have acknowledged, and
-- ids that are trimmed away, which Redis forgets when they are claimed, by whomever.
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

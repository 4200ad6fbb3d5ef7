-- Acks entries that are still this consumer's. An entry that another consumer has claimed is left for it to ack.
-- KEYS: stream. ARGV: group, consumer, ids. Returns the ids that were not ours.
local others = {}
for n = 3, #ARGV do
  local ours = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[n], ARGV[n], 1, ARGV[2])
  if #ours > 0 then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[n])
  else
    others[#others + 1] = ARGV[n]
  end
end
return others

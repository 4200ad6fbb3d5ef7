-- Puts what was read from the authority into the cache, unless something newer is there.
-- KEYS[1] the entry. ARGV: 1 the entry: kind (1 outcome, 2 tombstone), 8 bytes of epoch, the rest; 2 its life in ms
-- {1} stored, {2} what is there stays
-- An outcome that was read before somebody withdrew it may arrive after the tombstone: the epoch tells.
local there = redis.call('GETRANGE', KEYS[1], 0, 8)
if #there == 9 then
    local kind, high, low = struct.unpack('>BI4I4', there)
    local _, new_high, new_low = struct.unpack('>BI4I4', ARGV[1])
    local older = new_high < high or (new_high == high and new_low < low)
    local same = new_high == high and new_low == low
    if older or (same and kind == 2) then
        return {2}
    end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1}

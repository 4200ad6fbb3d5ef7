-- Stores an entry read from the authority in the cache, unless a newer one is there.
-- KEYS[1] the entry. ARGV: 1 the entry: kind (1 outcome, 2 tombstone), 8 bytes of epoch, the rest; 2 its life in ms
-- {1} stored, {2} kept the present entry
-- An outcome that was read before it was withdrawn may arrive after the tombstone: the epoch decides.
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

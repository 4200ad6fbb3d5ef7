-- ARGV: 1 member of the open set, 2 owner, 3 epoch, 4 new state, 5 retention in ms (-1 is for ever), 6 outcome
-- {1, now} recorded, {2, now} already recorded, {3, now} stale: the claim is lost, {4, now, state} another verdict was
-- recorded before
local raw = redis.call('GET', KEYS[2])
if not raw then
    return {3, now}
end
local tag, epoch, born, changed, till, attempts = struct.unpack(HEAD, raw)
if epoch ~= tonumber(ARGV[3]) or string.sub(raw, 29, 44) ~= ARGV[2] then
    return {3, now}
end
-- The fence is the epoch, not the lease: the last owner's outcome counts, however late.
local state, effect = decoded(tag)
local to_be, retention = tonumber(ARGV[4]), tonumber(ARGV[5])
if state == to_be then
    return {2, now}
end
if state >= 2 then
    return {4, now, state}
end
-- A failure, or not knowing, says nothing about the attempts before it: the key still counts, and nothing expires.
if has_safe_until(tag) and (to_be == 1 or to_be == 4) then
    local decided = tag - tag % 32
    local new = (to_be == 1) and decided + 8 + 1 or decided + 1
    store(1, till, struct.pack(HEAD, new, epoch, born, now, till, attempts)
        .. string.sub(raw, 29, outcome_at(raw, tag) - 1) .. ARGV[6])
    return {1, now}
end
if to_be >= 2 then
    till = 0
    if retention >= 0 then
        till = later(retention)
    end
end
local new = to_be + effect * 8
if tag >= 64 then
    new = new + 64
end
store(to_be, till, struct.pack(HEAD, new, epoch, born, now, till, attempts)
    .. string.sub(raw, 29, after_note(raw, tag) - 1) .. ARGV[6])
return {1, now}

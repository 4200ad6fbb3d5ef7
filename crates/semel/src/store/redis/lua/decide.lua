-- ARGV: 1 member of the open set, 2 epoch the caller read, 3 ruling (a final state, 8 not applied, 9 release),
-- 4 retention in ms (-1 is for ever), 5 outcome, 6 the decision without its time, encoded
-- {1, now} recorded, {2, now} changed since it was read, {3, now, state} not possible in this state
local raw = redis.call('GET', KEYS[2])
if not raw then
    return {2, now}
end
local tag, epoch, born, changed, till, attempts = struct.unpack(HEAD, raw)
local state, effect = decoded(tag)
local there = safe_until_of(raw, tag)
if epoch ~= tonumber(ARGV[2]) or (not there and is_expired(state, till)) then
    return {2, now}
end
local lapsed = state == 0 and is_lapsed(till)
local open = state == 1 or state == 4 or lapsed
local ruling, retention, to_be = tonumber(ARGV[3]), tonumber(ARGV[4]), nil
if ruling == 9 then
    -- A failure whose key protects for a while has no outcome to withdraw.
    to_be = state >= 2 and not there and 4
elseif ruling == 8 then
    to_be = open and 4
elseif ruling >= 2 then
    to_be = open and ruling
end
if not to_be then
    if (lapsed and effect == 0) or ((lapsed or state == 4) and there and there <= now) then
        state = 1
    end
    return {3, now, state}
end
local lease = till
till = 0
if retention >= 0 then
    till = later(retention)
end
-- A fresh epoch and an empty owner: from here on the last owner is stale.
epoch = fresh_epoch(epoch)
local identity_end = after_identity(raw) - 1
local note = struct.pack('>I2I6', 6 + #ARGV[6], now) .. ARGV[6]
-- Nothing was applied, but the downstream may know the key since the first attempt, and forgets it on time.
if ruling == 8 and there and now < there then
    store(1, till, struct.pack(HEAD, 64 + 32 + 1, epoch, born, now, lease, attempts)
        .. string.rep('\0', 16) .. string.sub(raw, 45, identity_end) .. note .. packed_safe_until(there) .. ARGV[5])
    remember_epoch(epoch)
    return {1, now}
end
store(to_be, till, struct.pack(HEAD, 64 + effect * 8 + to_be, epoch, born, now, till, attempts)
    .. string.rep('\0', 16) .. string.sub(raw, 45, identity_end) .. note .. ARGV[5])
remember_epoch(epoch)
return {1, now}

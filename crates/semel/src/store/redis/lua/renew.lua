-- ARGV: 1 member of the open set, 2 owner, 3 epoch, 4 lease in ms
-- {1, now, lease_until} renewed, {2, now} lost
local raw = redis.call('GETRANGE', KEYS[2], 0, 43)
if raw == '' then
    return {2, now}
end
local tag, epoch, born, changed, till = struct.unpack(HEAD, raw)
-- An expired lease is not revived: another caller may already have got "uncertain".
if tag % 8 ~= 0 or is_lapsed(till) or epoch ~= tonumber(ARGV[3]) or string.sub(raw, 29, 44) ~= ARGV[2] then
    return {2, now}
end
till = later(tonumber(ARGV[4]))
redis.call('SETRANGE', KEYS[2], 20, struct.pack('>I6', till))
return {1, now, till}

-- ARGV: 1 member of the open set, 2 identity, 3 fingerprint, 4 owner, 5 effect, 6 lease in ms,
-- 7 how long the key protects in ms (-1 is not known), 8 how long an attempt may take in ms
-- {1, now, epoch, attempt, lease_until, other_recipe, safe_until or -1}   granted
-- {2, now}                                              mismatch: the key was used for another request
-- {3 in flight | 4 replay | 5 uncertain, now, other_recipe, record}
-- {6, now}                                              collision: another intent, same first bytes of its digest
local identity, print, owner = ARGV[2], ARGV[3], ARGV[4]
local effect, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local safe_for_ms, call_ms = tonumber(ARGV[7]), tonumber(ARGV[8])

local raw = redis.call('GET', KEYS[2])
local floor, created, attempts, note, other_recipe = 0, now, 0, '', 0
-- Until when the key protects: the first attempt sets it, and no later one moves it.
local safe_until = nil
if safe_for_ms >= 0 then
    safe_until = later(safe_for_ms)
end
if raw then
    local tag, epoch, born, changed, till, tries = struct.unpack(HEAD, raw)
    local state, was = decoded(tag)
    if string.sub(raw, 85, 84 + #identity) ~= identity then
        return {6, now}
    end
    floor = epoch
    -- An expired record counts as absent: only its epoch carries over.
    local there = safe_until_of(raw, tag)
    if there or not is_expired(state, till) then
        local theirs = string.sub(raw, 45, 84)
        -- Mismatch comes before in-flight, and in-flight before replay.
        if theirs ~= print then
            if string.sub(theirs, 33) == string.sub(print, 33) then
                return {2, now}
            end
            other_recipe = 1
        end
        local is_decided = string.sub(raw, 29, 44) == string.rep('\0', 16)
        local is_safe = not there or now + call_ms < there
        if state == 0 and not is_lapsed(till) then
            -- The same attempt claims again because it did not get our answer.
            if string.sub(raw, 29, 44) ~= owner then
                return {3, now, other_recipe, raw}
            elseif is_safe then
                return {1, now, epoch, tries, till, other_recipe, there or -1}
            end
            return {5, now, other_recipe, raw}
        elseif state == 0 then
            -- The lease has expired. Both attempts have to be protected, and the key until the next one has ended;
            -- otherwise the effect is uncertain.
            if was == 0 or effect == 0 or not is_safe then
                return {5, now, other_recipe, raw}
            end
            safe_until = there
        elseif state == 1 then
            return {5, now, other_recipe, raw}
        elseif state == 2 or state == 3 then
            return {4, now, other_recipe, raw}
        elseif (was ~= 0 and effect == 0 and not is_decided) or (there and there <= now) then
            -- A protected attempt that failed says nothing about the attempt it took over from.
            return {5, now, other_recipe, raw}
        elseif was ~= 0 and (not is_decided or (there and effect ~= 0)) then
            -- Also after a decision the downstream may know the key since the first attempt.
            if not is_safe then
                return {5, now, other_recipe, raw}
            end
            safe_until = there
        end
        created, attempts = born, tries
        note = string.sub(raw, 85 + #identity, after_note(raw, tag) - 1)
    end
end

local epoch = fresh_epoch(floor)
local till = later(lease_ms)
attempts = math.min(attempts + 1, 65535)
local tag, safe = effect * 8, ''
if safe_until then
    tag, safe = 32, packed_safe_until(safe_until)
end
if note ~= '' then
    tag = tag + 64
end
store(0, till,
    struct.pack(HEAD, tag, epoch, created, now, till, attempts) .. owner .. print .. identity .. note .. safe)
remember_epoch(epoch)
return {1, now, epoch, attempts, till, other_recipe, safe_until or -1}

-- The beginning of every script that decides. KEYS[1] is the bucket's marker, KEYS[2] the record, KEYS[3] the
-- bucket's set of open intents: one slot, whatever the cluster looks like.
--
-- A record is one string. A hash of the same parts leaves Redis' compact encoding as soon as one of them has
-- more than 64 bytes, and then takes 645 bytes where this takes 389 (7.0, an outcome of 100 bytes); and this
-- is one GET and one SET.
--
--   1      state (3 bits), effect (2 bits), 64 if somebody decided about it
--   2-8    epoch
--   9-14   created_at          15-20  changed_at
--   21-26  lease_until while it is open, expires_at when it is finished (0 is never)
--   27-28  attempts            29-44  owner
--   45-84  fingerprint: 32 bytes of digest, 8 of recipe
--   85-    identity: lengths of operation, key and scope (1, 1, 2 bytes), then their text
--          the decision, if there is one: 2 bytes of length, its time (6), what the caller wrote
--          the outcome, to the end; nothing is none
--
-- States: 0 in progress, 1 uncertain, 2 completed, 3 failed for good, 4 failed, may run again.
local HEAD = '>BI7I6I6I6I2'
local TIME_MAX = 281474976710655

local function clock_us()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local now_us = clock_us()
local now = math.floor(now_us / 1000)

-- Whoever was flushed or started empty has no marker, and "never heard of it" from there would be a lie.
local marker = redis.call('HMGET', KEYS[1], 'g', 't')
if not marker[1] then
    return {0, now}
end

-- An epoch is the moment of its claim in microseconds, and above every other of its bucket: the marker
-- remembers the last one given away, so it rises over a clock that was set back, over expiry and release.
-- Where the marker itself was lost, a person has accepted that, and the clock is past all epochs from before.
-- The caller adds the bucket's number behind it, so that no two buckets give the same one away. Between keys of
-- different buckets "later" is as true as the clocks of the servers are; between claims of one key it is strict.
-- Below 2^53, as far as Lua counts, until the year 2255.
local function fresh_epoch(floor)
    return math.max(now_us, tonumber(marker[2]) + 1, floor + 1)
end

local function remember_epoch(epoch)
    redis.call('HSET', KEYS[1], 't', string.format('%.0f', epoch))
end

local function later(ms)
    return math.min(now + ms, TIME_MAX)
end

-- The lease ran out; or it ends more than a day from now, and was given while the clock was wrong.
local function is_lapsed(till)
    return till <= now or till > now + 86400000
end

local function is_expired(state, till)
    return state >= 2 and till > 0 and till <= now
end

-- Where the outcome begins.
local function outcome_at(raw, tag)
    local operation, key, scope = struct.unpack('>BBI2', raw, 85)
    local at = 89 + operation + key + scope
    if tag >= 64 then
        at = at + 2 + struct.unpack('>I2', raw, at)
    end
    return at
end

-- Open ones have no expiry and are in the set; finished ones leave it, and Redis forgets them when they expire.
local function store(state, till, raw)
    if state >= 2 then
        if till > 0 then
            redis.call('SET', KEYS[2], raw, 'PXAT', string.format('%.0f', till))
        else
            redis.call('SET', KEYS[2], raw)
        end
        redis.call('SREM', KEYS[3], ARGV[1])
    else
        redis.call('SET', KEYS[2], raw)
        redis.call('SADD', KEYS[3], ARGV[1])
    end
end

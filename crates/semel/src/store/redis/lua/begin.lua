-- Comes before every script that works on a bucket. KEYS[1] is the bucket's marker, KEYS[2] the record, KEYS[3] the
-- bucket's set of open intents: all in one slot of a cluster.
--
-- A record is one string. A hash of the same parts leaves Redis' compact encoding as soon as one of them has more than
-- 64 bytes, and then takes 645 bytes instead of 389 (7.0, an outcome of 100 bytes). A string is also just one GET and
-- one SET.
--
--   1      state (3 bits), effect (2 bits), 32 if there is a safe_until, 64 if there is a decision
--   2-8    epoch
--   9-14   created_at          15-20  changed_at
--   21-26  lease_until while it is open, expires_at when it is finished (0 is never)
--   27-28  attempts            29-44  owner
--   45-84  fingerprint: 32 bytes of digest, 8 of recipe
--   85-    identity: lengths of operation, key and scope (1, 1, 2 bytes), then their text
--          the decision, if there is one: 2 bytes of length, its time (6), what the caller wrote
--          safe_until, if there is one: until when its key protects; of open records only. SAFE_PREFIX (6), its time (6)
--          the outcome, to the end; empty means none
--
-- States: 0 in progress, 1 uncertain, 2 completed, 3 failed for good, 4 failed, may run again.
-- With a safe_until the effect is keyed, and is stored as opaque (0), so that a version that does not know safe_until
-- holds the record; one that failed is stored as 1 with effect 0, an uncertain one as 1 with effect 1. See encoding.rs.
-- SAFE_PREFIX is the beginning of an outcome (format 1, with a body, code 0, no headers): such a version reads the time,
-- and what comes after it, as the body of an outcome that it never gives out.
local HEAD = '>BI7I6I6I6I2'
local SAFE_PREFIX = '\1\1\0\0\0\0'
local TIME_MAX = 281474976710655

local function clock_us()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local now_us = clock_us()
local now = math.floor(now_us / 1000)

-- A server that was flushed or started empty has no marker: there a missing record proves nothing.
local marker = redis.call('HMGET', KEYS[1], 'g', 't')
if not marker[1] then
    return {0, now}
end

-- An epoch is the time of its claim in microseconds, and above every other epoch of its bucket: the marker keeps the
-- last one assigned, so epochs rise even if the clock was set back, and over expiry and release. Where the marker
-- itself was lost, a person has accepted that, and the clock is past all earlier epochs. The caller appends the
-- bucket's number, so that no two buckets assign the same epoch. Between keys of different buckets the order is as
-- good as the servers' clocks; between claims of one key it is strict. Below 2^53, the largest exact integer in Lua,
-- until the year 2255.
local function fresh_epoch(floor)
    return math.max(now_us, tonumber(marker[2]) + 1, floor + 1)
end

local function remember_epoch(epoch)
    redis.call('HSET', KEYS[1], 't', string.format('%.0f', epoch))
end

local function later(ms)
    return math.min(now + ms, TIME_MAX)
end

-- The lease has expired; or it ends more than a day from now, and was granted while the clock was wrong.
local function is_lapsed(till)
    return till <= now or till > now + 86400000
end

local function is_expired(state, till)
    return state >= 2 and till > 0 and till <= now
end

local function has_safe_until(tag)
    return math.floor(tag / 32) % 2 == 1
end

-- Where the identity ends.
local function after_identity(raw)
    local operation, key, scope = struct.unpack('>BBI2', raw, 85)
    return 89 + operation + key + scope
end

-- Where the decision ends.
local function after_note(raw, tag)
    local at = after_identity(raw)
    if tag >= 64 then
        at = at + 2 + struct.unpack('>I2', raw, at)
    end
    return at
end

-- Until when the key protects; nil: there is no such time.
local function safe_until_of(raw, tag)
    if has_safe_until(tag) then
        return (struct.unpack('>I6', raw, after_note(raw, tag) + #SAFE_PREFIX))
    end
end

local function packed_safe_until(safe_until)
    return SAFE_PREFIX .. struct.pack('>I6', safe_until)
end

-- State and effect as they are, not as they are stored.
local function decoded(tag)
    local state, effect = tag % 8, math.floor(tag / 8) % 4
    if not has_safe_until(tag) then
        return state, effect
    end
    if state == 1 and effect == 0 then
        state = 4
    end
    return state, 1
end

-- Where the outcome begins.
local function outcome_at(raw, tag)
    local at = after_note(raw, tag)
    if has_safe_until(tag) then
        at = at + #SAFE_PREFIX + 6
    end
    return at
end

-- Open records have no expiry and are in the set; finished ones leave it, and Redis deletes them when they expire.
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

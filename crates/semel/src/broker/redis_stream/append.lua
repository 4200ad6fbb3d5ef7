-- Appends events to one stream, each once (deduplicated by id), in their order.
-- KEYS: 1 the stream, 2 the recently appended ids, by time
-- ARGV: 1 retention of ids in ms, 2 most entries of the stream or 0, then for each event: id, number of fields and
--       values, fields and values
-- Returns {number of events in the stream, error of the next one}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local keep_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. string.format('%.0f', now - keep_ms))

local done, at = 0, 3
while at <= #ARGV do
    local id, count = ARGV[at], tonumber(ARGV[at + 1])
    if not redis.call('ZSCORE', KEYS[2], id) then
        local add = {'XADD', KEYS[1]}
        if most > 0 then
            add[3], add[4], add[5] = 'MAXLEN', '~', most
        end
        add[#add + 1] = '*'
        for n = at + 2, at + 1 + count do
            add[#add + 1] = ARGV[n]
        end
        -- The event first: an id without its event would lose it; an event without its id is only published again.
        local added = redis.pcall(unpack(add))
        if type(added) == 'table' and added.err then
            return {done, added.err}
        end
        local noted = redis.pcall('ZADD', KEYS[2], string.format('%.0f', now), id)
        if type(noted) == 'table' and noted.err then
            return {done + 1, noted.err}
        end
    end
    done = done + 1
    at = at + 2 + count
end
return {done, ''}

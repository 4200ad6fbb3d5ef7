-- Creates a bucket's marker. KEYS[1] the marker.
-- ARGV: 1 generation, 2 'new' where there must be none yet, 'again' where a loss was accepted
-- {1} created, {2} existed and was kept, {3} existed and got the new generation
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local last = redis.call('HGET', KEYS[1], 't')
if last and ARGV[2] == 'new' then
    return {2}
end
redis.call('HSET', KEYS[1], 'g', ARGV[1], 't', string.format('%.0f', math.max(now_us, tonumber(last or 0))), 'v', 1)
return {last and 3 or 1}

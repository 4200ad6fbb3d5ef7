-- {1, now, record}, the record empty where there is none
return {1, now, redis.call('GET', KEYS[2]) or ''}

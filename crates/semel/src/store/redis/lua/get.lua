-- {1, now, record}; the record is empty if there is none
return {1, now, redis.call('GET', KEYS[2]) or ''}

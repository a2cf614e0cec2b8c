-- Entries of the access log after a number. Args: number, limit. Answers the newest number, the newest that was trimmed away, entries.
local last, floor = redis.call('GET', base .. ':access') or '0', redis.call('GET', base .. ':access-floor') or '0'
local rows = redis.call('ZRANGEBYSCORE', base .. ':access-log', '(' .. ARGV[2], '+inf', 'LIMIT', 0, tonumber(ARGV[3]))
return {last, floor, rows}

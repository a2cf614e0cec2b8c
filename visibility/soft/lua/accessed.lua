-- Entries of the access log after a number. Args: number, limit. Answers the newest number, the newest that was trimmed away, entries.
local seen = redis.call('HMGET', base .. ':access', 'last', 'floor')
local rows = redis.call('ZRANGEBYSCORE', base .. ':access-log', '(' .. ARGV[2], '+inf', 'LIMIT', 0, tonumber(ARGV[3]))
return {seen[1] or '0', seen[2] or '0', rows}

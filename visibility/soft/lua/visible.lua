-- Args: type, limit. Answers the count of visible keys, then the keys themselves if they are at most `limit`.
local index, limit = base .. ':visible:' .. ARGV[2], tonumber(ARGV[3])
local count = redis.call('ZCOUNT', index, '(' .. now, '+inf')
if count > limit then return {count} end
local keys = redis.call('ZRANGEBYSCORE', index, '(' .. now, '+inf')
table.insert(keys, 1, count)
return keys

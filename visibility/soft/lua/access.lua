-- Append to the log of what people may not see any more; it outlives a lost hint. Args: keep ms, entry. Answers the entry's number.
local number = tick()
local log, last = base .. ':access-log', base .. ':access'
local keep = tonumber(ARGV[2])
redis.call('ZADD', log, number, number .. ARGV[3])
-- As text: joined to a string, a Lua number of 16 digits is rounded.
local old = '(' .. text(now_us - keep * 1000)
local gone = redis.call('ZREVRANGEBYSCORE', log, old, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if gone[2] then
  redis.call('ZREMRANGEBYSCORE', log, '-inf', old)
  redis.call('HSET', last, 'floor', text(tonumber(gone[2])))
end
redis.call('HSET', last, 'last', number)
redis.call('PEXPIRE', log, KEEP)
redis.call('PEXPIRE', last, KEEP)
return number

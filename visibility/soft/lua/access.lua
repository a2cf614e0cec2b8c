-- Append to the log of what people may not see any more; it outlives a lost hint. Args: keep ms, entry. Answers the entry's number.
local number = tick()
local log = base .. ':access-log'
local keep = tonumber(ARGV[2])
redis.call('ZADD', log, number, number .. ARGV[3])
-- As text: joined to a string, a Lua number of 16 digits is rounded.
local old = '(' .. text(now_us - keep * 1000)
local gone = redis.call('ZREVRANGEBYSCORE', log, old, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if gone[2] then
  redis.call('ZREMRANGEBYSCORE', log, '-inf', old)
  redis.call('SET', base .. ':access-floor', text(tonumber(gone[2])), 'PX', ARGV[1])
end
redis.call('SET', base .. ':access', number, 'PX', ARGV[1])
redis.call('PEXPIRE', log, ARGV[1])
return number

-- Forget snapshots and end the claims on them, so that no build in flight stores an older one. Args: lane, res….
local lane = ARGV[2]
for i = 3, #ARGV do
  local res = ARGV[i]
  local state = base .. ':state:' .. res
  local owner = redis.call('HGET', state, 'owner')
  redis.call('DEL', base .. ':snap:' .. res, base .. ':fresh:' .. res)
  redis.call('HSET', state, 'gen', tick())
  redis.call('HDEL', state, 'owner')
  redis.call('PEXPIRE', state, ARGV[1])
  redis.call('ZREM', base .. ':claimed:' .. lane, res)
  if owner then baton(res, owner) end
end
return #ARGV - 2
